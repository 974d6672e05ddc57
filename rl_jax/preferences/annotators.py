"""Pairs of many annotators of unknown tastes, and their groups: MaxMin-RLHF (arXiv 2402.08925). No jax.

    E step   u(h) = argmax_u sum_{pairs of h} log sigma(r_u(y_w) - r_u(y_l))      `assign`
    M step   r_u by Bradley-Terry on the pairs of the annotators of group u        experiments.reward_model

Each annotator of the generated pairs has one of the two tastes of a world of rl_jax.preferences.generated, a minority
of them the second one. info has `annotator`, which an assignment of groups may read, and `user`, their true taste.
"""

import hashlib
import json
import pathlib
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from rl_jax.preferences import generated, sources

WORLDS = ("length", "order")


def assign(gaps: np.ndarray, annotators: Sequence[Hashable]) -> dict[Hashable, int]:
    """The group of each annotator: the one whose reward model explains their pairs best; of equal ones the first.

    Args:
      gaps: float [U, N], r_u(y_w) - r_u(y_l) of each group's model.
      annotators: N names.

    Raises:
      ValueError: if the lengths differ.
    """
    gaps = np.asarray(gaps, np.float64)
    if gaps.ndim != 2 or gaps.shape[1] != len(annotators):
        raise ValueError(f"expected gaps of [groups, {len(annotators)} pairs], found {gaps.shape}")
    scores: dict[Hashable, np.ndarray] = {}
    for annotator, column in zip(annotators, -np.logaddexp(0.0, -gaps).T, strict=True):
        scores[annotator] = scores.get(annotator, 0.0) + column
    return {annotator: int(np.argmax(total)) for annotator, total in scores.items()}


def start_of(annotator: int, groups: int, seed: int = 0) -> int:
    """The group of an annotator before the first E step: at random, by a hash."""
    return hashlib.sha256(f"{seed} {annotator}".encode()).digest()[0] % groups


def load(
    *,
    world: str = "length",
    num_prompts: int = 2_000,
    annotators: int = 40,
    minority: float = 0.25,
    groups: int = 2,
    group: int = -1,
    assignment: str = "",
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs of annotators, all of them or those of a group.

    Args:
      world: one of WORLDS.
      num_prompts: distinct prompts; each has a pair of one annotator.
      annotators: how many there are.
      minority: the share of them with the second taste, in [0, 1].
      groups: U, for the groups at random.
      group: -1: all; else the pairs of the annotators of this group.
      assignment: a JSON file {annotator: group} of experiments.tools.preference_groups; "": groups at random.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs".

    Raises:
      ValueError: if the world is unknown, a number is out of its range, or the file lacks an annotator.
    """
    if world not in WORLDS:
        raise ValueError(f"world={world!r} is none of {', '.join(WORLDS)}, which have two tastes")
    if annotators < 2 or not 0 <= minority <= 1 or groups < 1 or group >= groups:
        raise ValueError(
            f"annotators={annotators} must be 2 or more, minority={minority} in [0, 1], group={group} below {groups}"
        )
    options = dict(num_prompts=num_prompts, seed=seed, test_share=test_share, data_dir=data_dir)
    plain = generated.load(kind="pairs", world=world, **options)
    group_of = {annotator: start_of(annotator, groups, seed) for annotator in range(annotators)}
    if assignment:
        group_of = read_assignment(pathlib.Path(assignment), annotators)
    kept = {annotator for annotator, own in group_of.items() if group < 0 or own == group}
    few = round(minority * annotators)
    return plain._replace(
        name="annotators", data_source=lambda split: Annotated(plain.data_source(split), annotators, few, kept)
    )


def read_assignment(path: pathlib.Path, annotators: int) -> dict[int, int]:
    """{annotator: group} of a JSON file. Raises ValueError if it is no such file, or lacks an annotator."""
    try:
        found = {int(name): int(group) for name, group in json.loads(path.read_text(encoding="utf-8")).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a JSON object of annotators and groups: {error}") from error
    missing = sorted(set(range(annotators)) - set(found))
    if missing:
        raise ValueError(f"{path} has no group for the annotators {missing[:5]}: make it again from all pairs")
    return found


class Annotated:
    """The pairs of a source of two users, each prompt's by the taste of one annotator.

    Attributes:
      kind: "pairs".
      name: "annotators".
      split: of the source.
      report: of the source.
      num_skipped: of the source.
    """

    def __init__(self, source: sources.PreferenceSource, annotators: int, minority: int, kept: set[int]):
        """minority: the first so many annotators have the second taste. kept: whose pairs there are."""
        self._source, self._places = source, []
        for place in range(len(source)):
            record = source[place]
            # A hash of its own: by the split's, sha256(prompt), the test split would be of the first annotators alone.
            digest = hashlib.sha256(f"annotator {record['prompt']}".encode()).digest()
            annotator = digest[0] * annotators // 256
            if annotator in kept and record["info"]["user"] == int(annotator < minority):
                self._places.append((place, annotator))
        if not self._places:
            raise ValueError(f"annotators: no pair of the split {source.split!r} is left for this group")
        self.kind, self.name, self.split = "pairs", "annotators", source.split
        self.report, self.num_skipped = source.report, source.num_skipped

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict:
        place, annotator = self._places[index]
        record: Mapping = self._source[place]
        return {**record, "info": {**record["info"], "annotator": annotator}}
