"""Two processes of experiments.grpo_async: what they refuse, and whose end they hear. No model, no sampling."""

import concurrent.futures
import contextlib
import shutil
import subprocess
import types

import jax.numpy as jnp
import numpy as np
import pytest

from configs import grpo_async as async_config
from configs.control import asynchronous as control_config
from experiments import grpo_async
from experiments.parts import async_beats, async_groups, async_links, async_roles, control_learner, control_roles
from experiments.parts.async_beats import Ended, Waiting
from experiments.parts.async_groups import GroupRows
from experiments.parts.async_links import Secrets, make_link, make_server
from experiments.parts.async_roles import Sampler, Trainer, pack
from experiments.parts.stops import STOPPED
from rl_jax.flow.local import Local
from rl_jax.flow.requests import answer_requests
from rl_jax.rollout.lm.requests import Request
from rl_jax.runs import disk


def setup_of(**flow):
    """What the two sides read of a Setup."""
    config = async_config.get_config("smoke")
    config.flow.update(flow)
    return types.SimpleNamespace(config=config)


class Link:
    """A link that a test tells what to say."""

    def __init__(self, end=None, *, lost=False, groups=()):
        self.end, self.lost, self.groups = end, lost, list(groups)

    def hear(self, name):
        return None if self.lost else self.end

    def lost_s(self):
        return 1.0 if self.lost else 0.0

    def take(self, n, timeout_s=0.0):
        return self.groups[:n]

    def close(self):
        pass


def test_an_end_of_before_ends_nobody():
    """Of a trainer that could not be asked when this side began: its old word is not a new end."""
    link = Link("before", lost=True)
    waiting = Waiting(link, 60.0)
    waiting.check()
    link.lost = False
    waiting.check(), waiting.check()
    link.end = "now"
    with pytest.raises(Ended):
        waiting.check()


@pytest.mark.parametrize("address", ["", "grpc://127.0.0.1:0"])
def test_a_trainer_that_comes_back_has_not_ended(tmp_path, monkeypatch, address):
    """A sampler over the network that did not hear the end would else end when the trainer is there again."""
    monkeypatch.setattr("rl_jax.flow.flight.LINGER_S", 0.0)
    link = make_link("trainer", tmp_path, address, Secrets("a-token-of-this-test" if address else None))
    link.say("end", "now")
    link.close()
    link = make_link("trainer", tmp_path, "")
    assert link.hear("end") is None
    link.close()


@pytest.mark.parametrize("before", [None, "before"])
def test_an_end_ends_who_waits(before):
    link = Link(before)
    waiting = Waiting(link, 60.0)
    waiting.check()
    link.lost = True
    waiting.check()
    link.lost, link.end = False, "now"
    with pytest.raises(Ended):
        waiting.check()


