"""A camp: the player has a need, and one deed meets it. A plain word or a rare one says which need it is.

An observation shows the four needs and whether the word is rare. If env.features hides them, a policy has nothing to
act on but the goals that somebody names (rl_jax.envs.guidance and its speakers).
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

DEEDS = ("drink water", "eat cow", "sleep", "place furnace")
WORDS = (("thirsty", "parched"), ("hungry", "famished"), ("tired", "drowsy"), ("cold", "frigid"))  # plain, rare
NO = np.bool_(False)


def environment(*, every: int = 4, periods: int = 16) -> Environment:
    """The deed that meets the need pays 1. The need changes every few steps; observations are (needs [4], rare, time).

    Args:
      every: steps of a need.
      periods: steps after which an episode is truncated; the best return, and 4 times that of chance.
    """
    needs = len(DEEDS)

    def draw(key: chex.PRNGKey):
        need_key, rare_key = jax.random.split(key)
        return jax.random.randint(need_key, (), 0, needs), jax.random.bernoulli(rare_key)

    def observe(state) -> chex.Array:
        need, rare, time = state
        return jnp.append(jax.nn.one_hot(need, needs), jnp.array([rare, time / periods], jnp.float32))

    def reset(key: chex.PRNGKey):
        state = (*draw(key), jnp.int32(0))
        return state, observe(state)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        need, rare, time = state
        paid = (action == need).astype(jnp.float32)
        time = time + 1
        new = time % every == 0
        state = *(jnp.where(new, drawn, old) for drawn, old in zip(draw(key), (need, rare), strict=True)), time
        return state, Step(observe(state), paid, NO, NO)

    space = Box(np.zeros(needs + 2, np.float32), np.ones(needs + 2, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(needs)), periods)


def status(observation: np.ndarray) -> str:
    """The need of an observation in words."""
    return WORDS[int(np.argmax(observation[: len(DEEDS)]))][int(observation[len(DEEDS)] > 0.5)]
