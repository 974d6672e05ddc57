"""Two cooks and a counter between them, in Overcooked's shape; the most soups of an episode are known exactly.

    onions |  0  | counter 0 |  0  | pot           each cook moves up and down a lane of cells, and reaches what is
           |  1  | counter 1 |  1  |               to the west and to the east of its cell
    dishes | L-1 | counter . | L-1 | window

The left cook alone reaches onions and dishes, the right one alone the pot and the window, so every soup needs both, as
in Overcooked's "forced coordination" (arXiv 1910.05789). `onions` in the pot start it; after `cook` steps the soup can
be put into a dish. A soup at the window pays both cooks 1. Overcooked pays 20, and while it trains 3 for an onion in
the pot, 3 for a dish that is fetched when the pot is full and no other dish is about, and 5 for a soup in a dish:
`shaping` times 3/20, 3/20 and 5/20 here. The left cook's interaction comes first.
"""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Agents, Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
STAY, UP, DOWN, WEST, EAST = range(5)
NOTHING, ONION, DISH, SOUP = range(4)
# Shares of a delivered soup: Overcooked's shaped rewards.
ONION_IN_POT, DISH_FETCHED, SOUP_IN_DISH = 3.0 / 20.0, 3.0 / 20.0, 5.0 / 20.0


class Kitchen(NamedTuple):
    """The state.

    Attributes:
      cells: int32 [2], of the cooks.
      hands: int32 [2], what they carry.
      counters: int32 [L], what lies there.
      pot: int32 []. Onions in it, and the steps that it has cooked since it was full.
    """

    cells: chex.Array
    hands: chex.Array
    counters: chex.Array
    pot: chex.Array


def environment(
    *, lane: int = 3, onions: int = 1, cook: int = 3, limit: int = 30, shaping: float = 0.0
) -> Environment:
    """The kitchen. A cook sees its cell, its hand and the counters, the right one the pot, too; not the other cook.

    Args:
      lane: L, at least 2.
      onions: that a soup needs.
      cook: steps until it is ready.
      limit: steps until an episode is cut off.
      shaping: weight of the rewards for an onion in the pot, a useful dish and a soup in a dish.

    Raises:
      ValueError: if the lane has fewer than 2 cells, or a soup no onion.
    """
    if lane < 2 or onions < 1 or cook < 0:
        raise ValueError(f"agents/kitchen: lane={lane} needs 2 cells, onions={onions} 1 and cook={cook} 0 at least")
    parts = dict(lane=lane, onions=onions, cook=cook)
    observe = functools.partial(observed, **parts)

    def reset(key: chex.PRNGKey):
        state = start(lane)
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Kitchen, action: chex.Array):
        state, served, shaped = moved(state, action, **parts)
        reward = served + shaping * shaped
        return state, Step(observe(state), jnp.full(2, reward), NO, NO)

    own, size = lane + 4 + 4 * lane + onions + cook + 1, 2 * (lane + 4) + 4 * lane + onions + cook + 1
    space = Box(np.zeros(own + size, np.float32), np.ones(own + size, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(5), agents=Agents(2, own, True)), limit)


def start(lane: int) -> Kitchen:
    """Both cooks at cell 0, with empty hands; counters and pot are empty."""
    zeros = jnp.zeros(2, jnp.int32)
    return Kitchen(zeros, zeros, jnp.zeros(lane, jnp.int32), jnp.int32(0))


def observed(state: Kitchen, *, lane: int, onions: int, cook: int) -> chex.Array:
    """What each cook sees, one-hot, and then the whole state: float32 [2, D + S]."""
    cells, hands = jax.nn.one_hot(state.cells, lane), jax.nn.one_hot(state.hands, 4)
    counters = jax.nn.one_hot(state.counters, 4).reshape(-1)
    pot = jax.nn.one_hot(state.pot, onions + cook + 1)
    whole = jnp.concatenate([cells.reshape(-1), hands.reshape(-1), counters, pot])
    rows = [jnp.concatenate([cells[i], hands[i], counters, i * pot, whole]) for i in range(2)]
    return jnp.stack(rows)


