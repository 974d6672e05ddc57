"""Actors that give a sequence of actions for one observation, and a learned model of the next state.

    h_0 = W torso(s) + b,   h_j = GRU(a_{j-1}, h_{j-1}),   a_j ~ pi(. | V h_j + c),   a_0 = 0

Source: arXiv 2410.08979 (SRL), as in its code, dee0512/Sequence-Reinforcement-Learning, whose a_0 is the last action of
the plan before. Here it is 0: a step of the replay does not hold it, and a plan of one action is then the actor of SAC.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.recurrence import gru
from rl_jax.models.agents.torso import linear
from rl_jax.models.agents.value_networks import make_layers, uniform_dense


class Planner(NamedTuple):
    """An actor of sequences.

    Attributes:
      init: (key) -> params.
      plan: (params, observations [N, ...], noise [J, N, D] or None, J) -> (actions float32 [J, N, D] as they are
        stored, log-probs [J, N]). Without noise each action is the mode, and that is fed back.
      distribution: of one action, models.agents.exploration.squashed.
      size: D.
    """

    init: Callable
    plan: Callable
    distribution: Distribution
    size: int


class StateModel(NamedTuple):
    """s' from (s, a).

    Attributes:
      init: (key) -> params.
      apply: (params, observations [N, D], actions [N, A] in the environment's units) -> next observations [N, D].
    """

    init: Callable
    apply: Callable


def planner_of(init: Callable, begin: Callable, step: Callable, distribution: Distribution) -> Planner:
    """A Planner of a recurrence.

    Args:
      init: (key) -> params.
      begin: (params, observations [N, ...]) -> state [N, W].
      step: (params, state, the action before, [N, D] in [-1, 1]) -> (outputs [N, distribution.num_outputs], state).
      distribution: models.agents.exploration.squashed.
    """
    law, size = distribution, distribution.num_outputs // 2

    def plan(params: Params, observations: chex.Array, noise: chex.Array | None, length: int):
        state = begin(params, observations)
        before, actions, log_probs = jnp.zeros((len(observations), size)), [], []
        for j in range(length):
            outputs, state = step(params, state, before)
            stored = law.mode(outputs) if noise is None else law.sample(outputs, noise[j])
            actions.append(stored)
            log_probs.append(law.log_prob(outputs, stored))
            before = jnp.tanh(stored)
        return jnp.stack(actions), jnp.stack(log_probs)

    return Planner(init, plan, law, size)


def make_planner(observation_shape: tuple[int, ...], distribution: Distribution, **layers: Any) -> Planner:
    """A Planner whose GRU is as wide as the last hidden layer.

    Args:
      observation_shape: (D,) or (H, W, C).
      distribution: models.agents.exploration.squashed.
      **layers: hidden, activation, channels, layer_norm, as in models.agents.value_networks.
    """
    _, torso = make_layers(observation_shape, layers | dict(members=1))
    width = torso.size
    cell = gru(distribution.num_outputs // 2, width)

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        first, second, third = jax.random.split(head_key, 3)
        own = {"into": uniform_dense(first, width, width), "gru": cell.init(second)}
        return params | own | {"head": uniform_dense(third, width, distribution.num_outputs)}

    def begin(params: Params, observations: chex.Array) -> chex.Array:
        return linear(torso.apply(params, observations), params["into"])

    def step(params: Params, state: chex.Array, before: chex.Array) -> tuple[chex.Array, chex.Array]:
        nobody = jnp.zeros((len(state), 1), bool)  # no state is cleared
        _, state, _ = cell.run(params["gru"], before[:, None], state, nobody)
        return linear(state, params["head"]), state

    return planner_of(init, begin, step, distribution)


def make_state_model(size: int, low: Any, high: Any, **layers: Any) -> StateModel:
    """A StateModel, an MLP of (s, a scaled to [-1, 1]) that gives s' itself, as the source's code does.

    Args:
      size: D of the observations.
      low: of the actions, finite, [A].
      high: of the actions, finite, [A].
      **layers: as in `make_planner`.
    """
    _, torso = make_layers((size + len(low),), layers | dict(members=1, channels=0))
    half, middle = 0.5 * (high - low), 0.5 * (high + low)

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": uniform_dense(head_key, torso.size, size)}

    def apply(params: Params, observations: chex.Array, actions: chex.Array) -> chex.Array:
        scaled = (actions - jnp.broadcast_to(middle, actions.shape)) / jnp.broadcast_to(half, actions.shape)
        x = jnp.concatenate([observations, scaled], axis=1)
        return linear(torso.apply(params, x), params["head"])

    return StateModel(init, apply)
