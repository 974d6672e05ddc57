"""CLPO, a curriculum of problems that the policy rewrites: arXiv 2509.25004. Hard ones are made easier, medium ones
said otherwise.

    p(x) = share of right answers;  x'_i ~ pi(. | "simpler", x) if p <= .3, pi(. | "otherwise", x) if p <= .7
    R(x'_i) = p(x'_i) - p(x);   loss = GRPO on x, on the x' with 0 < p(x') < 1, on the x'_i  +  .001 w(p) k3,
    w = .5 if p <= .3, else 1

Departs from GRPO: a rewritten problem takes the place of an easy one, or of its own original if none is left; the group
of rewritings that of one without a spread. The KL is that of the released code (csuking/CLPO), which does not train
the rewriting: `released` does not either. Without the word the rewriting is trained, as in the paper's second version
("the downstream accuracy gain of the rewritten problem"), whose loss is our reading; there w, which reads p from the
advantages of rewards of 0 and 1, means nothing on a group of rewritings, whose gains are from -1 to 1. The code asks
for one rewriting of each problem and shows the rewriter the answer; here there are G, without it. The warm start shows
a small model how problems are rewritten (rl_jax.tasks.restructured).

    python -m experiments.grpo --config=configs/experience/clpo.py

Arguments: `released`; `rules` (rules for sums rewrite them, nothing is learned of it).
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    words = set(filter(None, (arg or "").split(",")))
    if {"rules", "released"} <= words:
        raise ValueError("rules, released: with rules there is no rewriting to train; choose one")
    config = _start.grpo("clpo", ",".join(sorted(words - {"rules", "released"})), longer=4)
    size, rules = config.sample.group_size, "rules" in words
    kind = "foreign_rewrites:rewrites" if rules else "foreign_restructured:restructured"
    named = dict(fn=f"experiments.parts.{kind}", at_most=size, replace="group", hard=0.3, medium=0.7)
    if "released" in words:
        named["train_rewriting"] = False
    config.foreign = {"rewrites" if rules else "restructured": named}
    if config.task.name == "arithmetic" and not rules:
        config.task = dict(name="rl_jax.tasks.restructured:load", of=config.task.to_dict())
        config.rollout.completion_length += 1  # a sum that is said otherwise is as long as itself
    config.algorithm.kl_coef = 0.001
    config.algorithm.kl = dict(fn="rl_jax.losses.difficulty:bucketed_k3", group_size=size)
    return config
