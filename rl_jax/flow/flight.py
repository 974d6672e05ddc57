"""The trainer's side of a link over the network: an Arrow Flight server in the trainer's process.

    action "newest", {"after": v}       -> {"version": v}
    action "find", {"version": v}       -> {"there": bool, "left": [versions]}
    get {"version": v}                  -> stream of weights (streams)
    action "leaves", {"version": v|null}-> {"version": v, "leaves": {name: [shape, dtype]}}
    get {"version": v, "boxes": [[name, first corner, end], ...]} -> stream of these boxes, "0", "1", ...
    action "known", {"numbers": [...]}  -> [numbers]
    action "room"                       -> bool
    put, a stream of one group's bytes  -> "stored" or "full", written to the folder before it is answered
    action "say", {"name", "value"}; action "hear", {"name", "side": who asks} -> value

Every call carries the token. The server listens on the loopback device unless it is told otherwise; on any other
address it wants TLS, or to be told that the network is trusted. Samplers reach only what is listed: nobody can act as
a trainer over the network.

Limits on sizes hold against mistakes and not against strangers. gRPC reads a message as a whole before the token and
the limit are looked at, so whoever reaches the port can fill this process's memory, also without a token and with TLS:
let a firewall or a tunnel decide who reaches it. (FlightServerBase also takes verify_client and root_certificates, for
clients with certificates of their own; nothing here sets them.)
"""

import contextlib
import hmac
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow
from pyarrow import flight

from rl_jax.flow import payload, shards, streams
from rl_jax.flow.folder import Folder
from rl_jax.flow.local import KEEP, MAX_WAITING, Memory
from rl_jax.flow.protocol import Group, Params

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_TOKEN = 16
MAX_GROUP = 256 << 20  # bytes
LINGER_S = 3.0  # that a server stays for all samplers to hear the last word


def check_token(token: str) -> str:
    """The token itself.

    Raises:
      ValueError: if it is too short to be a secret, or cannot be in a header.
    """
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"a token of {len(token)} characters: give at least {MIN_TOKEN}, printable ASCII without spaces, the same "
            'to both sides: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


