"""OPPO: a policy from preferences between whole episodes, without a reward: hindsight codes, and the best code.

    z      = phi(s_1, a_1, ..., s_K, a_K)                        an encoder of a window
    step 1   sum over both of |pi(s_t, z) - a_t|^2 + .1 triplet(sg z*, z_win, z_lose) + .1 (|z| - 1)^2
    step 2   triplet(z*, sg z_win, sg z_lose) moves z*, the code that the policy acts with

triplet(a, p, n) = max(|a - p| - |a - n| + 1, 0). Source: arXiv 2305.16217, bkkgbkjb/OPPO. There phi is a
transformer and pi a decision transformer; here phi is the mean over the steps of a network, and pi reads a step and z.
The encoder sees a window of an episode, and the preference is between the returns of the whole episodes.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.recipe import Batch, Recipe, mean
from rl_jax.core.masked import zero_masked


class EpisodePairs(NamedTuple):
    """Pairs of episodes, the preferred one first.

    Attributes:
      data: OfflineData [B, 2, K], a window of each.
      mask: bool [B, 2, K]. False behind the end of the episode.
      decided: bool [B]. False if both have the same return: such a pair is no preference.
    """

    data: datasets.OfflineData
    mask: chex.Array
    decided: chex.Array


def sample_pairs(data: datasets.OfflineData, key: chex.PRNGKey, size: int, *, length: int) -> EpisodePairs:
    """`size` pairs of windows, compared by the undiscounted returns of the whole episodes that they are from.

    A window begins at any step of the data, so a long episode is drawn more often, and ends with its episode at the
    latest. Source: bkkgbkjb/OPPO, get_batch.

    Args:
      data: of N steps.
      key: for the windows.
      size: B.
      length: K.
    """
    count = len(data.time)
    begins = jax.random.randint(key, (2 * size,), 0, count)
    index = begins[:, None] + jnp.arange(length)[None, :]
    rows = datasets.take(data, jnp.minimum(index, count - 1))
    mask = (index < count) & (rows.episode == data.episode[begins][:, None])
    rows, mask = jax.tree.map(lambda x: x.reshape(size, 2, *x.shape[1:]), (rows, mask))
    returns = data.to_go[begins - data.time[begins]].reshape(size, 2)
    swap = returns[:, 1] > returns[:, 0]

    def ordered(x: chex.Array) -> chex.Array:
        return jnp.where(swap.reshape(-1, *[1] * (x.ndim - 1)), x[:, ::-1], x)

    return EpisodePairs(jax.tree.map(ordered, rows), ordered(mask), returns[:, 0] != returns[:, 1])


def triplet(anchor: chex.Array, positive: chex.Array, negative: chex.Array, *, margin: float = 1.0) -> chex.Array:
    """max(|a - p| - |a - n| + margin, 0), Euclidean norms. float [n, Z] x3 -> float [n]."""
    chex.assert_equal_shape([anchor, positive, negative])
    return jnp.maximum(_norm(anchor - positive) - _norm(anchor - negative) + margin, 0.0)


def _norm(x: chex.Array) -> chex.Array:
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=-1) + 1e-12)  # its gradient at 0 is 0, not nan


def oppo(model, *, triplet_coef: float = 0.1, norm_coef: float = 0.1, margin: float = 1.0) -> Recipe:
    """The Recipe of OPPO; its batches are EpisodePairs.

    Args:
      model: encode (params, OfflineData [m, K], mask) -> z [m, Z]; clone (params, OfflineData [m, K], z) -> [m, K].
      triplet_coef: .1 published.
      norm_coef: .1 published.
      margin: 1 published.
    """

    def loss(params, batch: Batch):
        pairs = batch.data
        flat, mask = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (pairs.data, pairs.mask))
        codes = model.encode(params, flat, mask)
        cloning = jnp.sum(zero_masked(model.clone(params, flat, codes), mask), axis=1) / jnp.sum(mask, axis=1)
        unit = jnp.square(_norm(codes) - 1.0)
        better, worse = jnp.moveaxis(codes.reshape(len(pairs.decided), 2, -1), 1, 0)
        best = jnp.broadcast_to(params["goal"], better.shape)
        data = jax.lax.stop_gradient
        of_codes = jnp.where(pairs.decided, triplet(data(best), better, worse, margin=margin), 0.0)
        of_goal = jnp.where(pairs.decided, triplet(best, data(better), data(worse), margin=margin), 0.0)
        each = (cloning + norm_coef * unit).reshape(-1, 2).sum(axis=1)
        return mean(each + triplet_coef * of_codes + of_goal), {
            "loss/cloning": mean(cloning),
            "loss/triplet": mean(of_codes),
        }

    return Recipe(loss, ("encoder", "policy", "goal"))
