"""CLPO, a curriculum of problems that the policy rewrites: arXiv 2509.25004. Hard ones are made easier, medium ones
said otherwise.

    p(x) = share of right answers;  x'_i ~ pi(. | "simpler", x) if p <= .3, pi(. | "otherwise", x) if p <= .7
    R(x'_i) = p(x'_i) - p(x);   loss = GRPO on x, on the x' with 0 < p(x') < 1, on the x'_i  +  .04 w(p) k3, w = p > .3

Departs from GRPO: a rewritten problem takes the place of an easy one, or of its own original if none is left; the group
of rewritings that of one without a spread. The rewriting's loss is our reading of the second version ("the downstream
accuracy gain of the rewritten problem"), the KL, of the first version, too: both could not be read. w reads p from the
advantages of rewards of 0 and 1; the gains of rewritings are from -1 to 1, so that their group's w means nothing. The
warm start shows a small model how problems are rewritten (rl_jax.tasks.restructured).

    python -m experiments.grpo --config=configs/experience/clpo.py

Arguments: `rules` (rules for sums rewrite them, nothing is learned of it).
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    words = set(filter(None, (arg or "").split(",")))
    config = _start.grpo("clpo", ",".join(sorted(words - {"rules"})), longer=4)
    size, rules = config.sample.group_size, "rules" in words
    kind = "foreign_rewrites:rewrites" if rules else "foreign_restructured:restructured"
    named = dict(fn=f"experiments.parts.{kind}", at_most=size, replace="group", hard=0.3, medium=0.7)
    config.foreign = {"rewrites" if rules else "restructured": named}
    if config.task.name == "arithmetic" and not rules:
        config.task = dict(name="rl_jax.tasks.restructured:load", of=config.task.to_dict())
        config.rollout.completion_length += 1  # a sum that is said otherwise is as long as itself
    config.algorithm.kl_coef = 0.04
    config.algorithm.kl = dict(fn="rl_jax.losses.difficulty:bucketed_k3", group_size=size)
    return config
