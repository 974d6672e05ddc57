"""KTO, Kahneman-Tversky optimization: arXiv 2402.01306.

    z    = max(0, mean of u over mismatched prompts and responses)
    loss = lambda_D (1 - sigma(beta (u - z))) if desirable, else lambda_U (1 - sigma(beta (z - u)))

Departs from DPO: labelled responses and not pairs, each against an estimate of the KL to the reference; the gradient
vanishes far from it on both sides. Of a data set of pairs both sides are taken.

    python -m experiments.dpo --config=configs/methods/preferences/kto.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "kto",
        arg,
        responses=1,
        compare=dict(fn="anchored"),
        link=dict(fn="saturating"),
        batch_stats=dict(fn="kto_anchor"),
    )
