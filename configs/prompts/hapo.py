"""HAPO, history-aware: arXiv 2505.11225. Right answers earn more the shorter they are than the prompt's best so far.

    R = 1 + w max(f, -.7) for right answers, w min(f, 0) for wrong ones;   f = cos(pi/2 min(n / h, 2))

h is the length of the shortest right answer to the prompt in earlier steps; without one f = 0. The bound -.7 keeps any
right answer above any wrong one; HCY123902/HAPO. Few prompts, so that each is seen often.

    python -m experiments.grpo --config=configs/prompts/hapo.py

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("hapo", arg, "arithmetic", "game24")
    if "num_train" in config.task:
        config.task.num_train = min(config.task.num_train, 640)
    config.sample.memory.on = True
    config.algorithm.shaping = dict(fn="shorter_than_before", weight=1.0)
    return config
