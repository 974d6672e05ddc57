"""The environment of single-turn tasks: what experiments.grpo does, as an episode of one turn."""

from collections.abc import Mapping
from typing import Any

from rl_jax.envs.text.protocol import Step


class OneAnswer:
    """Shows the record's prompt, and ends. The reward is the task's own, or that of config.reward."""

    def reset(self, record: Mapping[str, Any], seed: int):
        """The record's chat, or its text."""
        return record.get("messages") or record["prompt"]

    def step(self, said: str) -> Step:
        """The end."""
        return Step(done=True)
