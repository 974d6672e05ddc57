"""Token rewards from a corrected answer: where a reward model that rewrites answers agrees with the tokens."""

import chex
import jax.numpy as jnp


def rewrite_rewards(
    tokens: chex.Array, preferred: chex.Array, mask: chex.Array, *, kept: float = 1.0, changed: float = -1.0
) -> chex.Array:
    """Token rewards of an answer whose rewriting goes on with `preferred[t]` after the answer's own first t tokens.

        r_t = kept      before the first t with preferred_t != y_t: the rewriting is the answer so far
        r_t = changed   if preferred_t != y_t: the model, given the answer's own tokens, diverges here
        r_t = 0         at the later tokens on which they agree

    An answer that is its own rewriting gets `kept` at every token, the most there is. Source: arXiv 2409.00162.

    Args:
      tokens: int [B, C], the answers' tokens y, EOS included.
      preferred: int [B, C], the rewriting model's most likely token at each place.
      mask: bool [B, C], the tokens of the answers.
      kept: reward of each token before they diverge.
      changed: reward of each token that diverges.

    Returns:
      float32 [B, C], 0 outside the mask.
    """
    chex.assert_rank([tokens, preferred, mask], 2)
    chex.assert_equal_shape([tokens, preferred, mask])
    differs = (tokens != preferred) & mask
    before = jnp.cumsum(differs, axis=1) == 0
    rewards = jnp.where(before, kept, jnp.where(differs, changed, 0.0))
    return jnp.where(mask, rewards, 0.0).astype(jnp.float32)
