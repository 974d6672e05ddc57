"""RLSP, reinforcement learning via self-play: arXiv 2502.06773. Exploring is paid for beside being right.

    R = .8 right + .2 min(1, steps / 4)

Departs from GRPO: PPO after the SFT on demonstrations; the two signals are decoupled: steps earn their bonus whether or
not the answer is right. A step is a part between "=", arithmetic's running totals. Confirmed by the abstract are the
three stages, the decoupling and a bonus for more intermediate steps; .8 and .2 are recalled, 4 and the form are ours.

    python -m experiments.ppo --config=configs/experience/rlsp.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("rlsp", arg)
    config.reward.terms = dict(
        right=dict(fn="task", weight=0.8),
        exploration=dict(fn="rl_jax.rewards.exploration:steps", weight=0.2, separator="=", enough=4),
    )
    return config
