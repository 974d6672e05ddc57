"""Which checkpoints to keep: the newest, the best by a metric, and one every so many steps.

The metric is read from each checkpoint's own file, so a resumed run continues with the same ranking.
"""

import hashlib
import json
import math
import pathlib
import warnings
from collections.abc import Container, Mapping, Sequence

import orbax.checkpoint as ocp

ITEM = "metric"  # its name among a checkpoint's items
SEAL = "sha256"  # of step and metric: a flipped bit must not decide which checkpoint is the best


def _seal(step: int, result: Mapping[str, float]) -> str:
    return hashlib.sha256(json.dumps([step, result], sort_keys=True).encode()).hexdigest()


class Retention:
    """An orbax preservation policy: steps not in should_preserve are removed once a new checkpoint is complete."""

    def __init__(
        self, keep: int | None, keep_every: int, keep_best: int, best_metric: str | Sequence[str], best_mode: str
    ):
        """Arguments as in rl_jax.training.checkpoint.Checkpointer.

        Raises:
          ValueError: if a field is invalid; the message names it.
        """
        if keep is not None and keep < 1:
            raise ValueError(f"checkpoint.keep={keep} must be at least 1: resuming needs the newest checkpoint")
        if keep_every < 0 or keep_best < 0:
            raise ValueError(f"checkpoint.keep_every={keep_every}, keep_best={keep_best} must be 0 (none) or more")
        if keep_best and not best_metric:
            raise ValueError(f"checkpoint.keep_best={keep_best} needs checkpoint.best_metric")
        if best_mode not in ("max", "min"):
            raise ValueError(f"checkpoint.best_mode={best_mode!r} is none of max, min")
        self._keep, self._keep_every, self._keep_best = keep, keep_every, keep_best
        self._names = (best_metric,) if isinstance(best_metric, str) else tuple(best_metric)
        self._sign = 1 if best_mode == "max" else -1
        self._values: dict[int, float] = {}
        self._missed = False

    def read(self, directory: pathlib.Path) -> None:
        """Reads the metric of every checkpoint in `directory`. Those without a readable metric are not ranked."""
        found = {}
        for path in directory.glob(f"[0-9]*/{ITEM}") if self._keep_best else ():
            if not path.parent.name.isdecimal():
                continue  # moved aside as damaged, or left by a save that was interrupted
            try:
                step, saved = int(path.parent.name), json.loads((path / "metadata").read_text())
                seal = saved.pop(SEAL, None)
                if seal != _seal(step, saved) and (seal or self._name_in(saved) is None):  # an older one has no seal
                    raise ValueError("its checksum differs")
                found[step] = saved
            except (ValueError, AttributeError, OSError) as error:
                warnings.warn(f"{path / 'metadata'} is damaged ({error}): its step is not ranked", stacklevel=3)
        self._choose({name for saved in found.values() for name in saved})
        for step, saved in found.items():
            self._take(step, saved)

    def note(self, step: int, metrics: Mapping[str, float]) -> dict[str, ocp.args.JsonSave]:
        """Records the metric of a step that is about to be saved.

        Warns once if no step so far has had the metric: with a misspelt name nothing would be kept.

        Returns:
          The item to save with the step: {} or {ITEM: its metric}.
        """
        if not self._keep_best:
            return {}
        self._values.pop(step, None)  # left from a damaged checkpoint that is saved again
        self._choose(metrics)
        if (name := self._name_in(metrics)) is None:
            if metrics and not self._values and not self._missed:
                self._missed = True  # warn once: evaluating a metric less often than saving is no mistake
                known = ", ".join(sorted(metrics))
                asked = " or ".join(map(repr, self._names))
                text = f"checkpoint.best_metric={asked} is not among the metrics of step {step}: {known}"
                warnings.warn(text, stacklevel=3)
            return {}
        result = {name: float(metrics[name])}
        self._take(step, result)
        return {ITEM: ocp.args.JsonSave(result | {SEAL: _seal(step, result)})}

    def _name_in(self, metrics: Container[str]) -> str | None:
        """The first of the names that is among `metrics`."""
        return next((name for name in self._names if name in metrics), None)

    def _choose(self, metrics: Container[str]) -> None:
        """Keeps to the first of several names that a step has: values of different metrics are in no order."""
        if (name := self._name_in(metrics)) is not None:
            self._names = (name,)

    def _take(self, step: int, result: Mapping[str, float]) -> None:
        value = result.get(self._names[0])
        if isinstance(value, float) and not math.isnan(value):
            self._values[step] = value

    def best_step(self, steps: Sequence[int]) -> int | None:
        """The best of `steps`, the later one of equals; None if none has the metric."""
        return max((step for step in steps if step in self._values), key=self._merit, default=None)

    def _merit(self, step: int) -> tuple[float, int]:
        return self._sign * self._values[step], step

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """One bool per checkpoint. checkpoints: orbax's, by rising step. context: orbax's, unused."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = set(steps if self._keep is None else steps[-self._keep :])
        kept |= {step for step in steps if self._keep_every and step % self._keep_every == 0}
        if self._keep_best:
            ranked = sorted((step for step in steps if step in self._values), key=self._merit)
            kept |= set(ranked[-self._keep_best :])
        return [step in kept for step in steps]
