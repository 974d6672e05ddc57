"""RiskPO, a risk measure of bundles of questions: arXiv 2510.00911.

    S = the rewards of a bundle's answers;   A = (1.5 A_tail + A_range) / 2.5, over the std of the bundle's S
    A_tail = -(q_.2 - S)+ / .2,   A_range = ((S - q_.2)+ - (S - q_.8)+ + q_.2 - q_.8) / .6
    q_a <- q_a + .1 (a - mean 1[S < q_a])

Departs from GRPO: answers to several questions share an advantage, so that hard questions still give a signal; failing
bundles weigh most; no KL. Bundles of 4 (5 in the paper) divide the tasks' prompts. Equation: README of RTkenny/RiskPO,
a bundle's advantage shared, where its scripts split it; levels of its script of DAPO's prompts, which leaves out
q_.2 - q_.8 (natural_baseline=False): with it no advantage is above 0, without it all above q_.2 are pushed up. The
paper, as others report it, weighs the tail a third as much (tail_weight=.5) and clips one ratio a row.

    python -m experiments.grpo --config=configs/methods/riskpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("riskpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.remembered:bundled_risk", bundle_size=4)
    config.algorithm.trackers.baseline = dict(fn="rl_jax.advantages.memory:bundle_quantiles", bundle_size=4)
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
