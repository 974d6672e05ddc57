"""Orbax checkpoints of a whole run: named pytrees of arrays (sharded, asynchronous) and the host's state (JSON).

A checkpoint is complete or absent: orbax writes to a temporary folder, renames it, and only then removes old
checkpoints. Step N holds the state after N steps. A checkpoint that can no longer be read, or whose arrays are not
those that were saved (rl_jax.training.digests), is skipped with a message, and never deleted.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rl_jax.core import types
from rl_jax.training import digests, distributed
from rl_jax.training.retention import Retention

UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that orbax has not renamed yet
DAMAGED = ".damaged"
HOST = "host"  # the item with the host's state and the digests
SEALED = "sealed"  # an item that says that the digests must be there: without them it is damaged, not older
SAME_S = 1.0  # seconds in which another SIGTERM is the same one, passed on by a parent of a group that was told at once
SLACK_BYTES = 1 << 20  # metadata and the host's JSON
# Orbax's messages for an intact checkpoint that has other shapes than the requested ones.
OTHER_FORM = ("tree structures do not match", "is not compatible with the stored shape")


class Checkpointer:
    """Saves and restores named pytrees of jax arrays, and a JSON-able dict of the host's state, by step."""

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        every: int,
        keep: int | None = 2,
        keep_every: int = 0,
        keep_best: int = 0,
        best_metric: str | Sequence[str] = "",
        best_mode: str = "max",
    ):
        """Opens a directory of checkpoints. The newest checkpoint is always kept.

        Args:
          directory: where the checkpoints are.
          every: steps between saves.
          keep: how many of the newest to keep. None keeps all.
          keep_every: multiples of this many steps are kept for good. 0: none.
          keep_best: how many of the best by best_metric to keep.
          best_metric: name of the metric for keep_best; of several, the first that a step has.
          best_mode: "max" or "min".

        Raises:
          ValueError: if a field is invalid; the message names it.
        """
        if every < 1:
            raise ValueError(f"checkpoint.every={every} must be at least 1 step")
        self._every = every
        self._directory = pathlib.Path(directory).absolute()
        self._retention = Retention(keep, keep_every, keep_best, best_metric, best_mode)
        self._retention.read(self._directory)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._retention,
            enable_async_checkpointing=True,
            lightweight_initialize=True,  # otherwise orbax reads metrics, and fails on a damaged file of them
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        self._saving: int | None = None  # the step of the latest save
        self._damaged: list[int] = []
        self._tidy = False

    def due(self, step: int) -> bool:
        """Whether to save at `step`.

        Raises:
          OSError: if the previous save failed in the background.
        """
        if jax.process_count() == 1 and not self._manager.is_saving_in_progress():  # several check at the save
            self._finish()
        return step % self._every == 0

    def save(self, step: int, items: dict[str, Any], host: dict, metrics: Mapping[str, float] | None = None) -> None:
        """Copies to the host now, writes in the background. Does nothing if this step is saved already.

        Nothing on the disk is removed before the new checkpoint is complete.

        Args:
          step: steps done.
          items: pytrees of arrays by name.
          host: JSON-able state of the host.
          metrics: values by name, including best_metric; without it the step cannot be among the best.

        Raises:
          OSError: if this save or the previous one does not fit on the disk, or fails otherwise.
          ValueError: if a later step is saved already, or an array has no elements.
        """
        self._finish()  # the previous save is on the disk, or raises its error here
        with self._said_clearly(step):
            self._tidy_up()
        newest = self._manager.latest_step()
        if newest == step:
            return
        if newest is not None and newest > step:
            raise ValueError(
                f"step {step} cannot be written under {self._directory}: step {newest} is already saved, and only the "
                "newest can be continued"
            )
        if empty := [name for name, leaf in _leaves(items) if not math.prod(leaf.shape)]:
            raise ValueError(f"step {step} cannot be written: arrays without elements: {', '.join(empty)}")
        with self._said_clearly(step, needed := _num_bytes(items)):
            free = shutil.disk_usage(self._directory).free
            if distributed.any_process(free < needed):  # otherwise processes with room would wait for this one
                raise OSError("the disk is full")
            arrays = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            arrays |= self._retention.note(step, metrics or {})
            self._saving = step
            content = digests.seal(step, host, digests.of(items))
            sealed = {HOST: ocp.args.JsonSave(content), SEALED: ocp.args.JsonSave({})}
            if not self._manager.save(step, args=ocp.args.Composite(**arrays, **sealed)):
                raise OSError("orbax has not saved it")

    def _finish(self) -> None:
        with self._said_clearly(self._saving):
            self._manager.wait_until_finished()

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the best checkpoint by best_metric; None if no checkpoint has it."""
        return self._retention.best_step(self._manager.all_steps())

    def restore(
        self, like: dict[str, Any], step: int | None = None, *, in_place: bool = False
    ) -> tuple[dict[str, Any], dict]:
        """Reads a checkpoint.

        Args:
          like: for each item to read, a pytree of arrays or shape structs with the shapes, dtypes and shardings to
            fill. Items not named are not read.
          step: None takes the newest checkpoint that can be read, and reports on stderr the ones it skipped.
          in_place: whether to free the arrays of `like` before reading. A state that barely fits could not be resumed
            with a second copy in memory.

        Returns:
          (items, host) as they were saved.

        Raises:
          FileNotFoundError: if there is no checkpoint, or none of this step; the message names the steps there are.
          ValueError: if the saved arrays have other shapes or names than `like`, or if no checkpoint can be read; the
            message gives the reason for each.
        """
        self._finish()
        there = sorted(self._manager.all_steps(), reverse=True)
        if not there:
            raise FileNotFoundError(f"no checkpoint under {self._directory}")
        if step is not None and step not in there:
            raise FileNotFoundError(f"no checkpoint of step {step} under {self._directory}: there are {_listed(there)}")
        targets = {name: jax.tree.map(ocp.utils.to_shape_dtype_struct, tree) for name, tree in like.items()}
        for leaf in jax.tree.leaves(like) if in_place else ():
            if isinstance(leaf, jax.Array):
                leaf.delete()
        failures: dict[int, str] = {}
        for candidate in there if step is None else [step]:
            restored, host, failure = self._read_whole(candidate, targets)
            if failure is None:
                for number, reason in failures.items():
                    where = self._directory / str(number)
                    _say(f"checkpoint {where} is damaged ({reason}); step {candidate} is used instead")
                self._damaged = list(failures)
                return restored, host
            failures[candidate] = failure
        reasons = "; ".join(f"{self._directory / str(number)}: {reason}" for number, reason in failures.items())
        ways = f"Move {self._directory} away to start over" if step is None else f"There are {_listed(there)}"
        raise ValueError(f"no checkpoint can be read. {reasons}. {ways}")

    def _read_whole(self, step: int, targets: dict[str, Any]) -> tuple[Any, dict, str | None]:
        """(items, host, why this checkpoint cannot be used): the same answer in every process."""
        restored, host, record, failure = self._read(step, targets)
        if distributed.any_process(failure is not None):
            return None, {}, failure or "another process cannot read it"
        if record is None:
            _say(f"checkpoint {self._directory / str(step)} carries no digests (it is older): it is used unchecked")
        elif failure := digests.fault(record, restored):
            return None, {}, failure
        # An array that is wanted in another dtype was read in its own, to be checked.
        return jax.tree.map(_cast, restored, targets), host, None

    def _read(self, step: int, targets: dict[str, Any]) -> tuple[Any, dict, dict[str, str] | None, str | None]:
        """(items, host, digests, None), or (None, {}, None, why it cannot be read).

        No process waits for another, since the damage may be in the files of just one.
        """
        me = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"read{me}"
        )
        options = ocp.CompositeOptions(multiprocessing_options=alone)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        folder, record = self._directory / str(step), None
        with contextlib.closing(ocp.Checkpointer(handler, multiprocessing_options=alone)) as reader:
            try:
                host, record = digests.unseal(step, json.loads((folder / HOST / "metadata").read_text()))
                if record is None and (folder / SEALED).exists():
                    raise ValueError("its digests are missing")
                saved = _as_saved(targets, digests.kinds(record or {}))
                arrays = {name: ocp.args.StandardRestore(tree) for name, tree in saved.items()}
                restored = reader.restore(folder, args=ocp.args.Composite(**arrays))
                return {name: restored[name] for name in targets}, host, record, None
            except Exception as error:
                # A broken file can make a parser raise anything. Errors that are not damage must not be taken for it:
                if isinstance(error, (MemoryError, PermissionError, jax.errors.JaxRuntimeError)):
                    raise
                reason = " ".join(str(error).split())
                if any(words in reason for words in OTHER_FORM) and not _same_form(targets, record):
                    raise ValueError(
                        f"{folder} is of a run with other shapes; use that run's config: {reason}"
                    ) from error
                return None, {}, None, f"{type(error).__name__}: {reason:.150}"

    def _tidy_up(self) -> None:
        """Before a save, moves damaged steps aside so that they can be saved again.

        Before the first save it also removes the rests of interrupted saves. (Not at the start: a process that only
        reads a run in progress must not delete anything.)
        """
        if distributed.is_main():
            for path in () if self._tidy else sorted(self._directory.glob(f"*{UNFINISHED}*")):
                _say(f"{path} is left over from an interrupted save; it is removed")
                shutil.rmtree(path)
            for step in self._damaged:
                path, number = self._directory / f"{step}{DAMAGED}", 1
                while path.exists():
                    path, number = self._directory / f"{step}{DAMAGED}-{number}", number + 1
                (self._directory / str(step)).rename(path)
        if self._damaged:
            distributed.barrier("damaged checkpoints are moved aside")
            self._manager.reload()
        self._tidy, self._damaged = True, []

    @contextlib.contextmanager
    def _said_clearly(self, step: int | None, needed: int = 0):
        """Turns failures of a save into one OSError: what failed, where, the free space, what is intact."""
        try:
            yield
        except Exception as error:
            free = shutil.disk_usage(self._directory).free
            complete = sorted(int(path.name) for path in self._directory.iterdir() if path.name.isdecimal())
            rights = getattr(error, "errno", None) in (errno.EROFS, errno.EACCES, errno.EPERM)
            remedy = "make the folder writable" if rights else "free some space"
            room = f"it takes up to {needed:,} bytes, and " if needed else ""
            raise OSError(
                f"the checkpoint of step {step} cannot be written under {self._directory} ({error}): "
                f"{room}{free:,} bytes are free. The checkpoints of steps {complete} are untouched: {remedy} "
                "and run the same command again to resume"
            ) from error

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, *_) -> None:
        """Waits for the last save even if the loop raised, so that it is not lost."""
        try:
            self.close()
        except OSError:
            if kind is None:  # otherwise show the loop's own error
                raise

    def close(self) -> None:
        """Waits for the last save and releases the directory.

        Raises:
          OSError: if the save failed.
        """
        with self._said_clearly(self._saving):
            self._manager.close()


def _say(text: str) -> None:
    if distributed.is_main():
        print(text, file=sys.stderr, flush=True)


def _leaves(items: Any) -> list[tuple[str, Any]]:
    return [(types.path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(items)]


def _num_bytes(items: Any) -> int:
    """Upper bound of the disk space of the arrays (no compression), summed over all processes."""
    return SLACK_BYTES + sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(items))


def _listed(steps: Iterable[int]) -> str:
    return f"steps {', '.join(map(str, sorted(steps)))}"


def _as_saved(targets: dict[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The targets with the dtypes that the arrays were saved in: only those bytes have a digest."""

    def leaf(path, target):
        saved, _, _ = kinds.get(types.path_name(path), "").partition("[")
        if not saved or jax.dtypes.issubdtype(target.dtype, jax.dtypes.prng_key):
            return target
        return jax.ShapeDtypeStruct(target.shape, jax.numpy.dtype(saved), sharding=target.sharding)

    return jax.tree_util.tree_map_with_path(leaf, targets)


