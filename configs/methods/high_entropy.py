"""High-entropy tokens, "Beyond the 80/20 Rule": arXiv 2506.01939.

    l = 1[H_t >= the .8 quantile of H over the batch] max(-A r, -A clip(r, 1 - .2, 1 + .28))

Departs from GRPO: as DAPO does (dapo.py), and only the fifth of the tokens with the highest entropy is trained on. The
mean is still over all tokens.

    python -m experiments.grpo --config=configs/methods/high_entropy.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.dapo("high_entropy", arg)
    config.algorithm.token_weight = dict(fn="high_entropy")
    return config
