"""Methods of experiments.control.replay that act by a search in a learned model: from a config to their networks."""

from typing import Any

from rl_jax import envs
from rl_jax.control import replay_methods
from rl_jax.control.replay_methods import ReplayParts
from rl_jax.core.binding import bind
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, latent_model


def build_planner(config, algorithm: dict[str, Any], env: envs.Vector) -> tuple[Any, Any]:
    """(the method, how it acts) of MuZero: a latent model that fits the environment, and the search's actions.

    Args:
      config: of the program.
      algorithm: config.algorithm as a dict; numbers may be traced.
      env: for its spaces.

    Raises:
      ValueError: if the actions are real numbers, or a field is set that a model to plan in does not read.
    """
    space, name = env.action_space, algorithm["method"]["fn"]
    if not isinstance(space, envs.Discrete):
        raise ValueError(
            f"algorithm.method.fn={name!r} searches whole-number actions; those of {config.env.name} are real numbers: "
            "use td3 or sac"
        )
    layers = config.network.to_dict()
    unread = dict(kind="mlp", members=1, dueling=False, enumerated=False)
    for field, only in unread.items():
        if (found := layers.pop(field)) != only:
            raise ValueError(f"network.{field}={found!r}: {name} has one model of MLPs, set it to {only!r}")
    if "width" not in layers:
        raise ValueError(f"network.width is missing: {name} needs the size of its latent state")
    head = bind(algorithm["head"], value_heads)()
    model = latent_model.make_latent_model(env.observation_space.shape, space.n, head.num_outputs, **layers)
    parts = ReplayParts(None, None, head, model=model)
    known = dict(discount=algorithm["discount"], steps=algorithm["n_step"])
    method = bind(algorithm["method"], replay_methods, **known)(parts)
    uniform = exploration.uniform_actions(exploration.greedy(space.n), None, None)
    return method, exploration.exploring(exploration.searched(space.n), uniform)
