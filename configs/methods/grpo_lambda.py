"""GRPO-lambda, brevity only for groups that are solved: arXiv 2505.18086.

    R' = 1 - alpha sigma((n - mean n) / std n) for right answers of the top fifth of the groups by their right answers
    R' = R elsewhere;   mean and std over the group's right answers;   alpha = .6

Departs from GRPO: the reward switches with the group; no KL. The equations and the fifth are the paper's, read in a
reimplementation for OpenRLHF; alpha = .6 is that one's, as the paper's could not be read. It pays wrong answers of the
chosen groups, too, against the equation that it quotes; ours does not.

    python -m experiments.grpo --config=configs/methods/grpo_lambda.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("grpo_lambda", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.shaping = dict(fn="rl_jax.credit.switches:brief_if_solved", share=0.2, alpha=0.6)
    return config
