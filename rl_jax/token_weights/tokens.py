"""Weights that select tokens by their entropy, or by the covariance of advantage and log-prob. Batch-coupled."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_mean
from rl_jax.token_weights.select import at_rank, lowest, ordered_bits


def high_entropy(mask: chex.Array, *, entropy: chex.Array, share: float = 0.2) -> chex.Array:
    """w = 1[H_t >= Q], Q the (1 - share) quantile of the entropy over all tokens of the batch ("80/20").

    Q is interpolated linearly between neighbours, as in torch.quantile. No entropy lies strictly between two
    neighbours, so the tokens that reach Q are those that reach the upper one; equal entropies stay or go together.
    Source: arXiv 2506.01939; TRL's top_entropy_quantile.

    Args:
      mask: bool [B, T].
      entropy: float [B, T], in nats, of the distribution each token was sampled from.
      share: of the tokens that stay; 1 keeps all of them.

    Returns:
      float [B, T].
    """
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, entropy])
    bits = ordered_bits(entropy)
    last = jnp.sum(mask, dtype=jnp.float32) - 1.0
    rank = jnp.ceil((1.0 - share) * last).astype(jnp.int32)
    return (mask & (bits >= at_rank(bits, mask, rank))).astype(entropy.dtype)


def _covariance(mask: chex.Array, log_probs: chex.Array, advantages: chex.Array) -> chex.Array:
    """(A_t - mean A) (logp_t - mean logp), means over the tokens of the batch. bool, float x2 [B, T] -> float [B, T].

    It is only compared and ranked, and only on the mask: no gradient flows through it, and padding may contain nan.
    """
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, log_probs, advantages])
    chex.assert_type([log_probs, advantages], float)
    centred = [x - masked_mean(x, mask).value() for x in (log_probs, advantages)]
    return centred[0] * centred[1]


def _count(mask: chex.Array, share: float) -> chex.Array:
    """max(1, floor(share * N)) of the N tokens of the mask, int32 []."""
    return jnp.maximum((share * jnp.sum(mask, dtype=jnp.float32)).astype(jnp.int32), 1)


def _random_bits(key: chex.PRNGKey, shape: tuple[int, int]) -> chex.Array:
    """uint32 [B, T] to sample tokens by, at half the cost of random bits; any two or three tokens are independent.

    The upper 16 bits are a token's own. The lower ones are its row's and column's, and only break ties.
    """
    of_tokens, of_rows, of_columns = jax.random.split(key, 3)
    rows, length = shape
    words = jax.random.bits(of_tokens, (rows, (length + 1) // 2), jnp.uint32)
    upper = jnp.concatenate([words, words << 16], axis=1)[:, :length] & jnp.uint32(0xFFFF0000)
    row_bits = jax.random.bits(of_rows, (rows, 1), jnp.uint16)
    return upper | (row_bits ^ jax.random.bits(of_columns, (1, length), jnp.uint16))


def clip_cov(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    advantages: chex.Array,
    key: chex.PRNGKey,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> chex.Array:
    """w = 0 on k tokens sampled at random from those with low < cov_t < high, 1 on the others (Clip-Cov).

        cov_t = (A_t - mean A) (logp_t - mean logp), means over the tokens of the batch
        k = max(1, floor(share * N)), or as many as there are in between

    verl samples again in each micro-batch, from the current log-probs, and never a token that PPO has clipped; before
    the first update the ratio is 1 and none is. The sample depends on the shape [B, T], so on the padded width. Source:
    arXiv 2505.22617 and its code in verl.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T].
      advantages: float [B, T].
      key: typed PRNG key [].
      share: of the N tokens on the mask.
      low: lower bound of cov_t.
      high: upper bound of cov_t.

    Returns:
      float [B, T].
    """
    covariance = _covariance(mask, log_probs, advantages)
    eligible = mask & (covariance > low) & (covariance < high)
    drawn = lowest(_random_bits(key, mask.shape), eligible, _count(mask, share), uniform=True)
    return (mask & ~drawn).astype(log_probs.dtype)


def top_covariance(
    mask: chex.Array, *, log_probs: chex.Array, advantages: chex.Array, share: float = 2e-4
) -> chex.Array:
    """The `selected` tokens of KL-Cov: those with the k largest cov_t, k = max(1, floor(share * N)).

    Not a weight but a choice of tokens, for the surrogate that adds its penalty there. Ties go to the first tokens in
    row-major order (torch.topk does not specify it). Source: arXiv 2505.22617 and its code in verl.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T].
      advantages: float [B, T].
      share: of the N tokens on the mask; 2e-4 in verl and the authors' script for 32B, 2e-3 in theirs for 7B.

    Returns:
      bool [B, T].
    """
    covariance = _covariance(mask, log_probs, advantages)
    return lowest(ordered_bits(-covariance), mask, _count(mask, share))