class FlightTrainer:
    """The trainer's side (see `protocol.Link`). Finished groups are in the folder before a sampler is told so.

    Args:
      folder: of the trainer, the write-ahead log; samplers need not see it.
      token: that samplers must send.
      host: address to listen on.
      port: to listen on; 0 is any free one (see `address`).
      tls: (certificate, private key) in PEM; None is no encryption.
      trusted_network: without TLS on an address that is not the loopback device.
      max_waiting: groups that may wait; more are refused until some are taken.
      keep: versions of the weights that stay readable, in memory; they are in the folder too, for the next trainer.
      max_group: bytes of one group; against mistakes only (see the module).

    Attributes:
      address: "grpc://127.0.0.1:4000", what samplers connect to.

    Raises:
      ValueError: if the token is no secret, or others could listen.
      rl_jax.runs.disk.InUseError: if another trainer has the folder.
      OSError: if another process has the port.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[bytes, bytes] | None = None,
        trusted_network: bool = False,
        max_waiting: int = MAX_WAITING,
        keep: int = KEEP,
        max_group: int = MAX_GROUP,
    ):
        address = checked_address(host, port, token=token, tls=tls, trusted_network=trusted_network)
        self._store = Folder(folder, role="both", max_waiting=max_waiting, keep=keep)
        self._memory, self._lock = Memory(keep), threading.Lock()
        self._sides, self._waited = set(), set()  # who has asked for a word; who has not heard the last one
        self._said, self._heard = None, threading.Event()
        self._heard.set()  # there is nothing to hear
        try:
            self._server = _Server(self, address(port), token, tls, max_group)
        except Exception:
            self._store.close()
            raise
        self.address = address(self._server.port)

    def resume(self, step: int) -> None:
        """See `protocol.Link`. The last weights up to this step are read from the folder: a sampler may be behind."""
        self._store.resume(step)
        with self._lock:
            self._memory.withdraw(step)
            for version in sorted(dict(self._store.versions()).keys() - self._memory.versions()):
                if (found := self._store.weights(version)) is not None:
                    self._memory.publish(version, shards.cuts_of(found))

    def publish(self, version: int, params: Params) -> None:
        """See `protocol.Link`. A copy: the caller may overwrite its arrays. In the folder before it is readable."""
        cuts = {
            name: cut._replace(pieces=[piece._replace(data=np.array(piece.data)) for piece in cut.pieces])
            for name, cut in shards.cuts_of(params).items()
        }
        self._store.publish(version, payload.nest(cuts))
        with self._lock:
            self._memory.publish(version, cuts)

    def waiting(self) -> list[tuple[int, int]]:
        """See `protocol.Link`."""
        return self._store.waiting()

    def take(self, n: int, timeout_s: float = 0.0, numbers: Sequence[int] | None = None) -> list[Group]:
        """See `protocol.Link`."""
        return self._store.take(n, timeout_s, numbers)

    def acknowledge(self, step: int, numbers: Sequence[int], dropped: Sequence[int] = ()) -> None:
        """See `protocol.Link`."""
        self._store.acknowledge(step, numbers, dropped)

    def settle(self, step: int) -> None:
        """See `protocol.Link`."""
        self._store.settle(step)

    def say(self, name: str, value: Any) -> bool:
        """See `protocol.Link`."""
        with self._lock:
            self._store.say(name, value)
            self._said, self._waited = name, set(self._sides)
            self._heard.clear()
        return True

    def hear(self, name: str) -> Any:
        """See `protocol.Link`."""
        return self._store.hear(name)

    def lost_s(self) -> float:
        """See `protocol.Link`."""
        return 0.0

    def close(self) -> None:
        """See `protocol.Link`. Waits for calls that go on, and LINGER_S for all to hear what was said last."""
        self._heard.wait(LINGER_S)
        self._server.shutdown()
        self._store.close()


class TokenCheck(flight.ServerMiddlewareFactory):
    """Refuses calls without the token. Middleware of a server.

    Args:
      token: that calls must send.
    """

    def __init__(self, token: str):
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info, headers):
        sent = next(iter(headers.get("authorization", [])), "")
        if not hmac.compare_digest(sent.encode("utf-8", "replace") if isinstance(sent, str) else sent, self._wanted):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class _Server(flight.FlightServerBase):
    """What samplers can ask of a FlightTrainer."""

    def __init__(self, trainer: FlightTrainer, location: str, token: str, tls, max_group: int):
        super().__init__(
            location,
            tls_certificates=[tls] if tls else None,
            middleware={"auth": TokenCheck(token)},
            verify_client=False,
        )
        self._trainer, self._max_group = trainer, max_group

    def do_get(self, context, ticket):
        words = words_of(ticket.ticket)
        version, boxes = words.get("version"), words.get("boxes")
        with self._trainer._lock:
            if version not in self._trainer._memory.versions():
                raise KeyError(f"there are no weights of version {version!r:.20}")  # ArrowKeyError on the other side
            cuts = self._trainer._memory.exact(version)
        if boxes is None:
            flat = payload.flatten(shards.whole(cuts))
        else:
            for name, start, stop in boxes:
                shards.check_box(shards.leaves_of(cuts), name, start, stop)
            flat = {str(i): value for i, value in enumerate(shards.read(cuts, boxes))}
        return flight.GeneratorStream(streams.schema(streams.header(flat, version=version)), streams.pieces(flat))

    def do_put(self, context, descriptor, reader, writer):
        _, flat = streams.read(reader, self._max_group)
        if list(flat) != ["group"]:
            raise ValueError(f"a stream of {list(flat)!s:.80}: one group is put at a time")
        group = payload.from_bytes(flat["group"].tobytes(), "a group that was put")
        stored = self._trainer._store.put([group])
        writer.write(pyarrow.py_buffer(b"stored" if stored else b"full"))

    def do_action(self, context, action):
        words = words_of(action.body.to_pybytes())
        answer: Callable | None = getattr(self, f"_answer_{action.type}", None)
        if answer is None:
            raise ValueError(f"no action {action.type!r:.40}")
        yield flight.Result(pyarrow.py_buffer(json.dumps(answer(**words)).encode()))

    def _answer_newest(self, after: int) -> int | None:
        with self._trainer._lock:
            found = self._trainer._memory.newest(after)
        return found and found[0]

    def _answer_find(self, version: int) -> dict[str, Any]:
        with self._trainer._lock:
            return {"there": version in self._trainer._memory.versions(), "left": self._trainer._memory.versions()}

    def _answer_leaves(self, version: int | None) -> dict[str, Any] | None:
        with self._trainer._lock, contextlib.suppress(LookupError):
            found = self._trainer._memory.of(version)
            return found and {"version": found[0], "leaves": shards.leaves_of(found[1])}

    def _answer_known(self, numbers: list[int]) -> list[int]:
        return sorted(self._trainer._store.known(numbers))

    def _answer_room(self) -> bool:
        return self._trainer._store.has_room()

    def _answer_say(self, name: str, value: Any) -> None:
        self._trainer._store.say(name, value)

    def _answer_hear(self, name: str, side: str = "") -> Any:
        trainer = self._trainer
        with trainer._lock:
            trainer._sides.add(side)
            if name == trainer._said:
                trainer._waited.discard(side)
                if not trainer._waited:
                    trainer._heard.set()
            return trainer.hear(name)


def words_of(content: bytes) -> dict[str, Any]:
    """The JSON object of a request, of at most 1 MB."""
    if len(content) > 1 << 20:
        raise ValueError(f"a request of {len(content)} bytes")
    words = json.loads(content or b"{}")
    if not isinstance(words, dict):
        raise ValueError("a request is a JSON object")
    return words


def checked_address(host: str, port: int, *, token: str, tls, trusted_network: bool) -> Callable[[int], str]:
    """What a server needs before it listens: port -> its address, "grpc://HOST:PORT", with TLS grpc+tls.

    Raises:
      ValueError: if the token is no secret, or others could listen.
      OSError: if another process has the port.
    """
    check_reach(host, tls, trusted_network)
    check_token(token)
    check_port(host, port)
    return lambda port: f"{'grpc+tls' if tls else 'grpc'}://{host}:{port}"


def check_reach(host: str, tls: tuple[bytes, bytes] | None, trusted_network: bool) -> None:
    """Raises ValueError if a server that listens on `host` could be overheard by others."""
    if host not in LOOPBACK and tls is None and not trusted_network:
        raise ValueError(
            f"host {host!r} without TLS: whoever reads along has the token and the weights. Give tls, or "
            "trusted_network=True where nobody else can reach it"
        )


def check_port(host: str, port: int) -> None:
    """gRPC shares a port that another server has, without a word; a plain socket does not."""
    if port:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise OSError(
                    f"{host}:{port} cannot be listened on ({error.strerror}): another trainer may have it; give "
                    "another port, or 0"
                ) from error
