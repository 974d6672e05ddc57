"""A per-step reward for control: an ensemble of small networks on observation and action (agents.torso)."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.torso import dense, linear, make_torso


class RewardNetwork(NamedTuple):
    """M members, each with its own weights.

    Attributes:
      init: (key) -> params, every leaf with M first.
      apply: (params, observations [N, *shape], actions [N, ...]) -> float32 [N, M].
    """

    init: Callable
    apply: Callable


def make_reward_network(
    observation_size: int,
    *,
    num_actions: int = 0,
    action_size: int = 0,
    members: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
) -> RewardNetwork:
    """M = members networks r(o, a), unbounded.

    Source: ensembles of rewards, arXiv 1706.03741 section 2.2.3.

    Args:
      observation_size: numbers in an observation of any shape.
      num_actions: actions are int [N], one-hot of num_actions. 0: they are float [N, ...] of action_size numbers, as
        the environment takes them.
      action_size: numbers in an action if num_actions is 0.
      members: M.
      hidden: as in agents.torso.
      activation: as in agents.torso.
    """
    torso = make_torso(
        (observation_size + (num_actions or action_size),), hidden=hidden, activation=activation, channels=0
    )

    def init_member(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": dense(head_key, torso.size, 1, 1.0)}

    def apply_member(params: Params, x: chex.Array) -> chex.Array:
        return linear(torso.apply(params, x), params["head"])[:, 0]

    def apply(params: Params, observations: chex.Array, actions: chex.Array) -> chex.Array:
        seen = jax.nn.one_hot(actions, num_actions) if num_actions else actions.reshape(len(actions), -1)
        x = jnp.concatenate([observations.reshape(len(observations), -1), seen], axis=1)
        return jax.vmap(apply_member, in_axes=(0, None), out_axes=1)(params, x)

    return RewardNetwork(lambda key: jax.vmap(init_member)(jax.random.split(key, members)), apply)
