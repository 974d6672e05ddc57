"""A kind of config.foreign: questions asked in another way, as hard as the policy can learn from (CLPO).

Named in a config by its import path, "experiments.parts.foreign_rewrites:rewrites".
"""

import random

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts
from experiments.parts.foreign_stage import Candidates, Stage, put, rephrased
from experiments.parts.judging import Judged
from rl_jax.core.binding import resolve
from rl_jax.selection import foreign_rows, rewriting


def rewrites(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    hard: float = 0.3,
    medium: float = 0.7,
    simplify: str = "rl_jax.selection.rewriting:simplify",
    diversify: str = "rl_jax.selection.rewriting:diversify",
) -> Candidates | None:
    """Groups of rewritten questions, sampled by the policy for them: hard ones simplified, medium ones diversified.

    A rewritten question is kept if some of its answers are right and some wrong. It takes the place of an easy
    question, or of its own original (rl_jax.selection.rewriting.slots). The answer is that of the record. Use it with
    replace="group" and at_most=G. Source: arXiv 2509.25004.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      hard: a group with at most this share of right answers is hard.
      medium: one with more, up to this share, is medium; the others are easy.
      simplify: import path of (question, rng) -> question for hard ones.
      diversify: the same for medium ones.

    Raises:
      ValueError: if a threshold is out of its range or a question cannot be rewritten.
    """
    size, records = stage.group_size, stage.records(judged)
    kinds = rewriting.difficulty(
        foreign_rows.right_rows(judged.result.rewards, size, above=stage.above) / size, hard=hard, medium=medium
    )
    asked = wanted & (kinds < 2)
    if not asked.any():
        return None
    writers = [resolve(simplify), resolve(diversify)]
    seed = np.asarray(jax.random.key_data(stage.key)).tolist()
    changed = list(records)
    for group in np.flatnonzero(asked):
        rng, write = random.Random(f"{seed} {group}"), writers[kinds[group]]
        changed[group] = rephrased(records[group], lambda text, write=write, rng=rng: write(text, rng))
    own = stage.own_prompts
    drawn = stage.draw(*encode_prompts(stage.setup, [changed[i] for i in own]), jax.random.fold_in(stage.key, 2))
    found = stage.judge(drawn, changed)
    right = foreign_rows.right_rows(found.result.rewards, size, above=stage.above)
    places = rewriting.slots(kinds, asked & (right > 0) & (right < size))
    usable = np.zeros((len(records), size), bool)
    metrics = {"hard": float(np.mean(kinds == 0)), "medium": float(np.mean(kinds == 1)), "kept": float(len(places))}
    if not places:
        return Candidates(found, usable, foreign=False, metrics=metrics)
    targets, sources = (np.array(x)[:, None] * size + np.arange(size) for x in zip(*places, strict=True))
    moved = put(found, found, targets.ravel(), sources.ravel(), stage.ends["pad_id"])
    usable[[slot for slot, _ in places]] = True
    return Candidates(moved, usable, foreign=False, metrics=metrics)
