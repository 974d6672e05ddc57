"""CLPO, a curriculum of rewritten questions: arXiv 2509.25004. Hard ones are made easier, medium ones said otherwise.

    p(x) = share of right answers;  hard p <= .3: x' = simplify(x);  medium p <= .7: x' = diversify(x);  y' ~ pi(. | x')
    loss = GRPO on the x and the x' with 0 < p(x') < 1  +  .04 w(p) k3,   w = 0 if hard, else 1

Departs from GRPO: a rewritten question takes the place of an easy one, or of its own original if none is left. Rules
for sums rewrite them (rl_jax.selection.rewriting); in the paper the policy does, and its second version trains it to.
The first version's KL follows the difficulty in a way that could not be read: that hard ones have none is our reading.

    python -m experiments.grpo --config=configs/experience/clpo.py

Questions of another task: simplify="MODULE:FUNCTION" and diversify among the keywords of foreign.rewrites, in a config
of one's own.
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("clpo", arg, longer=4)
    size = config.sample.group_size
    config.foreign.rewrites = dict(
        fn="experiments.parts.foreign_rewrites:rewrites", at_most=size, replace="group", hard=0.3, medium=0.7
    )
    config.algorithm.kl_coef = 0.04
    config.algorithm.kl = dict(fn="rl_jax.losses.difficulty:bucketed_k3", group_size=size)
    return config
