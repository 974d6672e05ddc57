"""HPT, hybrid post-training: arXiv 2509.04419. Each prompt is learned from its demonstration or from samples.

    if sum_i 1[R_i > 0] <= gate:  l = -1/n sum_t logp(demonstration)      else:  l = -1/L sum_i sum_t (R_i - mean_g) r

Departs from GRPO: prompts that the policy never solves (gate 0, as for Qwen; 2 for LLaMA) have one row, their
demonstration; the others no std and no clip; losses add up over rows. The paper's entropy bonus of .001 is left out.

    python -m experiments.grpo --config=configs/experience/hpt.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("hpt", arg, minibatches=1)
    config.algorithm.advantage = dict(fn="hybrid", demonstration_coef=1.0)
    config.algorithm.surrogate = dict(
        fn="rl_jax.losses.policy.mixed:mixed_rows", own="importance_sampling", other="reinforce"
    )
    config.algorithm.aggregate = dict(fn="token_sum")
    config.foreign.demonstrations = dict(fn="demonstrations", at_most=0, count=1, replace="last", rest="drop")
    return config
