"""Where the methods start: GRPO as published, on a task's config. A file of configs/methods sets what differs.

The word after a config's colon names the task (arithmetic, if none does; `task` is your own, configs/task.py), and
`smoke` the smallest size of it, as in `configs/methods/gspo.py:game24,smoke`. Batch sizes, learning rate and warm start
are the task's.
"""

from ml_collections import ConfigDict

from configs import common, ppo_common
from configs import task as own
from configs.tasks import arithmetic, game24, stories_sentiment

TASKS = {"arithmetic": arithmetic, "game24": game24, "stories_sentiment": stories_sentiment, "task": own}


def grpo(key: str, arg: str | None, *, minibatches: int = 4) -> ConfigDict:
    """GRPO (arXiv 2402.03300): group_relative, clipped_surrogate .2/.2, k3 in the loss with .04, means of row means.

    key: the method's, for the run's name. arg: a task and `smoke`, or None.
    minibatches: updates a batch of rollouts. With 1, as in DeepSeekMath, every ratio is 1 and no clip does anything;
        R1 and the paper of DAPO have 16. Methods that are defined on-policy say 1.
    Raises ValueError for a word that is not known, or for two tasks.
    """
    config, words = task(arg)
    config.name = "_".join([key, config.name, *(words & {"smoke"})])
    common.set_updates(config, minibatches=minibatches)
    config.algorithm.update(kl_coef=0.04, entropy_coef=0.0, mask_truncated=False)
    config.algorithm.advantage = dict(fn="group_relative", ddof=1, eps=1e-6)
    config.algorithm.surrogate = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2)
    config.algorithm.kl = dict(fn="k3")
    config.algorithm.aggregate = dict(fn="seq_mean_token_mean")
    return config


def dapo(key: str, arg: str | None) -> ConfigDict:
    """DAPO (arXiv 2503.14476), which others start from: clip-higher, token mean, no KL, soft punishment of overlong
    answers (the last fifth of the limit, as 4,096 of 20,480 tokens), groups without a spread drawn again. Departs: 4
    updates a batch and not 16, and the task's group size."""
    config = grpo(key, arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28)
    config.algorithm.aggregate = dict(fn="token_mean")
    config.algorithm.shaping = dict(fn="overlong", buffer=max(config.rollout.completion_length // 5, 1))
    config.sample.dynamic_sampling.max_batches = 10
    return config


def ppo(key: str, arg: str | None, *, epochs: int = 4) -> ConfigDict:
    """PPO for language models (arXiv 1707.06347, 1909.08593): a critic, GAE, the KL in the reward with .05.

    key, arg: as in `grpo`. epochs: passes over a batch of rollouts, each one update.
    """
    config = grpo(key, arg, minibatches=1)
    common.set_updates(config, epochs=epochs)
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.aggregate = dict(fn="token_mean")
    return ppo_common.with_critic(
        config,
        warmup_steps=1 if "smoke" in config.name else 10,
        support=dict(low=-0.5, high=1.0, num_bins=51, padding=3),  # rewards of the tasks are 0 to 1, less the KL
        optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10),
    )


def task(arg: str | None) -> tuple[ConfigDict, set[str]]:
    """(the config of the task that `arg` names, the words of `arg`)."""
    words = common.parse(arg, (*TASKS, "smoke"))
    named = sorted(words & set(TASKS)) or ["arithmetic"]
    if len(named) > 1:
        raise ValueError(f"choose one task, not {len(named)}: {', '.join(named)}")
    return TASKS[named[0]].get_config("smoke" if "smoke" in words else None), words
