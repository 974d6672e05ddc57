"""AdaStop: how many seeds a comparison needs, by permutation tests that stop as early as possible."""

import functools
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

LARGER, SMALLER, EQUAL, CONTINUE = "larger", "smaller", "equal", "continue"
Pair = tuple[Hashable, Hashable]


class AdaStop(NamedTuple):
    """The state of a group-sequential test on the scores so far.

    Attributes:
      decisions: pair (a, b) -> "larger" (a is better), "smaller", "equal" (no difference in any interim) or "continue".
      used: agent -> number of its scores used.
      wanted: the agents that need n more scores, empty if all is decided.
    """

    decisions: dict[Pair, str]
    used: dict[Hashable, int]
    wanted: tuple[Hashable, ...]


def adastop(
    scores: Mapping[Hashable, Sequence[float]],
    *,
    n: int,
    interims: int,
    alpha: float = 0.05,
    pairs: Sequence[Pair] | None = None,
    paired: bool = False,
    permutations: int = 10_000,
    key: int = 0,
) -> AdaStop:
    """Compares agents after every n seeds, at most `interims` times, with a family-wise error of at most alpha.

        T_j(i) = |sum_{l <= i} mean_a(l) - mean_b(l)|     of pair j = (a, b), after block i of n scores each
        spent + P(max_j |S_j(i)| > v) <= alpha (i + 1) / interims     b_i is the smallest such v

    S_j(i) is the null of T_j(i): permutations of the 2 n scores within each block, the same ones for every pair.
    Permutations that had |S_j| above an earlier boundary no longer count. The pair of the largest T_j is decided if T_j
    > b_i, and b_i is computed again for the remaining pairs (step-down). The value of P at the last b_i is spent. An
    agent whose pairs are all decided needs no more seeds.

    The published package differs in two ways. It compares T with the maximum of *signed* S_j, which rejects true nulls
    about 2 alpha of the time; and it keeps the permutations of the first block once all of them are too many.
    Source: arXiv 2306.10882.

    Args:
      scores: agent -> its scores so far, in the order of the seeds. Called again with more scores, it repeats the first
        decisions and continues.
      n: scores per block and agent.
      interims: the most blocks.
      alpha: family-wise error.
      pairs: default all.
      paired: whether scores at the same index share a seed whose effect cancels in the difference. A permutation then
        swaps or keeps the two scores of each seed instead of permuting all 2 n.
      permutations: all of them are used if the blocks so far have no more than this; otherwise this many are sampled.
      key: of the sampled permutations.

    Raises:
      ValueError: if the settings cannot decide anything, or a pair has no scores.
    """
    pairs = list(itertools.combinations(scores, 2)) if pairs is None else [tuple(pair) for pair in pairs]
    if n < 2 or interims < 1 or not 0.0 < alpha < 1.0 or not pairs:
        raise ValueError(f"n={n}, interims={interims}, alpha={alpha}, {len(pairs)} pairs: there is nothing to test")
    if missing := {agent for pair in pairs for agent in pair} - set(scores):
        raise ValueError(f"no scores of {sorted(map(str, missing))}; scores given: {list(scores)}")
    decisions, boundaries, spent = dict.fromkeys(pairs, CONTINUE), [], 0.0
    used = dict.fromkeys(scores, 0)
    for interim in range(interims):
        undecided = [pair for pair in pairs if decisions[pair] == CONTINUE]
        agents = tuple(agent for agent in scores if any(agent in pair for pair in undecided))
        if not undecided:
            break
        if wanted := tuple(agent for agent in agents if len(scores[agent]) < n * (interim + 1)):
            return AdaStop(decisions, used, wanted)
        used.update(dict.fromkeys(agents, n * (interim + 1)))
        sums = _null_sums(scores, undecided, n, interim + 1, paired=paired, permutations=permutations, key=key)
        level = alpha * (interim + 1) / interims - spent
        boundary, share = _step_down(sums, undecided, decisions, boundaries, level)
        boundaries.append(boundary)
        spent += share
    decisions = {pair: EQUAL if said == CONTINUE else said for pair, said in decisions.items()}
    return AdaStop(decisions, used, ())


