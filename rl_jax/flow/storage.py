"""A storage unit of the transfer queue: rows by number and column, in a process or on a machine of its own. No jax.

    action "enter", {"index", "count", "run"}   -> null, or refused: it is another unit, or of another run
    put, a stream of one table's bytes          -> "stored" or "full", on the unit's disk before it is answered
    get {"numbers", "columns"}                  -> stream of one table's bytes
    action "news", {"session", "after": k}      -> what has come and gone since event k of this process
    action "forget", {"numbers"}                -> null; these rows do not come again
    action "end", {"complete"}                  -> null; the controller leaves; if complete, the unit's work is done

Row i is on unit i mod N (AsyncFlow's routing, in the code of Ascend/TransferQueue). A unit knows values and no tasks:
which task has had which row is the controller's (`columns.TransferQueue`), who asks for news.
"""

import json
import os
import threading

import pyarrow
from pyarrow import flight

from rl_jax.flow import streams
from rl_jax.flow.flight import TokenCheck, checked_address, words_of
from rl_jax.flow.shelf import MAX_ROWS, Shelf, from_bytes, to_bytes

MAX_PUT = 256 << 20  # bytes of one put


class StorageUnit:
    """A unit that others reach over the network.

    Args:
      folder: of its rows.
      index: i, of this unit.
      count: N.
      token: that callers must send.
      host: address to listen on.
      port: to listen on; 0 is any free one (see `address`).
      tls: (certificate, private key) in PEM; None is no encryption.
      trusted_network: without TLS on an address that is not the loopback device.
      max_rows: rows at once; more are refused until some are forgotten.
      max_put: bytes of one put; against mistakes, not against strangers, as in `flight`.

    Attributes:
      address: "grpc://127.0.0.1:4001".

    Raises:
      ValueError: if the token is no secret, others could listen, or the folder is another unit's.
      rl_jax.runs.disk.InUseError: if another process has the folder.
      OSError: if another process has the port.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        token: str,
        index: int = 0,
        count: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: tuple[bytes, bytes] | None = None,
        trusted_network: bool = False,
        max_rows: int = MAX_ROWS,
        max_put: int = MAX_PUT,
    ):
        address = checked_address(host, port, token=token, tls=tls, trusted_network=trusted_network)
        self._shelf, self._over = Shelf(folder, index=index, count=count, max_rows=max_rows), threading.Event()
        try:
            self._server = _Server(self._shelf, self._over, address(port), token, tls, max_put)
        except Exception:
            self._shelf.close()
            raise
        self.address = address(self._server.port)

    def ended(self, timeout_s: float) -> bool:
        """Whether the controller has said that the work is done; waits for it."""
        return self._over.wait(timeout_s)

    @property
    def attended(self) -> bool:
        """Whether a controller has asked for news and has not said since that it leaves."""
        return self._server.attended

    def close(self) -> None:
        """Ends the server, after calls that go on. The rows stay in the folder."""
        self._server.shutdown()
        self._shelf.close()


class _Server(flight.FlightServerBase):
    """What can be asked of a StorageUnit."""

    def __init__(self, shelf: Shelf, over: threading.Event, location: str, token: str, tls, max_put: int):
        certificates = [tls] if tls else None
        super().__init__(location, tls_certificates=certificates, middleware={"token": TokenCheck(token)})
        self._shelf, self._over, self._max_put, self._lock = shelf, over, max_put, threading.Lock()
        self.attended = False

    def do_get(self, context, ticket):
        words = words_of(ticket.ticket)
        with self._lock:
            flat = {"rows": to_bytes(self._shelf.get(words["numbers"], words["columns"]))}
        return flight.GeneratorStream(streams.schema(streams.header(flat)), streams.pieces(flat))

    def do_put(self, context, descriptor, reader, writer):
        _, flat = streams.read(reader, self._max_put)
        if list(flat) != ["rows"]:
            raise ValueError(f"a stream of {list(flat)!s:.80}: rows are put")
        rows = from_bytes(flat["rows"].tobytes(), "rows that were put")
        with self._lock:
            stored = self._shelf.put(rows)
        writer.write(pyarrow.py_buffer(b"stored" if stored else b"full"))

    def do_action(self, context, action):
        words, name = words_of(action.body.to_pybytes()), action.type
        with self._lock:
            if name == "end":
                self.attended = False
                answer = self._over.set() if words.get("complete", True) else None
            elif name in ("enter", "news", "forget"):
                self.attended |= name == "news"  # only a controller asks
                answer = getattr(self._shelf, name)(**words)
            else:
                raise ValueError(f"no action {name!r:.40}")
        yield flight.Result(pyarrow.py_buffer(json.dumps(answer).encode()))
