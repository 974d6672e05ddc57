"""Rows made of a step's own answers, in numpy on the host: which are shown to a verifier, where an answer is cut."""

from collections.abc import Sequence

import jax
import numpy as np


def shown_answers(key: jax.Array, wanted: np.ndarray, group_size: int) -> np.ndarray:
    """For each group the row whose answer a verification in its place shows.

    A random row of a random group that is not wanted; of the group itself if all are.

    Args:
      key: a typed key.
      wanted: bool [N].
      group_size: G.

    Returns:
      int [N], rows of N * G.
    """
    of_group, of_row = jax.random.split(key)
    staying = np.flatnonzero(~wanted)
    groups = np.arange(len(wanted))
    if len(staying):
        groups = staying[np.asarray(jax.random.randint(of_group, wanted.shape, 0, len(staying)))]
    return groups * group_size + np.asarray(jax.random.randint(of_row, wanted.shape, 0, group_size))


def verdict_rewards(
    texts: Sequence[str],
    is_right: np.ndarray,
    *,
    verdicts: tuple[str, str],
    paid: tuple[float, float, float],
) -> np.ndarray:
    """Rewards of verdicts: paid[0] for the right one, paid[1] for the other one, paid[2] for anything else.

    Args:
      texts: B completions; blanks around them do not count.
      is_right: bool [B]. Whether the answer that was shown is right.
      verdicts: the words for right and for wrong.
      paid: the three rewards.

    Returns:
      float32 [B].

    Raises:
      ValueError: if the two words are the same.
    """
    if verdicts[0] == verdicts[1]:
        raise ValueError(f"verdicts={verdicts!r} must be two different words")
    said = [text.strip() for text in texts]
    due = [verdicts[0] if right else verdicts[1] for right in is_right]
    place = [0 if word == wanted else 1 if word in verdicts else 2 for word, wanted in zip(said, due, strict=True)]
    return np.asarray(paid, np.float32)[place]


def random_cuts(key: jax.Array, lengths: np.ndarray) -> np.ndarray:
    """Uniform cuts from 0 to n - 1 of rows of n tokens; 0 for an empty row. key; int [B] -> int [B]."""
    shares = np.asarray(jax.random.uniform(key, lengths.shape))
    return np.minimum((shares * lengths).astype(int), np.maximum(lengths - 1, 0))


def random_states(key: jax.Array, rows: Sequence[Sequence[int]], separators: Sequence[int]) -> np.ndarray:
    """For each row a state between its steps: how many tokens come before it, uniform over its beginnings of steps.

    Args:
      key: a typed key.
      rows: B lists of sampled ids.
      separators: ids that end a step; what the last token ends has no state after it.

    Returns:
      int [B]. 0, or the place after a separator; below the row's length, and 0 for an empty row.
    """
    shares = np.asarray(jax.random.uniform(key, (len(rows),)))
    result = np.zeros(len(rows), int)
    for place, (row, share) in enumerate(zip(rows, shares, strict=True)):
        states = [0, *(at + 1 for at, token in enumerate(row[:-1]) if token in separators)]
        result[place] = states[min(int(share * len(states)), len(states) - 1)]
    return result
