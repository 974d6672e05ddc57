"""A Vector for environments whose start states are large or slow to make: physics, generated maps.

`protocol.vectorize` samples a start for each step of each environment: T B states, of which few are used. Here each
environment keeps one start ready, and k of these are resampled at each step: 2 B + T k states and T k resets.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.envs.protocol import Environment, Vector, where


class Kept(NamedTuple):
    """State of `vectorize_keeping`.

    Attributes:
      state: of the B environments.
      next: (state, observation) with which the next episode of each starts.
    """

    state: Any
    next: Any


def vectorize_keeping(env: Environment, num_envs: int, *, fresh: int) -> Vector:
    """B = num_envs copies of `env`, each with its next start ready.

    Args:
      env: one environment.
      num_envs: B.
      fresh: k, the number of the B starts resampled at each step, namely k neighbours at a random index. With 0 none is
        ever resampled: an environment returns to one start, as with brax's AutoResetWrapper, which is also enough to
        evaluate one episode. If episodes last 4 B / k steps or more, two of them rarely share a start; shorter ones
        repeat theirs.

    Returns:
      Vector.

    Raises:
      ValueError: if fresh is not in 0 .. B.
    """
    if not 0 <= fresh <= num_envs:
        raise ValueError(f"fresh_starts={fresh} must be from 0 to num_envs={num_envs}, the starts sampled per step")

    def reset(key: chex.PRNGKey):
        # The first episodes are the same as with protocol.vectorize.
        state, observation = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        upcoming = jax.vmap(env.reset)(jax.random.split(jax.random.fold_in(key, 2**31 - 1), num_envs))
        return Kept(state, upcoming), observation

    def ahead(key: chex.PRNGKey, num_steps: int):
        step_key, reset_key = jax.random.split(key)
        step_keys = jax.random.split(step_key, (num_steps, num_envs))
        if fresh == 0:
            return step_keys, ()
        place_key, reset_key = jax.random.split(reset_key)
        places = jax.random.randint(place_key, (num_steps, 1), 0, num_envs) + jnp.arange(fresh)[None]
        starts = jax.vmap(jax.vmap(env.reset))(jax.random.split(reset_key, (num_steps, fresh)))
        return step_keys, (places % num_envs, starts)

    def step(state: Kept, action: chex.Array, drawn):
        keys, renewed = drawn
        upcoming = state.next
        if renewed:
            places, starts = renewed
            upcoming = jax.tree.map(lambda old, new: old.at[places].set(new, unique_indices=True), upcoming, starts)
        inner, now = jax.vmap(env.step)(keys, state.state, action)
        inner, observation = where(now.done, upcoming, (inner, now.observation))
        return Kept(inner, upcoming), observation, now

    return Vector(
        reset, ahead, step, num_envs, *env[2:4], objectives=env.objectives, agents=env.agents, noised=env.noised
    )
