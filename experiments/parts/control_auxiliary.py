"""The auxiliary loss that config.algorithm.auxiliary names, on the actor's hidden layers."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rl_jax import envs
from rl_jax.control import auxiliary
from rl_jax.control.anchors import Anchored
from rl_jax.core.binding import bind
from rl_jax.models.agents.features import make_net
from rl_jax.models.agents.torso import make_torso


def with_auxiliary(
    config, spec: dict[str, Any], agent, env: envs.Vector
) -> tuple[Any, Callable | None, Anchored | None]:
    """The agent with the params of the loss, the loss, and what the loss keeps from minibatch to minibatch.

    Args:
      config: of the program.
      spec: config.algorithm.auxiliary as a dict; numbers may be traced. fn "" is none.
      agent: of the actor and the critic.
      env: for its spaces.

    Returns:
      (agent, (params, PPOBatch) -> (loss float [], weight), Anchored or None); (agent, None, None) without one.

    Raises:
      ValueError: if the agent has a memory, or the loss keeps something and the updater does not carry it.
    """
    if not spec["fn"]:
        return agent, None, None
    fields = config.network
    if fields.kind != "mlp":
        raise ValueError(f"algorithm.auxiliary.fn={spec['fn']!r} reads single steps: set network.kind='mlp'")
    layers = dict(hidden=tuple(fields.hidden), activation=fields.activation, channels=fields.channels)
    torso = make_torso(env.observation_space.shape, features=fields.actor_features, **layers)
    discrete = isinstance(env.action_space, envs.Discrete)
    size = env.action_space.n if discrete else int(env.action_space.low.size)
    given = dict(
        width=torso.size, action_size=size, make_net=make_net, state_size=math.prod(env.observation_space.shape)
    )
    made = bind(spec, auxiliary, **given)()

    def init(key: jax.Array) -> dict[str, Any]:
        return agent.init(key) | {"auxiliary": made.init(jax.random.fold_in(key, 2**31 - 4))}

    def inputs_of(batch) -> tuple[jax.Array, jax.Array]:
        # Other views in each minibatch: their key is the bits of its advantages.
        bits = jax.lax.bitcast_convert_type(jnp.sum(batch.policy.advantages), jnp.uint32)
        return batch.policy.batch.observations, jax.random.fold_in(jax.random.key(0), bits)

    def features_of(params: dict[str, Any]) -> Callable:
        return lambda x: torso.apply(params["actor"], x)

    def loss(params: dict[str, Any], batch) -> tuple[jax.Array, Any]:
        inputs, (observations, key) = batch.policy.batch, inputs_of(batch)
        actions = jax.nn.one_hot(inputs.actions, size) if discrete else inputs.actions.reshape(-1, size)
        after = batch.policy.extras["next_observations"]
        more = (batch.policy.extras,) if made.begin or made.reads_extras else ()
        return made.loss(params["auxiliary"], features_of(params), observations, actions, after, key, *more), made.coef

    def observe(params: dict[str, Any], batch, kept, axis_name):
        return made.observe(params["auxiliary"], features_of(params), *inputs_of(batch), kept, axis_name)

    if made.begin is None:
        return agent._replace(init=init), loss, None
    updater = config.algorithm.updater["fn"]
    if updater != "make_update":
        raise ValueError(
            f"algorithm.auxiliary.fn={spec['fn']!r} keeps averages of its anchors, which only "
            f"algorithm.updater.fn='make_update' carries, not {updater!r}"
        )
    return agent._replace(init=init), loss, Anchored(made.begin, observe)
