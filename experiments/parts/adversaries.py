"""The adversary that algorithm.imitation names, with the demonstrations that it learns from."""

import math
from typing import Any

from experiments.parts.residual_bases import shown_steps
from rl_jax import envs
from rl_jax.control import adversaries
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import docking
from rl_jax.models.agents.features import make_net


def make_adversary(settings: dict[str, Any], env: envs.Vector, axis_name) -> adversaries.Adversary | None:
    """The Adversary of config.algorithm.imitation; None without one.

    Args:
      settings: config.algorithm as a dict; numbers may be traced.
      env: the run's, of this device.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the actions are whole numbers, the demonstrations are of other sizes, or there are none for this
        environment.
    """
    fields = dict(settings.get("imitation", {"fn": ""}))
    if not fields["fn"]:
        return None
    if not isinstance(env.action_space, envs.Box):
        raise ValueError(f"algorithm.imitation: {fields['fn']} compares actions that are real numbers")
    demos, last, episodes = (fields.pop(name) for name in ("demos", "last", "episodes"))
    shape, actions = env.observation_space.shape, len(env.action_space.low)
    given = shown_steps(demos, last, shape, actions) if demos else None
    if given is None and (shape, actions) != ((4,), 2):
        raise ValueError("algorithm.imitation.demos='': only docking has a controller to show; name an episodes.jsonl")

    def demonstrated(key):
        return given or docking.demonstrations(key, episodes=episodes, bias=0.0)

    net = make_net(math.prod(shape) + actions, 1, hidden=tuple(fields.pop("hidden", (100, 100))))
    return bind(fields, adversaries, axis_name=axis_name)(net, demonstrated)
