"""MBTL: arXiv 2408.04498. Which context to train in next, by a Gaussian process over the contexts.

    x* = argmax_x mean_x' max(mu(x) + sigma(x) - slope |x - x'| - V(x'), 0),   V(x') = max_s J(s) - slope |s - x'|

The paper trains one policy per context and lets each context use the best; here one policy goes through the contexts
(`rl_jax.experience.transfer.next_context` is the choice itself). Contexts are the difficulties of SAT.

    python -m experiments.grpo --config=configs/prompts/mbtl.py

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("mbtl", arg, "sat")
    steps = max(config.train.steps // 6, 1)
    config.sample.prompts = dict(fn="by_transfer", column="difficulty", steps=steps, budget=2, slope=0.1)
    return config
