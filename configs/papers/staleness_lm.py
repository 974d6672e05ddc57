"""Rows that are 8 versions old cost a language model accuracy, and decoupled PPO gets some of it back.

    python -m experiments.ablation staleness_lm

AReaL (arXiv 2505.24298) and its proximal interpolation A-3PO (2512.06547). The paper: at a staleness of 8 Qwen's AIME24
score falls from 42.0 to 35.7 with PPO's clip about the policy that has sampled (`coupled`; verl's bypass mode), and to
41.0 with the clip about the policy at the start of the updates (`decoupled`). `interpolated` reads that policy off the
other two; `aipo` (LlamaRL, 2505.24034) has no clip. A delay line: every row is exactly 8 versions old, from the ninth
batch on. `fresh` has the clip of `coupled` and rows of the newest version.

Tried, on seed 10000 only, `fresh` and `coupled`: sums of three numbers with two settings, which were learned by heart,
and these settings.
"""

from ml_collections import ConfigDict

RUN = "configs/asynchronous/_claim.py"
ARMS = ("fresh", "coupled", "decoupled", "interpolated", "aipo")


def get_ablation() -> ConfigDict:
    """Arms share each seed's warm start; a gain is the last minus the first held-out accuracy."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.24298",
            claim="on rows 8 versions old a language model learns less, and more of it with decoupled PPO",
            scaled_down="a 0.2M-parameter transformer and 60 steps instead of Qwen; sums of four one-digit numbers",
            program="grpo_async",
            warm_start=f"{RUN}:decoupled",
            arms={arm: f"{RUN}:{arm}" for arm in ARMS},
            seeds=tuple(range(10)),
            tried=3,
            evaluated="eval/pass@1",
            metric="gain",
            expected=(
                dict(metric="gain", increasing=("coupled", "fresh"), by=0.02),
                dict(metric="gain", increasing=("coupled", "decoupled"), by=0.0),
                dict(metric="gain", increasing=("coupled", "interpolated"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                warm_start=f"{RUN}:decoupled,smoke",
                arms={arm: f"{RUN}:{arm},smoke" for arm in ARMS},
            ),
        )
    )
