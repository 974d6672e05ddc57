"""Several agents in the programs of environments: the wrapper by the config, a team's method, metrics per agent."""

from typing import Any

import jax
import jax.numpy as jnp

from rl_jax import envs
from rl_jax.control import replay_methods
from rl_jax.control.replay_methods import ReplayParts
from rl_jax.core.binding import bind
from rl_jax.envs import agents as views
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, mixers, value_networks

TEAM = "value_decomposition"  # the method of actions that are Joint


def with_agents(config, env: envs.Vector, view: dict[str, Any] | None) -> envs.Vector:
    """`env` as config.env.agents has it.

    Args:
      config: of the program.
      env: as it was loaded.
      view: {"fn": "as_rows" or "as_one", ...} of envs.agents, or None.

    Raises:
      ValueError: if only one of the environment and the view is of several agents.
    """
    if (view is None) != (env.agents is None):
        wanted = "set env.agents.fn to 'as_rows' or 'as_one'" if view is None else "it has a single agent"
        raise ValueError(f"{config.env.name}: env.agents={view}, but {wanted}")
    return env if view is None else bind(view, views)(env)


def agent_metrics(env: envs.Vector, returns: jax.Array) -> dict[str, jax.Array]:
    """eval/agent_a, the mean return of each agent, float32 []; {} for a single agent or a team.

    Args:
      env: that was evaluated.
      returns: float32 [B A], of as_rows.
    """
    if env.agents is None or isinstance(env.action_space, envs.Joint):
        return {}
    means = jnp.mean(returns.reshape(-1, env.agents.count), axis=0)
    return {f"eval/agent_{a}": means[a] for a in range(env.agents.count)}


def build_team(config, algorithm: dict[str, Any], env: envs.Vector) -> tuple[Any, Any]:
    """(the method, how it acts) of a team whose members act by their own values.

    Args:
      config: of the program.
      algorithm: config.algorithm as a dict; numbers may be traced.
      env: of envs.agents.as_one.

    Raises:
      ValueError: if the method is for a single agent, or the network has fields that a team does not read.
    """
    name, count, size = algorithm["method"]["fn"], env.agents.count, env.agents.own
    if name != TEAM:
        raise ValueError(f"algorithm.method.fn={name!r} has one action: use {TEAM}, or env.agents.fn='as_rows'")
    layers = config.network.to_dict()
    kind, enumerated = layers.pop("kind"), layers.pop("enumerated")
    if kind != "mlp" or enumerated:
        raise ValueError(f"{TEAM} reads single steps: set network.kind='mlp' and network.enumerated=False")
    if config.env.frame_stack > 1 or len(config.env.features):
        raise ValueError(f"{TEAM} knows where each agent's features are: set env.frame_stack=1 and env.features=()")
    state_size = env.observation_space.shape[0] - count * size
    head = bind(algorithm["head"], value_heads)()
    critic = value_networks.make_action_values((size,), env.action_space.n, head.num_outputs, **layers)
    mixer = bind(algorithm["mixer"], mixers)(count, state_size)
    parts = ReplayParts(critic, None, head, mixer=mixer)
    method = bind(algorithm["method"], replay_methods, agents=count, own=size)(parts)
    return method, exploration.each_greedy(count, env.action_space.n)
