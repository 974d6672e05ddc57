"""A dataset of transitions on the device, as offline methods read it: flat [N], episodes one after the other."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.transitions import Transitions


class OfflineData(NamedTuple):
    """N steps, and what a whole episode says of each.

    Attributes:
      steps: Transitions [N]; actions as the policy's distribution scores them.
      episode: int32 [N].
      time: int32 [N], the step's number in its episode, from 0.
      returns: float32 [N], the discounted rewards from the step to the end of its episode.
      to_go: float32 [N], the undiscounted ones.
      labelled: bool [N]. Whether the action (and reward) was recorded; False: only the observations were.
      source: int32 [N].
      behaviour: int32 [N].
    """

    steps: Transitions
    episode: chex.Array
    time: chex.Array
    returns: chex.Array
    to_go: chex.Array
    labelled: chex.Array
    source: chex.Array
    behaviour: chex.Array


def make_data(
    steps: Transitions,
    *,
    discount: float,
    source: chex.Array | None = None,
    behaviour: chex.Array | None = None,
    labelled: chex.Array | None = None,
) -> OfflineData:
    """The OfflineData of these steps.

    Args:
      steps: [N]; an episode ends where it is terminated or truncated, and at the last step.
      discount: gamma of `returns`.
      source: int32 [N]; None: 0.
      behaviour: int32 [N]; None: 0.
      labelled: bool [N]; None: all.
    """
    done = steps.terminated | steps.truncated
    zeros = jnp.zeros(done.shape, jnp.int32)
    first = jnp.concatenate([jnp.ones(1, bool), done[:-1]])
    count = jnp.arange(len(done), dtype=jnp.int32)
    start = jax.lax.cummax(jnp.where(first, count, 0))
    return OfflineData(
        steps=steps,
        episode=jnp.cumsum(first, dtype=jnp.int32) - 1,
        time=count - start,
        returns=returns_to_go(steps.rewards, done, discount=discount),
        to_go=returns_to_go(steps.rewards, done, discount=1.0),
        labelled=jnp.ones(done.shape, bool) if labelled is None else labelled,
        source=zeros if source is None else source,
        behaviour=zeros if behaviour is None else behaviour,
    )


def returns_to_go(rewards: chex.Array, done: chex.Array, *, discount: float) -> chex.Array:
    """G_t = r_t + gamma G_{t+1} within an episode.

    Args:
      rewards: float [N].
      done: bool [N], True at the last step of an episode; the last of all ends one anyway.
      discount: gamma.

    Returns:
      float [N].
    """
    chex.assert_equal_shape([rewards, done])

    def back(following: chex.Array, step):
        reward, ends = step
        total = reward + jnp.where(ends, 0.0, discount * following)
        return total, total

    return jax.lax.scan(back, jnp.zeros((), rewards.dtype), (rewards, done), reverse=True)[1]


def take(data: OfflineData, index: chex.Array) -> OfflineData:
    """The steps at index, int [...]: leaves [..., ...]."""
    return jax.tree.map(lambda x: x[index], data)


def sample(data: OfflineData, key: chex.PRNGKey, size: int) -> OfflineData:
    """`size` steps, with replacement."""
    return take(data, jax.random.randint(key, (size,), 0, len(data.episode)))


def sample_mixed(data: OfflineData, key: chex.PRNGKey, size: int, shares: tuple[float, ...]) -> OfflineData:
    """`size` steps, a share of them of each source: first the source, then one of its steps.

        P(k) = shares[k] / sum of the shares of sources with steps,   P(i | k) = 1 / n_k

    Places are counted in whole numbers: a running sum of N weights in float32 skips steps of large data. Source of the
    idea: a ratio of real to imagined steps, arXiv 2505.10010 (ImagineBench).

    Args:
      data: its field source has numbers below len(shares).
      key: for the sampling.
      size: of the batch.
      shares: of each source.
    """
    source_key, step_key = jax.random.split(key)
    # Nothing here but the draws depends on the key: in the scan of a fit, XLA counts once.
    among = data.source[None] == jnp.arange(len(shares))[:, None]
    ends, counts = jnp.cumsum(among.reshape(-1), dtype=jnp.int32), jnp.sum(among, axis=1, dtype=jnp.int32)
    wanted = jnp.where(counts > 0, jnp.asarray(shares, jnp.float32), 0.0)
    source = jax.random.categorical(source_key, jnp.log(wanted), shape=(size,))
    own = jax.random.randint(step_key, (size,), 0, counts[source])
    # The steps in the order of their sources: this one has so many before it.
    before = (jnp.cumsum(counts) - counts)[source] + own
    return take(data, jnp.searchsorted(ends, before, side="right") % len(data.source))


def windows(data: OfflineData, ends: chex.Array, length: int) -> tuple[OfflineData, chex.Array]:
    """The last `length` steps up to each of `ends`, of the same episode.

    Args:
      data: of N steps.
      ends: int [B].
      length: K.

    Returns:
      (OfflineData [B, K], mask bool [B, K]); steps before the episode's first are masked.
    """
    index = ends[:, None] + jnp.arange(1 - length, 1)[None, :]
    mask = index >= (ends - data.time[ends])[:, None]
    return take(data, jnp.maximum(index, 0)), mask


def mean_episode_return(data: OfflineData) -> chex.Array:
    """The mean over the episodes of their undiscounted returns, float32 []: what the behaviours earned."""
    first = data.time == 0
    return jnp.sum(jnp.where(first, data.to_go, 0.0)) / jnp.sum(first)


class Moments(NamedTuple):
    """Mean and deviation of observations, float32 [*shape] each."""

    mean: chex.Array
    std: chex.Array


def moments(observations: chex.Array, *, eps: float = 1e-3) -> Moments:
    """Of [N, *shape]; eps is added to the deviation, 1e-3 as in TD3+BC."""
    x = observations.astype(jnp.float32)
    return Moments(jnp.mean(x, axis=0), jnp.std(x, axis=0) + eps)


def normalized(observations: chex.Array, by: Moments) -> chex.Array:
    """(o - mean) / std, float32."""
    shape = observations.shape
    return (observations.astype(jnp.float32) - jnp.broadcast_to(by.mean, shape)) / jnp.broadcast_to(by.std, shape)


def normalize_steps(steps: Transitions, by: Moments) -> Transitions:
    """The steps with both observations normalised."""
    return steps._replace(
        observations=normalized(steps.observations, by), next_observations=normalized(steps.next_observations, by)
    )


def in_own_units(steps: Transitions, *, normalize: bool) -> tuple[Transitions, Moments]:
    """The steps normalised by the moments of their own observations; without `normalize` as they are, by 0 and 1."""
    by = moments(steps.observations)
    if not normalize:
        by = Moments(jnp.zeros_like(by.mean), jnp.ones_like(by.std))
    return normalize_steps(steps, by), by
