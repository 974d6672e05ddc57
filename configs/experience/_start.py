"""Where these methods start: GRPO, or PPO, of configs/methods, with room for longer prompts. A file sets what differs.

The word after a config's colon names the task (arithmetic, if none does), and `smoke` the smallest size of it.
"""

from ml_collections import ConfigDict

from configs.methods import _start


def grpo(key: str, arg: str | None, *, longer: int = 0, minibatches: int = 4) -> ConfigDict:
    """GRPO without a KL term, under the method's name.

    Args:
      key: the method's, for the run's name.
      arg: a task and `smoke`, or None.
      longer: tokens by which a prompt may grow; a further prompt bucket.
      minibatches: updates per step.
    """
    config = _start.grpo(key, arg, minibatches=minibatches)
    config.algorithm.kl_coef = 0.0
    return _with_room(config, longer)


def ppo(key: str, arg: str | None, *, longer: int = 0) -> ConfigDict:
    """PPO with its KL in the reward. Arguments as in `grpo`."""
    return _with_room(_start.ppo(key, arg), longer)


def _with_room(config: ConfigDict, longer: int) -> ConfigDict:
    buckets = tuple(config.rollout.prompt_buckets)
    config.rollout.prompt_buckets = (*buckets, max(buckets) + longer) if longer else buckets
    return config


def length(arg: str | None) -> int:
    """Tokens of a task's longest completion."""
    return _start.task(arg)[0].rollout.completion_length