def moved(
    state: Kitchen, action: chex.Array, *, lane: int, onions: int, cook: int
) -> tuple[Kitchen, chex.Array, chex.Array]:
    """One step.

    Args:
      state: before it.
      action: int32 [2]: STAY, UP (to cell 0), DOWN, WEST or EAST (both interact).
      lane: L.
      onions: that a soup needs.
      cook: steps until it is ready.

    Returns:
      (the state after it, soups served float32 [], shaped reward float32 []).
    """
    chex.assert_shape(action, (2,))
    cells = jnp.clip(state.cells + jnp.where(action == DOWN, 1, 0) - jnp.where(action == UP, 1, 0), 0, lane - 1)
    left, right = state.hands
    counters, pot = state.counters, state.pot
    # A pot cooks by itself once it is full.
    pot = jnp.where((pot >= onions) & (pot < onions + cook), pot + 1, pot)
    top, last = state.cells == 0, state.cells == lane - 1

    fetched = jnp.where(top[0], ONION, jnp.where(last[0], DISH, NOTHING))
    fetches = (action[0] == WEST) & (left == NOTHING)
    needed = (pot >= onions) & ~jnp.any(counters == DISH) & (right != DISH)
    useful = fetches & (fetched == DISH) & needed
    left = jnp.where(fetches, fetched, left)
    left, counters = _exchanged(left, counters, state.cells[0], action[0] == EAST)
    right, counters = _exchanged(right, counters, state.cells[1], action[1] == WEST)

    reaches = (action[1] == EAST) & top[1]
    puts = reaches & (right == ONION) & (pot < onions)
    fills = reaches & (right == DISH) & (pot == onions + cook)
    serves = (action[1] == EAST) & last[1] & (right == SOUP)
    pot = jnp.where(puts, pot + 1, jnp.where(fills, 0, pot))
    right = jnp.where(puts | serves, NOTHING, jnp.where(fills, SOUP, right))
    shaped = ONION_IN_POT * puts + DISH_FETCHED * useful + SOUP_IN_DISH * fills
    return Kitchen(cells, jnp.stack([left, right]), counters, pot), serves.astype(jnp.float32), shaped


def _exchanged(hand: chex.Array, counters: chex.Array, cell: chex.Array, tries: chex.Array):
    """(hand, counters) after taking from the counter, or putting on it; nothing happens if both are full."""
    lying = counters[cell]
    done = tries & ((hand == NOTHING) != (lying == NOTHING))
    return jnp.where(done, lying, hand), counters.at[cell].set(jnp.where(done, hand, lying))


@functools.lru_cache
def most_soups(*, lane: int = 3, onions: int = 1, cook: int = 3, limit: int = 30) -> int:
    """The most soups that two cooks who see everything can serve in an episode, by dynamic programming.

        V_0 = 0,  V_t(s) = max_a r(s, a) + V_{t-1}(s'),  over all states and all pairs of actions

    Args:
      lane: L.
      onions: that a soup needs.
      cook: steps until it is ready.
      limit: steps of an episode.
    """
    sizes = (lane, lane, 4, 4, *(4,) * lane, onions + cook + 1)
    strides = np.cumprod((1, *sizes[:0:-1]))[::-1].astype(np.int32)  # of digits, the last one is 1
    number = np.arange(np.prod(sizes))
    digits = jnp.asarray((number[:, None] // strides) % np.asarray(sizes), jnp.int32)
    states = Kitchen(digits[:, :2], digits[:, 2:4], digits[:, 4:-1], digits[:, -1])
    values = np.zeros(len(number), np.float32)
    step = jax.jit(jax.vmap(functools.partial(moved, lane=lane, onions=onions, cook=cook), in_axes=(0, None)))
    after, paid = [], []
    for pair in itertools.product(range(5), repeat=2):
        state, served, _ = step(states, jnp.asarray(pair))
        following = jnp.concatenate([state.cells, state.hands, state.counters, state.pot[:, None]], axis=1)
        after.append(np.asarray(following @ strides))
        paid.append(np.asarray(served))
    for _ in range(limit):
        values = np.max([reward + values[place] for reward, place in zip(paid, after, strict=True)], axis=0)
    return int(values[0])
