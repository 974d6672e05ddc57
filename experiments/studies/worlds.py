"""Configs of the control programs as the arms of a study: all seeds of an arm are one program."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts import control_runs, control_setup, offline_runs, replay_runs
from experiments.studies.base import Outcome, curve

MAKERS = {
    "control.ppo": control_runs.make_run,
    "control.offline": offline_runs.make_offline_run,
    "control.replay": replay_runs.make_replay_run,
}


def loaded(config: str, fields: Mapping[str, Any]):
    """(a config "MODULE:ARGUMENT" of configs.control with fields set, its number of updates)."""
    place, _, argument = config.partition(":")
    found = importlib.import_module(f"configs.control.{place}").get_config(argument)
    with found.unlocked():
        found.update(fields)
    found.log_every = found.checkpoint.every = 1
    return found, control_setup.num_updates(found)


def trained_in_worlds(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], metrics: Mapping[str, str], points: int
) -> Outcome:
    """Trains each arm's config with every seed, and reads metrics of the program at `points` equal distances.

    Metrics, for each name of `metrics`: name, at the end; mean_name, the mean over the points; highest_name, the
    largest.

    Args:
      seeds: of the runs.
      arms: name -> config "MODULE:ARGUMENT" of configs.control, and fields to set in it.
      metrics: name -> a metric of the program, as eval/return.
      points: at which training is measured; they divide the number of updates.

    Raises:
      ValueError: if they do not.
    """
    values, curves = {}, {name: {} for name in metrics}
    for arm, spec in arms.items():
        config, updates = loaded(spec["config"], spec.get("fields", {}))
        if updates % points:
            raise ValueError(f"{arm}: {updates} updates do not divide into {points} points")
        config.update(log_every=updates // points, group=len(seeds), runs=tuple((seed, ()) for seed in seeds))
        config.checkpoint.every = config.log_every
        program = control_runs.make_program(config, MAKERS[config.get("program", "control.ppo")])
        state, rows = program.init(), []
        for _ in range(points):
            state, found = program.advance(state)
            rows.append({name: np.asarray(jax.device_get(found[metric])) for name, metric in metrics.items()})
        values[arm] = {}
        for name in metrics:
            trace = np.stack([row[name] for row in rows], axis=1)  # [S, points]
            found = {name: trace[:, -1], f"mean_{name}": trace.mean(axis=1), f"highest_{name}": trace.max(axis=1)}
            values[arm] |= found
            curves[name][arm] = curve([(i + 1) * config.log_every for i in range(points)], trace)
    return Outcome(values, curves)
