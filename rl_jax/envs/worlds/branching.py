"""Branch and bound on small knapsacks: which variable to branch on, so that the tree is small (ReviBranch, 2508.17452).

    max v . x,  w . x <= c,  x in {0, 1}^n

A node fixes some variables. It is closed if they do not fit, or if the relaxation of the others is worth no more than
the optimum, which is known from the start: the size of a tree then is a sum over its branches, and the smallest tree of
an instance is known by a recursion over all choices (`smallest`). Nodes are taken depth first, x = 1 before x = 0. A
stand-in for mixed integer programs in SCIP, of the same shape: the reward comes at the end and is minus the size.
"""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
FREE = -1
CLOSE = 1e-4  # values and weights are whole numbers


class Knapsacks(NamedTuple):
    """K instances, their items by falling v / w.

    Attributes:
      values: float32 [K, n], whole numbers.
      weights: float32 [K, n], whole numbers.
      capacities: float32 [K].
      optima: float32 [K], by enumeration.
    """

    values: np.ndarray
    weights: np.ndarray
    capacities: np.ndarray
    optima: np.ndarray


class Tree(NamedTuple):
    """State: the open nodes, the next one on top.

    Attributes:
      instance: int32 [], which knapsack.
      stack: int32 [n + 1, n]: FREE, 0 or 1 of each variable of each open node.
      size: int32 []. Open nodes.
      branched: int32 []. Branchings so far.
    """

    instance: chex.Array
    stack: chex.Array
    size: chex.Array
    branched: chex.Array


@functools.cache
def instances(*, count: int = 32, items: int = 6, seed: int = 0) -> Knapsacks:
    """`count` random knapsacks whose relaxation is worth more than their optimum, so that there is a tree.

    Args:
      count: K.
      items: n; all 2^n choices are enumerated.
      seed: of numpy's generator.
    """
    rng, found = np.random.default_rng(seed), []
    choices = np.array(list(itertools.product((0, 1), repeat=items)))
    while len(found) < count:
        weights = rng.integers(5, 30, items)
        values = weights + rng.integers(1, 10, items)  # correlated, so that the bound is weak
        order = np.argsort(-values / weights, kind="stable")
        weights, values, capacity = weights[order], values[order], weights.sum() // 2
        optimum = (choices @ values)[choices @ weights <= capacity].max()
        if bound(values, weights, capacity, np.full(items, FREE)) > optimum + CLOSE:
            found.append((values, weights, capacity, optimum))
    return Knapsacks(*(np.asarray(x, np.float32) for x in zip(*found, strict=True)))


def bound(values: np.ndarray, weights: np.ndarray, capacity: float, fixed: np.ndarray) -> float:
    """The relaxation's value at a node, -inf if what is fixed does not fit: the best ratios first, the last in part.

    Args:
      values: [n], by falling v / w.
      weights: [n].
      capacity: c.
      fixed: int [n] of FREE, 0 and 1.
    """
    left, total = capacity - weights[fixed == 1].sum(), float(values[fixed == 1].sum())
    if left < 0:
        return -np.inf
    for item in np.flatnonzero(fixed == FREE):
        share = min(1.0, left / weights[item])
        total, left = total + share * values[item], left - share * weights[item]
    return total


def smallest(values: np.ndarray, weights: np.ndarray, capacity: float, optimum: float) -> int:
    """The fewest branchings that close the tree, by recursion over all choices of variables. Arguments as `bound`'s."""

    @functools.cache
    def below(fixed: tuple[int, ...]) -> int:
        if bound(values, weights, capacity, np.array(fixed)) <= optimum + CLOSE:
            return 0
        free = [i for i, x in enumerate(fixed) if x == FREE]
        return 1 + min(sum(below((*fixed[:i], x, *fixed[i + 1 :])) for x in (0, 1)) for i in free)

    return below((FREE,) * len(values))


def relaxed(values: chex.Array, weights: chex.Array, capacity: chex.Array, fixed: chex.Array):
    """(the relaxation's value float [], its solution float [n]) of a node; -inf if it does not fit. As `bound`."""
    chex.assert_equal_shape([values, weights, fixed])
    left = capacity - jnp.sum(jnp.where(fixed == 1, weights, 0.0))
    own = jnp.where(fixed == FREE, weights, 0.0)
    share = jnp.clip((left - (jnp.cumsum(own) - own)) / weights, 0.0, 1.0)
    solution = jnp.where(fixed == FREE, share, fixed.astype(jnp.float32))
    return jnp.where(left < 0, -jnp.inf, jnp.sum(values * solution)), solution


def environment(*, count: int = 32, items: int = 6, seed: int = 0) -> Environment:
    """A random one of `count` knapsacks; action i branches the next open node on variable i.

    A variable that is fixed there stands for the one that the relaxation takes in part; an open node has one. The
    reward is 0, and minus the branchings of the whole tree at the end. Observations: v, w, fixed at 0, at 1 and the
    relaxation's x of each variable of the next node, then its gap (bound / optimum - 1) and the share of the stack that
    is open.

    Args:
      count: instances.
      items: n.
      seed: of the instances.
    """
    known = instances(count=count, items=items, seed=seed)

    def problem(instance: chex.Array):
        return tuple(jnp.asarray(x)[instance] for x in known)

    def observe(state: Tree) -> chex.Array:
        values, weights, capacity, optimum = problem(state.instance)
        fixed = state.stack[jnp.maximum(state.size - 1, 0)]
        worth, solution = relaxed(values, weights, capacity, fixed)
        gap = jnp.where(state.size > 0, worth / optimum - 1.0, 0.0)
        columns = [values / 40.0, weights / 40.0, fixed == 0, fixed == 1, solution]
        rest = jnp.stack([gap, state.size / (items + 1)])
        return jnp.concatenate([*(x.astype(jnp.float32) for x in columns), rest])

    def reset(key: chex.PRNGKey):
        stack = jnp.full((items + 1, items), FREE, jnp.int32)
        state = Tree(jax.random.randint(key, (), 0, count), stack, jnp.int32(1), jnp.int32(0))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Tree, action: chex.Array):
        values, weights, capacity, optimum = problem(state.instance)
        node = state.stack[state.size - 1]
        _, solution = relaxed(values, weights, capacity, node)
        part = jnp.argmax((node == FREE) & (solution > 0.0) & (solution < 1.0))
        variable = jnp.where(node[action] == FREE, action, part)
        stack, size = state.stack, state.size - 1
        for value in (0, 1):  # 1 on top
            child = node.at[variable].set(value)
            opened = relaxed(values, weights, capacity, child)[0] > optimum + CLOSE
            stack = jnp.where(opened, stack.at[size].set(child), stack)
            size = size + opened
        after = Tree(state.instance, stack, size, state.branched + 1)
        ended = size == 0
        paid = jnp.where(ended, -after.branched.astype(jnp.float32), 0.0)
        return after, Step(observe(after), paid, ended, NO)

    width = 5 * items + 2
    space = Box(np.full(width, -1.0, np.float32), np.full(width, 1.0, np.float32))
    return Environment(reset, step, space, Discrete(items))
