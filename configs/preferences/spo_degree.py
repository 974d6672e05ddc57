"""SPO, self-supervised preference optimization: DPO that also tells how far an answer was degraded: arXiv 2409.17791.

    loss = -log sigma(beta (u_w - u_l)) + gamma mean over copies of -logp(degree | x, y without its key content)

    python -m experiments.dpo --config=configs/preferences/spo_degree.py

Key content are RAKE's phrases (rl_jax.preferences.degraded); of both responses there are copies of three degrees. The
paper's classifier is a head of its own and its gamma is not known to us: here a degree is a token that the language
model says after the copy, gamma .1. algorithm.regularizer_coef=0 is DPO on the same pairs. Arguments: `smoke`.
"""

from configs import common
from configs.preferences import stories

DEGREES = 3


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = stories.get_config("smoke" if "smoke" in words else None)
    config.name = "spo_degree"
    config.data = dict(name="degraded", of=config.data.to_dict(), degrees=DEGREES, mark="|")
    config.rollout.completion_length += 2  # the mark and the degree
    config.encode.update(identical="drop")  # of a few pairs what sets them apart is all gone at the last degree
    config.algorithm.update(responses=2 + 2 * DEGREES, regularizer_coef=0.1)
    config.algorithm.compare = dict(fn="first_pair")
    config.algorithm.regularizer = dict(fn="degree_nll")
    return config
