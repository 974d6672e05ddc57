"""Mixers of agents' values into the team's, for learning from replay: a sum, or a monotone network.

    vdn     Q_tot = sum_a Q_a                                                     arXiv 1706.05296
    qmix    Q_tot = |W2(s)| . elu(|W1(s)| Q + b1(s)) + V(s)                       arXiv 1803.11485

Both rise with each Q_a, so the pair of the agents' best actions is the team's best (individual-global-max), and each
agent can choose alone. W1, W2 and b1 are functions of the world's state, hence free of the constraint.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.torso import linear
from rl_jax.models.agents.value_networks import uniform_dense


class Mixer(NamedTuple):
    """A function of A values that rises with each of them.

    Attributes:
      init: (key) -> params.
      apply: (params, values float [N, A], states float [N, S]) -> float [N].
    """

    init: Callable
    apply: Callable


def vdn(agents: int, state_size: int) -> Mixer:
    """The sum of the agents' values, Q_tot = sum_a Q_a. Source: arXiv 1706.05296 (value decomposition networks).

    Args:
      agents: A.
      state_size: S; the state is not read.
    """

    def apply(params: Params, values: chex.Array, states: chex.Array) -> chex.Array:
        chex.assert_shape([values, states], [(None, agents), (None, state_size)])
        return jnp.sum(values, axis=-1)

    return Mixer(lambda key: {}, apply)


def qmix(agents: int, state_size: int, *, width: int = 32, hidden: int = 64) -> Mixer:
    """A network of the values whose weights are absolute outputs of networks of the state. Source: arXiv 1803.11485.

        h = elu(|W1(s)|^T Q + b1(s)),   Q_tot = |w2(s)| . h + V(s)

    W1 and w2 have one hidden layer of relus (PyMARL's hypernet_layers=2), V one of `width`, b1 is linear.

    Args:
      agents: A.
      state_size: S.
      width: of h, PyMARL's mixing_embed_dim.
      hidden: of the networks that give W1 and w2, PyMARL's hypernet_embed.
    """
    # name -> its layers' (inputs, outputs)
    layers = {
        "weights_1": ((state_size, hidden), (hidden, agents * width)),
        "weights_2": ((state_size, hidden), (hidden, width)),
        "bias_1": ((state_size, width),),
        "value": ((state_size, width), (width, 1)),
    }

    def init(key: chex.PRNGKey) -> Params:
        keys = iter(jax.random.split(key, sum(map(len, layers.values()))))
        return {name: [uniform_dense(next(keys), *sizes) for sizes in parts] for name, parts in layers.items()}

    def of_state(params: Params, states: chex.Array) -> chex.Array:
        for layer in params[:-1]:
            states = jax.nn.relu(linear(states, layer))
        return linear(states, params[-1])

    def apply(params: Params, values: chex.Array, states: chex.Array) -> chex.Array:
        chex.assert_shape([values, states], [(None, agents), (None, state_size)])
        first = jnp.abs(of_state(params["weights_1"], states)).reshape(-1, agents, width)
        last = jnp.abs(of_state(params["weights_2"], states))
        mixed = jnp.sum(first * values[:, :, None], axis=1) + of_state(params["bias_1"], states)
        return jnp.sum(jax.nn.elu(mixed) * last, axis=-1) + of_state(params["value"], states)[:, 0]

    return Mixer(init, apply)
