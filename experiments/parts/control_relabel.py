"""The relabelling that config.algorithm.relabel names, and what the program tells it."""

import math
from typing import Any

from experiments.parts import image_encoders
from experiments.parts.annotators import make_annotator
from experiments.parts.control_setup import discount_of
from rl_jax import envs
from rl_jax.control import algorithm, relabelling
from rl_jax.core.binding import bind, needs
from rl_jax.models.agents.features import make_net


def make_relabel(settings: dict[str, Any], env: envs.Vector, agent, axis_name) -> algorithm.Relabel | None:
    """The Relabel of config.algorithm.relabel; None if it names no function.

    Args:
      settings: config.algorithm as a dict; numbers may be traced.
      env: the run's, of this device.
      agent: for the distribution of its actions.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the function lacks a keyword, or does not give a Relabel.
    """
    spec = settings["relabel"]
    if not spec["fn"]:
        return None
    known = dict(
        num_envs=env.num_envs,
        observation_size=math.prod(env.observation_space.shape),
        discount=discount_of(settings["advantage"]),
        distribution=agent.distribution,
        axis_name=axis_name,
        make_net=make_net,
        make_annotator=make_annotator,
        make_encoder=image_encoders.make_encoder,
    )
    fn = bind(spec, relabelling, **known)
    if missing := sorted(needs(fn)):
        raise ValueError(
            f"algorithm.relabel.fn={spec['fn']!r} needs {', '.join(missing)}: set algorithm.relabel.{missing[0]}"
        )
    result = fn()
    if not isinstance(result, algorithm.Relabel):
        raise ValueError(f"algorithm.relabel.fn={spec['fn']!r} gives {type(result).__name__}, not a control Relabel")
    return result


def refuse_two(settings: dict[str, Any], relabel) -> None:
    """Raises ValueError if a program with rewards of its own meets config.algorithm.relabel."""
    if relabel is not None and settings["relabel"]["fn"]:
        raise ValueError(
            f"algorithm.relabel.fn={settings['relabel']['fn']!r}: this method pays rewards of its own; leave it empty"
        )
