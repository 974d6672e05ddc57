"""A reward learned from a ranking of terms, without weights: HERON.

    i > j  if  z_1(i) > z_1(j);  of equal z_1, if z_2(i) > z_2(j) + delta_2;  of nearer ones z_3, ...      decided
    delta_l = factor std(z_l),  delta_1 = 0;   loss = mean of -log sigma(f(i) - f(j)) over decided pairs   ranking_loss
    r' = (f - mean f) / std f                                                                             by_hierarchy

Steps are compared, not episodes. f reads the observation and the terms. Source: arXiv 2309.02632 and
abukharin3/HERON, ClassicControl/cleanrl/rm_mountain.py, whose pairs are all those of 16 steps drawn from what was seen,
with 16 such updates at a time. Departs: there f is trained for DDPG, every 400 steps; a memory of the newest steps
stands for all steps. The same rule for answers in text is preferences.hierarchy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import terms
from rl_jax.control.relabelling.base import Learned, as_the_env, begin, descend, flat
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions


class Ranking(NamedTuple):
    """State of `by_hierarchy`.

    Attributes:
      learned: f.
      inputs: float32 [M, D + L], the newest steps, observation and terms.
      signals: float32 [M, L], their terms, the most important first.
      at: int32 [], the row of the next step.
      filled: int32 [], how many rows are filled.
      accuracy: float32 [], share of decided pairs that f orders as the ranking.
      decided: float32 [], share of pairs that the ranking decides.
    """

    learned: Learned
    inputs: chex.Array
    signals: chex.Array
    at: chex.Array
    filled: chex.Array
    accuracy: chex.Array
    decided: chex.Array


def decided(signals: chex.Array, deltas: chex.Array) -> chex.Array:
    """1 where step i is better than step j, -1 where it is worse, 0 where no level decides: float32 [n, n].

    Args:
      signals: float [n, L], the most important level first; larger is better.
      deltas: float [L]. A level decides if the difference is larger than its delta.
    """
    chex.assert_rank([signals, deltas], [2, 1])
    gaps = signals[:, None, :] - signals[None, :, :]
    speaks = jnp.abs(gaps) > jnp.broadcast_to(deltas, gaps.shape)
    first = jnp.argmax(speaks, axis=-1)
    gap = jnp.take_along_axis(gaps, first[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.any(speaks, axis=-1), jnp.sign(gap), 0.0)


def margins(signals: chex.Array, mask: chex.Array, *, factor: float) -> chex.Array:
    """delta of each level, float32 [L]: 0 for the first, factor times the standard deviation for the others.

    Args:
      signals: float [M, L].
      mask: bool [M]. The rows that are filled, one at least.
      factor: 0 or more.
    """
    chex.assert_rank([signals, mask], [2, 1])
    chex.assert_type(mask, bool)
    share = (mask / jnp.maximum(jnp.sum(mask), 1))[:, None]
    means = jnp.sum(share * signals, axis=0, keepdims=True)
    result = factor * jnp.sqrt(jnp.sum(share * jnp.square(signals - means), axis=0))
    return result.at[0].set(0.0)


def ranking_loss(scores: chex.Array, order: chex.Array) -> chex.Array:
    """Mean of -log sigma(f_i - f_j) over the pairs in which i is better, float []; 0 if there is none.

    Args:
      scores: float [n], f.
      order: float [n, n] of `decided`.
    """
    chex.assert_shape(order, (len(scores), len(scores)))
    better = order > 0
    each = jax.nn.softplus(scores[None, :] - scores[:, None])
    return jnp.sum(jnp.where(better, each, 0.0)) / jnp.maximum(jnp.sum(better), 1)


def remembered(state: Ranking, inputs: chex.Array, signals: chex.Array) -> Ranking:
    """The state with further steps in its memory, over the oldest ones.

    Args:
      state: with M rows.
      inputs: float32 [n, D + L].
      signals: float32 [n, L]. Of more than M steps the last M are kept.
    """
    memory = len(state.inputs)
    inputs, signals = inputs[-memory:], signals[-memory:]
    rows = (state.at + jnp.arange(len(inputs))) % memory
    return state._replace(
        inputs=state.inputs.at[rows].set(inputs),
        signals=state.signals.at[rows].set(signals),
        at=(state.at + len(inputs)) % memory,
        filled=jnp.minimum(state.filled + len(inputs), memory),
    )


def _checked(levels: tuple, signs: tuple, terms_of: Mapping, numbers: Mapping, axis_name) -> None:
    """Raises ValueError if the keywords of `by_hierarchy` do not fit."""
    if not levels or sorted(levels) != sorted(terms_of):
        raise ValueError(f"by_hierarchy: levels={levels} must name each of terms_of, {sorted(terms_of)}, once")
    if len(signs) != len(levels) or set(signs) - {1, -1}:
        raise ValueError(f"by_hierarchy: signs={signs} must be 1 or -1 for each of levels={levels}")
    least = dict(factor=0.0, memory=1, pairs_of=2, steps=1)
    known = {name: value for name, value in numbers.items() if not isinstance(value, jax.core.Tracer)}  # not swept
    if wrong := [name for name, value in known.items() if value < least[name]]:
        raise ValueError(f"by_hierarchy: {wrong[0]}={numbers[wrong[0]]} must be {least[wrong[0]]} or more")
    if axis_name is not None:
        raise ValueError("by_hierarchy keeps its memory on one device: set mesh without envs")


def by_hierarchy(
    *,
    distribution,
    observation_size: int,
    make_net: Callable,
    terms_of: Mapping[str, Mapping],
    levels: Sequence[str],
    signs: Sequence[int] = (),
    factor: float = 1.0,
    memory: int = 16_384,
    pairs_of: int = 64,
    hidden: tuple[int, ...] = (64,),
    learning_rate: float = 1e-3,
    steps: int = 16,
    normalize: bool = True,
    axis_name=None,
) -> Relabel:
    """Replaces rewards by a network that was fitted to the ranking of the steps' terms.

    Args:
      distribution: of the policy's actions.
      observation_size: D.
      make_net: models.agents.features.make_net.
      terms_of: name -> a function of relabelling.terms, or "module:function", with its keywords.
      levels: names of the terms, the most important first.
      signs: 1 for each level of which larger is better, -1 for one of which smaller is; () is 1 for all.
      factor: of the standard deviation, in the thresholds of all levels but the first; it may be traced.
      memory: M, the newest steps that pairs are drawn from.
      pairs_of: n; all pairs of n steps are compared in an update.
      hidden: widths of the network.
      learning_rate: of Adam.
      steps: updates of the network per batch.
      normalize: whether rewards are centered and scaled by those of the memory, as the published option.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if levels and terms differ, a number is out of range, or the environments are spread over devices.
    """
    levels, signs = tuple(levels), tuple(signs) or (1,) * len(levels)
    _checked(levels, signs, terms_of, dict(factor=factor, memory=memory, pairs_of=pairs_of, steps=steps), axis_name)
    functions = [bind(dict(terms_of[name]), terms) for name in levels]
    width = observation_size + len(levels)
    net, optimizer = make_net(width, 1, hidden=hidden), optax.adam(learning_rate)

    def f(params, inputs: chex.Array) -> chex.Array:
        return net.apply(params, inputs)[:, 0]

    def init(key: chex.PRNGKey) -> Ranking:
        net_key, fit_key = jax.random.split(key)
        learned = begin(net.init(net_key), optimizer, fit_key)
        blank = jnp.zeros((memory, width)), jnp.zeros((memory, len(levels)))
        return Ranking(learned, *blank, jnp.int32(0), jnp.int32(0), jnp.float32(0.0), jnp.float32(0.0))

    def apply(state: Ranking, rows: Transitions) -> tuple[Ranking, Transitions]:
        seen = as_the_env(rows, distribution)
        signals = jnp.stack([sign * fn(seen).reshape(-1) for sign, fn in zip(signs, functions, strict=True)], axis=1)
        inputs = jnp.concatenate([flat(rows.observations), signals], axis=1)
        state = remembered(state, inputs, signals)
        deltas = margins(state.signals, jnp.arange(memory) < state.filled, factor=factor)

        def drawn(key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
            index = jax.random.randint(key, (pairs_of,), 0, state.filled)
            return state.inputs[index], decided(state.signals[index], deltas)

        def loss_fn(params, key: chex.PRNGKey) -> chex.Array:
            chosen, order = drawn(key)
            return ranking_loss(f(params, chosen), order)

        learned = descend(loss_fn, state.learned, optimizer, steps=steps)
        key, used = jax.random.split(learned.key)
        chosen, order = drawn(used)
        scores = f(learned.params, chosen)
        right = (order > 0) & (scores[:, None] > scores[None, :])
        accuracy = jnp.sum(right) / jnp.maximum(jnp.sum(order > 0), 1)
        rewards = f(learned.params, inputs)
        rewards = (rewards - jnp.mean(scores)) / (jnp.std(scores) + 1e-8) if normalize else rewards
        share = jnp.mean(jnp.abs(order)) * pairs_of / (pairs_of - 1)
        state = state._replace(learned=learned._replace(key=key), accuracy=accuracy, decided=share)
        return state, rows._replace(rewards=jax.lax.stop_gradient(rewards).reshape(rows.rewards.shape))

    def measure(state: Ranking) -> dict[str, chex.Array]:
        return {"relabel/accuracy": state.accuracy, "relabel/decided": state.decided}

    return Relabel(init, apply, seeded=True, measure=measure)
