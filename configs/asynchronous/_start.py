"""Where these files start: a method or a preset of experiments.grpo, made asynchronous (configs.grpo_async).

The word after a config's colon names the task and the size, as in configs/methods.
"""

from ml_collections import ConfigDict

from configs import grpo_async
from configs.methods import _start

AGAINST = "rl_jax.losses.policy.mixed:against_sampler"
STALE = "rl_jax.losses.policy.stale"


def grpo(key: str, arg: str | None, *, minibatches: int = 2) -> ConfigDict:
    """GRPO's advantages, a mean over all tokens and no KL, asynchronous with eta 2 and age 8.

    Args:
      key: the method's, for the run's name.
      arg: a task and `smoke`, or None.
      minibatches: updates per step.
    """
    config = _start.grpo(key, arg, minibatches=minibatches)
    config.algorithm.kl_coef = 0.0
    config.algorithm.aggregate = dict(fn="token_mean")
    return of(config)


def of(config: ConfigDict, **flow) -> ConfigDict:
    """The config for experiments.grpo_async; a decode call is a third of the longest answer.

    Args:
      config: of experiments.grpo.
      **flow: fields of config.flow that differ from configs.grpo_async.
    """
    calls = -(-config.rollout.completion_length // 3)
    return grpo_async.of(config, **dict(decode_steps=calls) | flow)
