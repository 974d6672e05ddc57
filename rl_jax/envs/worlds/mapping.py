"""Tensors mapped to a fast memory while they live: packing of intervals (2305.07440, Optimizing Memory Mapping).

    tensor i lives in the steps [begin_i, end_i), needs size_i cells next to each other, and saves saving_i there

Tensors come in the order of their begin. The actions are to leave the tensor in the slow memory, to put it at the
lowest place that is free all its life, or at the highest; where nothing is free it is left in the slow memory, as the
paper's backup drops what does not fit. A stand-in for the game of XLA's buffers on a TPU, of the same shape: one
decision for each tensor, the reward is the time that it saves, and what is taken now is missing later. The best
mapping of an instance is known by going through all of them (`best`).
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
SLOW, LOW, HIGH = range(3)


class Programs(NamedTuple):
    """K programs of n tensors in the order of their begin.

    Attributes:
      begins: int32 [K, n].
      ends: int32 [K, n], above begins.
      sizes: int32 [K, n], in cells.
      savings: float32 [K, n].
    """

    begins: np.ndarray
    ends: np.ndarray
    sizes: np.ndarray
    savings: np.ndarray


class Memory(NamedTuple):
    """State. program: int32 []. place: int32 [], the tensor that is next. used: bool [steps, cells]."""

    program: chex.Array
    place: chex.Array
    used: chex.Array


@functools.cache
def programs(*, count: int = 32, tensors: int = 8, steps: int = 8, cells: int = 6, seed: int = 0) -> Programs:
    """Random programs: lives of 1 to 4 steps, sizes of 1 to half the cells and a bit, savings about size x life.

    Args:
      count: K.
      tensors: n.
      steps: of the program.
      cells: of the fast memory.
      seed: of numpy's generator.
    """
    rng = np.random.default_rng(seed)
    begins = np.sort(rng.integers(0, steps - 1, (count, tensors)), axis=1)
    ends = np.minimum(begins + rng.integers(1, 5, begins.shape), steps)
    sizes = rng.integers(1, cells // 2 + 2, begins.shape)
    savings = sizes * (ends - begins) * rng.uniform(0.3, 1.7, begins.shape) / cells
    return Programs(begins.astype(np.int32), ends.astype(np.int32), sizes.astype(np.int32), savings.astype(np.float32))


def best(begins: np.ndarray, ends: np.ndarray, sizes: np.ndarray, savings: np.ndarray, *, steps: int, cells: int):
    """(the most that one program can save, the actions that do), by going through all 3^n sequences of actions.

    Args:
      begins: int [n].
      ends: int [n].
      sizes: int [n].
      savings: float [n].
      steps: of the program.
      cells: of the fast memory.
    """

    @functools.cache
    def onward(place: int, held: bytes) -> tuple[float, tuple[int, ...]]:
        if place == len(sizes):
            return 0.0, ()
        used, life = np.frombuffer(held, bool).reshape(steps, cells), slice(begins[place], ends[place])
        busy, size = used[life].any(axis=0), sizes[place]
        fits = [x for x in range(cells - size + 1) if not busy[x : x + size].any()]
        value, actions = onward(place + 1, held)
        found = [(value, (SLOW, *actions))]
        for action, offset in ((LOW, fits[0]), (HIGH, fits[-1])) if fits else ():
            filled = used.copy()
            filled[life, offset : offset + size] = True
            value, actions = onward(place + 1, filled.tobytes())
            found.append((value + float(savings[place]), (action, *actions)))
        return max(found)

    return onward(0, np.zeros((steps, cells), bool).tobytes())


def environment(*, count: int = 32, tensors: int = 8, steps: int = 8, cells: int = 6, seed: int = 0) -> Environment:
    """A random one of `count` programs, one tensor a step; actions SLOW, LOW and HIGH. Arguments as `programs`'.

    Observations: (begin, end, size, saving) of the tensor and of those after it, 0 after the last, then which cells are
    free all its life, then the memory, [steps, cells].
    """
    known = programs(count=count, tensors=tensors, steps=steps, cells=cells, seed=seed)
    table = np.stack([known.begins / steps, known.ends / steps, known.sizes / cells, known.savings], axis=2)
    table = np.concatenate([table, np.zeros_like(table)], axis=1).astype(np.float32)

    def busy_cells(state: Memory) -> chex.Array:
        """bool [cells]: taken at some step of the next tensor's life."""
        place = jnp.minimum(state.place, tensors - 1)
        begin, end = (jnp.asarray(x)[state.program, place] for x in known[:2])
        time = jnp.arange(steps)
        return jnp.any(state.used & ((time >= begin) & (time < end))[:, None], axis=0)

    def observe(state: Memory) -> chex.Array:
        rest = jax.lax.dynamic_slice_in_dim(jnp.asarray(table)[state.program], state.place, tensors)
        parts = (rest, ~busy_cells(state), state.used)
        return jnp.concatenate([x.reshape(-1).astype(jnp.float32) for x in parts])

    def reset(key: chex.PRNGKey):
        program = jax.random.randint(key, (), 0, count)
        state = Memory(program, jnp.int32(0), jnp.zeros((steps, cells), bool))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Memory, action: chex.Array):
        begin, end, size, saving = (jnp.asarray(x)[state.program, state.place] for x in known)
        cell, time = jnp.arange(cells), jnp.arange(steps)
        taken = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(busy_cells(state))])
        fits = (cell + size <= cells) & (taken[jnp.minimum(cell + size, cells)] == taken[:-1])
        offset = jnp.where(action == LOW, jnp.argmax(fits), cells - 1 - jnp.argmax(fits[::-1]))
        put = (action != SLOW) & jnp.any(fits)
        life = (time >= begin) & (time < end)
        mine = life[:, None] & ((cell >= offset) & (cell < offset + size))[None]
        after = Memory(state.program, state.place + 1, state.used | (mine & put))
        return after, Step(observe(after), jnp.where(put, saving, 0.0), after.place == tensors, NO)

    width = 4 * tensors + cells + steps * cells
    space = Box(np.zeros(width, np.float32), np.full(width, 4.0, np.float32))
    return Environment(reset, step, space, Discrete(3))
