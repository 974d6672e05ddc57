"""Requests and completions of the continuous engine, and the conversion from prompts and to a Rollout.

All of it is numpy on the host.
"""

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import numpy as np

from rl_jax.core.types import Rollout, TokenBatch

ENDED = ("eos", "stop")  # the reasons for which the model itself ended a row

NO_TOKENS, NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class Request(NamedTuple):
    """One row to sample. Token t is sampled with fold_in(fold_in(key, seed), t), independent of the other rows.

    Attributes:
      index: the row's number, unique among the requests in the engine.
      prompt: int32 [p], p >= 1.
      max_tokens: the most to sample, including those of an earlier part.
      stop_ids: tokens that end this row, in addition to the engine's eos_ids.
      stop_strings: texts that end this row; it is cut after the token that completes one.
      tokens: int32 [n], an earlier part that this request continues.
      sampled_log_probs: float32 [n], of the earlier part.
      raw_log_probs: float32 [n], of the earlier part.
      seed: None is the index.
      hold: whether its slot keeps the cache after the model has ended the row, until a request with the same index
        continues it (or abort).
      versions: int32 [n], of the earlier part; empty: 0 for each of its tokens.
    """

    index: int
    prompt: np.ndarray
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tokens: np.ndarray = NO_TOKENS
    sampled_log_probs: np.ndarray = NO_LOG_PROBS
    raw_log_probs: np.ndarray = NO_LOG_PROBS
    seed: int | None = None
    hold: bool = False
    versions: np.ndarray = NO_TOKENS

    def context(self) -> np.ndarray:
        """All tokens before the next one: int32 [p + n]."""
        return np.concatenate([self.prompt, self.tokens]).astype(np.int32)


def check_request(
    request: Request, *, vocab_size: int, prompt_length: int, length: int, stop_width: int, has_text: bool
) -> None:
    """Raises ValueError, naming the request's index and the field, if it does not fit an Engine of these sizes."""

    def refuse(problem: str):
        raise ValueError(f"request {request.index}: {problem}")

    context = request.context()
    if not len(request.prompt):
        refuse("prompt is empty")
    if len(context) > prompt_length:
        refuse(f"prompt and earlier tokens are {len(context)}, above prompt_length={prompt_length}")
    if request.max_tokens <= len(request.tokens):
        refuse(f"max_tokens={request.max_tokens} leaves nothing to sample after {len(request.tokens)} tokens")
    if len(request.prompt) + request.max_tokens > length:
        refuse(f"a prompt of {len(request.prompt)} and max_tokens={request.max_tokens} are above length={length}")
    if not len(request.tokens) == len(request.sampled_log_probs) == len(request.raw_log_probs):
        refuse("tokens, sampled_log_probs and raw_log_probs differ in length")
    if len(request.versions) not in (0, len(request.tokens)):
        refuse(f"versions has {len(request.versions)} values for {len(request.tokens)} earlier tokens")
    if context.min() < 0 or context.max() >= vocab_size:
        refuse(f"a token of prompt or tokens is outside the vocabulary of {vocab_size}")
    if len(request.stop_ids) > stop_width:
        refuse(f"stop_ids has {len(request.stop_ids)} tokens, above stop_width={stop_width}")
    if request.stop_strings and not (has_text and all(request.stop_strings)):
        refuse(f"stop_strings={request.stop_strings} need an engine with decode_text, and none may be empty")


class Completion(NamedTuple):
    """The result of a request: its tokens so far, including those of an earlier part.

    Attributes:
      request: the request.
      tokens: int32 [n].
      sampled_log_probs: float32 [n].
      raw_log_probs: float32 [n].
      reason: "eos", "stop" (a stop id or string), "length" or "aborted".
      versions: int32 [n]. Version of the policy that drew each token, as Engine.step was told; None if it is not known.
      routes: int16 [p + n, L, k]. Experts that ran in each layer when a token of prompt or completion was last read, so
        those of the policy that drew the next token, unless the cache was computed anew since; -1 of the last token.
        None if the engine's model does not record them, or the row was aborted.
    """

    request: Request
    tokens: np.ndarray
    sampled_log_probs: np.ndarray
    raw_log_probs: np.ndarray
    reason: str
    versions: np.ndarray | None = None
    routes: np.ndarray | None = None

    def resumed(self) -> Request:
        """The request that continues from here; its result is that of an uninterrupted one."""
        return self.request._replace(
            tokens=self.tokens,
            sampled_log_probs=self.sampled_log_probs,
            raw_log_probs=self.raw_log_probs,
            versions=NO_TOKENS if self.versions is None else self.versions,
        )


