"""The link over the network: who may, what is refused, and what a death between two messages leaves."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import types

import numpy as np
import pyarrow
import pytest
from pyarrow import flight

from rl_jax.flow import payload, streams
from rl_jax.flow.flight import FlightTrainer, check_token
from rl_jax.flow.flight_sampler import FlightSampler
from rl_jax.flow.protocol import Group
from rl_jax.flow.shards import Cut, Piece
from rl_jax.runs.disk import InUseError
from tests.paths import REPO_ROOT

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = FlightTrainer(tmp_path_factory.mktemp("link"), token=TOKEN, max_group=4096)
    trainer.resume(0)
    trainer.publish(3, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    yield trainer
    trainer.close()


def sampler_of(trainer, token=TOKEN):
    return FlightSampler(trainer.address, token=token, call_s=60)


def quiet_port():
    """A free port below those that the system hands out: nobody takes it while a trainer is away."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return probe.getsockname()[1]


def group(number, rows=1):
    return Group(number, 0, pyarrow.table({"value": list(range(rows))}))


def options(token=TOKEN):
    return flight.FlightCallOptions(timeout=60, headers=[(b"authorization", f"Bearer {token}".encode())])


def put(trainer, head, batches):
    """A put by hand; returns the answer."""
    client = flight.FlightClient(trainer.address)
    writer, reader = client.do_put(flight.FlightDescriptor.for_path(b"group"), streams.schema(head), options())
    for batch in batches:
        writer.write_batch(batch)
    writer.done_writing()
    answer = reader.read()
    writer.close()
    return answer and answer.to_pybytes()


def content(number):
    flat = {"group": np.frombuffer(payload.to_bytes(group(number)), np.uint8)}
    return streams.header(flat), list(streams.pieces(flat, piece=100))


def test_a_wrong_token_is_refused(trainer):
    for call in (
        lambda s: s.newest(),
        lambda s: s.put([group(0)]),
        lambda s: s.say("end", True),
        lambda s: s.known([0]),
    ):
        with pytest.raises(PermissionError, match="refuses the token"):
            call(sampler_of(trainer, "another-token-of-16"))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(flight.FlightClient(trainer.address).do_action(flight.Action("room", b"")))


@pytest.mark.parametrize("token", ["", "short", "with a space in it all", "not-ascii-é-not-ascii"])
def test_a_token_is_a_secret(token, tmp_path):
    with pytest.raises(ValueError, match="at least 16"):
        check_token(token)
    with pytest.raises(ValueError, match="at least 16"):
        FlightTrainer(tmp_path, token=token)


def test_others_may_not_listen_by_accident(tmp_path, trainer):
    assert trainer.address.startswith("grpc://127.0.0.1:")
    with pytest.raises(ValueError, match="without TLS"):
        FlightTrainer(tmp_path, token=TOKEN, host="0.0.0.0")


def test_a_second_trainer_is_refused(tmp_path, trainer):
    port = int(trainer.address.rsplit(":", 1)[1])
    with pytest.raises(OSError, match="another trainer may have it"):
        FlightTrainer(tmp_path, token=TOKEN, port=port)
    program = "import sys; from rl_jax.flow.folder import Folder; Folder(sys.argv[1], role='trainer')"
    done = subprocess.run(
        [sys.executable, "-c", program, str(trainer._store.folder)], cwd=REPO_ROOT, capture_output=True, text=True
    )
    assert InUseError.__name__ in done.stderr and f"process {os.getpid()}" in done.stderr


def test_nobody_trains_over_the_network(trainer):
    """The actions that exist are a sampler's."""
    client = flight.FlightClient(trainer.address)
    for name in ("publish", "take", "acknowledge", "settle", "resume", "close", "__class__"):
        with pytest.raises(pyarrow.ArrowException, match="no action"):
            list(client.do_action(flight.Action(name, b"{}"), options()))


