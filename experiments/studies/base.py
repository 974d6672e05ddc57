"""What the studies share: tabular policies, and training them with the losses of rl_jax."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax import dpo
from rl_jax.core.binding import bind
from rl_jax.core.types import PreferenceBatch, TokenScores


class Outcome(NamedTuple):
    """The measurements of a study.

    Attributes:
      values: arm -> metric -> float [S], one value per seed; nan if a seed has none, which leaves it out.
      curves: title -> arm -> [(step, mean over the seeds)].
      note: what a reader has to know about this run.
    """

    values: Mapping[str, Mapping[str, Any]]
    curves: Mapping[str, Mapping[str, list]] = {}
    note: str = ""


def make_objective(slots: Mapping[str, Any]) -> dpo.Objective:
    """DPO with other choices in the named slots; functions are given by name as in a config."""
    known = dpo.SLOTS
    return dpo.Objective(**{name: bind(spec, known[name]) if name in known else spec for name, spec in slots.items()})


def seed_keys(seeds: Sequence[int]) -> chex.Array:
    """One key per seed, [S]; equal seeds give equal data in every arm."""
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def preference_loss(
    log_probs: chex.Array,
    ref_log_probs: chex.Array | None,
    objective: dpo.Objective,
    *,
    rewards: chex.Array | None = None,
    extras: Mapping[str, chex.Array] = {},
) -> chex.Array:
    """rl_jax.dpo.loss, divided by its count, for N prompts whose K responses are one token long.

    Args:
      log_probs: float [N, K], the best response first.
      ref_log_probs: float [N, K].
      objective: the loss.
      rewards: float [N, K]; None is 1 for the best response and 0 for the others.
      extras: further arrays that the loss requests by name.

    Returns:
      The loss, float [].
    """
    chex.assert_rank(log_probs, 2)
    mask = jnp.ones((*log_probs.shape, 1), bool)
    if rewards is None:
        rewards = jnp.broadcast_to(jnp.arange(log_probs.shape[1])[None] == 0, log_probs.shape).astype(log_probs.dtype)
    batch = PreferenceBatch(
        batch=None,  # losses read log-probs, never tokens
        completion_mask=mask,
        present=mask[..., 0],
        rewards=rewards,
        ref_log_probs=None if ref_log_probs is None else ref_log_probs[..., None],
        extras=dict(extras),
    )
    scored = TokenScores(log_probs.reshape(-1, 1), jnp.zeros((log_probs.size, 1), log_probs.dtype))
    return dpo.loss(scored, batch, objective)[0].value()


def descend(loss_fn: Callable, params: Any, tx: optax.GradientTransformation, steps: int, *, every: int = 0) -> Any:
    """Makes `steps` updates of the params by the gradient of loss_fn.

    Args:
      loss_fn: params -> float [].
      params: pytree.
      tx: the optimizer.
      steps: number of updates.
      every: updates between the stored params; 0 stores none.

    Returns:
      The last params; with `every`, also the params after each `every` updates, stacked.
    """

    def update(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss_fn)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    def several(carry, _):
        carry, _ = jax.lax.scan(update, carry, None, length=every)
        return carry, carry[0]

    if not every:
        return jax.lax.scan(update, (params, tx.init(params)), None, length=steps)[0][0]
    (params, _), trace = jax.lax.scan(several, (params, tx.init(params)), None, length=steps // every)
    return params, trace


def add_bias(x: chex.Array, bias: chex.Array) -> chex.Array:
    """x plus a vector along its last axis. float [..., H], float [H] -> float [..., H]."""
    return x + jnp.broadcast_to(bias, x.shape)


def kl(log_p: chex.Array, log_q: chex.Array) -> chex.Array:
    """KL(p || q) over the last axis. float [..., A] each -> float [...]."""
    chex.assert_equal_shape([log_p, log_q])
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def bradley_terry(key: chex.PRNGKey, rewards: chex.Array, first: chex.Array, second: chex.Array) -> chex.Array:
    """Pairs of actions with the chosen one first: `first` wins with probability sigma(r_first - r_second).

    Args:
      key: for the labels.
      rewards: float [A].
      first: int [N].
      second: int [N].

    Returns:
      int [N, 2].
    """
    wins = jax.random.bernoulli(key, jax.nn.sigmoid(rewards[first] - rewards[second]))
    return jnp.where(wins[:, None], jnp.stack([first, second], 1), jnp.stack([second, first], 1))


def sample_actions(key: chex.PRNGKey, log_probs: chex.Array, shape: tuple[int, ...]) -> chex.Array:
    """Actions of a policy log_probs [A], int of `shape`, by inversion: O(log A) per sample, not O(A) as for Gumbel."""
    cumulative = jnp.cumsum(jnp.exp(log_probs))
    drawn = jnp.searchsorted(cumulative, jax.random.uniform(key, shape) * cumulative[-1], side="right")
    return jnp.minimum(drawn, log_probs.shape[0] - 1)


def per_seed(metrics: Mapping[str, chex.Array]) -> dict[str, np.ndarray]:
    """The metrics of one arm as numpy, [S] each."""
    return {name: np.asarray(value) for name, value in metrics.items()}


def curve(steps: Sequence[float], values: chex.Array) -> list[tuple[float, float]]:
    """[(step, mean over the seeds)]. values: float [S, T]."""
    return [(float(step), float(value)) for step, value in zip(steps, np.asarray(values).mean(axis=0), strict=True)]
