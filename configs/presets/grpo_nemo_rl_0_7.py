"""GRPO of NeMo-RL 0.7.0: examples/configs/grpo_math_1B.yaml, algorithms/loss/loss_functions.py at 81aa43d.

    A_i  = (R_i - mean_-i) / (std_-i + 1e-6), mean and std (with G - 2) of the others; R_i - mean_-i where std_-i = 0
    loss = 1/N sum_it [max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .01 KL]

Clip .2/.2, no dual clip, no guard on the log ratio. KL: k3 in the loss, .01, times exp(logp - sg(logp)), which is 1
and brings the score; its input is clamped at 20 and its value at 10. One update a batch (32 prompts x 16). Sampler:
no correction.

Departs from GRPO: baseline and std leave the sample out, so that a group does not sum to 0 and the one right answer
among wrong ones is not divided at all; every token weighs the same; a smaller KL, clamped, with the gradient of the
reverse KL (0.6 did not have that).

    python -m experiments.grpo --config=configs/presets/grpo_nemo_rl_0_7.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_nemo_rl_0_7",
        arg,
        advantage=dict(fn="nemo_leave_one_out", eps=1e-6),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="on_policy_k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.01,
        updates=1,
    )