def test_truncated_and_damaged_groups_are_refused(trainer):
    """A client that dies within a stream looks like one that has ended it: the header says what must arrive."""
    head, batches = content(50)
    assert len(batches) > 3
    wrong = {
        "truncated": (head, batches[:-1]),
        "nothing": (head, []),
        "twice": (head, [*batches, batches[-1]]),
        "out of order": (head, [*batches[1:], batches[0]]),
        "damaged": ({**head, "crc32": head["crc32"] + 1}, batches),
        "no header": ({}, batches),
        "too many bytes": ({**head, "leaves": [["group", "uint8", [5000]]]}, batches),
        "negative": ({**head, "leaves": [["group", "uint8", [-1]]]}, batches),
        "objects": ({**head, "leaves": [["group", "object", [3]]]}, batches),
        "weights": ({**head, "leaves": [["w", "uint8", head["leaves"][0][2]]]}, batches),
    }
    for name, (bad, sent) in wrong.items():
        with pytest.raises((pyarrow.ArrowException, flight.FlightError)):
            assert put(trainer, bad, sent) is None, name
            raise flight.FlightServerError("closed without an answer")
    assert trainer.waiting() == [] and put(trainer, head, batches) == b"stored"
    assert trainer.take(1) == [group(50)]


@pytest.mark.parametrize(("number", "finished"), [(-1, 0), (0, -1), (10**12, 0), (0, 10**12), (True, 0)])
def test_numbers_that_are_no_file_names_are_refused(trainer, number, finished):
    """finished=-1 was stored as -00000000001-000000000000.arrow, which no trainer could read again."""
    with pytest.raises(RuntimeError, match="truncated or not a group"):
        sampler_of(trainer).put([Group(number, finished, pyarrow.table({"value": [1]}))])
    assert trainer.waiting() == []


def test_no_group_is_made_of_garbage(trainer):
    rng = np.random.default_rng(0)
    good = np.frombuffer(payload.to_bytes(group(60)), np.uint8)
    for _ in range(20):
        bad = good.copy()
        bad[rng.integers(0, len(bad), 40)] = rng.integers(0, 256, 40)
        for flat in ({"group": bad}, {"group": good[: rng.integers(0, len(good))]}):
            try:
                found = payload.from_bytes(flat["group"].tobytes(), "x")
            except ValueError:
                continue
            assert found.table.num_rows < 1000  # bytes of values may differ, and are values
    with pytest.raises(pyarrow.ArrowException, match="truncated or not a group"):
        put(trainer, streams.header({"group": good[:-9]}), streams.pieces({"group": good[:-9]}))


