"""Orbax checkpoints of a whole run: named pytrees of arrays (sharded, asynchronous) and what the host carries (JSON).

A checkpoint is complete or absent: orbax writes aside, renames, and only then removes what is not to be kept. Step N
holds the state after N steps. One that cannot be read any more is passed over, said so, and never deleted.
"""

import contextlib
import hashlib
import math
import pathlib
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rl_jax.training import distributed
from rl_jax.training.retention import Retention

UNFINISHED = ".orbax-checkpoint-tmp"  # what orbax calls a folder that it has not renamed yet
DAMAGED = ".damaged"
SLACK_BYTES = 1 << 20  # metadata and the host's JSON
# What orbax says where a whole checkpoint is not the one that was asked for.
OTHER_FORM = ("tree structures do not match", "is not compatible with the stored shape")


class Checkpointer:
    """Saves and restores named pytrees of jax arrays, and a JSON-able dict of the host's, by step."""

    def __init__(
        self,
        directory: str | pathlib.Path,
        *,
        every: int,
        keep: int | None = 2,
        keep_every: int = 0,
        keep_best: int = 0,
        best_metric: str = "",
        best_mode: str = "max",
    ):
        """every: steps between saves. keep: how many of the newest stay; None keeps all. keep_every: the multiples of
        so many steps stay for good; 0 is none. keep_best: how many of the best by best_metric stay, "max" or "min".

        The newest is always among those kept. Raises ValueError naming the field that makes no sense.
        """
        if every < 1:
            raise ValueError(f"checkpoint.every={every} is no number of steps")
        self._every = every
        self._directory = pathlib.Path(directory).absolute()
        self._retention = Retention(keep, keep_every, keep_best, best_metric, best_mode)
        self._retention.read(self._directory)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._retention,
            enable_async_checkpointing=True,
            lightweight_initialize=True,  # orbax would read metrics, and fall over a damaged file of them
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)
        self._saving: int | None = None  # the step whose save began last
        self._damaged: list[int] = []
        self._tidy = False

    def due(self, step: int) -> bool:
        """Whether `step` is one to save at. Raises OSError where the save before has failed in the background."""
        if jax.process_count() == 1 and not self._manager.is_saving_in_progress():  # several find it out at the save
            self._finish()
        return step % self._every == 0

    def save(self, step: int, items: dict[str, Any], host: dict, metrics: Mapping[str, float] | None = None) -> None:
        """Copies to the host now, writes in the background. A step that is there already is left as it is.

        metrics: by name, among them the one that the best are kept by; without it the step is no candidate.
        Raises OSError where this save or the one before does not fit on the disk or fails otherwise. Nothing that was
        there is removed before the new checkpoint is complete.
        """
        self._finish()  # the bytes of the save before are on the disk, its error is known
        with self._said_clearly(step, needed := _num_bytes(items)):
            self._tidy_up()
            if self._manager.latest_step() == step:
                return
            free = shutil.disk_usage(self._directory).free
            if distributed.any_process(free < needed):  # else those that have room would wait for this one
                raise OSError("the disk is full")
            arrays = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            arrays |= self._retention.note(step, metrics or {})
            self._saving = step
            if not self._manager.save(step, args=ocp.args.Composite(**arrays, host=ocp.args.JsonSave(host))):
                raise OSError(f"step {self._manager.latest_step()} is there already: only the newest goes on")

    def _finish(self) -> None:
        with self._said_clearly(self._saving):
            self._manager.wait_until_finished()

    def latest_step(self) -> int | None:
        """The newest checkpoint's step, None where there is none."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the best checkpoint by best_metric, None where none has it."""
        return self._retention.best_step(self._manager.all_steps())

    def restore(
        self, like: dict[str, Any], step: int | None = None, *, in_place: bool = False
    ) -> tuple[dict[str, Any], dict]:
        """(items, host) of `step`; when None, of the newest that can be read, and a line on stderr says what was
        passed over. like: for each item wanted, a pytree of arrays or shape structs whose shapes, dtypes and shardings
        are to be filled; items not named are not read. in_place: the arrays of `like` are given up before anything is
        read: a state that only just fits could not be resumed beside another one.

        Raises FileNotFoundError where there is no checkpoint, ValueError where `like` is of another form than what was
        saved, and where no checkpoint can be read: it names each with the reason.
        """
        self._finish()
        steps = sorted(self._manager.all_steps(), reverse=True) if step is None else [step]
        if not steps:
            raise FileNotFoundError(f"no checkpoint under {self._directory}")
        targets = {name: jax.tree.map(ocp.utils.to_shape_dtype_struct, tree) for name, tree in like.items()}
        for leaf in jax.tree.leaves(like) if in_place else ():
            if isinstance(leaf, jax.Array):
                leaf.delete()
        failures: dict[int, str] = {}
        for candidate in steps:
            restored, failure = self._read(candidate, targets)
            if not distributed.any_process(failure is not None):
                for number, reason in failures.items():
                    where = self._directory / str(number)
                    _say(f"checkpoint {where} is damaged ({reason}); step {candidate} is used in its place")
                self._damaged = list(failures)
                return {name: restored[name] for name in like}, restored["host"]
            failures[candidate] = failure or "another process cannot read it"
        told = "; ".join(f"{self._directory / str(number)}: {reason}" for number, reason in failures.items())
        raise ValueError(f"no checkpoint can be read. {told}. Move {self._directory} away to start anew")

    def _read(self, step: int, targets: dict[str, Any]) -> tuple[Any, str | None]:
        """(what was read, None) or (None, why it cannot be). No process waits for another: the damage may be in the
        files of just one."""
        me = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"read{me}"
        )
        options = ocp.CompositeOptions(multiprocessing_options=alone)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        arguments = {name: ocp.args.StandardRestore(target) for name, target in targets.items()}
        arguments = ocp.args.Composite(**arguments, host=ocp.args.JsonRestore())
        folder = self._directory / str(step)
        with contextlib.closing(ocp.Checkpointer(handler, multiprocessing_options=alone)) as reader:
            try:
                return reader.restore(folder, args=arguments), None
            except Exception as error:
                # A broken file makes a parser raise anything. What is no damage must not pass for it:
                if isinstance(error, (MemoryError, PermissionError, jax.errors.JaxRuntimeError)):
                    raise
                reason = " ".join(str(error).split())
                if any(words in reason for words in OTHER_FORM):
                    raise ValueError(f"{folder} is of a run with other shapes, use its config: {reason}") from error
                return None, f"{type(error).__name__}: {reason:.150}"

    def _tidy_up(self) -> None:
        """Before a save: damaged steps are moved aside, so that they can be saved anew; before the first one, rests of
        saves that were cut off go. (Not at the start: a reader of a run that is still on has no business here.)"""
        if distributed.is_main():
            for path in () if self._tidy else sorted(self._directory.glob(f"*{UNFINISHED}*")):
                _say(f"{path} is the rest of a save that was cut off; it is removed")
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
        """Failures of a save as one OSError that says what, where, how much room there is, and what is still there."""
        try:
            yield
        except Exception as error:
            free = shutil.disk_usage(self._directory).free
            complete = sorted(int(path.name) for path in self._directory.iterdir() if path.name.isdecimal())
            room = f"it takes up to {needed:,} bytes, and " if needed else ""
            raise OSError(
                f"the checkpoint of step {step} cannot be written under {self._directory} ({error}): "
                f"{room}{free:,} bytes are free. The checkpoints of steps {complete} are untouched: make room, and the "
                "same command goes on from there"
            ) from error

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, *_) -> None:
        """Waits for the last save, also where the loop raised: it must not be lost with it."""
        try:
            self.close()
        except OSError:
            if kind is None:  # else the loop's own error is the one to show
                raise

    def close(self) -> None:
        """Waits for the last save and lets go of the directory. Raises OSError where it has failed."""
        with self._said_clearly(self._saving):
            self._manager.close()


def _say(text: str) -> None:
    if distributed.is_main():
        print(text, file=sys.stderr, flush=True)


def _num_bytes(items: Any) -> int:
    """What the arrays take on the disk where nothing can be compressed, those of all processes."""
    return SLACK_BYTES + sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(items))


class StopSignal:
    """Turns SIGTERM (and SIGINT) into a question that the loop asks between steps.

    SIGTERM is also how a TPU VM, Kubernetes or SLURM tells that the machine will be taken away. received: of this
    process; several agree on the step to stop at with distributed.any_process(stop.received).
    """

    def __init__(self):
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number, frame):
        if self.received:  # the second time it is meant
            raise KeyboardInterrupt
        self.received = True


def checksum(tree: Any) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of every leaf: equal trees, equal text."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(distributed.whole(leaf))  # one after the other: the model need not fit the host
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
