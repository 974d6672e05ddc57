"""Intuitor, a reward without labels: how sure a model is of its own answers: arXiv 2505.19590.

    python -m experiments.sft --config=configs/tasks/arithmetic.py --workdir=runs/intuitor_start
    python -m experiments.grpo --config=configs/tasks/intuitor.py

R = mean over tokens of KL(uniform || p_t), of the model that the policy starts from: it stays as it is, which is the
paper's offline variant (its main one asks the policy of the moment). The verifier's reward is only logged, as `task`.
Arguments: `entropy` rewards a low entropy instead (RENT, arXiv 2505.22660). `smoke`: seconds.
"""

from configs import common
from configs.tasks import arithmetic

START = "runs/intuitor_start"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("entropy", "smoke"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name, config.init_from = "intuitor", START
    measure = "entropy" if "entropy" in words else "self_certainty"
    config.judge = dict(sure=dict(fn="confidence", path=START, measure=measure))
    config.algorithm.update(kl_coef=0.005)
    return config
