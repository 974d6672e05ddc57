"""rollout/lm/client.py against sockets that attack: bytes without end, drips, redirects. The clock is ours."""

import io
import itertools
import json
import types

import numpy as np
import pytest

from rl_jax.rollout.lm import client, external
from rl_jax.rollout.lm.requests import requests_of

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Clock:
    """time.monotonic of the client; every read of a fake socket takes a second."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class FakeSocket:
    """A server's answer in pieces; each read takes the next piece, and a second."""

    def __init__(self, clock, pieces):
        self.clock, self.pieces, self.received, self.sent, self.closed = clock, iter(pieces), 0, b"", False

    def sendall(self, data):
        self.sent += data

    def settimeout(self, seconds):
        assert seconds > 0
        self.seconds = getattr(self, "seconds", seconds)  # the first, before anything is sent

    def shutdown(self, how):
        pass

    def close(self):
        pass

    def makefile(self, mode, buffering):
        assert (mode, buffering) == ("rb", 0)
        sock = self

        class File(io.RawIOBase):
            left = b""

            def readable(self):
                return True

            def readinto(self, buffer):
                sock.clock.now += 1
                self.left = self.left or next(sock.pieces, b"")
                part, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
                buffer[: len(part)] = part
                sock.received += len(part)
                return len(part)

            def close(self):
                sock.closed = True
                super().close()

        return File()


@pytest.fixture
def ask(monkeypatch):
    """ask(pieces) -> (socket, result or error) of one request whose limit is 100 s."""
    clock = Clock()
    # time.sleep is not needed: no test here retries.
    monkeypatch.setattr(client, "time", types.SimpleNamespace(monotonic=clock.monotonic))

    def ask(pieces, max_bytes=1000):
        sock = FakeSocket(clock, pieces)
        made = client.Client("http://server:1", timeout_s=100.0, retries=0)

        class Connection(client.http.client.HTTPConnection):
            def connect(self):
                self.sock = sock

        made._connection = Connection
        try:
            return sock, made.post_all([{"prompt": [1]}], max_bytes and [max_bytes])[0]
        except (RuntimeError, OSError) as error:
            return sock, error

    return ask


