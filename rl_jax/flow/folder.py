"""A link through a folder that trainer and samplers see: a disk, NFS, or a mounted bucket. A publication is a rename.

    weights/000000000012.safetensors           version 12; in pieces, an index and a file per shard (shard_files)
    groups/000000000345-000000000007.arrow     group 7, finished when its sampler counted 345
    ledger/000000000003.json                   the groups that step 3 used, and those that samplers dropped before it
    settled.json                               the last settled step, and the numbers that are finished with
    words/end.json                             what was said under "end"

Every file is written under a temporary name and renamed, so that it is there as a whole or not at all. A process may
be killed between any two of these writes: `Folder` is opened from the files alone. Group files are deleted only after
settled.json names them; what is left over then is removed at the next opening.
"""

import json
import os
import pathlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from safetensors.numpy import save_file

from rl_jax.flow import files, payload, shard_files, shards
from rl_jax.flow.ledger import Ledger
from rl_jax.flow.local import KEEP, MAX_WAITING, check_word, gone
from rl_jax.flow.protocol import Group, Params
from rl_jax.flow.shards import Slices
from rl_jax.runs import disk

ROLES = ("trainer", "sampler", "both")
PARTS = ("weights", "groups", "ledger", "words")
OWNER = "trainer.json"
_POLL_S = 0.05


