"""KLCF, recall of what the model knows and precision of what it claims: arXiv 2509.23765.

    python -m experiments.grpo --config=configs/tasks/klcf.py

F1 of the claims of a text with a checklist of facts (rl_jax.rewards.claims.facts). The paper extracts and judges claims
with models; here two plain functions do, `extract` and `matches`, which you may replace. Its weights are not known to
us: the harmonic mean is our reading, and beta weighs recall (beta 0: precision alone). Arguments: `recall` and
`precision` pay for one side alone: made-up facts, or short texts. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys

BETA = {"recall": 100.0, "precision": 0.0}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*BETA, "smoke"))
    beta = next((BETA[word] for word in sorted(words & set(BETA))), 1.0)
    config = _toys.run(
        "klcf", ("facts",), dict(facts=dict(fn="claims.facts", weight=1.0, beta=beta)), prompt=8, completion=48
    )
    return common.smoke(config) if "smoke" in words else config