def test_garbage_on_the_port_disturbs_nobody(trainer):
    port = int(trainer.address.rsplit(":", 1)[1])
    for garbage in (b"\0" * 1000, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(garbage)
    client = flight.FlightClient(trainer.address)
    for name, body in (("say", b"["), ("say", b"[]"), ("newest", b'{"x": 1}'), ("hear", b'{"name": "../../x"}')):
        with pytest.raises(pyarrow.ArrowException):
            list(client.do_action(flight.Action(name, body), options()))
    for ticket in (b"", b"[", b'{"version": "x"}', b'{"version": 9}'):
        with pytest.raises((pyarrow.ArrowException, flight.FlightError)):
            client.do_get(flight.Ticket(ticket), options()).read_all()
    assert sampler_of(trainer).newest()[0] == 3


def test_weights_that_did_not_arrive_whole_are_refused():
    flat = {"a": np.arange(100, dtype=np.float32), "none": np.zeros((0, 3), np.int8), "b": np.float64(2).reshape(())}
    head, batches = streams.header(flat, version=1), list(streams.pieces(flat, piece=64))
    stream = type("Stream", (list,), {"schema": streams.schema(head)})
    items = [types.SimpleNamespace(data=batch) for batch in batches]
    got, found = streams.read(stream(items))
    assert got["version"] == 1 and all(np.array_equal(found[name], flat[name]) for name in flat)
    for wrong in (items[:-1], items[1:], items + items[:1], items[:3] + items[4:]):
        with pytest.raises(ValueError, match="truncated or damaged|out of order"):
            streams.read(stream(wrong))


def test_without_a_trainer_a_sampler_goes_on_and_knows(tmp_path):
    port = quiet_port()
    trainer = FlightTrainer(tmp_path, token=TOKEN, port=port)
    trainer.resume(0)
    sampler = sampler_of(trainer)
    trainer.publish(0, {"w": np.ones(2, np.float32)})
    assert sampler.put([group(0)]) and sampler.lost_s() == 0
    trainer.close()
    assert sampler.newest() is None and not sampler.put([group(1)]) and sampler.lost_s() > 0
    assert sampler.say("beat", 1) is False
    with pytest.raises(ConnectionError, match="no trainer answers"):
        sampler.known([0])
    again = FlightTrainer(tmp_path, token=TOKEN, port=port)
    again.resume(0)
    again.publish(0, {"w": np.ones(2, np.float32)})
    assert sampler.put([group(0), group(1)], timeout_s=60) and sampler.lost_s() == 0
    assert [number for _, number in again.waiting()] == [0, 1]
    again.close()


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in pieces"])
def test_a_trainer_that_comes_back_has_the_weights_of_before(tmp_path, is_cut):
    """A sampler whose newest state is of the version before asks for that; only the newest is published anew."""
    value = {v: np.full((4, 2), v, np.float32) for v in range(4)}
    pieces = {v: [Piece((0, 0), w[:3], 0), Piece((3, 0), w[3:], 1)] for v, w in value.items()}
    params = {v: {"a": {"w": Cut((4, 2), "float32", pieces[v]) if is_cut else w}} for v, w in value.items()}
    trainer = FlightTrainer(tmp_path, token=TOKEN)
    trainer.resume(0)
    for version in range(4):
        trainer.publish(version, params[version])
    trainer.close()
    again = FlightTrainer(tmp_path, token=TOKEN)
    sampler = sampler_of(again)
    again.resume(3)
    assert sampler.newest()[0] == 3
    again.publish(3, params[3])
    for version in (2, 3):
        assert np.array_equal(sampler.weights(version)["a"]["w"], value[version])
        (found,) = sampler.slices(version).read([("a/w", (1, 0), (4, 1))])
        assert np.array_equal(found, value[version][1:, :1])
    with pytest.raises(LookupError, match="version 1 are gone"):
        sampler.weights(1)
    again.resume(2)
    assert sampler.newest()[0] == 2 and sampler.weights(3) is None
    again.close()


def test_weights_that_go_while_they_are_asked_for(tmp_path, monkeypatch):
    """Between two requests a trainer may go back, or publish as many versions as it keeps: a sampler looks again."""
    trainer = FlightTrainer(tmp_path, token=TOKEN)
    trainer.resume(0)
    sampler, whole = sampler_of(trainer), [("w", (0,), (2,))]

    def publish(*versions):
        for version in versions:
            trainer.publish(version, {"w": np.full(2, version, np.float32)})

    def meanwhile(action, do):
        """`do` comes after the next request of this action."""
        ask, left = FlightSampler._ask, [do]

        def asked(self, name, *args, **words):
            found = ask(self, name, *args, **words)
            if name == action and left:
                left.pop()()
            return found

        monkeypatch.setattr(FlightSampler, "_ask", asked)

    publish(4, 5)
    slices = sampler.slices(5)
    trainer.resume(4)
    with pytest.raises(FileNotFoundError, match="version 5 are gone"):
        slices.read(whole)
    publish(5)
    assert (slices.read(whole)[0] == 5).all()
    publish(6, 7)
    with pytest.raises(FileNotFoundError, match="version 5 are gone"):
        slices.read(whole)
    meanwhile("newest", lambda: publish(8, 9))
    version, found = sampler.newest(timeout_s=60)
    assert version == 9 and (found["w"] == 9).all()
    meanwhile("find", lambda: publish(10, 11))
    with pytest.raises(LookupError, match="version 9 are gone"):
        sampler.weights(9, timeout_s=60)
    meanwhile("find", lambda: publish(12, 13))
    with pytest.raises(LookupError, match="version 11 are gone"):
        sampler.slices(11, timeout_s=60)
    trainer.close()


def test_the_last_word_is_heard(tmp_path, monkeypatch):
    """A trainer that says its end and closes stays until a sampler has heard it."""
    monkeypatch.setattr("rl_jax.flow.flight.LINGER_S", 600.0)
    trainer = FlightTrainer(tmp_path, token=TOKEN)
    sampler = sampler_of(trainer)
    trainer.say("end", "now")
    closing = threading.Thread(target=trainer.close)
    closing.start()
    assert sampler.hear("other") is None and sampler.hear("end") == "now"
    closing.join()


def test_the_last_word_is_heard_by_all(tmp_path, monkeypatch):
    """By each sampler that was there, however often one of them asks."""
    monkeypatch.setattr("rl_jax.flow.flight.LINGER_S", 600.0)
    trainer = FlightTrainer(tmp_path, token=TOKEN)
    samplers = [sampler_of(trainer) for _ in range(3)]
    for sampler in samplers:
        sampler.hear("end")
    trainer.say("end", "now")
    closing = threading.Thread(target=trainer.close)
    closing.start()
    for sampler in samplers[:-1]:
        assert sampler.hear("end") == sampler.hear("end") == "now"
        closing.join(0.05)  # time for what must not happen
        assert closing.is_alive()
    assert samplers[-1].hear("end") == "now"
    closing.join(60)
    assert not closing.is_alive()


def test_tls(tmp_path):
    names = {name: str(tmp_path / name) for name in ("key", "cert")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", names["key"], "-out", names["cert"]]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not here")
    cert, key = ((tmp_path / name).read_bytes() for name in ("cert", "key"))
    trainer = FlightTrainer(tmp_path / "link", token=TOKEN, host="localhost", tls=(cert, key))
    sampler = FlightSampler(trainer.address, token=TOKEN, tls_root=cert, call_s=60)
    sampler.say("beat", 1)
    assert trainer.address.startswith("grpc+tls://") and trainer.hear("beat") == 1
    stranger = FlightSampler(trainer.address, token=TOKEN, call_s=60)
    assert stranger.newest() is None and stranger.lost_s() > 0  # the certificate is not of its own authorities
    trainer.close()


SERVER = """
import os, signal, sys
from tests.flow.test_folder import GROUPS, Trainer
from rl_jax.flow import files, folder
from rl_jax.flow.flight import FlightTrainer
import tests.flow.test_folder as shared
from pathlib import Path
port, place, at = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
shared.Folder = lambda path, role: FlightTrainer(path, token="a-token-of-this-test", port=port)
calls, real = [0], files.rename
def rename(*args):
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
files.rename = rename
trainer = Trainer(place)
print(trainer.link.address, flush=True)
while not trainer.has_ended():
    trainer.turn()
trainer.link.close()
"""


@pytest.mark.slow
def test_a_trainer_killed_with_9_loses_nothing(tmp_path):
    """It dies while it stores a group, after that, and between entering a step and saving it; the sampler retries."""
    from tests.flow.test_folder import GROUPS

    port, sampler, number = quiet_port(), None, 0
    for at in (5, 13, 0):
        command = [sys.executable, "-c", SERVER, str(port), str(tmp_path), str(at)]
        with subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True) as process:
            address = process.stdout.readline().strip()
            sampler = sampler or FlightSampler(address, token=TOKEN, call_s=60)
            while number < GROUPS and process.poll() is None:
                one = Group(number, number // 3, pyarrow.table({"value": [number * 0.1]}))
                number += sampler.put([one], timeout_s=0.2)
            process.wait(timeout=120)
        assert process.returncode == (-signal.SIGKILL if at else 0)
    used = json.loads((tmp_path / "checkpoint.json").read_text())["used"]
    assert sorted(used) == [[number, number * 0.1] for number in range(GROUPS)]
