"""Imitation of observations: a step is paid how likely a model of the demonstrations finds where it leads.

    p_expert(s' | s) = N(s + f(s), diag(sigma^2)),  f and sigma fitted to the demonstrated (s, s') by maximum likelihood
    r = max(log p_expert(s' | s) / D, floor)

No actions of the expert are needed. The model does not move while the policy learns, so nothing is adversarial.
Source: arXiv 2404.18896 (AIME-v2), its surrogate reward; arXiv 2305.14343 (VIPER).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations
from rl_jax.control.relabelling.base import begin, descend, flat, mean_of
from rl_jax.rollout.envs.steps import Transitions


class Fitted(NamedTuple):
    """State of `by_likelihood`.

    Attributes:
      model: {"net": params of f, "log_std": float32 [D]}.
      own: float32 []. Mean log-likelihood per number of the policy's last steps, before the floor.
      expert: float32 []. That of the demonstrated steps.
    """

    model: Any
    own: chex.Array
    expert: chex.Array


def log_likelihood(move: chex.Array, log_std: chex.Array, before: chex.Array, after: chex.Array) -> chex.Array:
    """log N(s'; s + f(s), diag(sigma^2)) / D: float [N], in nats per number of the observation.

    Args:
      move: f(s), float [N, D].
      log_std: log sigma, float [D].
      before: s, float [N, D].
      after: s', float [N, D].
    """
    chex.assert_equal_shape([move, before, after])
    log_std = jnp.broadcast_to(log_std, after.shape)
    errors = (after - before - move) * jnp.exp(-log_std)
    return jnp.mean(-0.5 * jnp.square(errors) - log_std - 0.5 * np.log(2 * np.pi), axis=1)


def by_likelihood(
    *,
    observation_size: int,
    make_net: Callable,
    demos: str = "",
    last: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: float = 3e-3,
    steps: int = 1000,
    batch_size: int = 64,
    smallest_std: float = 0.1,
    floor: float = -10.0,
    coef: float = 1.0,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays steps that a model of demonstrated observations finds likely.

    Departs: AIME-v2's model is a world model of images, pretrained on other data; this one sees the last observation.

    Args:
      observation_size: D, numbers in an observation.
      make_net: models.agents.features.make_net.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      last: episodes of it, the last ones.
      hidden: widths of f.
      learning_rate: of Adam.
      steps: of the fit, before the first update.
      batch_size: demonstrated steps per step of the fit.
      smallest_std: lower bound of sigma: what is always so in the demonstrations would weigh without bound.
      floor: smallest reward of a step, in nats per number.
      coef: weight of the likelihood.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the demonstrations are of another size.
    """
    shown = demonstrations.read(demos, last=last)
    if shown.observations.shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown.observations.shape[1]} numbers, but {observation_size} here")
    net = make_net(observation_size, observation_size, hidden=hidden)
    optimizer = optax.adam(learning_rate)

    def likelihood(model, before: chex.Array, after: chex.Array) -> chex.Array:
        bounded = jnp.maximum(model["log_std"], np.log(smallest_std))
        return log_likelihood(net.apply(model["net"], before), bounded, before, after)

    def init(key: chex.PRNGKey) -> Fitted:
        net_key, key = jax.random.split(key)
        before, after = jnp.asarray(shown.observations), jnp.asarray(shown.next_observations)

        def loss_fn(model, key: chex.PRNGKey) -> chex.Array:
            rows = jax.random.randint(key, (batch_size,), 0, len(before))
            return -jnp.mean(likelihood(model, before[rows], after[rows]))

        first = {"net": net.init(net_key), "log_std": jnp.zeros(observation_size)}
        model = descend(loss_fn, begin(first, optimizer, key), optimizer, steps=steps).params
        return Fitted(model, jnp.float32(0.0), jnp.mean(likelihood(model, before, after)))

    def apply(state: Fitted, rows: Transitions) -> tuple[Fitted, Transitions]:
        found = likelihood(state.model, flat(rows.observations), flat(rows.next_observations))
        paid = jnp.maximum(found, floor).reshape(rows.rewards.shape)
        return state._replace(own=mean_of(found, axis_name)), rows._replace(rewards=coef * paid + keep * rows.rewards)

    def measure(state: Fitted) -> dict[str, chex.Array]:
        return {"relabel/own": state.own, "relabel/expert": state.expert}

    return Relabel(init, apply, seeded=True, measure=measure)
