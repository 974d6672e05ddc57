"""D3S, fewer samples and tokens, more of them later: arXiv 2509.22115. The widest advantages, the strongest pushes.

    rows: the share N_t of the batch with the largest Var(A);   tokens: of these the share K_t with the largest |A| H
    l = max(-A r, -A clip(r, 1 -+ .2)) on them, a mean over what is kept;   N_t, K_t: .25 -> .75 over half of the run

Departs from GRPO: the other rows and tokens are sampled but not trained on; no KL. Confirmed are both criteria and that
the schedule relaxes; the shares, the line and its length could not be read and are our choice.

    python -m experiments.grpo --config=configs/experience/d3s.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("d3s", arg)
    config.algorithm.token_weight = dict(
        fn="rl_jax.token_weights.pushes:down_sampled", row_share=0.25, token_share=0.25
    )
    config.algorithm.aggregate = dict(fn="token_mean")
    line = dict(fn="linear", start=0.25, end=0.75, steps=max(config.train.steps // 2, 1))
    config.schedules.row_share = dict(field="algorithm.token_weight.row_share", **line)
    config.schedules.token_share = dict(field="algorithm.token_weight.token_share", **line)
    return config
