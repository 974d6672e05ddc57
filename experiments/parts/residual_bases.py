"""The policies that algorithm.base names, for a residual to correct: a controller, or one cloned from episodes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import cloning
from rl_jax.control.relabelling import demonstrations
from rl_jax.envs.worlds import docking
from rl_jax.models.agents.features import make_net
from rl_jax.models.agents.value_networks import Base


def biased_pd(*, bias: float = 0.3) -> Base:
    """The controller of docking, which has no params. bias: where it aims."""
    act = functools.partial(docking.biased_pd, bias=bias)
    return Base(lambda key: {}, lambda params, observations: act(observations))


def cloned(
    *,
    observation_shape: tuple[int, ...],
    low: np.ndarray,
    high: np.ndarray,
    demos: str = "",
    last: int = 1,
    episodes: int = 16,
    bias: float = 0.3,
    hidden: tuple[int, ...] = (64, 64),
    steps: int = 1000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
) -> Base:
    """A policy that each run clones at its start: an MLP with tanh outputs. Source: arXiv 2509.19301 (ResFiT).

    Departs: the base of the paper predicts chunks of actions; this one is asked at every step.

    Args:
      observation_shape: (D,).
      low: of the actions, finite, [A].
      high: of the actions, finite, [A].
      demos: episodes.jsonl of a run; "": episodes of docking's controller, each run's own.
      last: episodes of the file, the last ones.
      episodes: of the controller.
      bias: of the controller.
      hidden: widths of the network.
      steps: of Adam.
      batch_size: demonstrated steps in each.
      learning_rate: of Adam.

    Raises:
      ValueError: if the demonstrations are of other sizes, or there are none for this environment.
    """
    half, middle = 0.5 * (high - low), 0.5 * (high + low)
    given = shown_steps(demos, last, observation_shape, len(low)) if demos else None
    if given is None and observation_shape != (4,):
        raise ValueError("algorithm.base.demos='': only docking has a controller to clone; name a run's episodes.jsonl")
    net = make_net(observation_shape[0], len(low), hidden=tuple(hidden))

    def apply(params, observations: jax.Array) -> jax.Array:
        return jnp.tanh(net.apply(params, observations))

    def init(key: jax.Array):
        net_key, shown_key, clone_key = jax.random.split(key, 3)
        seen, actions = given or docking.demonstrations(shown_key, episodes=episodes, bias=bias)
        scaled = (actions - jnp.broadcast_to(middle, actions.shape)) / jnp.broadcast_to(half, actions.shape)
        options = dict(steps=steps, batch_size=batch_size, learning_rate=learning_rate)
        return cloning.clone(apply, net.init(net_key), seen, scaled, clone_key, **options)

    return Base(init, apply)


def shown_steps(demos: str, last: int, observation_shape: tuple[int, ...], actions: int) -> tuple[jax.Array, jax.Array]:
    """(observations [N, D], actions [N, A]) of the last episodes of a file.

    Raises:
      ValueError: if they are of other sizes than the environment's.
    """
    shown = demonstrations.read(demos, last=last)
    if shown.observations.shape[1:] != observation_shape or shown.actions.shape[1:] != (actions,):
        raise ValueError(
            f"{demos}: observations {shown.observations.shape[1:]} and actions {shown.actions.shape[1:]} of a step, "
            f"but {observation_shape} and {(actions,)} here"
        )
    return jnp.asarray(shown.observations), jnp.asarray(shown.actions)