def linked(kind, link, folder):
    """The trainer's side of a run of two, in its `with`."""
    if kind == "grpo":
        return Trainer(setup_of(), None, link, folder)
    source = control_roles.LinkedSegments(control_config.get_config("smoke"), link, folder)
    return control_learner.Feed(source, 1).begun(0, np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("kind", ["grpo", "control"])
@pytest.mark.parametrize(
    ("error", "ends"), [(OSError, False), (None, True), (SystemExit, True), (KeyboardInterrupt, True)]
)
def test_after_an_error_of_the_trainer_the_others_wait_for_the_next_one(tmp_path, kind, error, ends):
    """They exit with 75 at its end, and nobody starts those again: `sweep.roles --retries` could not work."""
    link = Local()
    waiting = Waiting(link, 60.0)
    with contextlib.suppress(error or ()), linked(kind, link, tmp_path):
        if error:
            raise error("a full disk")
    assert (link.hear("end") is not None) == ends
    with pytest.raises(Ended) if ends else contextlib.nullcontext():
        waiting.check()
    with linked(kind, link, tmp_path):  # the next one, which reaches the end
        pass
    with pytest.raises(Ended):
        waiting.check()


class Stop:
    """A StopSignal that has been received or not."""

    def __init__(self, received):
        self.received = received


def test_a_stopped_sampler_gives_up_what_it_waits_for_but_not_the_batch_of_all(tmp_path):
    """SIGTERM to both sides: the trainer may need the batch; it does not need a sampler that waits for weights."""
    stop, asked = Stop(False), []
    side = Sampler(setup_of(timeout_s=5.0), Link(), tmp_path, stop=stop)
    waiting = side._wait

    def look():  # the signal comes while the trainer trains
        asked.append(None)
        stop.received = len(asked) > 2
        return len(asked) > 5

    with pytest.raises(Ended):
        waiting(look, "weights")
    assert side.stopping() and len(asked) == 3
    assert waiting.together(look, "the others' words", "sampler") and len(asked) == 6
    side.close()


def test_a_stopped_sampler_gives_up_a_batch_that_another_has_not_begun():
    """SIGTERM to all under one clock: that one ended before the batch; without it the others would wait timeout_s."""
    link, stop, clock = Local(), Stop(False), [0.0]
    waiting = Waiting(link, 1e9, stop, ["sampler_0", "sampler_1", "sampler_2"], lambda: clock[0])

    def look():
        clock[0] += 1.0
        for index, last in ((1, 140), (2, 1000)):
            if clock[0] <= last:
                link.say(async_beats.word_of(f"sampler_{index}"), ["a", clock[0]])
        stop.received = clock[0] > 10
        return clock[0] >= 100

    assert waiting.together(look, "decode call 3 of sampler 2", "sampler_2"), "it is there, and its call takes long"
    with pytest.raises(Ended):
        waiting.together(lambda: look() and None, "decode call 4 of sampler 1", "sampler_1")
    assert clock[0] == 141 + async_beats.SILENT_S


def test_a_stopped_trainer_ends_where_its_samplers_are_gone(tmp_path, capsys):
    """Without them its step has no end, and so no save: as after a kill, the newest checkpoint counts."""
    stop, clock = Stop(False), [0.0]
    watch = async_beats.Watch(Link("a word"), ["sampler"], clock=lambda: clock[0])
    ended = watch.give_up(stop)
    clock[0] = 1000.0
    ended()  # nobody asked it to stop
    stop.received = True
    ended()  # heard now, for the first time
    clock[0] += async_beats.SILENT_S - 1
    ended()
    clock[0] += 2
    with pytest.raises(SystemExit) as end:
        ended()
    assert end.value.code == STOPPED and "sampler, who are gone" in capsys.readouterr().err


@pytest.mark.parametrize("together", [False, True])
def test_a_side_that_began_first_hears_the_end(together):
    """What it waited for came at once, so that it never looked for an end while there was none."""
    link = Link(lost=True)
    waiting = Waiting(link, 60.0)
    link.lost = False
    found = waiting.together(lambda: 1, "words", "sampler") if together else waiting(lambda: 1, "weights")
    assert found == 1
    link.end = "now"
    with pytest.raises(Ended):
        waiting.check()


def test_a_sampler_has_its_folder_for_itself(tmp_path):
    side = Sampler(setup_of(), Link(), tmp_path / "sampler")
    assert (tmp_path / "sampler").absolute() in disk._held
    side.close()
    assert (tmp_path / "sampler").absolute() not in disk._held


@pytest.mark.parametrize("make", [lambda setup: Sampler(setup, Link(), None), lambda setup: Trainer(setup, None, 0, 0)])
def test_caches_are_not_kept_by_two(make):
    """A sampler saves every version, which computes caches anew: `keep` would silently be `interrupt`."""
    with pytest.raises(ValueError, match="flow.in_flight='keep': a sampler that can be killed"):
        make(setup_of(in_flight="keep"))


def test_another_config_of_the_sampler_is_named(tmp_path):
    def trainer_of(setup):
        group, said = (
            GroupRows(0, {"id": "a"}, 0),
            {"step": 1, "metrics": {}, "config": async_roles.shared(setup.config)},
        )
        return Trainer(setup_of(), None, Link(groups=[pack(group, 0, said)] * 64), tmp_path)

    whole = setup_of().config.sample.prompts_per_step
    assert len(next(trainer_of(setup_of(timeout_s=3.0, measure=False)).parts())) == whole
    other = setup_of()
    other.config.rollout.devices = "4-7"
    next(trainer_of(other).parts())  # a side has its own devices
    other = setup_of(eta=8)
    other.config.rollout.temperature = 0.5
    with pytest.raises(ValueError, match=r"\(2 fields differ: flow.eta=2 here, 8 there; rollout.temperature=1.0 here"):
        next(trainer_of(other).parts())


def test_numbers_that_a_sampler_dropped_reach_the_ledger(tmp_path):
    link, setup = Local(), setup_of(measure=False)
    size = setup.config.sample.prompts_per_step
    flow = types.SimpleNamespace(
        rule=types.SimpleNamespace(batch=size),
        counters=types.SimpleNamespace(version=0),
        order=list(range(2, size + 2)),
        dropped=[0, 1],
        metrics=dict,
    )
    sampler = Sampler(setup, link, tmp_path / "sampler")
    sampler.put(flow, [GroupRows(number, {"id": "a"}, 0) for number in flow.order])
    with Trainer(setup, None, link, tmp_path) as trainer:
        next(trainer.parts())
        trainer.publish(1, {"w": jnp.ones(1)})
        link.settle(1)
    assert (link._ledger.done.below, link._ledger.done.others) == (size + 2, set())
    sampler.close()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("sample.group_size", 5, "groups of 2 rows, not of sample.group_size=5"),
        ("rollout.completion_length", 2, "a row of 3 tokens, above rollout.completion_length=2"),
    ],
)
def test_rows_in_flight_of_other_sizes_are_refused(field, value, words):
    """A fork may change any field: rows that no longer make a group would never be trained on, or not fit."""
    drawn = [np.arange(3, dtype=np.int32), *np.zeros((2, 3), np.float32)]
    request = Request(0, np.int32([1]), 16)._replace(tokens=drawn[0], versions=drawn[0])
    request = request._replace(sampled_log_probs=drawn[1], raw_log_probs=drawn[2])
    group = GroupRows(0, {"id": "a"}, 2)
    rows = async_groups.to_text([async_groups.trajectory_of(group, sample, request) for sample in range(2)])
    state = {"records": [[0, group.record]], "next_records": [], "rows": rows, "prompts": {}}
    setup = setup_of()
    setup.config.sample.group_size = 2
    setup.config.update_from_flattened_dict({field: value})
    prompts = types.SimpleNamespace(set_state=lambda state: None)
    with pytest.raises(ValueError, match=words):
        async_groups.Groups(setup, None, prompts).set_state(state)
    setup.config.update_from_flattened_dict({"sample.group_size": 2, "rollout.completion_length": 16})
    async_groups.Groups(setup, None, prompts).set_state(state)


