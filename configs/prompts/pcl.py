"""PCL, prompt curriculum learning: arXiv 2510.01135. Prompts whose predicted success is nearest to one half.

    draw 4 m candidates, keep the m with the smallest |V(q) - .5|;   V <- regression on the groups' mean rewards

GRPO without a division by the std, on policy, without a KL. V is a language model in the paper; here it is a ridge
regression on the prompt's n-grams (and the difficulty, on SAT).

    python -m experiments.grpo --config=configs/prompts/pcl.py

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("pcl", arg)
    columns = ("difficulty",) if config.task.name == "sat" else ()
    config.sample.prompts = dict(fn="learned_value", target=0.5, candidates=4, columns=columns)
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.kl_coef = 0.0
    return config
