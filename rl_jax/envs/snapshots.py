"""Starts from snapshots (S3RL, 2403.00673): for its first steps a student begins where a teacher has been.

The teacher's states are kept every few steps and put into clusters; a start is a uniform cluster, then a uniform
snapshot in it, and such an episode is truncated early. Afterwards episodes begin as the environment's own do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Environment, Vector, vectorize, where


class Snapshots(NamedTuple):
    """M states that a teacher was in.

    Attributes:
      states: of the environment, a pytree with M first.
      observations: float32 [M, *shape].
      probs: float [M]. With which each is a start.
    """

    states: Any
    observations: chex.Array
    probs: np.ndarray


class Snapped(NamedTuple):
    """State of `vectorize_from`.

    Attributes:
      state: of the inner Vector.
      age: int32 [B]. Steps of each environment so far.
      time: int32 [B]. Steps of the episode.
      given: bool [B]. Whether the episode began from a snapshot.
    """

    state: Any
    age: chex.Array
    time: chex.Array
    given: chex.Array


def mostly(key: chex.PRNGKey, observation: chex.Array, *, action: int = 1, share: float = 0.9) -> chex.Array:
    """A teacher that takes this action in a share of its steps, and 0 or 1 at random in the others: int32 []."""
    coin, other = jax.random.split(key)
    return jnp.where(jax.random.bernoulli(coin, share), action, jax.random.randint(other, (), 0, 2)).astype(jnp.int32)


def collected(
    env: Environment,
    teacher: Callable,
    key: chex.PRNGKey,
    *,
    episodes: int,
    every: int,
    max_steps: int,
    clusters: int,
    value: Callable | None = None,
) -> Snapshots:
    """Snapshots of a teacher's episodes.

    Source: arXiv 2403.00673 and sdpkjc/snapshotrl: 10 episodes, every 10 steps, 6 clusters by k-means of the teacher's
    value of each state. Departs: steps are counted in each episode, there over all of them.

    Args:
      env: one environment.
      teacher: (key, observation) -> action.
      key: typed PRNG key.
      episodes: of the teacher.
      every: steps between two snapshots.
      max_steps: of an episode.
      clusters: 1 makes all snapshots equally likely.
      value: observations [M, *shape] -> float [M], the teacher's; None: clusters are of the observations.
    """

    def episode(key: chex.PRNGKey):
        reset_key, key = jax.random.split(key)

        def step(carry, key):
            state, observation, alive = carry
            act_key, step_key = jax.random.split(key)
            after, now = env.step(step_key, state, teacher(act_key, observation))
            return (after, now.observation, alive & ~now.done), (state, observation, alive)

        start = (*env.reset(reset_key), jnp.bool_(True))
        return jax.lax.scan(step, start, jax.random.split(key, max_steps))[1]

    states, observations, alive = jax.jit(jax.vmap(episode))(jax.random.split(key, episodes))
    kept = np.flatnonzero((np.asarray(alive) & (np.arange(max_steps) % every == 0)[None]).reshape(-1))
    pick = lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[kept]  # noqa: E731
    seen = pick(observations)
    points = seen if value is None else np.asarray(jax.jit(value)(seen))
    return Snapshots(jax.tree.map(pick, states), seen, start_probs(clustered(points.reshape(len(seen), -1), clusters)))


def clustered(points: np.ndarray, clusters: int, *, rounds: int = 20) -> np.ndarray:
    """The cluster of each point by k-means from evenly spaced points, int [M]. points: float [M, D]."""
    centres = points[np.linspace(0, len(points) - 1, min(clusters, len(points))).astype(int)]
    for _ in range(rounds):
        nearest = np.argmin(((points[:, None] - centres[None]) ** 2).sum(-1), axis=1)
        centres = np.stack(
            [points[nearest == k].mean(0) if (nearest == k).any() else centres[k] for k in range(len(centres))]
        )
    return nearest


def start_probs(groups: np.ndarray) -> np.ndarray:
    """A uniform cluster, then a uniform member of it: float [M]. groups: int [M]; one group is uniform."""
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return 1.0 / (len(names) * counts[index])


def vectorize_from(env: Environment, num_envs: int, snapshots: Snapshots, *, until: int, limit: int) -> Vector:
    """protocol.vectorize whose episodes begin from snapshots during the first `until` steps of each environment.

    Args:
      env: one environment.
      num_envs: B.
      snapshots: of `collected`.
      until: steps per environment; 0 is protocol.vectorize.
      limit: steps after which an episode from a snapshot is truncated.
    """
    inner = vectorize(env, num_envs)
    starts = jax.tree.map(jnp.asarray, (snapshots.states, snapshots.observations))
    weights = jnp.log(jnp.asarray(snapshots.probs, jnp.float32))

    def drawn(key: chex.PRNGKey, shape: tuple[int, ...]) -> Any:
        index = jax.random.categorical(key, weights, shape=shape)
        return jax.tree.map(lambda x: x[index], starts)

    def reset(key: chex.PRNGKey):
        state, observation = inner.reset(key)
        given = jnp.full(num_envs, until > 0)
        state, observation = where(given, drawn(jax.random.fold_in(key, 1), (num_envs,)), (state, observation))
        zeros = jnp.zeros(num_envs, jnp.int32)
        return Snapped(state, zeros, zeros + 0, given), observation

    def ahead(key: chex.PRNGKey, num_steps: int):
        return inner.ahead(key, num_steps), drawn(jax.random.fold_in(key, 1), (num_steps, num_envs))

    def step(state: Snapped, action: chex.Array, noise):
        usual, (start_state, start_observation) = noise
        (step_keys, (own_state, own_observation)) = usual
        after, now = jax.vmap(env.step)(step_keys, state.state, action)
        time, age = state.time + 1, state.age + 1
        now = now._replace(truncated=now.truncated | (state.given & (time >= limit) & ~now.terminated))
        given = age < until
        begin = where(given, (start_state, start_observation), (own_state, own_observation))
        following, observation = where(now.done, begin, (after, now.observation))
        fresh = Snapped(following, age, jnp.where(now.done, 0, time), jnp.where(now.done, given, state.given))
        return fresh, observation, now

    return inner._replace(reset=reset, ahead=ahead, step=step)
