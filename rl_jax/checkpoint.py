"""Orbax checkpoints of a whole run: named pytrees of arrays (sharded, asynchronous) and what the host carries (JSON).

A checkpoint is complete or absent (orbax writes aside and renames). Step N holds the state after N steps.
"""

import hashlib
import pathlib
import signal
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


class Checkpointer:
    """Saves and restores named pytrees of jax arrays, and a JSON-able dict of the host's, by step."""

    def __init__(self, directory: str | pathlib.Path, *, every: int, keep: int = 2):
        """every: steps between saves. keep: how many of the newest stay."""
        self._every = every
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(pathlib.Path(directory).absolute(), options=options)

    def due(self, step: int) -> bool:
        """Whether `step` is one to save at."""
        return step % self._every == 0

    def save(self, step: int, items: dict[str, Any], host: dict) -> None:
        """Copies to the host now, writes in the background. A step that is there already is left as it is."""
        if self._manager.latest_step() == step:
            return
        arrays = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        self._manager.save(step, args=ocp.args.Composite(**arrays, host=ocp.args.JsonSave(host)))

    def latest_step(self) -> int | None:
        """The newest complete checkpoint's step, None where there is none."""
        return self._manager.latest_step()

    def restore(self, like: dict[str, Any], step: int | None = None) -> tuple[dict[str, Any], dict]:
        """(items, host) of `step`, the newest when None. like: for each item wanted, a pytree of arrays or shape
        structs whose shapes, dtypes and shardings are to be filled; items not named are not read.

        Raises FileNotFoundError where there is no checkpoint.
        """
        step = self.latest_step() if step is None else step
        if step is None:
            raise FileNotFoundError(f"no checkpoint under {self._manager.directory}")
        targets = {
            name: ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree))
            for name, tree in like.items()
        }
        restored = self._manager.restore(step, args=ocp.args.Composite(**targets, host=ocp.args.JsonRestore()))
        return {name: restored[name] for name in like}, restored["host"]

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_) -> None:  # also where the loop raised: the last save must not be lost with it
        self.close()

    def close(self) -> None:
        """Waits for the last save and lets go of the directory."""
        self._manager.wait_until_finished()
        self._manager.close()


class StopSignal:
    """Turns SIGTERM (and SIGINT) into a question that the loop asks between steps."""

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
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
