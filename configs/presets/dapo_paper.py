"""DAPO as its paper writes it: arXiv 2503.14476, eq. 8 to 13.

    A_i  = (R_i - mean_g) / std_g, after the overlong punishment
    loss = 1/P sum_g 1/N_g sum_it max(-A r, -A clip(r, 1 - .2, 1 + .28)),  N_g the tokens of prompt g's completions

Clip .2/.28, no dual clip. No KL. Prompts whose completions all have the same reward are replaced by others, ten
batches at most. Completions in the last fifth before the limit lose up to 1 (4,096 of 20,480 tokens). 16 updates a
batch (512 prompts x 16 in minibatches of 512). The paper has no epsilon and no ddof: 1e-6 and 1, as in its code. What
that code computes is dapo_verl_recipe.py.

Departs from GRPO: clip-higher, dynamic sampling, a mean over tokens in each group, the overlong punishment; no KL.

    python -m experiments.grpo --config=configs/presets/dapo_paper.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "dapo_paper",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28),
        aggregate=dict(fn="group_token_mean"),
        kl=dict(fn="k3"),
        kl_coef=0.0,
        updates=16,
        overlong_share=0.2,
        max_batches=10,
    )
