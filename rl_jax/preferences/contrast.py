"""Contrast instructions: is a reward model consistent when a prompt changes a little (arXiv 2309.16155)? No jax.

A contrast is two similar prompts with a good response each, (q1, y1) and (q2, y2). Of the four rewards r(q, y)

    response consistency     r(q1, y1) > r(q1, y2) and r(q2, y2) > r(q2, y1): the right response to a prompt
    instruction consistency  r(q1, y1) > r(q2, y1) and r(q2, y2) > r(q1, y2): the right prompt of a response
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Contrast(NamedTuple):
    """Two prompts with the response that belongs to each."""

    prompts: tuple[str, str]
    responses: tuple[str, str]


def find_contrasts(prompts: Sequence[str], responses: Sequence[str], *, at_least: float = 0.5) -> list[Contrast]:
    """For each prompt the most similar other one, by the Jaccard index of their words, if it is similar enough.

    Each pair of prompts is taken once; prompts that are equal, or that have the same response, are no contrast. The
    paper finds them in sets of paraphrases by sentence embeddings; words are our stand-in.

    Args:
      prompts: texts.
      responses: the good response to each.
      at_least: smallest similarity, in (0, 1].

    Raises:
      ValueError: if the lengths differ.
    """
    if len(prompts) != len(responses):
        raise ValueError(f"{len(prompts)} prompts with {len(responses)} responses")
    words = [frozenset(text.split()) for text in prompts]
    places: dict[str, list[int]] = {}
    for place, own in enumerate(words):
        for word in own:
            places.setdefault(word, []).append(place)
    found: dict[tuple[int, int], Contrast] = {}
    for place, own in enumerate(words):
        best, nearest = at_least, -1
        for other in sorted({x for word in own for x in places[word]} - {place}):
            if prompts[other] == prompts[place] or responses[other] == responses[place]:
                continue
            similarity = len(own & words[other]) / len(own | words[other])
            if similarity > best or (similarity == best and nearest < 0):
                best, nearest = similarity, other
        if nearest >= 0:
            key = (min(place, nearest), max(place, nearest))
            found[key] = Contrast(tuple(prompts[i] for i in key), tuple(responses[i] for i in key))
    return [found[key] for key in sorted(found)]


def consistency(rewards: np.ndarray) -> dict[str, float]:
    """The shares of contrasts that are consistent, and of single comparisons that are right.

    Args:
      rewards: float [N, 2, 2], r(q_i, y_j) of each contrast.

    Returns:
      response, instruction (both comparisons right; chance is 1/4 for independent ones), response_each and
      instruction_each (of single ones; chance 1/2). A tie is not right.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 3 or rewards.shape[1:] != (2, 2) or not len(rewards):
        raise ValueError(f"expected rewards of [contrasts, 2, 2], found {rewards.shape}")
    own = rewards[:, [0, 1], [0, 1]]
    response = own > rewards[:, [0, 1], [1, 0]]  # the other response to the same prompt
    instruction = own > rewards[:, [1, 0], [0, 1]]  # the same response to the other prompt
    return {
        "response": float(response.all(axis=1).mean()),
        "instruction": float(instruction.all(axis=1).mean()),
        "response_each": float(response.mean()),
        "instruction_each": float(instruction.mean()),
    }


def augment(contrasts: Sequence[Contrast]) -> list[dict]:
    """Two preference pairs for each contrast: to each prompt its own response before the other one's.

    For training with Bradley-Terry beside the original pairs: our simple form of the paper's data augmentation, whose
    ConvexDA draws synonyms and keeps the corners of their convex hull.
    """
    rows = []
    for contrast in contrasts:
        for i in (0, 1):
            own, other = contrast.responses[i], contrast.responses[1 - i]
            rows.append({"prompt": contrast.prompts[i], "chosen": own, "rejected": other})
    return rows