TOKEN = Secrets("t" * 16)


@pytest.mark.parametrize(
    ("role", "address", "secrets", "words"),
    [
        ("both", "folder", Secrets(), "one process has no link"),
        ("both", "", TOKEN, "--link_secrets: one process has no link"),
        ("trainer", "", TOKEN, "--link_secrets: a link that is a folder has none"),
        ("sampler", "grpc://127.0.0.1:4000", Secrets(), "give --link_secrets=FOLDER"),
        ("trainer", "grpc+tls://127.0.0.1:4000", TOKEN, "has no cert.pem or no key.pem"),
        ("sampler", "grpc+tls://127.0.0.1:4000", TOKEN._replace(key=b"k"), "key.pem is the trainer's alone"),
        (
            "trainer",
            "grpc://127.0.0.1:4000",
            TOKEN._replace(certificate=b"c"),
            "without TLS, and there is a",
        ),
        ("trainer", "grpc://127.0.0.1", TOKEN, "no port, as in grpc://127.0.0.1:4000"),
        ("trainer", "grpc://0.0.0.0:4000", TOKEN, "without TLS"),
    ],
)
def test_links_that_cannot_be(tmp_path, role, address, secrets, words):
    with pytest.raises(ValueError, match=words):
        make_link(role, tmp_path, address, secrets)


