"""Secrets of RLHF II, the algorithms: contrastive learning and MetaRM (arXiv 2401.06080). Generated sums.

    L = L_rm(theta') + .1 L_cl(theta');   theta' = theta + eta grad J(theta),   J = 2 / k^2 sum_{i<j} sigma(|r_i - r_j|)

L_cl is SimCSE's contrast (temperature .05) of the difference h_w - h_l under two dropout masks with those of the other
pairs; J says how far the model tells a policy's unlabelled responses apart, and theta moves by the gradient at theta'.
Departs from the paper: dropout of .1 on the last hidden states alone, as our models have none, and no clusters (SwAV);
its weight of L_cl and eta could not be read, ours are .1 and .01. Labels by the votes of several models:
experiments.tools.preference_strength. A policy's responses: --config.algorithm.meta.path=RANKINGS.jsonl. Arguments:
`contrast` and `metarm` (one of the two alone), `noisy` (labels by five annotators), `smoke`.

    python -m experiments.reward_model --config=configs/preferences/secrets2.py --workdir=runs/secrets2
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("contrast", "metarm", "noisy", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["secrets2", *sorted(words & {"contrast", "metarm", "noisy"})])
    alone = words & {"contrast", "metarm"}
    if not alone or "contrast" in alone:
        config.algorithm.views.coef = 0.1
    if not alone or "metarm" in alone:
        config.algorithm.meta.step_size = 0.01
    if "noisy" in words:
        config.data.annotators = 5
    return config
