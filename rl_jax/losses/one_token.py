"""One-token rollouts: supervised fine-tuning as policy gradients of one step. config.sft.loss names one of these.

    fn(log_probs [..., V], tokens [...], keys [...], *, ...) -> OneToken of [...]

At every token of a demonstration the policy draws tokens of its own; the demonstration only says which are right.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class OneToken(NamedTuple):
    """What the draws at each token of a demonstration give."""

    loss: chex.Array
    """float [...], to minimise."""
    hits: chex.Array
    """float [...]. The share of the draws that are the demonstration's token."""


def one_token_rollout(
    log_probs: chex.Array,
    tokens: chex.Array,
    keys: chex.Array,
    *,
    samples: int = 256,
    temperature: float = 1.3,
    wrong: float = -0.1,
) -> OneToken:
    """OTR: draws of the policy, rewarded where they are the demonstration's token.

        a_k ~ softmax(logits / temperature),   R_k = 1 if a_k is the token, else wrong
        l = -1/K sum_k R_k log pi(a_k)

    With temperature 1 the expected gradient is (1 - wrong) times that of -sg(pi(token)) log pi(token), dynamic
    fine-tuning's. Source: arXiv 2509.26313; the three numbers are recalled, not confirmed.

    Args:
      log_probs: float [..., V], normalised, differentiated.
      tokens: int [...], of the demonstration.
      keys: typed keys [...].
      samples: K.
      temperature: kappa, of the draws only.
      wrong: beta, the reward of any other token.

    Raises:
      ValueError: if samples is below 1, or the temperature is not above 0.
    """
    if samples < 1 or temperature <= 0:
        raise ValueError(f"samples={samples} must be at least 1, and temperature={temperature} above 0")
    return rewarded(log_probs, tokens, draw(log_probs, keys, samples=samples, temperature=temperature), wrong=wrong)


def draw(log_probs: chex.Array, keys: chex.Array, *, samples: int, temperature: float) -> chex.Array:
    """Tokens of softmax(log_probs / temperature), without gradient.

    By the inverse of the distribution function: K numbers per token instead of K x V.

    Args:
      log_probs: float [..., V].
      keys: typed keys [...].
      samples: K.
      temperature: above 0.

    Returns:
      int32 [..., K].
    """
    below = jnp.cumsum(jax.nn.softmax(jax.lax.stop_gradient(log_probs) / temperature, axis=-1), axis=-1)
    shape = keys.shape
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (samples,)))(keys.reshape(-1)).reshape(*shape, samples)
    # The last sum is 1 but for rounding: scaled by it, no number lies beyond.
    find = jnp.vectorize(lambda row, u: jnp.searchsorted(row, u * row[-1], side="right"), signature="(v),(k)->(k)")
    return jnp.minimum(find(below, uniforms), log_probs.shape[-1] - 1).astype(jnp.int32)


def rewarded(log_probs: chex.Array, tokens: chex.Array, drawn: chex.Array, *, wrong: float) -> OneToken:
    """The loss of given draws.

    Args:
      log_probs: float [..., V], normalised, differentiated.
      tokens: int [...], of the demonstration.
      drawn: int [..., K].
      wrong: reward of any other token.
    """
    right = drawn == tokens[..., None]
    rewards = jnp.where(right, 1.0, wrong)
    loss = -jnp.mean(rewards * jnp.take_along_axis(log_probs, drawn, axis=-1), axis=-1)
    return OneToken(loss, jnp.mean(right.astype(jnp.float32), axis=-1))
