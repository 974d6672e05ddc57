"""Actors and critics with memory, for partially observed environments: a torso, a memory, a head.

They act step by step (`step`) and learn from rows of T steps (`unroll`). Both give the same numbers up to rounding,
even if an episode ends inside a row: its memory is empty at its first step. Actor and critic share nothing, neither
weights nor memory. No gradient flows back beyond the state that a row starts with.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax

from rl_jax.core.types import Params
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.recurrence import Memory, gru, transformer
from rl_jax.models.agents.scoring import predict_rows
from rl_jax.models.agents.torso import Torso, dense, linear, make_torso


class MemoryAgent(NamedTuple):
    """A policy and a critic, both with a memory; a `state` is a pytree of arrays with B first.

    Attributes:
      init: (key) -> params {"actor", "critic"}.
      initial_state: (B) -> the state of an empty memory.
      step: (params, observations [B, ...], state, first bool [B]) -> (outputs float32 [B, distribution.num_outputs],
        values float32 [B, K], state). first: an episode starts here; the memory before it is cleared.
      unroll: (params, observations [B, T, ...], state, first bool [B, T]) -> (outputs [B, T, ...], values [B, T, K]).
      look_ahead: (params, observations, state, first, next_observations [B, T, ...]) -> (outputs, values, next_values
        [B, T, K]). As unroll, plus the values of the states that the steps led to, in the memory of each step's
        episode. That is V' even if the episode was truncated there: no memory has seen next_observations.
      distribution: of the actions.
      predict: (params, SequenceInputs [B, T]) -> (TokenScores [B, T], values [B, T, K]); see agents.scoring.
      predict_ahead: (params, SequenceInputs, next_observations [B, T, ...]) -> (TokenScores, values, next_values). As
        predict, plus the next_values of look_ahead.
    """

    init: Callable
    initial_state: Callable
    step: Callable
    unroll: Callable
    look_ahead: Callable
    distribution: Distribution
    predict: Callable
    predict_ahead: Callable


def make_gru_agent(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64,),
    activation: str = "tanh",
    channels: int = 16,
    actor_features: int = 0,
    width: int = 64,
) -> MemoryAgent:
    """A MemoryAgent of gated recurrent units.

    Args:
      observation_shape: as in actor_critic.make_agent.
      distribution: of the actions.
      num_values: K.
      hidden: widths of the layers in front of the memory.
      activation: as in actor_critic.make_agent.
      channels: as in actor_critic.make_agent.
      actor_features: as in actor_critic.make_agent.
      width: of the state.

    Raises:
      ValueError: as in actor_critic.make_agent.
    """
    layers = dict(hidden=hidden, activation=activation, channels=channels)
    actor = make_torso(observation_shape, features=actor_features, **layers)
    critic = make_torso(observation_shape, **layers)
    return _make_agent(actor, critic, lambda inputs: gru(inputs, width), distribution, num_values)


def make_transformer_agent(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64,),
    activation: str = "tanh",
    channels: int = 16,
    actor_features: int = 0,
    width: int = 64,
    context: int = 32,
    heads: int = 4,
    layers: int = 1,
) -> MemoryAgent:
    """A MemoryAgent of causal attention.

    Args:
      observation_shape: as in actor_critic.make_agent.
      distribution: of the actions.
      num_values: as in actor_critic.make_agent.
      hidden: widths of the layers in front of the memory.
      activation: as in actor_critic.make_agent.
      channels: as in actor_critic.make_agent.
      actor_features: as in actor_critic.make_agent.
      width: of the residual stream; the MLPs are 4 times as wide.
      context: K of agents.recurrence, the steps that a query sees.
      heads: of the attention.
      layers: number of blocks.

    Raises:
      ValueError: if heads does not divide width, context is less than 2, and as in actor_critic.make_agent.
    """
    if width % heads:
        raise ValueError(f"width={width} does not divide into heads={heads}")
    if context < 2:
        raise ValueError(f"context={context}: of less than 2 steps nothing is remembered")
    front = dict(hidden=hidden, activation=activation, channels=channels)
    actor = make_torso(observation_shape, features=actor_features, **front)
    critic = make_torso(observation_shape, **front)

    def memory(inputs: int) -> Memory:
        return transformer(inputs, width, context, heads, layers)

    return _make_agent(actor, critic, memory, distribution, num_values)


class _Network(NamedTuple):
    """A torso, a memory and a head.

    Attributes:
      torso: a Torso.
      memory: a Memory.
      outputs: size of the head.
      scale: of the head's initial weights.
    """

    torso: Torso
    memory: Memory
    outputs: int
    scale: float


def _make_agent(
    actor: Torso, critic: Torso, make_memory: Callable, distribution: Distribution, num_values: int
) -> MemoryAgent:
    networks = {
        "actor": _Network(actor, make_memory(actor.size), distribution.num_outputs, 0.01),
        "critic": _Network(critic, make_memory(critic.size), num_values, 1.0),
    }

    def init(key: chex.PRNGKey) -> Params:
        def params_of(network: _Network, key: chex.PRNGKey) -> dict[str, Any]:
            torso_key, memory_key = jax.random.split(key)
            torso, head_key = network.torso.init(torso_key)
            head = dense(head_key, network.memory.size, network.outputs, network.scale)
            return {"torso": torso, "memory": network.memory.init(memory_key), "head": head}

        keys = jax.random.split(key)
        return {name: params_of(networks[name], key) for name, key in zip(networks, keys, strict=True)}

    def features(name: str, params: dict[str, Any], observations: chex.Array) -> chex.Array:
        """The torso on rows: [B, T, ...] -> [B, T, D]."""
        rows, length = observations.shape[:2]
        flat = observations.reshape(rows * length, *observations.shape[2:])
        return networks[name].torso.apply(params["torso"], flat).reshape(rows, length, -1)

    def run(params: Params, observations: chex.Array, state: Any, first: chex.Array):
        """({network: its head's outputs}, {network: state}, {network: trace}) of rows [B, T]."""
        chex.assert_shape(first, observations.shape[:2])
        chex.assert_type(first, bool)
        outputs, after, traces = {}, {}, {}
        for name, network in networks.items():
            own = params[name]
            x = features(name, own, observations)
            y, after[name], traces[name] = network.memory.run(own["memory"], x, state[name], first)
            outputs[name] = linear(y, own["head"])
        return outputs, after, traces

    def step(params: Params, observations: chex.Array, state: Any, first: chex.Array):
        outputs, state, _ = run(params, observations[:, None], state, first[:, None])
        return outputs["actor"][:, 0], outputs["critic"][:, 0], state

    def unroll(params: Params, observations: chex.Array, state: Any, first: chex.Array):
        outputs, _, _ = run(params, observations, state, first)
        return outputs["actor"], outputs["critic"]

    def look_ahead(params, observations, state, first, next_observations):
        chex.assert_equal_shape([observations, next_observations])
        outputs, _, traces = run(params, observations, state, first)
        own = params["critic"]
        x = features("critic", own, next_observations)
        y = networks["critic"].memory.peek(own["memory"], x, traces["critic"])
        return outputs["actor"], outputs["critic"], linear(y, own["head"])

    def initial_state(rows: int) -> dict[str, Any]:
        return {name: network.memory.empty(rows) for name, network in networks.items()}

    predictions = predict_rows(unroll, look_ahead, distribution)
    return MemoryAgent(init, initial_state, step, unroll, look_ahead, distribution, *predictions)
