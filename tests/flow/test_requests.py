"""Requests to workers over the network: lost calls, workers that come back or are replaced, and who is refused."""

import contextlib
import threading

import pytest

from rl_jax.flow import requests
from rl_jax.flow.calls import UNREACHABLE
from rl_jax.flow.requests import RequestServer, answer_requests

TOKEN = "a-token-of-this-test"
LIMIT_S = 60.0  # no test waits so long, but for a failure


class Worker(threading.Thread):
    """Answers each request with itself doubled, in a thread. After a join, `said` is its end."""

    def __init__(self, server, name="0", handle=lambda request: request * 2, **options):
        super().__init__(daemon=True)
        self._call = lambda: answer_requests(
            server.address, handle, **{"token": TOKEN, "worker": name, "patience_s": LIMIT_S} | options
        )
        self.said = None
        self.start()

    def run(self):
        try:
            self.said = self._call()
        except Exception as error:
            self.said = error


@contextlib.contextmanager
def serving(**options):
    server = RequestServer(token=TOKEN, **options)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(requests, "LINGER_S", LIMIT_S)  # it ends when all have heard
    monkeypatch.setattr(requests, "HOLD_S", 0.2)


@pytest.mark.parametrize("complete", [True, False])
def test_requests_are_answered_in_order_until_the_end(complete):
    server = RequestServer(token=TOKEN)
    workers = [Worker(server, name) for name in "01"]
    connections = [server.connection(name, LIMIT_S) for name in "01"]
    for connection in connections:
        for request in (b"a", b"", b"c" * 3_000_000):  # above what gRPC takes by itself
            connection.send(request)
    for connection in connections:
        assert [connection.receive(LIMIT_S) for _ in range(3)] == [b"aa", b"", b"c" * 6_000_000]
    with pytest.raises(TimeoutError, match="worker 1 has said nothing for 0.01 s"):
        connections[1].receive(0.01)
    with pytest.raises(TimeoutError, match="worker 2 did not come"):
        server.connection("2", 0.01)
    server.close(complete)
    for worker in workers:
        worker.join(LIMIT_S)
        assert worker.said is complete


def test_a_call_that_is_lost_is_made_again_and_counts_once(monkeypatch):
    """Lost on its way there, and on its way back."""
    calls, handled = [0], []

    class Lossy(requests.flight.FlightClient):
        def do_action(self, action, options):
            calls[0] += 1
            if calls[0] in (2, 5):
                raise UNREACHABLE[0]("lost")
            found = list(super().do_action(action, options))
            if calls[0] in (3, 7):
                raise UNREACHABLE[0]("lost")
            return found

    monkeypatch.setattr(requests.flight, "FlightClient", Lossy)
    monkeypatch.setattr(requests, "_AGAIN_S", 0.0)
    with serving() as server:
        Worker(server, handle=lambda request: handled.append(request) or request.upper())
        connection = server.connection("0", LIMIT_S)
        for request in (b"a", b"b", b"c", b"d"):
            connection.send(request)
        assert [connection.receive(LIMIT_S) for _ in range(4)] == [b"A", b"B", b"C", b"D"]
    assert handled == [b"a", b"b", b"c", b"d"] and calls[0] >= 8


def test_another_worker_takes_the_place_and_the_first_one_ends():
    with serving() as server:
        first, busy = Worker(server), threading.Event()  # one waits for a request, one is busy with one
        server.connection("0", LIMIT_S)
        second = Worker(server, handle=lambda request: busy.wait(LIMIT_S) and request)
        old = server.connection("0", LIMIT_S)
        old.send(b"a")
        Worker(server)
        new = server.connection("0", LIMIT_S)
        with pytest.raises(ConnectionError, match="worker 0 is gone"):
            old.receive(LIMIT_S)
        with pytest.raises(ConnectionError, match="worker 0 is gone"):
            old.send(b"a")
        new.send(b"b")
        assert new.receive(LIMIT_S) == b"bb"
        busy.set()
        for worker in (first, second):
            worker.join(LIMIT_S)
            assert "another worker has come under the same number" in str(worker.said)


def test_a_worker_comes_again_to_who_closes_its_connection_and_to_a_server_that_comes_back():
    server = RequestServer(token=TOKEN)
    worker, port = Worker(server), int(server.address.rpartition(":")[2])
    connection = server.connection("0", LIMIT_S)
    connection.send(b"a")
    assert connection.receive(LIMIT_S) == b"aa"
    connection.close()
    again = server.connection("0", LIMIT_S)
    again.send(b"b")
    assert again.receive(LIMIT_S) == b"bb"
    server._server.shutdown()  # as if it had died: no word to anybody
    with serving(port=port) as fresh:
        connection = fresh.connection("0", LIMIT_S)
        connection.send(b"c")
        assert connection.receive(LIMIT_S) == b"cc"
    worker.join(LIMIT_S)
    assert worker.said is True


def test_who_is_refused():
    with serving(check=lambda words: "" if words == {"seed": 1} else "the seed differs") as server:
        for options, kind, text in (
            ({"token": "another-token-of-it"}, PermissionError, "refuses the token"),
            ({"words": {"seed": 2}}, RuntimeError, "refuses worker 0: the seed differs"),
        ):
            worker = Worker(server, **options)
            worker.join(LIMIT_S)
            assert isinstance(worker.said, kind) and text in str(worker.said)
    with pytest.raises(ConnectionError, match="nobody answers for 0.0 s"):
        answer_requests(server.address, bytes, token=TOKEN, worker="0", patience_s=0.0)
    with pytest.raises(ValueError, match="host '0.0.0.0' without TLS"):
        RequestServer(token=TOKEN, host="0.0.0.0")
    with pytest.raises(ValueError, match="a token of 5 characters"):
        RequestServer(token="short")


def test_a_worker_that_is_to_end_does_so_once_its_server_is_away():
    """SIGTERM to an actor and its policy worker: that one may need it to the end, and does not come back."""
    stopping = threading.Event()
    with serving() as server:
        worker = Worker(server, stopping=stopping.is_set)
        connection = server.connection("0", LIMIT_S)
        stopping.set()
        connection.send(b"a")
        assert connection.receive(LIMIT_S) == b"aa"  # it still answers
    worker.join(LIMIT_S)
    assert not worker.is_alive()
    options = dict(token=TOKEN, worker="0", patience_s=LIMIT_S, stopping=stopping.is_set)
    assert answer_requests(server.address, bytes, **options) is False  # nobody is there
