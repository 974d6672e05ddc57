"""Task saliency: how T tasks would move a representation that they share. Source: arXiv 2507.21049 (Rep-MTL).

    S_t        = dL_t / dz
    entropy    H(P_bi),  P_bit = |mean_c S_tbic| / sum_k |mean_c S_kbic|                  low: a place serves one task
    alignment  -log exp(cos(A_b, M_tb) / tau) / sum_{k != b} exp(cos(A_b, A_k) / tau)
               M_tb = sum_i S_tbi S_tbi^T,  A_b = a a^T,  a = mean_i S_bi, [C, T]

b is a sample, i one of its places (pixels there; a vector has one), c a channel. Both are differentiated through S.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.vectors import unit


def task_entropy(saliencies: chex.Array) -> chex.Array:
    """The entropy of the tasks' shares of each place, float [B, I], from 0 to log T. Equations 4 to 6.

    Args:
      saliencies: S, float [T, B, I, C]. Any factor that all tasks of a place share cancels out.
    """
    chex.assert_rank(saliencies, 4)
    sizes = jnp.abs(jnp.mean(saliencies, axis=3))
    shares = sizes / (jnp.sum(sizes, axis=0, keepdims=True) + 1e-12)
    return -jnp.sum(shares * jnp.log(jnp.where(shares > 0.0, shares, 1.0)), axis=0)


def saliency_alignment(saliencies: chex.Array, *, temperature: float) -> chex.Array:
    """How badly each task's channels go together as those of all tasks do in the same sample, float [T, B].

    Equations 7 to 9, which leave t free: here one value for each task. The anchors of other samples are the wrong
    answers; the right one is not in the sum.

    Args:
      saliencies: S, float [T, B, I, C], of 2 samples or more. A factor of a sample cancels out.
      temperature: tau; not given in the paper.

    Raises:
      ValueError: if there is one sample only.
    """
    chex.assert_rank(saliencies, 4)
    count = saliencies.shape[1]
    if count < 2:
        raise ValueError("saliency_alignment: other samples are the wrong answers, there is only one sample")
    means = jnp.mean(_scaled(saliencies, (0, 2, 3)), axis=2)
    each = _scaled(saliencies, (2, 3))
    anchors = unit(jnp.einsum("tbc,tbd->bcd", means, means).reshape(count, -1), 1e-6)
    affinities = unit(jnp.einsum("tbic,tbid->tbcd", each, each).reshape(len(each), count, -1), 1e-6)
    right = jnp.einsum("bx,tbx->tb", anchors, affinities) / temperature
    wrong = jnp.where(jnp.eye(count, dtype=bool), -1e30, anchors @ anchors.T / temperature)
    return jax.nn.logsumexp(wrong, axis=1)[None] - right


def _scaled(x: chex.Array, axis: tuple[int, ...]) -> chex.Array:
    """x with its largest entry over the axes at 1: cosines do not read its scale, and squares of gradients vanish."""
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=axis, keepdims=True))
    return x / jnp.where(scale > 0.0, scale, 1.0)
