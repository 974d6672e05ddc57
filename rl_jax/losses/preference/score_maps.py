"""Slots 1 and 3: the weight of each token in a response's score, and what the score is mapped to before beta.

A token weight is (mask [N, K, C]) -> float [N, K, C]. A score map is (u [N, K]) -> float [N, K], with u the sequence
score of rl_jax.dpo, usually logp(y) - ref_logp(y). The first response of a prompt is the chosen one.
"""

import math

import chex
import jax
import jax.numpy as jnp

# exp of a larger exponent overflows float32; TRL 1.16 clamps here too. Beyond it, or float16's bound, the map is flat.
_LARGEST_EXPONENT = 80.0
# Probability 1 has infinite odds. A response without tokens also has u = 0. In float16 the bound is its least normal.
_LARGEST_LOG_PROB = -1e-7


def uniform(mask: chex.Array) -> chex.Array:
    """c_t = 1. mask: bool [N, K, C] -> float [N, K, C]."""
    chex.assert_rank(mask, 3)
    return jnp.ones(mask.shape)


def common_length(mask: chex.Array, *, present: chex.Array, alpha: float = 0.5) -> chex.Array:
    """LD-DPO: c_t = 1 on a response's first min_k |y_k| tokens and alpha on the rest, for policy and reference alike.

    Source: arXiv 2409.06411.

    Args:
      mask: bool [N, K, C].
      present: bool [N, K]; an absent response does not shorten the common length.
      alpha: 1 is DPO, 0 uses the common length only.

    Returns:
      float [N, K, C].
    """
    chex.assert_rank([mask, present], [3, 2])
    chex.assert_equal_shape_prefix([mask, present], 2)
    lengths = jnp.sum(mask, axis=-1)
    common = jnp.min(jnp.where(present, lengths, mask.shape[-1]), axis=1)
    places = jnp.cumsum(mask, axis=-1)  # 1 on a response's first token
    return jnp.where(places <= common[:, None, None], 1.0, alpha)


def discounted(mask: chex.Array, *, discount: float = 1.0) -> chex.Array:
    """CPL: c_t = gamma^t, t the position on the mask from 0.

    Source: arXiv 2310.13639.

    Args:
      mask: bool [N, K, C].
      discount: gamma. The paper's sums have it; its published code sums without it.

    Returns:
      float [N, K, C].
    """
    chex.assert_rank(mask, 3)
    places = jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)
    return jnp.power(jnp.asarray(discount, jnp.float32), places.astype(jnp.float32))


def identity(sequence_scores: chex.Array) -> chex.Array:
    """phi(u) = u. float [N, K] -> float [N, K]."""
    chex.assert_rank(sequence_scores, 2)
    return sequence_scores


def _power(sequence_scores: chex.Array, power: float) -> chex.Array:
    """(exp(power u) - 1) / power, which is u at power 0."""
    chex.assert_rank(sequence_scores, 2)
    if power == 0.0:
        return sequence_scores
    room = float(jnp.finfo(sequence_scores.dtype).max) / 8.0  # sums of a few such scores are finite, too
    largest = min(_LARGEST_EXPONENT, math.log(room * min(abs(power), 1.0)))
    return jnp.expm1(jnp.minimum(power * sequence_scores, largest)) / power


def forward_kl(sequence_scores: chex.Array) -> chex.Array:
    """f-DPO, forward KL: phi(u) = 1 - exp(-u), f'(t) of t = exp(u) up to a constant. float [N, K] -> float [N, K].

    Source: arXiv 2309.16240.
    """
    return _power(sequence_scores, -1.0)


def jensen_shannon(sequence_scores: chex.Array) -> chex.Array:
    """f-DPO, Jensen-Shannon: phi(u) = log 2 + log sigma(u), f'(t) = log(2 t / (1 + t)). float [N, K] -> the same."""
    chex.assert_rank(sequence_scores, 2)
    return math.log(2.0) + jax.nn.log_sigmoid(sequence_scores)


def alpha_divergence(sequence_scores: chex.Array, *, alpha: float = 0.5) -> chex.Array:
    """f-DPO, alpha-divergence: phi(u) = (t^(alpha - 1) - 1) / (alpha - 1), t = exp(u). float [N, K] -> float [N, K].

    Args:
      sequence_scores: float [N, K], u.
      alpha: as in TRL since 0.29: 1 is the reverse KL (DPO), 0 the forward KL. The paper (arXiv 2309.16240) and TRL up
        to 0.28 count in the other direction: phi(u) = (1 - t^-a) / a, so that alpha = 1 - a.
    """
    return _power(sequence_scores, alpha - 1.0)


