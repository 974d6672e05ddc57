"""Whether a config goes with rollout.window, algorithm.mirror_step and algorithm.action_mask, if it has them."""

import functools
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from experiments.parts import schedules

# What both need: rows that are sampled once, by the one compiled program, and stay as they are.
PLAIN = {
    "sample.dynamic_sampling.max_batches": 1,
    "sample.references": 0,
    "sample.memory.last": False,
    "packing.mode": "padded",
    "rollout.engine.name": "lockstep",
    "rollout.mesh": "",
    "foreign": {},
}


def problems(config: ConfigDict) -> Iterator[str]:
    """What does not go with rollout.window, algorithm.mirror_step and algorithm.action_mask, one line each."""
    rollout, window = config.rollout, config.rollout.get("window", 0)
    if window:
        if rollout.completion_length % window:
            yield f"rollout.window={window} must divide rollout.completion_length={rollout.completion_length}"
        wanted = PLAIN | {"program": "ppo", "sample.group_size": 1}
        if "critic" in config:  # one count divides both losses of a shared trunk, and theirs are not the same tokens
            wanted["critic.shared"] = False
        yield from _needed(config, f"rollout.window={window}", wanted)
    if step := (config.algorithm.get("mirror_step", 0.0) or 0.0):
        wanted = {"program": "grpo", "packing.mode": "padded", "model.lora.rank": 0}
        yield from _needed(config, f"algorithm.mirror_step={step}", wanted)
        yield from _step_sizes(config)
    if any(value > 0 for name, value in config.algorithm.get("perception", {}).items() if name != "share"):
        yield from _needed(config, "algorithm.perception", {"program": "grpo", "packing.mode": "padded"})
    top_p = config.algorithm.action_mask.top_p if "action_mask" in config.algorithm else 1.0
    if top_p < 1:
        if config.get("program") not in (None, "grpo", "ppo"):  # others sample without it
            yield f"program={config.program!r} does not go with algorithm.action_mask.top_p={top_p}: grpo and ppo do"
        more = {"model.lora.rank": 0, "rollout.window": 0}
        if "mirror_step" in config.algorithm:  # its KL is over the whole vocabulary, not over what the mask leaves
            more["algorithm.mirror_step"] = 0.0
        yield from _needed(config, f"algorithm.action_mask.top_p={top_p}", PLAIN | more)


def _step_sizes(config: ConfigDict) -> Iterator[str]:
    """A scheduled mirror_step that is not above 0 at the run's ends: the KL is divided by it."""
    for name, spec in config.schedules.items():
        if spec.get("field") != "algorithm.mirror_step" or any(schedules.problems(config)):
            continue
        for step in (1, config.train.steps):
            if not (value := schedules.at(config, step)[name]) > 0:
                yield (
                    f"schedules.{name} gives algorithm.mirror_step={value} in step {step} of train.steps="
                    f"{config.train.steps}: it must be above 0 (a linear one with steps={config.train.steps} is)"
                )


def _needed(config: ConfigDict, cause: str, values: dict[str, Any]) -> Iterator[str]:
    for name, wanted in values.items():
        value = functools.reduce(lambda group, key: group[key], name.split("."), config)
        value = value.to_dict() if isinstance(value, ConfigDict) else value
        if value != wanted:
            yield f"{name}={value!r} does not go with {cause}: it must be {wanted!r}"
