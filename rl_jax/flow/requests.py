"""Requests to workers that come over the network: an Arrow Flight server on the side that asks. No jax.

    asker                                                      worker
    server = RequestServer(token=...)                          answer_requests(address, handle, token=..., worker="0")
    connection = server.connection("0", timeout_s)    <------    comes
    connection.send(request)                          ------>    answer = handle(request)
    connection.receive(timeout_s)                     <------
    server.close(complete)                            ------>    returns `complete`

    action "work", {"worker", "session", "answered": k, "words"} and the answer to request k  ->  request k + 1

The worker calls and the asker waits for calls, so that only the asker needs an address. A request is kept until it is
answered, and an answer to a request that was answered before is dropped: a call that was lost is made again. A worker
that comes back, or another one in its place, is another connection; what the old one did not answer is the asker's to
ask again. Requests and answers are bytes.
"""

import json
import queue
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow
from pyarrow import flight

from rl_jax.flow.calls import OPTIONS, UNREACHABLE
from rl_jax.flow.flight import LINGER_S, TokenCheck, check_token, checked_address

HOLD_S = 1.0  # that a call waits for a request
CALL_S = 60.0  # for a call, the transfer included
MAX_ANSWER = 256 << 20  # bytes
REPLACED = b"another worker has come under the same number"
_AGAIN_S = 0.1  # between two calls to a server that is away
_LENGTH = struct.Struct("<I")
_NOTHING, _REQUEST, _END, _STOPPED, _AGAIN, _REFUSED = (bytes([kind]) for kind in range(6))


class Connection:
    """A worker that has come. Made by RequestServer.connection.

    Args:
      worker: its name.
    """

    def __init__(self, worker: str):
        self.worker = worker
        self._changed, self._requests, self._answers = threading.Condition(), deque(), queue.SimpleQueue()
        self._answered, self._over = 0, None

    def send(self, request: bytes) -> None:
        """Leaves a request; does not wait. They are answered in order. Raises ConnectionError if the worker is gone."""
        with self._changed:
            self._check()
            self._requests.append(request)
            self._changed.notify_all()

    def receive(self, timeout_s: float) -> bytes:
        """The next answer.

        Raises:
          ConnectionError: if another worker has taken its place.
          TimeoutError: if none comes in time.
        """
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"worker {self.worker} has said nothing for {timeout_s} s") from None
        if answer is None:
            self._check()
        return answer

    def close(self) -> None:
        """Asks this worker nothing more; if it is still there, it comes again as another connection."""
        self._end(_AGAIN)

    def _check(self) -> None:
        if self._over is not None:
            raise ConnectionError(f"worker {self.worker} is gone, or another one has come in its place")

    def _end(self, word: bytes) -> None:
        with self._changed:
            self._over = self._over or word
            self._answers.put(None)
            self._changed.notify_all()

    def _work(self, answered: int, answer: bytes, hold_s: float) -> bytes:
        """Takes an answer. Returns what the call returns: the next request, if there is one in time."""
        with self._changed:
            if answered == self._answered + 1 and self._requests:
                self._requests.popleft()
                self._answered = answered
                self._answers.put(answer)
            elif answered != self._answered:
                return _AGAIN
            self._changed.wait_for(lambda: self._requests or self._over, hold_s)
            if self._over:
                return self._over
            return _REQUEST + self._requests[0] if self._requests else _NOTHING


