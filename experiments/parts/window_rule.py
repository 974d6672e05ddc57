"""Whether a config goes with rollout.window (experiments.parts.windows)."""

from collections.abc import Iterator

from ml_collections import ConfigDict


def problems(config: ConfigDict) -> Iterator[str]:
    """What does not go with rollout.window, one line each."""
    rollout, window = config.rollout, config.rollout.get("window", 0)
    if not window:
        return
    if rollout.completion_length % window:
        yield f"rollout.window={window} must divide rollout.completion_length={rollout.completion_length}"
    needed = {
        "program": (config.program, "ppo"),
        "sample.group_size": (config.sample.group_size, 1),
        "sample.dynamic_sampling.max_batches": (config.sample.dynamic_sampling.max_batches, 1),
        "sample.references": (config.sample.references, 0),
        "sample.memory.last": (config.sample.memory.last, False),
        "packing.mode": (config.packing.mode, "padded"),
        "rollout.engine.name": (rollout.engine.name, "lockstep"),
        "rollout.mesh": (rollout.mesh, ""),
        "foreign": (config.foreign.to_dict(), {}),
    }
    for name, (value, wanted) in needed.items():
        if value != wanted:
            yield f"{name}={value!r} does not go with rollout.window={window}: it must be {wanted!r}"
