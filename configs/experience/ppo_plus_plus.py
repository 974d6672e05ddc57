"""PPO++, learning to generate better than your LLM: arXiv 2306.11816. Some rollouts start inside a guide's answer.

    with probability 1/2:  cut ~ U(0, 1);  the prompt and the first cut n tokens of y_guide are the prompt

Departs from GRPO: PPO, whose states are not only those that its policy reaches by itself. The guide is the record's
demonstration here; the guide's tokens are outside the loss. The share of 1/2 is
our choice; beta is .6 or .8 in Cornell-RL/tril.

    python -m experiments.ppo --config=configs/experience/ppo_plus_plus.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ppo_plus_plus", arg, longer=_start.length(arg))
    config.foreign.guide = dict(
        fn="hints",
        at_most=config.sample.group_size,
        share=0.5,
        replace="group",
        level=1.0,
        random_level=True,
        until_right=False,
        train_on="hinted",
    )
    return config
