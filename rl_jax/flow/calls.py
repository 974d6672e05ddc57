"""Calls to a flight server that may be away: time limits, the token, and errors in words."""

import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow
from pyarrow import flight

from rl_jax.flow import streams
from rl_jax.flow.flight import check_token

_POLL_S = 0.05
UNREACHABLE = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)
_BACKOFF_MS = {"initial": 50, "min": 50, "max": 500}
OPTIONS = [(f"grpc.{name}_reconnect_backoff_ms", value) for name, value in _BACKOFF_MS.items()]


class Caller:
    """A client of one server.

    Args:
      address: "grpc://HOST:PORT" or "grpc+tls://HOST:PORT".
      token: the server's.
      call_s: seconds for a call, the transfer included.
      tls_root: certificate in PEM that the server's is checked against, for "grpc+tls://..."; None: the system's.
      whose: the server, for messages.

    Raises:
      ValueError: if the address or the token cannot be.
    """

    def __init__(self, address: str, *, token: str, call_s: float = 600.0, tls_root: bytes | None = None, whose: str):
        if not address.startswith(("grpc://", "grpc+tls://")):
            raise ValueError(f"address {address!r}: give the {whose}'s, as in grpc://127.0.0.1:4000")
        self.address, self._token, self._call_s = address, check_token(token), call_s
        roots = {"tls_root_certs": tls_root} if tls_root else {}
        self._client = flight.FlightClient(address, generic_options=OPTIONS, **roots)
        self._reached, self._is_lost = time.monotonic(), False

    def lost_s(self) -> float:
        """For how many seconds the server could not be reached; 0 if it can."""
        return time.monotonic() - self._reached if self._is_lost else 0.0

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def _ask(self, action: str, options: flight.FlightCallOptions, **words: Any) -> Any:
        request = flight.Action(action, json.dumps(words).encode())
        return json.loads(next(iter(self._client.do_action(request, options))).body.to_pybytes())

    def _stored(self, path: bytes, flat, options: flight.FlightCallOptions) -> bool:
        """Puts arrays by name as one stream. Whether the server says that they are stored."""
        descriptor = flight.FlightDescriptor.for_path(path)
        writer, reader = self._client.do_put(descriptor, streams.schema(streams.header(flat)), options)
        with writer:
            for piece in streams.pieces(flat):
                writer.write_batch(piece)
            writer.done_writing()
            answer = reader.read()
        return answer is not None and answer.to_pybytes() == b"stored"

    def _wait(
        self, look: Callable[[flight.FlightCallOptions], Any], timeout_s: float, call_s: float | None = None
    ) -> Any:
        """The first true result of `look`, or None when the time is over or the server away. call_s: for a call."""
        end = time.monotonic() + timeout_s
        headers = [(b"authorization", f"Bearer {self._token}".encode())]
        while True:
            try:
                result = look(flight.FlightCallOptions(timeout=call_s or self._call_s, headers=headers))
                self._reached, self._is_lost = time.monotonic(), False
            except UNREACHABLE:
                result, self._is_lost = None, True
            except flight.FlightUnauthenticatedError as error:
                raise PermissionError(f"{self.address} refuses the token: both sides must have the same") from error
            except (pyarrow.ArrowException, flight.FlightError) as error:
                raise RuntimeError(f"{self.address}: {error!s:.400}") from error
            if result or time.monotonic() >= end:
                return result
            time.sleep(_POLL_S)
