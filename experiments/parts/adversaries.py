"""Who pays the draws of a replay: the adversary of algorithm.imitation, or the weights of algorithm.reward_weights."""

import math
from typing import Any

from experiments.parts.residual_bases import shown_steps
from rl_jax import envs
from rl_jax.control import adversaries, curricula
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import docking, hovering
from rl_jax.models.agents.features import make_net


def make_payer(config, settings: dict[str, Any], env: envs.Vector, axis_name) -> adversaries.Adversary | None:
    """Who pays the draws; None: the environment's stored rewards. Arguments as at make_adversary, and the config.

    Raises:
      ValueError: if both pay, or the environment's reward has no terms to weigh.
    """
    fields = dict(settings.get("reward_weights", {"fn": ""}))
    imitating = make_adversary(settings, env, axis_name)
    if not fields["fn"]:
        return imitating
    if imitating is not None:
        raise ValueError("algorithm.reward_weights and algorithm.imitation both pay the draws: leave one out")
    if config.env.name != "probes/hover":
        raise ValueError(f"algorithm.reward_weights weighs the terms of probes/hover, not of {config.env.name}")
    return bind(fields, curricula)(hovering.reward, hovering.TERMS)


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