def first_stop(
    decode_text: Callable[[Sequence[int]], str], tokens: Sequence[int], stop_strings: tuple[str, ...], start: int
) -> int | None:
    """The smallest n > start for which the text of tokens[:n] contains a stop string; None if there is none.

    It is found by bisection: the text of more tokens contains that of fewer, up to a character that is not complete.
    """

    def holds(n: int) -> bool:
        text = decode_text(tokens[:n])
        return any(stop in text for stop in stop_strings)

    if not holds(len(tokens)):
        return None
    return start + 1 + bisect.bisect_left(range(start + 1, len(tokens)), True, key=holds)


def requests_of(
    tokens: np.ndarray,
    prompt_mask: np.ndarray,
    *,
    group_size: int,
    max_tokens: int | np.ndarray,
    stop_ids: tuple[int, ...] = (),
    stop_strings: tuple[str, ...] = (),
) -> list[Request]:
    """B x G requests of left-padded prompts, numbered like the rows of engine.make_generate.

    Args:
      tokens: int32 [B, P].
      prompt_mask: bool [B, P].
      group_size: G.
      max_tokens: one number, or int [B x G].
      stop_ids: of every request.
      stop_strings: of every request.
    """
    tokens, prompt_mask = np.asarray(tokens), np.asarray(prompt_mask)
    chex.assert_equal_shape([tokens, prompt_mask])
    rows = len(tokens) * group_size
    limits = np.broadcast_to(np.asarray(max_tokens), (rows,))
    prompts = [row[mask].astype(np.int32) for row, mask in zip(tokens, prompt_mask, strict=True)]
    return [Request(i, prompts[i // group_size], int(limits[i]), stop_ids, stop_strings) for i in range(rows)]


def as_rollout(
    completions: Sequence[Completion],
    tokens: np.ndarray,
    prompt_mask: np.ndarray,
    *,
    completion_length: int,
    pad_id: int,
    with_versions: bool = False,
) -> Rollout:
    """The Rollout (numpy) of the B x G completions of `tokens` [B, P], in the order of requests_of.

    An aborted row is neither finished nor truncated. The batch has routes if completions do.

    Args:
      completions: B x G, those of a prompt side by side.
      tokens: int32 [B, P], left-padded.
      prompt_mask: bool [B, P].
      completion_length: C.
      pad_id: fills the rest.
      with_versions: whether the Rollout says which version drew each token; columns without a token have the newest of
        all. False: it has no versions.
    """
    tokens, prompt_mask = np.asarray(tokens), np.asarray(prompt_mask)
    chex.assert_equal_shape([tokens, prompt_mask])
    rows, group_size = len(completions), len(completions) // len(tokens)
    out = np.full((rows, completion_length), pad_id, np.int32)
    sampled, raw = (np.zeros((rows, completion_length), np.float32) for _ in range(2))
    lengths = np.array([len(completion.tokens) for completion in completions])
    for row, completion in enumerate(completions):
        out[row, : lengths[row]] = completion.tokens
        sampled[row, : lengths[row]] = completion.sampled_log_probs
        raw[row, : lengths[row]] = completion.raw_log_probs
    mask = np.repeat(prompt_mask, group_size, axis=0)
    completion_mask = np.arange(completion_length)[None] < lengths[:, None]
    real = np.concatenate([mask, completion_mask], axis=1)
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0) * real
    batch = TokenBatch(
        tokens=np.concatenate([np.repeat(tokens, group_size, axis=0), out], axis=1).astype(np.int32),
        positions=positions.astype(np.int32),
        segment_ids=real.astype(np.int32),
        routes=routes_in([completion.routes for completion in completions], real),
    )
    finished = np.array([completion.reason in ENDED for completion in completions])
    truncated = np.array([completion.reason == "length" for completion in completions])
    versions = versions_of(completions, completion_length) if with_versions else None
    return Rollout(batch, completion_mask, sampled, raw, finished, truncated, versions=versions)


def routes_in(rows: Sequence[np.ndarray | None], real: np.ndarray) -> np.ndarray | None:
    """int16 [B, T, L, k]: the recorded experts of each row's tokens, -1 in padding and of rows that have none.

    Args:
      rows: int16 [n, L, k] each, n the row's real tokens; or None.
      real: bool [B, T].

    Returns:
      None if no row has any.

    Raises:
      ValueError: if a row has experts of another number of tokens.
    """
    known = [routes for routes in rows if routes is not None]
    if not known:
        return None
    found = np.full((*real.shape, *known[0].shape[1:]), -1, np.int16)
    for row, (routes, where) in enumerate(zip(rows, real, strict=True)):
        if routes is not None:
            if len(routes) != where.sum():
                raise ValueError(f"row {row} has the experts of {len(routes)} tokens, and {where.sum()} tokens")
            found[row, where] = routes
    return found


def versions_of(completions: Sequence[Completion], completion_length: int) -> np.ndarray:
    """int32 [B, C]: the version that drew each token; the newest of all where there is no token."""
    known = [completion.versions for completion in completions]
    newest = max((int(row.max()) for row in known if len(row)), default=0)
    versions = np.full((len(known), completion_length), newest, np.int32)
    for row, found in zip(versions, known, strict=True):
        row[: len(found)] = found
    return versions


def cut_at_stops(
    rollout: Rollout, decode_text: Callable[[Sequence[int]], str], stop_strings: Sequence[str], *, pad_id: int
) -> Rollout:
    """The Rollout (numpy) with each row ended after the token that completes a stop string in its completion's text.

    Equal to the rows of an engine that stops there itself, because a row's tokens do not depend on later ones. Rows
    that are cut are finished.

    Args:
      rollout: of B rows.
      decode_text: token ids -> text.
      stop_strings: none may be empty. If there are none, the rollout itself is returned.
      pad_id: fills the columns after a row's end.
    """
    if not stop_strings:
        return rollout
    mask, length = np.array(rollout.completion_mask), rollout.completion_mask.shape[1]
    tokens = np.asarray(rollout.batch.tokens)[:, -length:]
    finished, truncated = np.array(rollout.finished), np.array(rollout.truncated)
    for row, kept in enumerate(mask.sum(axis=1)):
        end = first_stop(decode_text, tokens[row, :kept].tolist(), tuple(stop_strings), 0) if kept else None
        if end is not None:
            mask[row, end:], finished[row], truncated[row] = False, True, False
    batch, prompt = rollout.batch, rollout.batch.tokens.shape[1] - length

    def keep(values: np.ndarray, fill: float = 0) -> np.ndarray:
        return np.where(mask, values, np.asarray(fill, np.asarray(values).dtype))

    def join(values: np.ndarray, fill: int = 0) -> np.ndarray:
        return np.concatenate([np.asarray(values)[:, :prompt], keep(np.asarray(values)[:, prompt:], fill)], axis=1)

    extras = {name: getattr(rollout, name) for name in ("token_rewards", "versions")}
    return rollout._replace(
        batch=batch._replace(
            tokens=join(batch.tokens, pad_id), positions=join(batch.positions), segment_ids=join(batch.segment_ids)
        ),
        completion_mask=mask,
        sampled_log_probs=keep(rollout.sampled_log_probs),
        raw_log_probs=keep(rollout.raw_log_probs),
        finished=finished,
        truncated=truncated,
        **{name: None if values is None else keep(values) for name, values in extras.items()},
    )