class Folder:
    """A side of a link through a folder (see `protocol.Link`). Only one process at a time is its trainer.

    A second trainer is refused while the first lives. Where the file system has no locks (a bucket), the newer one has
    the folder, and the older one gets a RuntimeError at its next write.

    Args:
      folder: made if it does not exist; a run's own.
      role: "trainer", "sampler", or "both" for one process that does both.
      max_waiting: groups that may wait; more are refused until some are taken.
      keep: versions of the weights that stay readable.

    Raises:
      ValueError: if the role is unknown, or a file of the link is damaged; names it.
      rl_jax.runs.disk.InUseError: if another trainer has the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        role: str,
        max_waiting: int = MAX_WAITING,
        keep: int = KEEP,
    ):
        if role not in ROLES:
            raise ValueError(f"role {role!r} is none of {', '.join(ROLES)}")
        self.folder = pathlib.Path(folder).absolute()
        self._role, self._max_waiting, self._keep = role, max_waiting, keep
        self._lock, self._names, self._resumed = threading.RLock(), {}, False
        if role != "sampler":
            disk.lock(self.folder)
        for part in PARTS:
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if role != "sampler":
            for part in (".", *(PARTS if role == "both" else ("weights", "ledger"))):  # where nobody else writes
                files.remove_partial(self.folder / part)
            shard_files.remove_partial(self.folder / "weights")
            self._owner = secrets.token_hex(16)
            files.write(self.folder / OWNER, json.dumps(self._owner))
            self._ledger = self._open_ledger()

    # The trainer's side.

    def _open_ledger(self) -> Ledger:
        """From the files; removes what a kill left over."""
        ledger = Ledger(*files.read_settled(self.folder))
        entered = {}
        for path in sorted((self.folder / "ledger").glob("*.json")):
            step = int(path.stem)
            if step <= ledger.settled:
                files.remove(path)
            else:
                used, ledger.dropped[step] = files.read_used(path)
                entered |= dict.fromkeys(used, step)
                ledger.trained[step] = {}
        for number, finished, path in self._group_files():
            if number in ledger.done or number in self._names:
                files.remove(path)
                continue
            self._names[number] = path.name
            row = ledger.trained[entered[number]] if number in entered else ledger.waiting
            row[number] = finished
        missing = sorted(set(entered) - set(self._names))
        if missing:
            raise ValueError(f"{self.folder}/ledger names groups {missing[:8]}, whose files are gone")
        return ledger

    def _group_files(self) -> list[tuple[int, int, pathlib.Path]]:
        """(number, finished, path) of every group, sorted by name."""
        found = []
        for name in sorted(os.listdir(self.folder / "groups")):
            if name.endswith(".arrow"):
                finished, number = name.removesuffix(".arrow").split("-")
                found.append((int(number), int(finished), self.folder / "groups" / name))
        return found

    def _look(self) -> None:
        """Enters the groups that came since the last look."""
        for number, finished, path in self._group_files():
            if self._names.get(number) == path.name:
                continue
            if self._ledger.add(number, finished):
                self._names[number] = path.name
            else:
                files.remove(path)

    def resume(self, step: int) -> None:
        """See `protocol.Link`."""
        with self._lock:
            self._check_trainer("resume")
            for later in sorted(self._ledger.resume(step), reverse=True):
                files.remove(self.folder / "ledger" / f"{later:012}.json")
            for version, path in self.versions():
                if version > step:
                    shard_files.remove(path)
            self._resumed = True

    def publish(self, version: int, params: Params) -> None:
        """See `protocol.Link`."""
        in_pieces = shards.is_cut(params)
        flat = shards.cuts_of(params) if in_pieces else payload.flatten(params)
        with self._lock:
            self._check_trainer("publish")
            if in_pieces:
                shard_files.write(self.folder / "weights", version, flat)
            else:
                files.write(self.folder / f"weights/{version:012}.safetensors", lambda path: save_file(flat, path))
            for _, path in self.versions()[: -self._keep]:
                shard_files.remove(path)

    def waiting(self) -> list[tuple[int, int]]:
        """See `protocol.Link`."""
        with self._lock:
            self._check_trainer("waiting")
            self._look()
            return self._ledger.in_order()

    def take(self, n: int, timeout_s: float = 0.0, numbers: Sequence[int] | None = None) -> list[Group]:
        """See `protocol.Link`."""
        if not self._resumed:
            raise RuntimeError("take: call resume(step) first, with the step of the checkpoint, 0 for a new run")

        def look():
            with self._lock:
                self._look()
                return self._ledger.take(n, numbers)

        found = self._wait(look, timeout_s)
        return [self._read_group(number) for number in found]

    def _read_group(self, number: int) -> Group:
        path = self.folder / "groups" / self._names[number]
        group = payload.from_bytes(path.read_bytes(), path)
        if group.number != number:
            raise ValueError(f"{path}: holds group {group.number}; the file was renamed")
        return group

    def acknowledge(self, step: int, numbers: Sequence[int], dropped: Sequence[int] = ()) -> None:
        """See `protocol.Link`."""
        with self._lock:
            self._check_trainer("acknowledge")
            self._ledger.check_acknowledge(step, numbers)
            used = {"groups": sorted(numbers), "dropped": sorted(dropped)} if dropped else sorted(numbers)
            files.write(self.folder / f"ledger/{step:012}.json", json.dumps(used), durable=True)
            self._ledger.acknowledge(step, numbers, dropped)

    def settle(self, step: int) -> None:
        """See `protocol.Link`."""
        with self._lock:
            self._check_trainer("settle")
            steps = [old for old in self._ledger.trained if old <= step]
            forgotten, done = self._ledger.settle(step), self._ledger.done
            settled = {"step": self._ledger.settled, "below": done.below, "others": sorted(done.others)}
            files.write(self.folder / "settled.json", json.dumps(settled), durable=True)
            for number in forgotten:
                files.remove(self.folder / "groups" / self._names.pop(number))
            for old in steps:
                files.remove(self.folder / "ledger" / f"{old:012}.json")

    def _check_trainer(self, call: str) -> None:
        if self._role == "sampler":
            raise RuntimeError(f"{call} is for the trainer; this side of {self.folder} is a sampler")
        if files.read_json(self.folder / OWNER) != self._owner:
            raise RuntimeError(f"{self.folder} has another trainer since: this one stops")

    # The sampler's side.

    def newest(self, after: int = -1, timeout_s: float = 0.0) -> tuple[int, Params] | None:
        """See `protocol.Link`."""

        def look():
            versions = self.versions()
            if not versions or versions[-1][0] == after:
                return None
            params = shard_files.read_weights(versions[-1][1])
            return params and (versions[-1][0], params)

        return self._wait(look, timeout_s)

    def weights(self, version: int, timeout_s: float = 0.0) -> Params | None:
        """See `protocol.Link`."""

        return self._wait(lambda: (path := self._path(version)) and shard_files.read_weights(path), timeout_s)

    def slices(self, version: int | None = None, timeout_s: float = 0.0) -> Slices | None:
        """See `protocol.Link`."""
        return self._wait(lambda: (path := self._path(version)) and shard_files.open_slices(path), timeout_s)

    def _path(self, version: int | None) -> pathlib.Path | None:
        """Of this version, or of the newest; None if it is not there. LookupError if it was."""
        paths = dict(self.versions())
        if version is None:
            return paths[max(paths)] if paths else None
        if version not in paths and paths and version < max(paths):
            raise LookupError(gone(version, paths))
        return paths.get(version)

    def versions(self) -> list[tuple[int, pathlib.Path]]:
        """(version, its file or the index of its pieces) of the weights that are readable, sorted."""
        names = sorted(os.listdir(self.folder / "weights"))
        return [
            (int(name.partition(".")[0]), self.folder / "weights" / name)
            for name in names
            if name[0] != "." and name.endswith((".safetensors", shard_files.INDEX))
        ]

    def put(self, groups: Sequence[Group], timeout_s: float = 0.0) -> bool:
        """See `protocol.Link`."""
        return all(self._wait(lambda group=group: self._put(group), timeout_s) for group in groups)

    def _put(self, group: Group) -> bool:
        with self._lock:
            if self.known([group.number]):
                return True
            if not self.has_room():
                return False
            name = f"{group.finished:012}-{group.number:012}.arrow"
            content = payload.to_bytes(group)
            files.write(self.folder / f"groups/{name}", lambda path: path.write_bytes(content), durable=True)
            if self._role != "sampler":
                self._look()
            return True

    def has_room(self) -> bool:
        """Whether one more group may wait. A sampler counts the files, less those that a step has used."""
        if self._role != "sampler":
            with self._lock:
                return len(self._ledger.waiting) < self._max_waiting
        used = sum(len(files.read_used(path, default=[])[0]) for path in (self.folder / "ledger").glob("*.json"))
        return len(self._group_files()) - used < self._max_waiting

    def known(self, numbers: Sequence[int]) -> set[int]:
        """See `protocol.Link`."""
        with self._lock:
            if self._role != "sampler":
                self._look()
                return {number for number in numbers if self._ledger.knows(number)}
            there = {number for number, _, _ in self._group_files()}
            done = files.read_settled(self.folder)[1]  # read after the files, which go later
            return {number for number in numbers if number in there or number in done}

    # Both sides.

    def say(self, name: str, value: Any) -> bool:
        """See `protocol.Link`."""
        files.write(self.folder / "words" / f"{name}.json", check_word(name, value))
        return True

    def hear(self, name: str) -> Any:
        """See `protocol.Link`."""
        check_word(name, None)
        return files.read_json(self.folder / "words" / f"{name}.json", default=None)

    def lost_s(self) -> float:
        """See `protocol.Link`."""
        return 0.0

    def close(self) -> None:
        """See `protocol.Link`."""
        if self._role != "sampler":
            disk.unlock(self.folder)

    def _wait(self, look: Callable[[], Any], timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        while not (result := look()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return result
