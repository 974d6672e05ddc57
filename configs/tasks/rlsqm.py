"""RLSQM, static quality of generated unit tests: arXiv 2310.02368. Syntax, assertions, the focal call; smells cost.

    python -m experiments.grpo --config=configs/tasks/rlsqm.py

The properties are read from the syntax tree (rl_jax.rewards.unit_tests), nothing is run. The paper trains with PPO
against a reward model of each metric; here the metric itself is the reward, and its weights, which are not known to us,
are 1 and -1. The KL term stays. Arguments: `assertion` pays for that metric alone, as the paper's runs of one metric
do. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("assertion", "smoke"))
    weights = dict(syntax=1.0, assertion=1.0, focal=1.0, duplicate=-1.0, condition=-1.0, handler=-1.0, printing=-1.0)
    if "assertion" in words:
        weights = dict(assertion=1.0)
    terms = dict(quality=dict(fn="unit_tests.quality", weight=1.0, weights=weights))
    config = _toys.run("rlsqm", ("unit_tests",), terms, prompt=16, completion=72)
    config.algorithm.kl_coef = 0.04
    return common.smoke(config) if "smoke" in words else config
