"""config.schedules: coefficients that change from step to step, in grpo and ppo.

    --config.schedules="{'kl': {'field': 'algorithm.kl_coef', 'fn': 'linear', 'start': 0.1, 'end': 0.0, 'steps': 100}}"

Each entry is NAME -> dict(field=a dotted field, fn=one of rl_jax.core.schedules or "module:function", **keywords). Its
value in a step is logged as schedule/NAME. Fields of `algorithm` and `critic` reach the compiled functions as arrays:
with the tracker states where credit is assigned, and with the rows of a batch where the loss is. Nothing is compiled
again when a value changes. Fields of `foreign` are read on the host.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts.check_config import get
from experiments.parts.nearest import nearest_field
from rl_jax.core import schedules
from rl_jax.core.binding import bind
from rl_jax.core.trackers import Tracker
from rl_jax.core.types import PolicyBatch

PLACE = "schedules"  # among the tracker states
EXTRA = "schedule/"  # before the name, in a batch's extras and in metrics


def at(config: ConfigDict, step: int) -> dict[str, float]:
    """The values in a step, by name.

    Raises:
      ValueError: if one is not a finite number.
    """
    result = {}
    for name, spec in config.schedules.items():
        keywords = {key: value for key, value in spec.to_dict().items() if key != "field"}
        value = bind(keywords, schedules)(step)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"schedules.{name} gives {value!r} in step {step}, not a finite number")
        result[name] = float(value)
    return result


def make_tracker(config: ConfigDict) -> Tracker:
    """The values as a state: {name: float32 []}; update(state, step) -> state."""

    def values(step: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(value, np.float32) for name, value in at(config, step).items()}

    return Tracker(lambda: values(1), lambda state, step: values(step))


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """The config with scheduled fields replaced by their values, numbers or arrays; itself if there are none.

    Args:
      config: of the run.
      values: name -> number or float32 [].
    """
    if not config.schedules:
        return config
    result = config.copy_and_resolve_references()
    with result.unlocked(), result.ignore_type():
        for name, value in values.items():
            *groups, last = config.schedules[name].field.split(".")
            group = result
            for part in groups:
                group = group[part]
            group[last] = value
    return result


def in_credit(config: ConfigDict, states: Mapping[str, Any]) -> ConfigDict:
    """The config with the values of the tracker states."""
    return with_values(config, states.get(PLACE, {}))


def in_loss(config: ConfigDict, extras: Mapping[str, Any]) -> ConfigDict:
    """The config with the values that a batch's rows carry, all rows the same."""
    return with_values(config, {name: extras[EXTRA + name][0] for name in config.schedules})


def carry(batch: PolicyBatch, states: Mapping[str, Any]) -> dict[str, Any]:
    """What the rows of a batch carry for `in_loss`: float32 [B] by name."""
    rows = batch.completion_mask.shape[:1]
    return {EXTRA + name: jnp.full(rows, value) for name, value in states.get(PLACE, {}).items()}


def may_be_used(config: ConfigDict, field: str) -> bool:
    """Whether a coefficient is not 0, or is scheduled."""
    group, _, name = field.rpartition(".")
    return bool(config[group][name]) or any(spec.field == field for spec in config.schedules.values())


def metrics_of(states: Mapping[str, Any]) -> dict[str, float]:
    """schedule/NAME."""
    return {EXTRA + name: float(value) for name, value in states.get(PLACE, {}).items()}


# Beginnings of the fields that can be scheduled, and those among them that are read once, at the start.
SCHEDULED = ("algorithm.", "critic.advantage.", "critic.loss.", "critic.value_coef", "foreign.")
READ_ONCE = ("algorithm.trackers.", "algorithm.reference_", "algorithm.ptx.")


# Fields whose value something else gives if it is named, and which then has no effect.
REPLACED_BY = {
    "algorithm.reward_kl_coef": ("algorithm.trackers.reward_kl",),
    "algorithm.kl_coef": ("algorithm.trackers.loss_kl",),
    "algorithm.entropy_coef": ("algorithm.trackers.entropy", "algorithm.entropy_weight"),
}


def _replaced(config: ConfigDict, place: str, field: str) -> Iterator[str]:
    for other in REPLACED_BY.get(field, ()):
        spec: Any = config
        for part in other.split("."):
            spec = spec[part] if part in spec else {}
        if spec and spec.fn:
            yield (
                f"{place}.field={field!r} is set by {other}.fn={spec.fn!r}, too, which would win: remove the schedule, "
                f"or set --config.{other}.fn=''"
            )


def problems(config: ConfigDict) -> Iterator[str]:
    """What is wrong with config.schedules, one line per entry."""
    seen: dict[str, str] = {}
    for name, spec in config.schedules.items():
        place = f"schedules.{name}"
        if not isinstance(spec, ConfigDict) or not isinstance(spec.get("field"), str) or "fn" not in spec:
            yield f"{place}={spec!r} must be dict(field='algorithm.kl_coef', fn='linear', ...)"
            continue
        field = spec.field
        group, _, last = field.rpartition(".")
        inside = get(config, group) if group else config
        value = get(config, field)
        if not isinstance(inside, ConfigDict) or last not in inside:
            yield f"{place}.field: {nearest_field(config, field)}"
        elif not field.startswith(SCHEDULED) or field.startswith(READ_ONCE):
            begins = ", ".join(SCHEDULED)
            yield f"{place}.field={field!r} cannot change during a run; fields that can begin with {begins}"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield (
                f"{place}.field={field!r} is {value!r} in this config, not a number: name a field that holds one, and "
                "write a keyword of a function out first"
            )
        elif field in seen:
            yield f"{place}.field={field!r} is the field of schedules.{seen[field]}, too"
        else:
            yield from _replaced(config, place, field)
        seen.setdefault(field, name)
        try:
            at(ConfigDict({"schedules": {name: spec.to_dict()}}), 1)
        except (ValueError, TypeError) as error:
            yield f"{place}: {error}"