def _step_down(sums, undecided, decisions, boundaries, level) -> tuple[float, float]:
    """Decides what can be, in place. Returns (the last b, P(max > b)).

    sums: float [P, J, I], the identity first. Equal sums in another order differ by an ulp: only values greater by more
    than 1e-10 of the largest count as greater.
    """
    total, left, slack = len(sums), list(range(len(undecided))), 1e-10 * np.abs(sums).max()
    while True:
        paths = np.abs(sums[:, left]).max(axis=1)
        kept = np.all(paths[:, :-1] <= np.array(boundaries)[None] + slack, axis=1)
        values = np.sort(paths[kept, -1])
        above = len(values) - np.searchsorted(values, values + slack, side="right")
        place = np.argmax(above <= level * total * (1.0 + 1e-12))  # nothing is above the largest: there is one
        boundary, share = values[place], above[place] / total
        largest = max(left, key=lambda j: abs(sums[0, j, -1]))
        if abs(sums[0, largest, -1]) <= boundary + slack:
            return boundary, share
        decisions[undecided[largest]] = LARGER if sums[0, largest, -1] > 0 else SMALLER
        left.remove(largest)
        if not left:
            return boundary, share


def _null_sums(scores, pairs, n, blocks, *, paired, permutations, key) -> np.ndarray:
    """S_j after each block for every permutation, the identity first: float [P, J, blocks]."""
    halves = [np.stack([np.asarray(scores[agent][: n * blocks], np.float64) for agent in pair]) for pair in pairs]
    pooled = np.stack([half.reshape(2, blocks, n).swapaxes(0, 1).reshape(blocks, 2 * n) for half in halves])
    pooled = pooled - pooled.mean(axis=(1, 2), keepdims=True)  # a shared offset would only cost precision
    ways = 2**n if paired else math.comb(2 * n, n)
    if ways**blocks <= permutations:
        means = np.einsum("jbs,ws->wjb", pooled, _all_signs(n, paired) / n)
        chosen = np.indices((ways,) * blocks).reshape(blocks, -1)
        means = np.stack([means[chosen[block], :, block] for block in range(blocks)], axis=-1)
    else:
        signs = [_some_signs(n, paired, permutations, (key, block)) for block in range(blocks)]
        means = np.stack([sign @ pooled[:, block].T / n for block, sign in enumerate(signs)], axis=-1)
    return np.cumsum(means, axis=-1)


def _all_signs(n: int, paired: bool) -> np.ndarray:
    """+1 for a score assigned to a, -1 to b: int [W, 2 n] of all W assignments, the identity first."""
    if paired:
        first = np.array(list(itertools.product((1, -1), repeat=n)))
        return np.concatenate([first, -first], axis=1)
    chosen = np.array(list(itertools.combinations(range(2 * n), n)))
    signs = np.full((len(chosen), 2 * n), -1)
    np.put_along_axis(signs, chosen, 1, axis=1)
    return signs


@functools.lru_cache(maxsize=8)  # later interims and later tests use the same ones again
def _some_signs(n: int, paired: bool, count: int, key: tuple[int, int]) -> np.ndarray:
    """`count` of them: the identity, then random ones. int8."""
    rng = np.random.default_rng(key)
    if paired:
        first = 1 - 2 * rng.integers(2, size=(count, n), dtype=np.int8)
        signs = np.concatenate([first, -first], axis=1)
    else:
        signs = rng.permuted(np.tile(np.repeat(np.array((1, -1), np.int8), n), (count, 1)), axis=1)
    signs[0] = np.repeat((1, -1), n)
    return signs


class SeedsWanted(NamedTuple):
    """The seeds that AdaStop would still need, over simulated continuations.

    Attributes:
      more: seeds in addition to the existing ones, the median over continuations.
      decided: the share of continuations that end in a decision other than "equal".
    """

    more: int
    decided: float


def seeds_wanted(
    differences: Sequence[float],
    *,
    interims: int = 5,
    alpha: float = 0.05,
    simulations: int = 100,
    permutations: int = 1_000,
    key: int = 0,
) -> SeedsWanted:
    """How many more seeds a paired AdaStop would need if further differences were like those observed.

    The n existing values are the first interim; the later ones, of n seeds each, are sampled from them with
    replacement. This takes the observed effect for the true one, so from few seeds the answer is rough.

    Args:
      differences: float [n], n >= 2, of two arms seed by seed, or of one arm to a bound.
      interims: as in `adastop`.
      alpha: as in `adastop`.
      simulations: number of continuations.
      permutations: as in `adastop`.
      key: of the continuations and permutations.
    """
    differences, rng = np.asarray(differences, np.float64), np.random.default_rng(key)
    n, more, decided = len(differences), [], 0
    for _ in range(simulations):
        further = rng.choice(differences, size=n * (interims - 1))
        scores = {"difference": np.concatenate([differences, further]), "zero": np.zeros(n * interims)}
        result = adastop(scores, n=n, interims=interims, alpha=alpha, paired=True, permutations=permutations, key=key)
        more.append(result.used["zero"] - n)
        decided += EQUAL not in result.decisions.values()
    return SeedsWanted(int(np.median(more)), decided / simulations)
