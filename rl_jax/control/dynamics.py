"""Learned dynamics and planning with them: the likelihood of a model, its weights near a trajectory, and CEM.

    nll       sum_d (y_d - m_d)^2 / (2 exp(2 l_d)) + l_d + log(2 pi) / 2        of a Gaussian model (m, l = log std)
    weights   w_i = exp(-d_i / scale) / mean_j exp(-d_j / scale),   d_i the distance to the nearest of a trajectory
    plan      argmax over a_1..a_H of the sum of rewards along the model's mean: the cross-entropy method

Objective mismatch: a model that is likelier on all of the data need not be the better one to plan with. Source: arXiv
2002.04523, whose remedy is to weight the model's loss towards a trajectory that is near the optimum. The paper was not
at hand: the form exp(-d) and its constants could not be confirmed. The mean is 1, so that a learning rate keeps its
meaning.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

LOG_TWO_PI = float(np.log(2.0 * np.pi))


def gaussian_nll(means: chex.Array, log_stds: chex.Array, targets: chex.Array) -> chex.Array:
    """-log N(targets; means, exp(log_stds)^2), summed over the coordinates.

    Args:
      means: float [..., D], differentiated.
      log_stds: float [..., D], differentiated.
      targets: float [..., D]; data.

    Returns:
      float [...].
    """
    chex.assert_equal_shape([means, log_stds, targets])
    z = (targets - means) * jnp.exp(-log_stds)
    return jnp.sum(0.5 * jnp.square(z) + log_stds + 0.5 * LOG_TWO_PI, axis=-1)


def trajectory_weights(points: chex.Array, trajectory: chex.Array, *, scale: float | chex.Array) -> chex.Array:
    """exp(-d / scale) over its mean, d the distance of a point to the nearest of the trajectory: float [N].

    Args:
      points: float [N, D], (s, a) of the data.
      trajectory: float [T, D], (s, a) of one that is near the optimum.
      scale: of the distance; inf gives weights of 1, the plain likelihood.
    """
    chex.assert_equal(points.shape[1], trajectory.shape[1])
    squares = jnp.sum(jnp.square(points[:, None] - trajectory[None]), axis=-1)
    near = -jnp.sqrt(jnp.min(squares, axis=1)) / scale
    return jax.nn.softmax(near) * len(points)


def cem(
    rewards_of: Callable,
    mean: chex.Array,
    key: chex.PRNGKey,
    *,
    rounds: int,
    samples: int,
    elites: int,
    std: float,
    low: float = -1.0,
    high: float = 1.0,
) -> chex.Array:
    """The plan [H, A] that the cross-entropy method ends at: the mean of the best samples of the last round.

    Args:
      rewards_of: plans [samples, H, A] -> sums of rewards [samples].
      mean: float [H, A], where it begins: the rest of the plan before, say.
      key: typed PRNG key.
      rounds: of sampling; 1 is random shooting around `mean`, with the mean of the elites.
      samples: plans per round.
      elites: best plans whose mean and deviation make the next round's.
      std: of the first round.
      low: bound of the actions.
      high: bound of the actions.

    Raises:
      ValueError: if there are more elites than samples.
    """
    if not 1 <= elites <= samples:
        raise ValueError(f"elites={elites} must be from 1 to samples={samples}")

    def one_round(carry, key):
        mean, std = carry
        plans = jnp.clip(mean[None] + std[None] * jax.random.normal(key, (samples, *mean.shape)), low, high)
        best = plans[jax.lax.top_k(rewards_of(plans), elites)[1]]
        return (jnp.mean(best, axis=0), jnp.std(best, axis=0)), None

    first = mean, jnp.full(mean.shape, std)
    return jax.lax.scan(one_round, first, jax.random.split(key, rounds))[0][0]
