"""A sampler's side of a link over the network: the client of `flight.FlightTrainer`."""

import contextlib
import json
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
from pyarrow import flight

from rl_jax.flow import payload, streams
from rl_jax.flow.calls import Caller
from rl_jax.flow.local import check_word, gone
from rl_jax.flow.protocol import Group, Params
from rl_jax.flow.shards import Box, Slices


class FlightSampler(Caller):
    """A sampler's side (see `protocol.Link`). While the trainer is away, calls return as if there were nothing new.

    `lost_s` says for how long; whoever samples decides how long to go on without a trainer.

    Args:
      address: `FlightTrainer.address`.
      token: the trainer's.
      call_s: seconds for a call, the transfer of weights or a group included.
      tls_root: certificate in PEM that the trainer's is checked against, for "grpc+tls://..."; None: the system's.

    Raises:
      ValueError: if the address or the token cannot be.
    """

    def __init__(self, address: str, *, token: str, call_s: float = 600.0, tls_root: bytes | None = None):
        super().__init__(address, token=token, call_s=call_s, tls_root=tls_root, whose="trainer")
        self._side = secrets.token_hex(8)  # the trainer stays until each side has heard its end

    def newest(self, after: int = -1, timeout_s: float = 0.0) -> tuple[int, Params] | None:
        """See `protocol.Link`."""

        def look(options):
            version = self._ask("newest", options, after=after)
            with contextlib.suppress(FileNotFoundError):  # newer ones came meanwhile, or the trainer went back
                return None if version is None else (version, payload.nest(self._get(version, options)))

        return self._wait(look, timeout_s)

    def weights(self, version: int, timeout_s: float = 0.0) -> Params | None:
        """See `protocol.Link`."""

        def look(options):
            found = self._ask("find", options, version=version)
            if found["there"]:
                with contextlib.suppress(FileNotFoundError):  # as in newest
                    return payload.nest(self._get(version, options))
            elif found["left"] and version < max(found["left"]):
                raise LookupError(gone(version, found["left"]))
            return None

        return self._wait(look, timeout_s)

    def slices(self, version: int | None = None, timeout_s: float = 0.0) -> Slices | None:
        """See `protocol.Link`."""

        def look(options):
            if version is not None:
                found = self._ask("find", options, version=version)
                if not found["there"] and found["left"] and version < max(found["left"]):
                    raise LookupError(gone(version, found["left"]))
                if not found["there"]:
                    return None
            return self._ask("leaves", options, version=version)

        if (found := self._wait(look, timeout_s)) is None:
            return None
        leaves = {name: (tuple(shape), dtype) for name, (shape, dtype) in found["leaves"].items()}
        return Slices(found["version"], leaves, lambda boxes: self._read(found["version"], boxes))

    def _read(self, version: int, boxes: Sequence[Box]) -> list[np.ndarray]:
        if not boxes:
            return []
        found = self._wait(lambda options: list(self._get(version, options, boxes=list(boxes)).values()), self._call_s)
        if found is None:
            raise ConnectionError(f"{self.address}: no trainer answers")
        return found

    def _get(self, version: int, options: flight.FlightCallOptions, **words: Any) -> dict[str, np.ndarray]:
        """The arrays of a get. Raises FileNotFoundError if the version is not there."""
        try:
            reader = self._client.do_get(flight.Ticket(json.dumps({"version": version, **words})), options)
            head, flat = streams.read(reader)
        except pyarrow.ArrowKeyError as error:
            raise FileNotFoundError(f"{self.address}: the weights of version {version} are gone") from error
        if head.get("version") != version:
            raise RuntimeError(f"{self.address} sent version {head.get('version')!r:.20} for version {version}")
        return flat

    def put(self, groups: Sequence[Group], timeout_s: float = 0.0) -> bool:
        """See `protocol.Link`."""
        return all(self._wait(lambda options, group=group: self._put(group, options), timeout_s) for group in groups)

    def _put(self, group: Group, options: flight.FlightCallOptions) -> bool:
        if not self._ask("room", options) and group.number not in self._ask("known", options, numbers=[group.number]):
            return False
        flat = {"group": np.frombuffer(payload.to_bytes(group), np.uint8)}
        return self._stored(b"group", flat, options)

    def known(self, numbers: Sequence[int]) -> set[int]:
        """See `protocol.Link`.

        Raises:
          ConnectionError: if the trainer is away; nothing else would be an answer.
        """
        found = self._wait(lambda options: {"numbers": self._ask("known", options, numbers=list(numbers))}, 0.0)
        if found is None:
            raise ConnectionError(f"{self.address}: no trainer answers")
        return set(found["numbers"])

    def say(self, name: str, value: Any) -> bool:
        """See `protocol.Link`."""
        check_word(name, value)
        return self._wait(lambda options: [self._ask("say", options, name=name, value=value)], 0.0) is not None

    def hear(self, name: str) -> Any:
        """See `protocol.Link`."""
        found = self._wait(lambda options: [self._ask("hear", options, name=name, side=self._side)], 0.0)
        return found and found[0]
