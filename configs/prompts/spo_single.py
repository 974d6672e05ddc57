"""SPO, single-stream policy optimization: arXiv 2509.13232. One sample per prompt, a remembered baseline, no groups.

    A = zscore over the batch of R - alpha / (alpha + beta);   alpha <- rho alpha + R,  beta <- rho beta + 1 - R
    p(prompt) ~ sqrt(v (1 - v)) + .05, v the prompt's success, counted with the decay .96

rho = clip(2^(-D / .06), .875, .96), D the mean |change of log-prob| of the prompt's last completion, which is kept and
scored again. alpha = beta = .5 at first, the paper's case without offline samples. Departs from its code (verl-recipe,
spo): there v is alpha / (alpha + beta); here the prompts have a counter of their own, whose rho is fixed. 8 updates a
batch, as there (768 answers, 96 an update): with one, every ratio is 1 and the clip .2/.28 does nothing.

    python -m experiments.grpo --config=configs/prompts/spo_single.py

Arguments: `smoke`.
"""

from configs import common
from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("spo_single", arg, "arithmetic", "game24")
    if "num_train" in config.task:
        config.task.num_train = min(config.task.num_train, 2_000)
    config.sample.update(prompts_per_step=config.sample.prompts_per_step * config.sample.group_size, group_size=1)
    common.set_updates(config, minibatches=8)
    config.sample.prompts = dict(fn="by_success", power=0.5, floor=0.1, decay=0.96)
    config.sample.memory.last = True
    config.algorithm.trackers.baseline = dict(fn="beta_values", half_life=0.06, low=0.875, high=0.96)
    config.algorithm.advantage = dict(fn="tracked_relative")
    config.algorithm.surrogate = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28)
    config.algorithm.kl_coef = 0.0
    return config