def alpha_reward(sequence_scores: chex.Array, *, alpha: float = 0.25) -> chex.Array:
    """AlphaPO: phi(u) = (1 - exp(-alpha u)) / alpha of the mean log-prob u. float [N, K] -> float [N, K].

    Source: arXiv 2501.03884.

    Args:
      sequence_scores: float [N, K], u.
      alpha: 0 is SimPO.
    """
    return _power(sequence_scores, -alpha)


def log_odds(sequence_scores: chex.Array) -> chex.Array:
    """ORPO: phi(u) = u - log(1 - exp(u)), the log-odds of the mean log-prob u < 0. float [N, K] -> float [N, K].

    log(1 - exp(u)) is computed by expm1 near 0 and by log1p below -log 2. Source: arXiv 2403.07691 eq. 4.
    """
    chex.assert_rank(sequence_scores, 2)
    least = float(jnp.finfo(sequence_scores.dtype).tiny)
    u = jnp.minimum(sequence_scores, min(_LARGEST_LOG_PROB, -least))
    near = u > -math.log(2.0)
    by_expm1 = jnp.log(-jnp.expm1(jnp.where(near, u, -1.0)))
    by_log1p = jnp.log1p(-jnp.exp(jnp.where(near, -1.0, u)))
    return u - jnp.where(near, by_expm1, by_log1p)


def _first(responses: chex.Array) -> chex.Array:
    """True on the first response of each prompt, in the shape of `responses`, [N, K]."""
    return jnp.broadcast_to(jnp.arange(responses.shape[1])[None] == 0, responses.shape)


def positive(sequence_scores: chex.Array, *, penalty: float = 50.0) -> chex.Array:
    """DPO-Positive: u_w - penalty max(0, -u_w) of the chosen response, u of the others. float [N, K] -> float [N, K].

    Source: arXiv 2402.13228.

    Args:
      sequence_scores: float [N, K], u.
      penalty: lambda; 0 is DPO. At u_w = 0 (the first step) it has no gradient.
    """
    chex.assert_rank(sequence_scores, 2)
    return sequence_scores - jnp.where(_first(sequence_scores), penalty * jax.nn.relu(-sequence_scores), 0.0)


def token_level(
    sequence_scores: chex.Array, *, sequence_kl: chex.Array, coef: float = 0.5, stop_chosen: bool = True
) -> chex.Array:
    """TDPO: phi(u) = u + coef SeqKL(y), SeqKL(y) = sum_t KL(ref(.|s_t) || pi(.|s_t)). float [N, K] -> float [N, K].

    TDPO2 is the default; TDPO1 has coef 1 and stop_chosen False; coef 0 is DPO. Source: arXiv 2404.11999.

    Args:
      sequence_scores: float [N, K], u.
      sequence_kl: float [N, K], with the policy's gradient.
      coef: of the KL.
      stop_chosen: no gradient through the chosen response's KL.
    """
    chex.assert_rank(sequence_scores, 2)
    chex.assert_equal_shape([sequence_scores, sequence_kl])
    if stop_chosen:
        sequence_kl = jnp.where(_first(sequence_kl), jax.lax.stop_gradient(sequence_kl), sequence_kl)
    return sequence_scores + coef * sequence_kl


def biased(sequence_scores: chex.Array, *, bias: float = 0.5) -> chex.Array:
    """CPL: u of the chosen response, bias u of the others. float [N, K] -> float [N, K].

    Source: arXiv 2310.13639.

    Args:
      sequence_scores: float [N, K], u.
      bias: lambda in (0, 1]; 1 is no bias. Below 1, the data's own segments score higher than unseen ones.

    Raises:
      ValueError: if bias is outside (0, 1].
    """
    chex.assert_rank(sequence_scores, 2)
    if not 0.0 < bias <= 1.0:
        raise ValueError(f"biased: bias must be in (0, 1], got {bias}")
    return jnp.where(_first(sequence_scores), sequence_scores, bias * sequence_scores)


def clipped(sequence_scores: chex.Array, *, epsilon: float = 0.1) -> chex.Array:
    """D3PO: log clip(exp(u), 1 - epsilon, 1 + epsilon), no gradient outside. float [N, K] -> float [N, K].

    u is the log-ratio of one denoising step. Source: arXiv 2311.13231; the clip is that of its published code.
    """
    chex.assert_rank(sequence_scores, 2)
    return jnp.clip(sequence_scores, math.log1p(-epsilon), math.log1p(epsilon))
