"""Reward machines for `by_machine`: finite machines that read labels of the states and pay for their transitions."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core import ltl


class Machine(NamedTuple):
    """A finite machine of U states over L labels; it begins in state 0.

    Attributes:
      labels: observations [..., D] -> int32 [...], from 0 to L - 1.
      transitions: int [U, L], the next state.
      rewards: float [U, L], what the transition pays.
    """

    labels: Callable
    transitions: np.ndarray
    rewards: np.ndarray


def run(machine: Machine, start: chex.Array, labels: chex.Array, done: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Runs B machines over T labels; an episode's end puts its machine back to state 0.

    Args:
      machine: Machine.
      start: int32 [B], states before the rows.
      labels: int32 [B, T], of the states that the steps lead to.
      done: bool [B, T].

    Returns:
      (states after the rows int32 [B], rewards float32 [B, T]).
    """
    chex.assert_equal_shape([labels, done])
    moves, pays = jnp.asarray(machine.transitions, jnp.int32), jnp.asarray(machine.rewards, jnp.float32)

    def step(state: chex.Array, now):
        label, over = now
        return jnp.where(over, 0, moves[state, label]), pays[state, label]

    last, paid = jax.lax.scan(step, start, (labels.T, done.T))
    return last, paid.T


def at_places(observations: chex.Array, places: tuple[int, ...], size: int) -> chex.Array:
    """Index in `places` of where a one-hot observation is, len(places) if it is elsewhere. size: entries that count."""
    where = jnp.argmax(observations[..., : size or observations.shape[-1]], axis=-1)
    hits = jnp.stack([where == place for place in places], axis=-1)
    return jnp.where(jnp.any(hits, -1), jnp.argmax(hits, -1), len(places)).astype(jnp.int32)


def sequence(*, places: tuple[int, ...], size: int = 0, progress: float = 0.0) -> Machine:
    """Visit places[0], then places[1], ...: 1 for the last of them, `progress` for each before it.

    Args:
      places: entries of a one-hot observation, in order, without repetition.
      size: the first entries of an observation that are the place; 0 is all.
      progress: reward of each transition before the last.
    """
    count = len(places)
    moves = np.tile(np.arange(count + 1)[:, None], (1, count + 1))
    pays = np.zeros((count + 1, count + 1), np.float32)
    for state in range(count):
        moves[state, state] = state + 1
        pays[state, state] = 1.0 if state == count - 1 else progress
    return Machine(lambda observations: at_places(observations, places, size), moves, pays)


def formula(
    *, task: str, places: Mapping[str, int], size: int = 0, parts: Mapping[str, str] = {}, progress: float = 0.0
) -> Machine:
    """A task in linear temporal logic on finite traces: 1 once it holds, -1 once it cannot, `progress` for a new state.

    Source: arXiv 2408.08188 writes tasks in hierarchical LTL: `parts` names formulas that others contain. Stand-in: the
    formula is given, no language model writes it from text, and the policy is learned, not planned.

    Args:
      task: of core.ltl, as in "!c U (a & (!c U b))". What is left of "G f" is never true before the trace ends:
        a task with it can fail, but not pay 1.
      places: proposition -> entry of a one-hot observation at which it holds. At most one holds at a time.
      size: as in `sequence`.
      parts: name -> formula, put in the place of the name.
      progress: reward of a transition to a state that is neither.
    """
    names = sorted(places)
    letters = [frozenset({name}) for name in names] + [frozenset()]
    moves, accepting, failed = ltl.automaton(ltl.parse(task, parts), letters)
    pays = np.zeros(moves.shape, np.float32)
    for state in range(len(moves)):
        for letter in range(len(letters)):
            target = moves[state, letter]
            if target != state:
                pays[state, letter] = 1.0 if accepting[target] else -1.0 if failed[target] else progress
    spots = tuple(places[name] for name in names)
    return Machine(lambda observations: at_places(observations, spots, size), moves, pays)
