"""The reward of a search beside the hand-written one, on seeds that the search has not seen."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.studies import worlds
from experiments.studies.base import Outcome, curve
from experiments.tools import reward_search

TUNING_SEEDS, TEST_SEEDS = 10_000, 1_000_000  # the first ones; a search's own begin at so many times its seed after it


def searched_rewards(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    config: str,
    fields: Mapping[str, Any],
    generations: int,
    candidates: int,
    tuning: int,
    unseen: int,
) -> Outcome:
    """One search of `experiments.tools.reward_search` per seed; a generation of all of them is one program.

    Both arms train as long and are measured on the same unseen seeds; the search's tuning is not counted. Metrics:
    score, the mean of eval/return over a search's unseen seeds at the end; best, what the tuning ended with (of
    "written", the hand-written candidate's in the first generation).

    Args:
      seeds: of the searches' proposals.
      arms: name -> "written", the hand-written reward, or "searched", the search's choice.
      config: "MODULE:ARGUMENT" of configs.control, with the relabelling by_terms.
      fields: set in it.
      generations: of a search.
      candidates: of a generation.
      tuning: seeds on which a candidate is trained, the search's own.
      unseen: seeds of the test, the search's own.
    """
    whole, updates = worlds.loaded(config, fields)
    whole.log_every = whole.checkpoint.every = updates
    hand = {name: float(weight) for name, weight in sorted(whole.algorithm.relabel.weights.items())}
    asked = [argparse.Namespace(proposals="random", candidates=candidates, seed=seed) for seed in seeds]
    rows = [[] for _ in seeds]

    def train(proposals: Sequence[Sequence[Mapping[str, float]]], first: int, count: int) -> list[list[dict]]:
        own = [range(first + seed * count, first + (seed + 1) * count) for seed in seeds]
        flat = [candidate for proposed in proposals for candidate in proposed]
        size = len(flat) // len(seeds)
        found = reward_search.trained(whole, flat, [each for each in own for _ in range(size)])
        return [found[i : i + size] for i in range(0, len(found), size)]

    trace = []
    for _ in range(generations):
        proposals = [reward_search.proposed(options, hand, had) for options, had in zip(asked, rows, strict=True)]
        for had, new in zip(rows, train(proposals, TUNING_SEEDS, tuning), strict=True):
            had += new
        trace.append([max(map(reward_search.score_of, had)) for had in rows])
    chosen = [
        {"written": hand, "searched": reward_search.chosen(options, had)}
        for options, had in zip(asked, rows, strict=True)
    ]
    tested = train([[one[kind] for kind in arms.values()] for one in chosen], TEST_SEEDS, unseen)
    best = {"written": [had[0]["score"] for had in rows], "searched": trace[-1]}
    values = {
        arm: {"score": np.array([found[i]["score"] for found in tested]), "best": np.array(best[kind])}
        for i, (arm, kind) in enumerate(arms.items())
    }
    trained = candidates * tuning * generations
    return Outcome(
        values,
        {"tuning score": {"searched": curve(range(1, generations + 1), np.array(trace).T)}},
        f"A search has trained {trained} policies before its test; the hand-written reward's score is without any",
    )
