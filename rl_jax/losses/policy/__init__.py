"""Policy surrogates: per-token losses [B, T] from log-probs, advantages and a mask. A config names one of these.

All take (log_probs, old_log_probs, advantages, mask, *, ...) in this order. Arrays that only some surrogates need are
required keywords, which the recipe supplies by name (rl_jax.core.binding.supply).
"""

from rl_jax.losses.policy.clipped import clipped_surrogate, dual_clip, two_sided_clip
from rl_jax.losses.policy.dppo import dppo_kl, dppo_tv
from rl_jax.losses.policy.sequence import gmpo, gspo, gspo_token, product_ratio_clip
from rl_jax.losses.policy.smooth import dro, kl_cov, sapo
from rl_jax.losses.policy.weighted import (
    aipo,
    cispo,
    gated,
    importance_sampling,
    rec_one_side,
    reinforce,
    topr,
    truncated_is,
    vespo,
)

__all__ = [
    "aipo",
    "cispo",
    "clipped_surrogate",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "dual_clip",
    "gated",
    "gmpo",
    "gspo",
    "gspo_token",
    "importance_sampling",
    "kl_cov",
    "product_ratio_clip",
    "rec_one_side",
    "reinforce",
    "sapo",
    "topr",
    "truncated_is",
    "two_sided_clip",
    "vespo",
]
