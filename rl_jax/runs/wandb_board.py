"""Metrics to Weights & Biases, beside the files of the run. The package wandb is imported only for a run that asks.

With mode "offline" nothing leaves the machine: `wandb sync WORKDIR/wandb/offline-run-*` sends a run when its user wants
to. The network of mode "online", and the login, are wandb's own.
"""

import importlib
import json
import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_jax.runs.logging import write_atomically

MODES = ("offline", "online", "disabled")


class WandbBoard:
    """A run of Weights & Biases. A resumed run of ours goes on with the same one, whose id is in WORKDIR/wandb.json."""

    def __init__(self, workdir: Path, *, project: str, mode: str, config: Mapping[str, Any]):
        """Starts or continues the run.

        Args:
          workdir: of the run; wandb writes into its folder "wandb".
          project: the name of the project.
          mode: "offline", "online" or "disabled".
          config: of the run, shown by wandb.

        Raises:
          ValueError: for another mode.
          ModuleNotFoundError: if wandb is not installed; names the extra.
        """
        if mode not in MODES:
            raise ValueError(f"log.wandb.mode={mode!r} is none of {', '.join(MODES)}")
        try:
            wandb = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("log.wandb.project needs the package wandb: pip install -e '.[wandb]'") from error
        record = workdir / "wandb.json"
        known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {"id": uuid.uuid4().hex[:16]}
        write_atomically(record, (json.dumps(known) + "\n").encode())
        self._run = wandb.init(
            project=project, name=workdir.name, id=known["id"], resume="allow", dir=str(workdir), mode=mode,
            config=dict(config),
        )  # fmt: skip

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the finite ones of one step's values."""
        self._run.log({name: value for name, value in values.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()
