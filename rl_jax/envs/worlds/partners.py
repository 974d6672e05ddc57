"""A partner of a hidden kind, met for one episode: what it did so far is all that tells how it will act.

    partner of kind k:  action k with probability `share`, each other one as likely;   r = 1 if the agent does the same

The observation is the partner's last action and the agent's own, one-hot each, all 0 in the first step. Who knows the
kind earns `share` a step; who repeats the partner's last action share^2 + (1 - share)^2 / (kinds - 1).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Met(NamedTuple):
    """The state: kind int32 []; seen float32 [2 kinds], the observation."""

    kind: chex.Array
    seen: chex.Array


def environment(*, kinds: int = 3, share: float = 0.7, limit: int = 16) -> Environment:
    """The partner as an Environment.

    Args:
      kinds: of partners, and actions.
      share: of a partner's steps in which it does what its kind prefers.
      limit: steps of an episode.

    Raises:
      ValueError: if there are fewer than two kinds, or the share is not from 0 to 1.
    """
    if kinds < 2 or not 0.0 <= share <= 1.0:
        raise ValueError(f"probes/partner: kinds={kinds} must be 2 or more, share={share} from 0 to 1")

    def reset(key: chex.PRNGKey):
        state = Met(jax.random.randint(key, (), 0, kinds), jnp.zeros(2 * kinds))
        return state, state.seen

    def step(key: chex.PRNGKey, state: Met, action: chex.Array):
        coin_key, other_key = jax.random.split(key)
        other = (state.kind + jax.random.randint(other_key, (), 1, kinds)) % kinds
        done = jnp.where(jax.random.uniform(coin_key) < share, state.kind, other)
        seen = jnp.concatenate([jax.nn.one_hot(done, kinds), jax.nn.one_hot(action, kinds)])
        return Met(state.kind, seen), Step(seen, (done == action).astype(jnp.float32), NO, NO)

    space = Box(np.zeros(2 * kinds, np.float32), np.ones(2 * kinds, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(kinds)), limit)
