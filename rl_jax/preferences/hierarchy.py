"""Pairs from a hierarchy of signals: HERON (arXiv 2309.02632). No jax.

    y > y'  if  z_1(y) > z_1(y');  of equal z_1, if z_2(y) > z_2(y') + delta_2;  of nearer ones z_3, and so on
    delta_l = factor std(z_l),  delta_1 = 0

Signals are ranked by how much they matter, and a lower one decides only between responses that the higher ones cannot
tell apart; what none of them decides is no pair. Nobody has to weigh the signals. The rule is that of the paper's code
(abukharin3/HERON, ClassicControl), whose factor is 1.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax.preferences import generated, jsonl, sources

LEVELS = ("right", "steps", "brevity")  # of the generated sums


def margins(signals: np.ndarray, *, factor: float = 1.0) -> np.ndarray:
    """delta of each level: 0 for the first, factor times the standard deviation for the others.

    Args:
      signals: float [N, L] of all responses; larger is better.
      factor: 0 or more.

    Returns:
      float64 [L].

    Raises:
      ValueError: if there is no signal or the factor is negative.
    """
    signals = np.asarray(signals, np.float64)
    if signals.ndim != 2 or not signals.size or factor < 0:
        raise ValueError(f"expected signals of [responses, levels] and factor >= 0, got {signals.shape} and {factor}")
    result = factor * signals.std(axis=0)
    result[0] = 0.0
    return result


def decide(one: Sequence[float], other: Sequence[float], deltas: Sequence[float]) -> tuple[int, int]:
    """(1 if `one` is better, -1 if `other` is, 0 if no level decides; the level, counted from 0, -1 for none)."""
    for level, (a, b, delta) in enumerate(zip(one, other, deltas, strict=True)):
        if abs(a - b) > delta:
            return (1 if a > b else -1), level
    return 0, -1


def ordered(signals: np.ndarray, deltas: Sequence[float]) -> list[tuple[int, int, int]]:
    """(better, worse, level) of each decided pair of a prompt's responses. signals: float [K, L]."""
    rows = np.asarray(signals, np.float64).tolist()
    result = []
    for i in range(len(rows)):
        for j in range(i):
            sign, level = decide(rows[i], rows[j], deltas)
            if sign:
                result.append((i, j, level) if sign > 0 else (j, i, level))
    return result


def load(
    *,
    path: str = "",
    levels: Sequence[str] = LEVELS,
    factor: float = 1.0,
    num_prompts: int = 1_000,
    responses: int = 4,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Pairs of responses that a hierarchy of signals decides.

    Args:
      path: JSONL of rankings whose other fields are the signals, {"prompt", "responses": [...], "SIGNAL": [...], ...};
        the order of the responses is not read. "": generated sums, with the signals `right` (the whole answer),
        `steps` (the share before the first mistake) and `brevity` (minus the number of characters).
      levels: names of the signals, the most important first; larger is better.
      factor: of the standard deviation, in the thresholds.
      num_prompts: generated prompts.
      responses: of each generated prompt.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs"; info has `level`, the level that decided, and the signals of both.

    Raises:
      ValueError: if there is no level, or a record lacks a signal.
    """
    levels = (levels,) if isinstance(levels, str) else tuple(levels)
    if not levels or len(set(levels)) < len(levels):
        raise ValueError(f"levels={levels}: name each signal once, at least one")
    options = dict(kind="rankings", test_share=test_share, data_dir=data_dir)
    if path:
        rankings = jsonl.load(path=path, **options)
    else:
        rankings = generated.load(num_prompts=num_prompts, responses=responses, seed=seed, **options)
    signal = read if path else of_sums
    thresholds = (
        None if test_share == 1 else margins(np.concatenate(tables(rankings, "train", signal, levels)), factor=factor)
    )

    def data_source(split: str) -> Decided:
        source, found = rankings.data_source(split), tables(rankings, split, signal, levels)
        own = margins(np.concatenate(found), factor=factor) if thresholds is None else thresholds
        return Decided(source, found, levels, own)

    return rankings._replace(name="hierarchy", kind="pairs", data_source=data_source)


def tables(rankings: sources.Preferences, split: str, signal, levels: Sequence[str]) -> list[np.ndarray]:
    """The signals of each record of a split, float64 [K, L] each."""
    source, found = rankings.data_source(split), []
    for place in range(len(source)):
        record = source[place]
        found.append(np.array([signal(record, place, name) for name in levels], np.float64).T)
    return found


def of_sums(record: Mapping, place: int, name: str) -> Sequence[float]:
    """A signal of each response to a generated sum. Raises ValueError if it has none of that name."""
    grades = record["info"]["grades"]
    signals = {
        "right": [float(grade == 1.0) for grade in grades],
        "steps": grades,
        "brevity": [-float(len(text)) for text in record["responses"]],
    }
    if name not in signals:
        raise ValueError(f"levels: {name!r} is none of {', '.join(signals)}, the signals of generated sums")
    return signals[name]


def read(record: Mapping, place: int, name: str) -> Sequence[float]:
    """A signal of each response from the record's info. Raises ValueError if it is missing or no list of numbers."""
    values = record["info"].get(name)
    numbers = isinstance(values, list) and all(isinstance(x, int | float) for x in values)
    if not numbers or len(values) != len(record["responses"]):
        said = json.dumps(values)[:40]
        raise ValueError(
            f"record {place}: the signal {name!r} must be {len(record['responses'])} numbers, one for each response, "
            f"found {said}: correct the file, or leave it out of levels"
        )
    return values


class Decided:
    """The decided pairs of a source of rankings.

    Attributes:
      kind: "pairs".
      name: "hierarchy".
      split: of the source.
      report: of the source, with `undecided`, how many pairs no level decides.
      num_skipped: of the source.
    """

    def __init__(self, source, signals: Sequence[np.ndarray], levels: Sequence[str], deltas: np.ndarray):
        """signals: float [K, L] of each record. deltas: float [L]."""
        self._source, self._signals, self._levels = source, signals, tuple(levels)
        self._pairs = [(place, *pair) for place, own in enumerate(signals) for pair in ordered(own, deltas)]
        if not self._pairs:
            raise ValueError(f"hierarchy: no two responses to a prompt differ in {', '.join(levels)}")
        possible = sum(len(own) * (len(own) - 1) // 2 for own in signals)
        self.kind, self.name, self.split, self.num_skipped = "pairs", "hierarchy", source.split, source.num_skipped
        self.report = {**source.report, "undecided": possible - len(self._pairs)}

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict:
        place, better, worse, level = self._pairs[index]
        record, signals = self._source[place], self._signals[place]
        own = {name: signals[[better, worse], i].tolist() for i, name in enumerate(self._levels)}
        return {
            "prompt": record["prompt"],
            "responses": [record["responses"][better], record["responses"][worse]],
            "rewards": [1.0, 0.0],
            "label_prob": 1.0,
            "margin": 0.0,
            "info": {"level": level, **own},
        }
