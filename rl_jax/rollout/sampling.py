"""logits -> the log-probs of the distribution that is sampled from. The sampler and the scorer share this function."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

NEGATIVE_INFINITY = float("-inf")


class Sampling(NamedTuple):
    """temperature > 0; top_k: keep that many tokens, 0 keeps all; top_p: keep the smallest set of that mass."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def check(self, vocab_size: int) -> "Sampling":
        """Self, or ValueError naming the field that makes no sense."""
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be above 0; for greedy decoding use top_k=1")
        if not 0 <= self.top_k <= vocab_size:
            raise ValueError(f"top_k={self.top_k} must lie in 0..{vocab_size} (0 keeps all)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1]")
        return self


def sampled_log_softmax(logits: chex.Array, sampling: Sampling) -> chex.Array:
    """log of the distribution after temperature, then top-k, then top-p, renormalised; -inf on what is cut off.

    logits: float32 [..., V]. Returns float32 [..., V]. Tokens that tie with the last one kept are kept too. top_p
    keeps tokens from the most likely down until their mass reaches top_p, the one that crosses it included.
    """
    logits = logits / sampling.temperature
    if sampling.top_k:
        kth = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits >= kth, logits, NEGATIVE_INFINITY)
    if sampling.top_p < 1.0:
        descending = jnp.sort(logits, axis=-1, descending=True)
        probs = jax.nn.softmax(descending, axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs
        smallest = jnp.min(jnp.where(before < sampling.top_p, descending, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits >= jax.lax.stop_gradient(smallest), logits, NEGATIVE_INFINITY)
    return jax.nn.log_softmax(logits, axis=-1)


def draw(log_probs: chex.Array, uniforms: chex.Array) -> chex.Array:
    """Tokens by inverting the CDF: the first index whose cumulative mass exceeds u. A token of mass 0 never comes up.

    log_probs: float32 [B, V], normalised. uniforms: float32 [B] in [0, 1). Returns int32 [B].
    """
    chex.assert_rank([log_probs, uniforms], [2, 1])
    # A parallel cumsum is not monotone to the last bit: it may rise, or fall, across tokens of mass 0. Those are
    # left out of the search, and the largest entry rather than the last one is the total.
    probs = jnp.exp(log_probs)
    cumulative = jnp.where(probs > 0, jnp.cumsum(probs, axis=-1), 0.0)
    threshold = uniforms[:, None] * jnp.max(cumulative, axis=-1, keepdims=True)  # below the total, since u < 1
    return jnp.argmax(cumulative > threshold, axis=-1).astype(jnp.int32)


def take_log_probs(log_probs: chex.Array, tokens: chex.Array) -> chex.Array:
    """log_probs[..., tokens]: float [..., V], int32 [...] -> float [...]."""
    return jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
