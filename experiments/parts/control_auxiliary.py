"""The auxiliary loss that config.algorithm.auxiliary names, on the actor's hidden layers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_jax import envs
from rl_jax.control import auxiliary
from rl_jax.control.anchors import Anchored
from rl_jax.core.binding import bind
from rl_jax.models.agents.features import make_net
from rl_jax.models.agents.torso import make_torso
from rl_jax.models.agents.windows import make_window_encoder


def actor_layers(shape: tuple[int, ...], fields) -> tuple[int, Callable]:
    """(width, (params of the actor, observations [n, ...]) -> [n, width]) of its hidden layers."""
    layers = dict(hidden=tuple(fields.hidden), activation=fields.activation, channels=fields.channels)
    torso = make_torso(shape, features=fields.actor_features, **layers)
    return torso.size, torso.apply


def window_code(shape: tuple[int, ...], fields) -> tuple[int, Callable]:
    """The same of the code of a window of observations."""
    sizes = dict(width=fields.width, heads=fields.heads)
    return fields.width, make_window_encoder(shape[0] // fields.context, fields.context, **sizes).apply


# network.kind -> (the params that the loss teaches, makes what it reads).
READ = {"mlp": ("actor", actor_layers), "windows": ("window", window_code)}


class WithAuxiliary(NamedTuple):
    """An agent and its further loss, as control.Algorithm takes it.

    Attributes:
      agent: with the params of the loss.
      loss: (params, PPOBatch) -> (loss float [], weight); None: there is none.
      anchors: what the loss keeps from minibatch to minibatch, or None.
      extras: of Algorithm.auxiliary_extras, or None.
    """

    agent: Any
    loss: Callable | None = None
    anchors: Anchored | None = None
    extras: Callable | None = None


def with_auxiliary(config, spec: dict[str, Any], agent, env: envs.Vector) -> WithAuxiliary:
    """The agent with the params of the loss that the spec names, and the loss.

    Args:
      config: of the program.
      spec: config.algorithm.auxiliary as a dict; numbers may be traced. fn "" is none.
      agent: of the actor and the critic.
      env: for its spaces.

    Raises:
      ValueError: if the agent has a memory, or the loss keeps something and the updater does not carry it.
    """
    if not spec["fn"]:
        return WithAuxiliary(agent)
    fields = config.network
    if fields.kind not in READ:
        raise ValueError(f"algorithm.auxiliary.fn={spec['fn']!r} reads single steps: set network.kind='mlp'")
    name, make = READ[fields.kind]
    width, apply = make(env.observation_space.shape, fields)
    discrete = isinstance(env.action_space, envs.Discrete)
    size = env.action_space.n if discrete else int(env.action_space.low.size)
    given = dict(
        width=width,
        action_size=size,
        make_net=make_net,
        state_size=math.prod(env.observation_space.shape),
        context=fields.context,
    )
    made = bind(spec, auxiliary, **given)()

    def encode(actions: jax.Array) -> jax.Array:
        return jax.nn.one_hot(actions, size) if discrete else actions.reshape(-1, size)

    def look(observations: jax.Array, following: jax.Array, rows) -> dict[str, jax.Array]:
        shape = rows.rewards.shape
        seen, after = (x.reshape(*shape, *x.shape[1:]) for x in (observations, following))
        actions = encode(rows.actions.reshape(-1, *rows.actions.shape[2:])).reshape(*shape, size)
        found = made.look(seen, after, actions, rows.rewards, rows.terminated | rows.truncated)
        return {name: jax.lax.stop_gradient(x.reshape(-1, *x.shape[2:])) for name, x in found.items()}

    def init(key: jax.Array) -> dict[str, Any]:
        return agent.init(key) | {"auxiliary": made.init(jax.random.fold_in(key, 2**31 - 4))}

    def inputs_of(batch) -> tuple[jax.Array, jax.Array]:
        # Other views in each minibatch: their key is the bits of its advantages.
        bits = jax.lax.bitcast_convert_type(jnp.sum(batch.policy.advantages), jnp.uint32)
        return batch.policy.batch.observations, jax.random.fold_in(jax.random.key(0), bits)

    def features_of(params: dict[str, Any]) -> Callable:
        return lambda x: apply(params[name], x)

    def loss(params: dict[str, Any], batch) -> tuple[jax.Array, Any]:
        inputs, (observations, key) = batch.policy.batch, inputs_of(batch)
        actions = encode(inputs.actions)
        after = batch.policy.extras["next_observations"]
        more = (batch.policy.extras,) if made.begin or made.reads_extras else ()
        return made.loss(params["auxiliary"], features_of(params), observations, actions, after, key, *more), made.coef

    def observe(params: dict[str, Any], batch, kept, axis_name):
        return made.observe(params["auxiliary"], features_of(params), *inputs_of(batch), kept, axis_name)

    if made.begin is None:
        return WithAuxiliary(agent._replace(init=init), loss, extras=look if made.look else None)
    updater = config.algorithm.updater["fn"]
    if updater != "make_update":
        raise ValueError(
            f"algorithm.auxiliary.fn={spec['fn']!r} keeps averages of its anchors, which only "
            f"algorithm.updater.fn='make_update' carries, not {updater!r}"
        )
    return WithAuxiliary(agent._replace(init=init), loss, Anchored(made.begin, observe))
