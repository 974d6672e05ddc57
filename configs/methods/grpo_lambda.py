"""GRPO-lambda, brevity only for groups that are solved: arXiv 2505.18086.

    R' = 1 - alpha sigma((n - mean n) / std n) for right answers of the top fifth of the groups by their right answers
    R' = R elsewhere;   mean and std over the group's right answers;   alpha = .2

Departs from GRPO: the reward switches with the group; no KL. Confirmed is the switch by correctness alone: the length
reward is that of arXiv 2502.04463 and the numbers .2 are recalled, as the paper's could not be read.

    python -m experiments.grpo --config=configs/methods/grpo_lambda.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("grpo_lambda", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.shaping = dict(fn="rl_jax.credit.switches:brief_if_solved", share=0.2, alpha=0.2)
    return config
