"""Contrasts: scores h_ij of anchor i and candidate j, of which h_ii is the right one.

info_nce   -log exp(h_ii) / sum_j exp(h_ij);  scores that say nothing give log B         1807.03748; TACO 2306.13229
robust     min_{tau >= tau_0} tau log mean_{j != i} exp((h_ij - h_ii) / tau) + tau rho        iSogCLR 2305.11965
"""

import chex
import jax
import jax.numpy as jnp


def info_nce(scores: chex.Array) -> chex.Array:
    """-log softmax of the right candidate, float [B].

    Args:
      scores: float [B, B], row i: anchor i against every candidate.
    """
    chex.assert_rank(scores, 2)
    return jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores)


def robust_value(gaps: chex.Array, tau: chex.Array, rho: float) -> chex.Array:
    """tau log mean_j exp(h_j / tau) + tau rho, float []: the dual of a KL ball of radius rho, convex in tau.

    Args:
      gaps: h_ij - h_ii over j != i, float [M].
      tau: float [].
      rho: radius.
    """
    return tau * (jax.nn.logsumexp(gaps / tau) - jnp.log(len(gaps))) + tau * rho


def temperature(gaps: chex.Array, *, rho: float, floor: float, ceiling: float = 10.0, halvings: int = 40) -> chex.Array:
    """The tau in [floor, ceiling] of the least robust_value, float []; equal gaps give the floor.

    Args:
      gaps: float [M].
      rho: radius.
      floor: tau_0.
      ceiling: largest tau.
      halvings: of the interval in which the slope changes its sign.
    """
    slope = jax.grad(robust_value, argnums=1)

    def halve(ends, _):
        low, high = ends
        middle = 0.5 * (low + high)
        falls = slope(gaps, middle, rho) < 0
        return (jnp.where(falls, middle, low), jnp.where(falls, high, middle)), None

    (low, _), _ = jax.lax.scan(halve, (jnp.float32(floor), jnp.float32(ceiling)), None, halvings)
    return low


def robust(scores: chex.Array, *, rho: float = 0.3, floor: float = 0.05) -> tuple[chex.Array, chex.Array]:
    """A loss per anchor with a temperature of its own: (loss float [B], tau float [B]).

    tau is a constant for the gradient, which at the minimum is exact. Source: arXiv 2305.11965. Departs: the minimum
    over tau is solved in each batch, in place of a moving average per anchor of a data set.

    Args:
      scores: float [B, B], as in `info_nce`; similarities, not divided by a temperature.
      rho: radius of the ball of distributions over the other candidates.
      floor: tau_0.
    """
    size = len(scores)
    gaps = scores - jnp.broadcast_to(jnp.diagonal(scores)[:, None], scores.shape)
    # The other candidates: row i without entry i.
    others = gaps.reshape(-1)[1:].reshape(size - 1, size + 1)[:, :-1].reshape(size, size - 1)
    taus = jax.lax.stop_gradient(jax.vmap(lambda g: temperature(g, rho=rho, floor=floor))(others))
    return jax.vmap(lambda g, t: robust_value(g, t, rho))(others, taus), taus
