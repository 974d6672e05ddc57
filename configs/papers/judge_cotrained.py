"""A judge that learns from the policy's own samples is not over-optimised: Cooper, arXiv 2508.05613.

    python -m experiments.ablation judge_cotrained

The paper: a reward model updated in the run with pairs that a rule verifies, on mathematics; a frozen one is hacked.
Here: the arms of config.judge.NAME.retrain_every=0, 10 and 1 on vectors of 20 numbers whose true reward looks like a
slope near the reference and turns back farther out. `more` is frozen, too, and has seen as many verified pairs as the
judge in training sees, but all of the reference. Tried on the seeds 1000 to 1003, which are not among those of the
claim: KL coefficients of 0 and .05 over 300 steps. The judge in training led in both; 200 steps are for time.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """gold: the true reward of the last policy, in deviations over the reference; lost: the best one less gold."""
    return ConfigDict(
        dict(
            paper="arXiv 2508.05613",
            claim="a judge retrained on the policy's samples keeps the true reward that a frozen one loses",
            scaled_down="vectors of 20 numbers, a judge of one hidden layer; Qwen2.5 on mathematics with a 1.5B judge",
            study="judge_cotraining",
            settings=dict(
                arms={
                    "frozen": dict(retrain_every=0, more=0),
                    "more": dict(retrain_every=0, more="labels"),
                    "rarely": dict(retrain_every=10, more=0),
                    "cotrained": dict(retrain_every=1, more=0),
                },
                world=dict(dimensions=20, waves=256, scale=6.0),
                judge=dict(pairs=400, flip_rate=0.25, hidden=64, steps=300),
                recipe=dict(
                    prompts=16,
                    group_size=8,
                    steps=200,
                    epochs=2,
                    learning_rate=0.03,
                    kl_coef=0.05,
                    judge_learning_rate=0.003,
                ),
            ),
            seeds=tuple(range(10)),
            metric="gold",
            expected=(
                dict(metric="lost", arm="frozen", at_least=0.5),
                dict(metric="lost", increasing=("cotrained", "frozen"), by=0.0),
                dict(metric="gold", increasing=("frozen", "cotrained"), by=0.0),
                dict(metric="gold", increasing=("more", "cotrained"), by=0.0),
            ),
            tried=2,
            smoke=dict(
                seeds=(0, 1), settings=dict(judge=dict(pairs=16, hidden=8, steps=3), recipe=dict(prompts=2, steps=3))
            ),
        )
    )
