"""Weights [B, T] that multiply the policy term of each token. A config names one of these.

A weight is `fn(mask, *, <arrays>, <hyper-parameters>) -> float [B, T]`, without gradient and 0 outside the mask. The
arrays are required keywords, which the recipe supplies by name. Weights are computed once, on the global batch, before
its updates. A quantile or a top-k is therefore that of the whole batch, and `log_probs` are those of the policy at that
moment.

A weight of 0 drops a token's policy term but keeps its KL term, and the aggregation still counts the token (as in TRL
and AReaL; verl's rejection also removes it from the mask, which re-weights the remaining tokens). `top_covariance` is
not a weight but a choice of tokens, bool [B, T], for the surrogate that asks for `selected`.
"""

from rl_jax.token_weights.behavior import exact, geometric_mask, icepop, masked, none, sequence_mask, truncated
from rl_jax.token_weights.rejection import m2po, opsm, reject_divergence, reject_ratio
from rl_jax.token_weights.tokens import clip_cov, high_entropy, top_covariance

__all__ = [
    "clip_cov",
    "exact",
    "geometric_mask",
    "high_entropy",
    "icepop",
    "m2po",
    "masked",
    "none",
    "opsm",
    "reject_divergence",
    "reject_ratio",
    "sequence_mask",
    "top_covariance",
    "truncated",
]
