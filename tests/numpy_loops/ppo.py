"""PPO for language models, one token at a time, in float64."""

import numpy as np

from tests.numpy_loops import masked


def token_rewards(rewards, log_probs, ref_log_probs, mask, kl_coef):
    """-kl_coef (logp - ref_logp) on every token, and the row's reward on its last one."""
    out = np.zeros(mask.shape)
    for i in range(mask.shape[0]):
        live = [t for t in range(mask.shape[1]) if mask[i, t]]
        for t in live:
            out[i, t] = -kl_coef * (float(log_probs[i, t]) - float(ref_log_probs[i, t]))
        if live:
            out[i, live[-1]] += float(rewards[i])
    return out


def gae(rewards, values, mask, after, discount, lam):
    """(advantages, returns): A_t = sum_k (discount lam)^k delta_{t+k} over the tokens of the row, returns A + V.

    after: float [B], the value of the state behind a row's last token.
    """
    advantages, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for i in range(mask.shape[0]):
        live = [t for t in range(mask.shape[1]) if mask[i, t]]
        next_values = [float(values[i, t]) for t in live[1:]] + [float(after[i])]
        delta = [rewards[i, t] + discount * v - float(values[i, t]) for t, v in zip(live, next_values, strict=True)]
        for place, t in enumerate(live):
            advantages[i, t] = sum((discount * lam) ** k * d for k, d in enumerate(delta[place:]))
            returns[i, t] = advantages[i, t] + float(values[i, t])
    return advantages, returns


def explained_variance(values, returns, mask):
    """1 - Var(G - V) / Var(G) over the tokens of the mask."""
    error = np.asarray(returns, np.float64) - np.asarray(values, np.float64)
    return 1 - masked.masked_var(error, mask, 0) / masked.masked_var(returns, mask, 0)
