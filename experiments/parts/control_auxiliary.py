"""The auxiliary loss that config.algorithm.auxiliary names, on the actor's hidden layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rl_jax import envs
from rl_jax.control import auxiliary
from rl_jax.core.binding import bind
from rl_jax.models.agents.features import make_net
from rl_jax.models.agents.torso import make_torso


def with_auxiliary(config, spec: dict[str, Any], agent, env: envs.Vector) -> tuple[Any, Callable | None]:
    """The agent with the params of the loss, and the loss.

    Args:
      config: of the program.
      spec: config.algorithm.auxiliary as a dict; numbers may be traced. fn "" is none.
      agent: of the actor and the critic.
      env: for its spaces.

    Returns:
      (agent, (params, PPOBatch) -> (loss float [], weight)); (agent, None) without one.

    Raises:
      ValueError: if the agent has a memory.
    """
    if not spec["fn"]:
        return agent, None
    fields = config.network
    if fields.kind != "mlp":
        raise ValueError(f"algorithm.auxiliary.fn={spec['fn']!r} reads single steps: set network.kind='mlp'")
    layers = dict(hidden=tuple(fields.hidden), activation=fields.activation, channels=fields.channels)
    torso = make_torso(env.observation_space.shape, features=fields.actor_features, **layers)
    discrete = isinstance(env.action_space, envs.Discrete)
    size = env.action_space.n if discrete else int(env.action_space.low.size)
    made = bind(spec, auxiliary, width=torso.size, action_size=size, make_net=make_net)()

    def init(key: jax.Array) -> dict[str, Any]:
        return agent.init(key) | {"auxiliary": made.init(jax.random.fold_in(key, 2**31 - 4))}

    def loss(params: dict[str, Any], batch) -> tuple[jax.Array, Any]:
        inputs = batch.policy.batch
        actions = jax.nn.one_hot(inputs.actions, size) if discrete else inputs.actions.reshape(-1, size)
        # Other views in each minibatch: their key is the bits of its advantages.
        bits = jax.lax.bitcast_convert_type(jnp.sum(batch.policy.advantages), jnp.uint32)
        key = jax.random.fold_in(jax.random.key(0), bits)
        after = batch.policy.extras["next_observations"]
        features = lambda x: torso.apply(params["actor"], x)  # noqa: E731
        return made.loss(params["auxiliary"], features, inputs.observations, actions, after, key), made.coef

    return agent._replace(init=init), loss
