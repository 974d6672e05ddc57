"""Small networks on flat vectors, for parts of a training that are neither actor nor critic."""

from collections.abc import Callable
from typing import NamedTuple

import chex

from rl_jax.core.types import Params
from rl_jax.models.agents.torso import dense, linear, make_torso


class Net(NamedTuple):
    """A network on flat vectors.

    Attributes:
      init: (key) -> params.
      apply: (params, float [N, D]) -> float [N, outputs].
    """

    init: Callable
    apply: Callable


def make_net(inputs: int, outputs: int, *, hidden: tuple[int, ...] = (64,), activation: str = "relu") -> Net:
    """Fully connected layers with a linear head. Arguments as for agents.torso.make_torso.

    Args:
      inputs: D.
      outputs: of the head.
      hidden: widths of the layers.
      activation: one of torso.ACTIVATIONS.
    """
    torso = make_torso((inputs,), hidden=tuple(hidden), activation=activation, channels=0)

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": dense(head_key, torso.size, outputs, 1.0)}

    def apply(params: Params, x: chex.Array) -> chex.Array:
        return linear(torso.apply(params, x), params["head"])

    return Net(init, apply)
