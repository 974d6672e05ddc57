"""SPO, self-supervised preference optimization: DPO that also tells how far an answer was degraded: arXiv 2409.17791.

    loss = -log sigma(beta (u_w - u_l)) + gamma mean over responses of -log p(degree | x, y without its key content)

    python -m experiments.dpo --config=configs/preferences/spo_degree.py

Key content are RAKE's phrases (rl_jax.preferences.degraded); of both responses there are two copies that lack a part of
it, and p is a linear head on the hidden state of the last token, trained in the same step and saved as an item of its
own. The paper's gamma and what its classifier reads could not be read (lijian16/SPO holds only a licence): gamma is
.1 here. algorithm.regularizer_coef=0 is DPO on the same pairs. Arguments: `token` (no head: the degree is a token that
the language model says after each copy), `smoke`.
"""

from configs import common
from configs.preferences import stories

DEGREES = 3


def get_config(arg: str | None = None):
    words = common.parse(arg, ("token", "smoke"))
    config = stories.get_config("smoke" if "smoke" in words else None)
    config.name = "spo_degree"
    said = "token" in words
    config.data = dict(name="degraded", of=config.data.to_dict(), degrees=DEGREES, mark="|", said=said)
    config.encode.update(identical="drop")  # of a few pairs what sets them apart is all gone at the last degree
    config.algorithm.update(responses=2 * DEGREES + 2 * said, regularizer_coef=0.1)
    config.algorithm.compare = dict(fn="first_pair")
    config.algorithm.regularizer = dict(fn="degree_nll" if said else "degree_head_nll")
    if said:
        config.name += "_token"
        config.rollout.completion_length += 2  # the mark and the degree
    return config
