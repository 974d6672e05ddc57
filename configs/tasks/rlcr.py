"""RLCR, rewards for calibration: arXiv 2507.16806. Sums whose answers end with a confidence, "3+5-2+7=" -> "8=6=13=9".

    R = 1[correct] - (c - 1[correct])^2, c the confidence;   A = R - mean_g, no KL

The expected reward is greatest if c is the probability of being right, and a right answer is still worth most. Here a
confidence is a digit, over 9; tags <answer> and <confidence> are the default of the term confidence.calibrated
(rl_jax.rewards.confidence), as in the paper's code. Without a digit the answer is wrong and c is 1 (our reading).
Logged: reward/brier and eval/brier, the mean of (c - 1[correct])^2.

    python -m experiments.grpo --config=configs/tasks/rlcr.py

Arguments: `smoke`; `plain` (RLVR, the control: right answers alone are rewarded); `short`, a third of the warm start
and half of the training, for the claim configs/papers/rlcr.py.
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "plain", "short"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["rlcr", *sorted(words)])
    fields = config.task.to_dict() | dict(name="rl_jax.tasks.verbalised:load")
    config.task = fields | dict(calibration_weight=0.0 if "plain" in words else 1.0)
    config.rollout.completion_length += 2
    if "short" in words:
        config.sft.steps, config.train.steps = min(config.sft.steps, 500), min(config.train.steps, 100)
        config.sft.optimizer.decay_steps, config.train.optimizer.decay_steps = 480, 90
    config.algorithm.advantage = dict(fn="group_centered")
    return config