class RequestServer:
    """Where workers come to be asked. Its workers reach nothing else of this process.

    Args:
      token: that workers must send.
      host: address to listen on.
      port: to listen on; 0 is any free one.
      tls: (certificate, private key) in PEM; None is no encryption.
      trusted_network: without TLS on an address that is not the loopback device.
      check: what a worker says of itself -> why it is refused, "" if it is not.

    Attributes:
      address: "grpc://127.0.0.1:4000", what workers call.

    Raises:
      ValueError: if the token is no secret, or others could listen.
      OSError: if another process has the port.
    """

    def __init__(
        self,
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[bytes, bytes] | None = None,
        trusted_network: bool = False,
        check: Callable[[Any], str] = lambda words: "",
    ):
        address = checked_address(host, port, token=token, tls=tls, trusted_network=trusted_network)
        self._lock, self._sessions, self._fresh, self._check = threading.Condition(), {}, {}, check
        self._end, self._heard, self._replaced = None, set(), set()
        self._server = _Server(self, address(port), token, tls)
        self.address = address(self._server.port)

    def connection(self, worker: str, timeout_s: float) -> Connection:
        """The worker's newest connection that nobody has yet; waits for one. Raises TimeoutError if none comes."""
        with self._lock:
            if not self._lock.wait_for(lambda: worker in self._fresh, timeout_s):
                raise TimeoutError(f"worker {worker} did not come to {self.address} for {timeout_s} s")
            return self._fresh.pop(worker)

    def close(self, complete: bool = True) -> None:
        """Tells the workers that this is the end. Waits LINGER_S for those that are there to hear it.

        Args:
          complete: what `answer_requests` returns to them.
        """
        with self._lock:
            self._end = _END if complete else _STOPPED
            for connection in self._sessions.values():
                connection._end(self._end)
            self._lock.wait_for(lambda: self._heard >= set(self._sessions), LINGER_S)
        self._server.shutdown()

    def _work(self, worker: str, session: str, answered: int, words: Any, answer: bytes) -> bytes:
        with self._lock:
            connection = self._sessions.get(session)
            if session in self._replaced:
                return _REFUSED + REPLACED
            if connection is None:
                if self._end:
                    return self._end
                if answered:  # it was asked by a process that is gone
                    return _AGAIN
                if refused := self._check(words):
                    return _REFUSED + refused.encode()
                connection = self._enter(worker, session)
        result = connection._work(answered, answer, HOLD_S)
        if result in (_END, _STOPPED):
            with self._lock:
                self._heard.add(session)
                self._lock.notify_all()
        return result

    def _enter(self, worker: str, session: str) -> Connection:
        for old in [old for old, known in self._sessions.items() if known.worker == worker]:
            self._replaced.add(old)
            self._sessions.pop(old)._end(_REFUSED + REPLACED)
        self._fresh[worker] = self._sessions[session] = connection = Connection(worker)
        self._lock.notify_all()
        return connection


class _Server(flight.FlightServerBase):
    """What workers can call of a RequestServer."""

    def __init__(self, requests: RequestServer, location: str, token: str, tls):
        certificates = [tls] if tls else None
        super().__init__(location, tls_certificates=certificates, middleware={"token": TokenCheck(token)})
        self._requests = requests

    def do_action(self, context, action):
        body = action.body.to_pybytes()
        if action.type != "work" or not _LENGTH.size <= len(body) <= MAX_ANSWER:
            raise ValueError(f"no action {action.type!r:.40} of {len(body)} bytes")
        start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        words = json.loads(body[_LENGTH.size : start])
        yield flight.Result(pyarrow.py_buffer(self._requests._work(**words, answer=body[start:])))


def answer_requests(
    address: str,
    handle: Callable[[bytes], bytes],
    *,
    token: str,
    worker: str,
    words: Any = None,
    patience_s: float,
    tls_root: bytes | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """A worker's life: answers requests until the asker ends.

    Args:
      address: `RequestServer.address`.
      handle: request -> answer.
      token: the server's.
      worker: the name of this one.
      words: JSON values that the server checks.
      patience_s: how long to wait for a server that is away; it may come back.
      tls_root: certificate in PEM that the server's is checked against; None: the system's.
      stopping: whether this worker is to end. It does once the server is away.

    Returns:
      What the asker said at its end (`RequestServer.close`).

    Raises:
      ConnectionError: if the server stays away.
      PermissionError: if the token is wrong.
      RuntimeError: if the server refuses this worker, or another one has taken its place.
    """
    roots = {"tls_root_certs": tls_root} if tls_root else {}
    headers = [(b"authorization", f"Bearer {check_token(token)}".encode())]
    options = flight.FlightCallOptions(timeout=CALL_S, headers=headers)
    session, answered, answer, reached = secrets.token_hex(8), 0, b"", time.monotonic()
    with flight.FlightClient(address, generic_options=OPTIONS, **roots) as client:
        while True:
            head = {"worker": worker, "session": session, "answered": answered, "words": None if answered else words}
            said = json.dumps(head).encode()
            action = flight.Action("work", _LENGTH.pack(len(said)) + said + answer)
            try:
                result = next(iter(client.do_action(action, options))).body.to_pybytes()
                reached = time.monotonic()
            except UNREACHABLE as error:
                if stopping():
                    return False
                if time.monotonic() - reached > patience_s:
                    raise ConnectionError(f"{address}: nobody answers for {patience_s} s") from error
                time.sleep(_AGAIN_S)
                continue
            except flight.FlightUnauthenticatedError as error:
                raise PermissionError(f"{address} refuses the token: both sides must have the same") from error
            kind, rest = result[:1], result[1:]
            if kind in (_END, _STOPPED):
                return kind == _END
            if kind == _REFUSED:
                raise RuntimeError(f"{address} refuses worker {worker}: {rest.decode()}")
            if kind == _AGAIN:
                session, answered, answer = secrets.token_hex(8), 0, b""
            elif kind == _REQUEST:
                answer, answered = handle(rest), answered + 1
