"""Rewards for calibration lower the Brier score at equal accuracy: RLCR, arXiv 2507.16806.

    python -m experiments.ablation rlcr

The paper: Qwen2.5-7B on questions and mathematics, with a confidence in words. Here: a small transformer from a warm
start whose confidences are digits drawn at random. The first statement is that `calibrated` ends at least .02 further
below its start than `plain`; the second, that its accuracy at the end is at most .05 below that of `plain`.

Tried, on seed 10000 only: these settings. Five seeds were planned; the time of the machine was enough for three, which
was settled before any two arms were compared.
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
            warm_start="configs/tasks/rlcr.py:short",
            arms={"calibrated": "configs/tasks/rlcr.py:short", "plain": "configs/tasks/rlcr.py:short,plain"},
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