@pytest.mark.parametrize("address", ["", "grpc://127.0.0.1:0"])
def test_a_batch_of_any_size_fits_into_the_link(tmp_path, monkeypatch, address):
    """Else the sampler would wait for room, and the trainer for the rest of the batch. Here 2 in the place of 4096."""
    monkeypatch.setattr(async_links, "MAX_WAITING", 2)
    monkeypatch.setattr("rl_jax.flow.flight.LINGER_S", 0.0)
    setup, secrets = setup_of(), TOKEN if address else Secrets()
    setup.config.sample.prompts_per_step = 5
    options = dict(max_waiting=async_links.room_of(setup.config))
    trainer = make_link("trainer", tmp_path, address, secrets, **options)
    sampler = make_link("sampler", tmp_path, getattr(trainer, "address", ""), secrets, **options)
    groups = [pack(GroupRows(number, {"id": "a"}, 0), number, {}) for number in range(11)]
    trainer.resume(0)
    assert sampler.put(groups[:5]) and sampler.put(groups[:10]) and not sampler.put(groups)
    assert len(trainer.take(5)) == 5
    sampler.close()
    trainer.close()


def test_the_program_gives_its_links_that_room(tmp_path, monkeypatch):
    config, given = setup_of().config, dict(replay=None, link="", link_secrets=None, units="", sampler=0, unit=0)
    config.sample.prompts_per_step = 5000
    flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(role="trainer", **given))
    monkeypatch.setattr(grpo_async, "absl_flags", flags)
    made = []
    monkeypatch.setattr(grpo_async, "make_link", lambda *args, **options: made.append(options))
    monkeypatch.setattr(grpo_async, "run", lambda *args, **options: None)
    grpo_async.main(config, tmp_path)
    assert made == [{"max_waiting": 10_000}]


def test_a_link_with_tls(tmp_path):
    """The files reach both sides; without them there is no link."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "token").write_text("a-token-of-this-test\n")
    given = Secrets.read(str(tmp_path))
    trainer = make_link("trainer", tmp_path, "grpc+tls://localhost:0", given)
    sampler = make_link("sampler", tmp_path, trainer.address, given._replace(key=None))
    trainer.say("word", 1)
    assert trainer.address.startswith("grpc+tls://localhost") and sampler.hear("word") == 1
    sampler.close()
    trainer.close()
    for name in ("cert.pem", "key.pem"):  # a policy worker's own, which its actors check
        (tmp_path / name).rename(tmp_path / f"listen_{name}")
    own = Secrets.read(str(tmp_path), own="listen_")
    assert Secrets.read(str(tmp_path)) == own._replace(certificate=None, key=None)
    server = make_server("grpc+tls://localhost:0", own, lambda words: "")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        options = dict(token=own.token, worker="0", patience_s=60.0, tls_root=own.certificate)
        end = pool.submit(answer_requests, server.address, bytes.upper, **options)
        connection = server.connection("0", 60.0)
        connection.send(b"a")
        assert connection.receive(60.0) == b"A"
        server.close()
        assert end.result() is True
    with pytest.raises(ValueError, match="--link_secrets=.*/none: no file 'token' there"):
        Secrets.read(str(tmp_path / "none"))
    assert Secrets.read(None) == Secrets()


@pytest.mark.parametrize(
    ("address", "secrets", "words"),
    [
        ("runs/x", TOKEN, "give grpc://HOST:PORT or grpc.tls://HOST:PORT"),
        ("grpc://127.0.0.1:4001", Secrets(), "give --link_secrets=FOLDER"),
        ("grpc://127.0.0.1", TOKEN, "--listen=grpc://127.0.0.1: it has no port"),
        ("grpc+tls://127.0.0.1:4001", TOKEN, "has no listen_cert.pem or no listen_key.pem"),
        ("grpc://127.0.0.1:4001", Secrets("t" * 16, b"c", b"k"), "has them: give grpc.tls"),
        ("grpc://0.0.0.0:4001", TOKEN, "without TLS"),
    ],
)
def test_places_to_listen_that_cannot_be(address, secrets, words):
    with pytest.raises(ValueError, match=words):
        make_server(address, secrets, bool)


@pytest.mark.parametrize("role", ["trainer", "sampler"])
def test_a_replay_is_of_one_process(tmp_path, monkeypatch, role):
    given = types.SimpleNamespace(replay="runs/x", role=role, link="", link_secrets=None)
    monkeypatch.setattr(grpo_async, "absl_flags", types.SimpleNamespace(FLAGS=given))
    with pytest.raises(ValueError, match="--replay=runs/x: one process repeats a run"):
        grpo_async.main(None, tmp_path)
