"""From the steps of a solution to one score: (probs [N, S], mask [N, S]) -> float [N]. A config names one of these.

probs: of a process reward model, in [0, 1]. mask: the steps that a solution has, the first ones of a row. A solution
without steps scores 0.5.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import last_of, row_means


def minimum(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """min_s p_s: a solution is as good as its worst step. Source: arXiv 2305.20050 (as an alternative), 2410.01729."""
    return _of_steps(jnp.min(jnp.where(mask, probs, jnp.inf), axis=1), probs, mask)


def maximum(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """max_s p_s. Source: arXiv 2410.01729."""
    return _of_steps(jnp.max(jnp.where(mask, probs, -jnp.inf), axis=1), probs, mask)


def product(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """prod_s p_s: the probability that every step is right, if they are independent. Source: arXiv 2305.20050."""
    return _of_steps(jnp.prod(jnp.where(mask, probs, 1.0), axis=1), probs, mask)


def geometric_mean(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """(prod_s p_s)^(1 / S): the product without its bias to short solutions. Source: arXiv 2410.01729."""
    logs = jnp.log(jnp.where(mask, probs, 1.0))
    return _of_steps(jnp.exp(row_means(logs, mask)), probs, mask)


def mean(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """1/S sum_s p_s. Source: arXiv 2410.01729."""
    return _of_steps(row_means(probs, mask), probs, mask)


def last(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """p_S, the last step's. Source: arXiv 2211.14275, 2410.01729."""
    return _of_steps(jnp.sum(jnp.where(last_of(mask), probs, 0.0), axis=1), probs, mask)


def mean_logit(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """sigma(1/S sum_s log(p_s / (1 - p_s))), p in [eps, 1 - eps]. Source: arXiv 2410.01729, whose code has no eps."""
    safe = _open(probs, mask)
    return _of_steps(jax.nn.sigmoid(row_means(jnp.log(safe) - jnp.log1p(-safe), mask)), probs, mask)


def mean_odds(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """1/S sum_s p_s / (1 - p_s), p in [eps, 1 - eps]: above 1. Source: arXiv 2410.01729, whose code has no eps."""
    safe = _open(probs, mask)
    return _of_steps(row_means(safe / (1.0 - safe), mask), probs, mask)


def _open(probs: chex.Array, mask: chex.Array) -> chex.Array:
    """Probabilities clipped to [eps, 1 - eps] of their dtype, so that their odds are finite; 0.5 off the mask."""
    eps = jnp.finfo(probs.dtype).eps
    return jnp.where(mask, jnp.clip(probs, eps, 1.0 - eps), 0.5)


def _of_steps(score: chex.Array, probs: chex.Array, mask: chex.Array) -> chex.Array:
    """The score, or 0.5 for a solution without steps, as in RewardMATH; checks the shapes."""
    chex.assert_rank([probs, mask], 2)
    chex.assert_equal_shape([probs, mask])
    chex.assert_type([probs, mask], [float, bool])
    return jnp.where(jnp.any(mask, axis=1), score, 0.5)