def _cast(x: Any, target: Any) -> Any:
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return x if is_key or x.dtype == target.dtype else x.astype(target.dtype)


def _same_form(targets: dict[str, Any], record: Mapping[str, str] | None) -> bool:
    """Whether exactly these arrays were saved: what does not fit to them then is damage, not another run's config."""

    def shape(kind: str) -> str:
        return kind.partition("[")[2]

    paths = jax.tree_util.tree_leaves_with_path(targets)
    wanted = {types.path_name(path): shape(digests.kind_of(leaf)) for path, leaf in paths}
    kinds = digests.kinds(record or {})
    return wanted == {name: shape(kind) for name, kind in kinds.items() if name.partition("/")[0] in targets}


class StopSignal:
    """Turns SIGTERM (and SIGINT) into a flag that the loop polls between steps.

    SIGTERM is also how a TPU VM, Kubernetes or SLURM announces that the machine will be taken away. `timeout` and
    systemd tell every process of a group, and a parent (a sweep, an ablation) passes on what it is told: what comes
    twice within SAME_S is one signal.

    Attributes:
      received: whether this process got a signal. Several processes agree on the step to stop at with
        distributed.any_process(stop.received).
    """

    def __init__(self):
        self.received, self._since = False, 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number, frame):
        if self.received:
            if number == signal.SIGINT or time.monotonic() - self._since > SAME_S:
                raise KeyboardInterrupt
            return
        self.received, self._since = True, time.monotonic()
        os.write(2, b"\nstopping after this step, once it is saved; a second signal stops at once\n")


def checksum(tree: Any) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of every leaf: equal for equal trees."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(distributed.whole(leaf))  # one leaf at a time: the model need not fit on the host
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
