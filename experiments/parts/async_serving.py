"""--role=unit: a process that serves one storage unit of a run (async_units), and the secret of all of them.

Its rows are on its disk, so it may leave at any time; but others that were told to stop at the same time end their
batch or step first, through it. So it is the last to leave.
"""

import contextlib
import os
import pathlib
import secrets
import time
from collections.abc import Callable

from experiments.parts.async_links import Secrets, place_of
from rl_jax.flow.flight import LOOPBACK
from rl_jax.flow.storage import StorageUnit
from rl_jax.runs.run_record import is_complete, read_json
from rl_jax.training.checkpoint import StopSignal

POLL_S = 0.5
GRACE_S = 600.0  # after a signal, for a trainer that does not say that it leaves: it was killed, or its step is long


def serve(
    workdir: pathlib.Path,
    addresses: str,
    index: int,
    folder: str | None,
    stop: StopSignal,
    *,
    steps: int,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Storage unit `index` of a run, until that is complete. Returns whether it is.

    The trainer says so, and who has not heard it finds final.json in the workdir, if that is the trainer's.

    Args:
      workdir: its rows are in its folder unit_INDEX.
      addresses: --units; it listens on its own.
      index: --unit.
      folder: --link_secrets.
      stop: ends it, once the trainer has left too, or after GRACE_S; it comes back with its folder.
      steps: of the run; a final.json of fewer is of before it was made longer.
      clock: seconds, always growing.

    Raises:
      ValueError: if an address or a secret cannot be.
    """
    listed = addresses.split(",") if addresses else []
    if not 0 <= index < len(listed):
        raise ValueError(
            f"--unit={index}: --units={addresses} has {len(listed)} addresses, so it is one from 0 below that"
        )
    known = secrets_of(workdir, addresses, folder)
    if listed[index].startswith("grpc+tls://") and not (known.certificate and known.key):
        raise ValueError(f"--units={listed[index]}: --link_secrets has no unit_cert.pem or no unit_key.pem")
    place = place_of("--units", listed[index], known)
    unit = StorageUnit(workdir / f"unit_{index}", index=index, count=len(listed), token=known.token, **place)
    with contextlib.closing(unit):
        print(f"storage unit {index} of {len(listed)} at {unit.address}", flush=True)
        last = None  # when it leaves at the latest
        while not (complete := unit.ended(POLL_S) or last_step(workdir) >= steps):
            if stop.received:
                last = clock() + GRACE_S if last is None else last
                if not unit.attended or clock() >= last:
                    break
    return complete


def last_step(workdir: pathlib.Path) -> int:
    """The last step of a complete run; -1 if it is not complete."""
    return read_json(workdir / "final.json")["step"] if is_complete(workdir) else -1


def secrets_of(workdir: pathlib.Path, addresses: str, folder: str | None) -> Secrets:
    """The token, and unit_cert.pem and unit_key.pem if the addresses are of TLS.

    Without --link_secrets units of this machine only have a token in the workdir, made by the first that comes.
    """
    listed = addresses.split(",")
    for address in listed:
        if not address.startswith(("grpc://", "grpc+tls://")):
            raise ValueError(f"--units={address}: give grpc://HOST:PORT or grpc+tls://HOST:PORT, with commas between")
    if folder is None:
        if any(address.partition("://")[2].rpartition(":")[0] not in LOOPBACK for address in listed):
            raise ValueError(
                f"--units={addresses}: give --link_secrets=FOLDER; its file 'token' is a secret of all sides"
            )
        return Secrets(_own_token(workdir / "units_token"))
    found = Secrets.read(folder, own="unit_")
    return found if listed[0].startswith("grpc+tls://") else Secrets(found.token)


def _own_token(path: pathlib.Path) -> str:
    """The secret in a file that only this user reads; of several processes that make it, one does."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        partial.touch(0o600)
        partial.write_text(secrets.token_urlsafe(32), encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
        partial.unlink()
    return path.read_text(encoding="ascii")
