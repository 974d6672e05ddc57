"""Reward oracles of strings, learned from noisy measurements: one to train on, one held out.

    y = r(string) + noise N(0, 1),   w = argmin sum (w . phi(string) + c - y)^2 + ridge |w|^2
    phi(x)_{uv} = sum_i x_i(u) x_{i+1}(v) / floor(L / 2),   r(x) = phi(x)_{ab}, the share of pairs "ab"

The strings are split in two halves that share none; each oracle sees one. What climbs the first beyond what the second
and r confirm is over-optimised. Source: DRAKES, arXiv 2410.13643, whose oracles are Enformer and ProteinMPNN on
disjoint splits of experiments; here they are ridge regressions on counts of pairs.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np


class Oracle(NamedTuple):
    """w . phi(x) + c. weights: numpy float32 [V, V], w. constant: numpy float32 [], c."""

    weights: np.ndarray
    constant: np.ndarray


def pair_counts(x: chex.Array) -> chex.Array:
    """phi(x), float [..., V, V]. x: float [..., L, V], letters or a mixture of them at each position."""
    return jnp.einsum("...lu,...lv->...uv", x[..., :-1, :], x[..., 1:, :]) / (x.shape[-2] // 2)


def predicted(oracle: Oracle, x: chex.Array) -> chex.Array:
    """The oracle's reward, float []. x: float [L, V]."""
    chex.assert_shape(x, (None, len(oracle.weights)))
    return jnp.sum(oracle.weights * pair_counts(x)) + oracle.constant


def fitted(strings: np.ndarray, measured: np.ndarray, letters: int, *, ridge: float) -> Oracle:
    """The Oracle of measured strings.

    Args:
      strings: int [N, L].
      measured: float [N], y.
      letters: V.
      ridge: weight of |w|^2, above 0.
    """
    rows = np.arange(len(strings))
    counts = np.zeros((len(strings), letters, letters))
    for i in range(strings.shape[1] - 1):
        np.add.at(counts, (rows, strings[:, i], strings[:, i + 1]), 1.0 / (strings.shape[1] // 2))
    counts = counts.reshape(len(strings), -1)
    means, mean = counts.mean(axis=0), measured.mean()
    centered = counts - means
    matrix = centered.T @ centered + ridge * np.eye(letters * letters)
    weights = np.linalg.solve(matrix, centered.T @ (measured - mean))
    return Oracle(weights.reshape(letters, letters).astype(np.float32), np.float32(mean - weights @ means))


def sampled(start: np.ndarray, moves: np.ndarray, length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` strings of a Markov chain, int [count, length]. start: float [V]; moves: float [V, V]."""
    steps, first = np.cumsum(moves, axis=1), np.cumsum(start)
    last = len(start) - 1
    strings = np.zeros((count, length), int)
    strings[:, 0] = np.minimum(np.searchsorted(first, rng.random(count)), last)
    for i in range(1, length):
        below = steps[strings[:, i - 1]] < rng.random(count)[:, None]
        strings[:, i] = np.minimum(below.sum(axis=1), last)
    return strings


def halves(strings: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows (int) of two halves of the strings; copies of a string are in the same half."""
    _, which = np.unique(strings, axis=0, return_inverse=True)
    which = which.reshape(-1)
    first = rng.permutation(which.max() + 1) % 2 == 0
    return np.flatnonzero(first[which]), np.flatnonzero(~first[which])


def make_oracles(
    start: np.ndarray, moves: np.ndarray, *, length: int, samples: int, noise: float, ridge: float, seed: int
) -> tuple[Oracle, Oracle]:
    """(the oracle to train on, the one that is held out) of strings drawn from the prior.

    Args:
      start: float [V], of the first letter.
      moves: float [V, V], of the next one.
      length: L.
      samples: N, of both halves together.
      noise: standard deviation of a measurement.
      ridge: as in `fitted`.
      seed: of strings, noise and split.

    Raises:
      ValueError: if a number is out of range.
    """
    if samples < 4 or noise < 0.0 or ridge <= 0.0:
        raise ValueError(f"samples={samples}, noise={noise}, ridge={ridge}: 4 or more, 0 or more, above 0")
    rng = np.random.default_rng(seed)
    strings = sampled(start, moves, length, samples, rng)
    pairs = (strings[:, :-1] == 0) & (strings[:, 1:] == 1)
    measured = pairs.sum(axis=1) / (length // 2) + noise * rng.normal(size=samples)
    parts = halves(strings, rng)
    return tuple(fitted(strings[rows], measured[rows], len(start), ridge=ridge) for rows in parts)
