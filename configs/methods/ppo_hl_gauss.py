"""PPO with a classifying critic, HL-Gauss, "Stop Regressing": arXiv 2403.03950.

    p_k = the share of a normal distribution around G that falls into bin k, its sigma .75 of a bin
    l_V = - sum_k p_k log softmax(logits)_k,   V = sum_k softmax(logits)_k centre_k

Departs from GRPO: as PPO does (ppo.py), and the critic classifies the return into bins in place of regressing it.

    python -m experiments.ppo --config=configs/methods/ppo_hl_gauss.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ppo_hl_gauss", arg)
    config.critic.loss = dict(fn="hl_gauss")
    return config