def test_an_answer_in_pieces_is_read(ask):
    sock, found = ask([OK[:9], OK[9:], b"Content-Length: 7\r\n\r\n{", b'"a":1', b"}"])
    assert found == {"a": 1} and sock.closed
    assert ask([OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n", b"2\r\n2]\r\n0\r\n\r\n"])[1] == [1, 2]
    assert ask([OK + b"Connection: close\r\n\r\n[3]"])[1] == [3]
    sock, found = ask([OK + b"Connection: close\r\n\r\n[3]"], max_bytes=None)  # MAX_BODY then
    assert found == [3] and sock.seconds == 100.0


ENDLESS = {
    "body": itertools.chain([OK + b"\r\n"], itertools.repeat(b"x" * 4096)),
    "chunks": itertools.chain(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(b"400\r\n" + b"x" * 1024 + b"\r\n")
    ),
    "said length": [OK + b"Content-Length: 926000000\r\n\r\n"],
    "trailers": itertools.chain([OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], itertools.repeat(b"x: y\r\n" * 99)),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_body_without_end_is_refused_after_its_limit(ask, case):
    sock, error = ask(ENDLESS[case], max_bytes=20_000)
    assert type(error) is RuntimeError and sock.closed and sock.received <= 20_000 + 2**14
    assert str(error).startswith("http://server:1/v1/completions: its body ") and "20000" in str(error)


def test_headers_without_end_are_refused(ask):
    sock, error = ask(itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000))
    assert type(error) is RuntimeError and "status line and headers are over" in str(error)
    assert sock.received <= client.MAX_HEAD + 1 and "are over 262144 bytes" in str(error)


@pytest.mark.parametrize("begin", [b"", OK, OK + b"\r\n"], ids=["status", "headers", "body"])
def test_what_drips_ends_at_the_deadline(ask, begin):
    """A byte a second: no single read is slow, and the whole ends after its 100 s."""
    drips = itertools.chain([begin] if begin else [], itertools.repeat(b"H"))
    sock, error = ask(drips)
    assert type(error) is TimeoutError and "no full answer within timeout_s=100" in str(error)
    assert sock.received <= len(begin) + 101 and sock.closed


def test_a_redirect_is_refused(ask):
    _, error = ask(
        [b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other:2/v1/completions\r\nContent-Length: 0\r\n\r\n"]
    )
    assert type(error) is RuntimeError and "http://server:1/v1/completions: HTTP 307" in str(error)


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad"])
def test_deep_json_is_an_error_with_the_address(ask, status):
    body = b"[" * 200_000
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    _, error = ask([head, body], max_bytes=300_000)
    assert type(error) is RuntimeError and str(error).startswith("http://server:1/v1/completions: ")


def test_a_server_s_message_moves_no_cursor(ask):
    body = json.dumps({"message": "\x1b[2J gone \u202e"}, ensure_ascii=False).encode()
    _, error = ask([b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % len(body), body])
    assert r"\x1b[2J gone \u202e" in str(error)


@pytest.mark.parametrize(
    ("status", "waits"), [(200, []), (404, []), (429, [0.5, 1.0, 2.0]), (500, [0.5, 1.0, 2.0]), (503, [0.5, 1.0, 2.0])]
)
def test_what_may_pass_is_tried_again_after_longer_and_longer_waits(monkeypatch, status, waits):
    made, waited, tried = client.Client("http://server:1", timeout_s=9.0, retries=3), [], []
    monkeypatch.setattr(made, "_exchange", lambda *given: tried.append(given[2:]) or (status, b'{"a": 1}'))
    live = types.SimpleNamespace(closed=types.SimpleNamespace(wait=waited.append))
    if status == 200:
        assert made._post(b"", live, "/path") == {"a": 1}
    else:
        with pytest.raises(RuntimeError, match=rf"/path: HTTP {status}: .*attempt {len(waits) + 1}\)"):
            made._post(b"", live, "/path")
    assert waited == waits and tried == [("/path", 1 << 20)] * (len(waits) + 1)


def test_an_answer_that_says_that_it_is_as_long_as_it_may_be_is_read(ask):
    for length, said in ((1000, "IncompleteRead"), (1001, "its body has 1001 bytes, over 1000")):
        assert said in str(ask([OK + b"Content-Length: %d\r\n\r\n{" % length])[1])


@pytest.mark.parametrize("value", [-1e300, 10**400, -(10**400), float("nan"), float("inf"), -1e5, True, "-1"], ids=str)
def test_log_probs_that_are_none(value):
    request = external.Request(0, external.np.array([1]), 2)
    choice = {"index": 0, "finish_reason": "length", "token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0, value]}}
    with pytest.raises(ValueError, match=r"choices\[0\].logprobs.token_logprobs\[1\] is .*not a log-prob"):
        external.read_answer({"choices": [choice]}, [request], vocab_size=9, eos_ids=(5,))


def test_ids_are_read_only_if_all_are_ids():
    assert external._ids(["token_id:7", "token_id:12"]) == [7, 12]
    for bad in (
        ["token_id:7", "8"],
        ["a", "token_id:7"],
        ["token_id:7", 8],
        ["token_id:7", "token_id:x"],
        "token_id:7",
    ):
        assert external._ids(bad) is None, bad


def test_weights_are_sent_again_if_any_of_them_has_changed():
    leaves, given = [np.zeros(1), np.ones(1)], []
    own = types.SimpleNamespace(
        _sync=given.append, _client=types.SimpleNamespace(address="http://nowhere:1"), _has_synced=False
    )
    other = [leaves[0], np.ones(1)]
    for params, calls in ((leaves, 1), (leaves, 1), (other, 2), (other, 2), (leaves, 3)):
        external.OpenAIGenerate._hand_over(own, params)
        assert len(given) == calls and given[-1] is params
    assert external.OpenAIGenerate._cache_size(types.SimpleNamespace(_score=None)) == 0


def test_a_new_sampler_gives_its_server_the_weights_first():
    """The server may be a new one at an old address."""
    given, leaves = [], [np.zeros(1)]
    for calls in (1, 2):
        options = dict(vocab_size=9, completion_length=2, eos_ids=(5,), sync=given.append)
        sampler = external.OpenAIGenerate("http://nowhere:2", **options)
        for _ in range(2):
            sampler._hand_over(leaves)
            assert len(given) == calls
    fields = sampler._body([external.Request(3, np.array([1, 2]), 7)], 40)
    assert fields["prompt"] == [1, 2] and (fields["n"], fields["max_tokens"], fields["seed"]) == (1, 7, 40)
    assert fields["stop_token_ids"] == [5] and fields["ignore_eos"] and fields["logprobs"] == 1
    assert fields["return_token_ids"] and fields["return_tokens_as_token_ids"] and not fields["skip_special_tokens"]
    assert "stop" not in fields and "model" not in fields


@pytest.mark.parametrize("value", [5e-4, 2e-3, 0.5, -2e4, float("nan")])
def test_a_log_prob_is_at_most_a_rounding_above_zero(value):
    choice = {"logprobs": {"token_logprobs": [value], "tokens": ["token_id:7"]}, "finish_reason": "stop"}
    request = requests_of(np.array([[3]], np.int32), np.array([[True]]), group_size=1, max_tokens=2)[0]
    if value == 5e-4:
        found = external._completion(choice, request, 0, 8, (7,), ())
        assert found.tokens.tolist() == [7] and found.reason == "eos"
        return
    with pytest.raises(ValueError, match="which is not a log-prob"):
        external._completion(choice, request, 0, 8, (7,), ())
