"""Rows in a group that its policy did not sample for its prompt: demonstrations, hinted answers, refinements, replay.

Which rows of a group they take the place of, how they are laid out, and what their behaviour log-probs are. All on the
host, in numpy, except `with_own_log_probs`. A group is G neighbouring rows.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Rollout, TokenBatch

# In place of a log-prob, which is at most 0: nobody knows with which probability the token was drawn. The policy's own
# log-prob before the updates replaces it, so the token's behaviour weight is 1.
UNKNOWN = 1.0


def with_own_log_probs(rollout: Rollout, log_probs) -> Rollout:
    """The rollout with the policy's own log-probs, float [B, C], in place of unknown ones."""
    known = jnp.where(rollout.sampled_log_probs > 0.5 * UNKNOWN, log_probs, rollout.sampled_log_probs)
    return rollout._replace(sampled_log_probs=known)


def right_rows(rewards: np.ndarray, group_size: int, *, above: float = 0.0) -> np.ndarray:
    """How many rows of each group have a reward above a threshold: float [B] -> int [B / G]."""
    return (rewards.reshape(-1, group_size) > above).sum(axis=1)


def slots(rewards: np.ndarray, taken: np.ndarray, *, count: int, replace: str) -> np.ndarray:
    """The rows of one group that foreign rows take the place of, in the order in which they do.

    Args:
      rewards: float [G].
      taken: bool [G]. Rows that are foreign already: they stay.
      count: how many are wanted; fewer if the group has fewer rows of its own.
      replace: "worst": those with the lowest rewards, of equal ones the last. "last": the last rows. "group": all rows
        of the group, in their order, whatever `count` says.

    Returns:
      int [n].

    Raises:
      ValueError: if `replace` is none of these.
    """
    if replace == "group":
        return np.arange(len(rewards)) if not taken.any() else np.zeros(0, int)
    free = np.flatnonzero(~taken)
    if replace == "last":
        return free[::-1][:count]
    if replace == "worst":
        return free[np.lexsort((-free, rewards[free]))][:count]
    raise ValueError(f"replace={replace!r} is none of worst, last, group")


def best(rewards: np.ndarray, usable: np.ndarray, count: int) -> np.ndarray:
    """The usable candidates with the highest rewards, of equal ones the first. float, bool [K] -> int [n <= count]."""
    found = np.flatnonzero(usable)
    return found[np.argsort(-rewards[found], kind="stable")][:count]


def prefix(ids: Sequence[int], level: float) -> list[int]:
    """The first `level` of a solution's tokens, rounded; level 0 is nothing, 1 the whole.

    Raises:
      ValueError: if the level is not from 0 to 1.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"a hint's level is a share of the solution, from 0 to 1, got {level}")
    return list(ids[: round(level * len(ids))])


def lay_out(
    prompts: TokenBatch,
    completions: Sequence[Sequence[int]],
    length: int,
    *,
    pad_id: int,
    eos_ids: Sequence[int],
    log_probs: Sequence[Sequence[float]] | None = None,
) -> Rollout:
    """Prompts with given completions, as a sampler would return them; what is longer than C tokens is cut off.

    Args:
      prompts: TokenBatch of [B, P], left-padded.
      completions: B lists of ids, with their EOS.
      length: C.
      pad_id: fills the columns after a completion.
      eos_ids: any of them ends a row; a row without one counts as truncated.
      log_probs: with which each token was drawn. None: UNKNOWN.
    """
    rows = len(completions)
    tokens = np.full((rows, length), pad_id, np.int32)
    drawn = np.zeros((rows, length), np.float32)
    mask = np.zeros((rows, length), bool)
    for row, ids in enumerate(completions):
        ids = list(ids)[:length]
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
        drawn[row, : len(ids)] = UNKNOWN if log_probs is None else list(log_probs[row])[: len(ids)]
    steps = np.arange(1, length + 1, dtype=np.int32)
    tail = TokenBatch(tokens, np.where(mask, prompts.positions[:, -1:] + steps, 0), mask.astype(np.int32))
    batch = TokenBatch(*(np.concatenate([a, b], axis=1) for a, b in zip(prompts[:3], tail[:3], strict=True)))
    finished = (mask & np.isin(tokens, list(eos_ids))).any(axis=1)
    return Rollout(batch, mask, drawn, drawn, finished, ~finished)


def prompts_of(rollout: Rollout) -> TokenBatch:
    """The prompt columns of a rollout's rows: TokenBatch of [B, P]."""
    width = rollout.batch.tokens.shape[1] - rollout.completion_mask.shape[1]
    return TokenBatch(*(np.asarray(x)[:, :width] for x in rollout.batch[:3]))


def sampled_of(rollout: Rollout) -> tuple[list[list[int]], list[list[float]]]:
    """The sampled tokens of each row, and the log-probs that they were drawn with."""
    length = rollout.completion_mask.shape[1]
    tokens, mask = np.asarray(rollout.batch.tokens)[:, -length:], np.asarray(rollout.completion_mask)
    drawn = np.asarray(rollout.sampled_log_probs)
    return (
        [row[live].tolist() for row, live in zip(tokens, mask, strict=True)],
        [row[live].tolist() for row, live in zip(drawn, mask, strict=True)],
    )
