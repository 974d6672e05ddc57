"""ARPO, experience replay: arXiv 2505.16282. A group without a right answer gets one of the prompt's earlier ones.

    if all R_i <= .1 and the prompt's buffer is not empty:  one row <- an answer with R > .1, with its old log-probs

Departs from GRPO: a buffer of the last 8 right answers per prompt; clip .2/.3 of the ratio to the policy that sampled,
which for a replayed answer is an earlier one; a mean over all tokens. Text in place of screens; few prompts, so that
each is seen often. The paper calls a group failed if std < .05 and mean < .2: for rewards of 0 and 1 that is the same.

    python -m experiments.grpo --config=configs/experience/arpo_replay.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("arpo_replay", arg)
    if "num_train" in config.task:
        config.task.num_train = min(config.task.num_train, 640)
    clip = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.3)
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.mixed:against_sampler", surrogate=clip)
    config.algorithm.aggregate = dict(fn="token_mean")
    config.foreign.replay = dict(fn="replay", at_most=0, above=0.1, count=1, replace="worst", size=8, behavior="drawn")
    return config
