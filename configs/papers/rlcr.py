"""Rewards for calibration lower the Brier score at equal accuracy: RLCR, arXiv 2507.16806.

    python -m experiments.ablation rlcr

The paper: Qwen2.5-7B on questions and mathematics, with a confidence in words. Here: a small transformer from a warm
start whose confidences are digits drawn at random.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """Arms share each seed's warm start; a gain is the last minus the first held-out Brier score."""
    return ConfigDict(
        dict(
            paper="arXiv 2507.16806",
            claim="a calibration reward lowers the Brier score more than right answers alone do, at equal accuracy",
            scaled_down="a 0.2M-parameter transformer instead of Qwen2.5-7B; sums of four one-digit numbers",
            program="grpo",
            warm_start="configs/tasks/rlcr.py",
            arms={"calibrated": "configs/tasks/rlcr.py", "plain": "configs/tasks/rlcr.py:plain"},
            seeds=(0, 1, 2),
            tried=1,
            evaluated="eval/brier",
            also=dict(accuracy="eval/pass@1"),
            metric="gain",
            expected=(
                dict(metric="gain", increasing=("calibrated", "plain"), by=0.02),
                dict(metric="accuracy", increasing=("plain", "calibrated"), by=-0.05),
            ),
            smoke=dict(
                seeds=(0, 1),
                warm_start="configs/tasks/rlcr.py:smoke",
                arms={"calibrated": "configs/tasks/rlcr.py:smoke", "plain": "configs/tasks/rlcr.py:smoke,plain"},
            ),
        )
    )
