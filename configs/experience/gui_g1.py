"""GUI-G1, R1-Zero-like training of grounding: arXiv 2505.15810. Boxes are held to their size, small targets weigh more.

    R = hit + .25 IoU + .125 edges;   A = R - mean_g;   l = -d A r / 64, summed over tokens, mean over rows

Departs from GRPO: no std, no length in the divisor, a weight d per prompt; no KL. No image is read: the question names
the target's corner and sides. R and 64 are those of the code (Yuqi-Zhou/GUI-G1); d is a field of its data there and
grows with a smaller target here, from 1 to 2. No chain of thought is asked for, as in the paper.

    python -m experiments.grpo --config=configs/experience/gui_g1.py
"""

from configs import common
from configs.experience import _start
from configs.tasks import _toys


def get_config(arg: str | None = None):
    config = _start.grpo("gui_g1", arg)
    terms = dict(box=dict(fn="rl_jax.rewards.grounding:gui_g1", size=(18.0, 18.0)))
    toys = _toys.run(config.name, ("regions",), terms, prompt=20, completion=48)
    toys = common.smoke(toys) if "smoke" in config.name else toys
    for name in ("task", "model", "rollout", "sft", "reward", "eval"):
        config[name] = toys[name]
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.rows:by_difficulty")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum_norm", max_length=64)
    return config
