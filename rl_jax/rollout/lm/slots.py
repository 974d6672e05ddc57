"""Which request is in which slot, what it has sampled so far, and when it has ended: the engine's host side."""

from collections.abc import Callable, Sequence

import numpy as np

from rl_jax.rollout.lm.programs import Drawn, SlotRows, empty_rows
from rl_jax.rollout.lm.requests import Completion, Request, first_stop


class Slots:
    """`size` slots.

    Attributes:
      rows: the input of the programs.
      requests: the request in each slot, None if it is empty.
      held: index of a request -> (slot, its whole context), for slots that keep the cache of a row that has ended.
      version: int. Of the policy that draws the next tokens.
      spoilt: bool. Whether a row that is gone had log-probs that are not finite, so that its cache may be neither.

    Args:
      size: number of slots.
      eos_ids: the engine's.
      stop_width: the engine's.
      key_data: the words of any key, for empty slots.
      decode_text: the engine's.
      routes_of: slot -> int16 [S, L, k], the experts that its cache has recorded, before other rows enter it; None if
        caches do not record them.
    """

    def __init__(
        self,
        size: int,
        *,
        eos_ids: tuple[int, ...],
        stop_width: int,
        key_data: np.ndarray,
        decode_text: Callable[[Sequence[int]], str] | None,
        routes_of: Callable[[int], np.ndarray] | None = None,
    ):
        self._eos_ids, self._decode_text, self._routes_of = eos_ids, decode_text, routes_of
        self._empty = lambda size: empty_rows(size, stop_width, key_data)
        self.rows = self._empty(size)
        self.requests: list[Request | None] = [None] * size
        self._parts: list[list[Drawn]] = [[] for _ in range(size)]
        self._versions: list[list[np.ndarray]] = [[] for _ in range(size)]  # of each part's tokens
        self.version = 0
        self.held: dict[int, tuple[int, np.ndarray]] = {}
        self.spoilt = False

    @property
    def size(self) -> int:
        """The number of slots."""
        return len(self.requests)

    def occupied(self) -> np.ndarray:
        """bool [S]. Slots whose rows are running or held."""
        result = self.rows.live.copy()
        result[[slot for slot, _ in self.held.values()]] = True
        return result

    def count(self) -> int:
        """Number of occupied slots."""
        return int(self.rows.live.sum()) + len(self.held)

    def free(self) -> np.ndarray:
        """The empty slots."""
        return np.flatnonzero(~self.occupied())

    def continued(self, request: Request) -> tuple[int, int] | None:
        """The slot that holds the beginning of a request's context, and how many of its columns are filled.

        A held row that the request does not continue is let go. None if there is none.
        """
        slot, known = self.held.get(request.index, (-1, None))
        if known is None:
            return None
        context = request.context()
        if len(context) <= len(known) or not np.array_equal(context[: len(known)], known):
            del self.held[request.index]
            return None
        return slot, len(known) - 1  # the last token was sampled, and not read yet

    def begun(self) -> dict[int, int]:
        """Index of each running request -> version of its oldest token."""
        rows = zip(self.requests, self._versions, strict=True)
        return {r.index: int(next(part[0] for part in parts if len(part))) for r, parts in rows if r is not None}

    def entrants(self, width: int, entering: list[tuple[Request, np.ndarray]]) -> SlotRows:
        """SlotRows of `width` for requests, with their key data, that are about to sample their first token."""
        rows = self._empty(width)
        for i, (request, key_data) in enumerate(entering):
            _describe(rows, i, request, key_data)
        return rows

    def enter(self, slot: int, request: Request, key_data: np.ndarray, first: Drawn) -> Completion | None:
        """Puts a request and its first token [1] into a free slot. Returns the Completion if that token ends it."""
        _describe(self.rows, slot, request, key_data)
        self.held.pop(request.index, None)
        self.rows.live[slot] = True
        self.rows.positions[slot] = len(request.prompt) + len(request.tokens) - 1
        self.requests[slot] = request
        self._parts[slot] = [Drawn(request.tokens, request.sampled_log_probs, request.raw_log_probs)]
        self._versions[slot] = [versions_before(request)]
        return self.append(slot, first)

    def append(self, slot: int, drawn: Drawn) -> Completion | None:
        """Adds a row's next tokens, [n]. Returns the Completion and frees the slot if the row has ended."""
        rows, request, number = self.rows, self.requests[slot], len(drawn.tokens)
        before = int(rows.steps[slot])
        rows.tokens[slot] = drawn.tokens[-1]
        rows.positions[slot] += number
        rows.steps[slot] += number
        self._parts[slot].append(drawn)
        self._versions[slot].append(np.full(number, self.version, np.int32))
        if request.stop_strings:
            tokens = np.concatenate([part.tokens for part in self._parts[slot]])
            cut = first_stop(self._decode_text, tokens.tolist(), request.stop_strings, before)
            if cut is not None:
                return self.complete(slot, "stop", cut)
        if rows.tokens[slot] in self._eos_ids:
            return self.complete(slot, "eos")
        if rows.tokens[slot] in request.stop_ids:
            return self.complete(slot, "stop")
        return self.complete(slot, "length") if rows.steps[slot] >= request.max_tokens else None

    def complete(self, slot: int, reason: str, cut: int | None = None) -> Completion:
        """Frees a slot and returns its completion, or the first `cut` tokens of it."""
        columns = (np.concatenate(column)[:cut] for column in zip(*self._parts[slot], strict=True))
        request = self.requests[slot]
        self.spoilt |= not all(np.isfinite(part.raw_log_probs).all() for part in self._parts[slot])
        completion = Completion(request, *columns, reason, np.concatenate(self._versions[slot])[:cut])
        if self._routes_of is not None and reason != "aborted":  # what goes on after an abort is computed anew
            completion = completion._replace(routes=self._routes(slot, len(request.prompt) + len(completion.tokens)))
        self.rows.live[slot] = False
        if request.hold and reason == "eos":
            known = np.concatenate([request.prompt, completion.tokens]).astype(np.int32)
            self.held[request.index] = (slot, known)
        self.requests[slot], self._parts[slot], self._versions[slot] = None, [], []
        return completion

    def _routes(self, slot: int, count: int) -> np.ndarray:
        """int16 [count, L, k]: the experts of a row's tokens, -1 of the last one, which need not have been read."""
        routes = self._routes_of(slot)[:count].copy()
        routes[-1] = -1
        return routes

    def resize(self, order: np.ndarray, size: int) -> None:
        """Slot i becomes the former order[i]; of the `size` slots, those after `order` are empty."""
        rows = self._empty(size)
        for new, old in zip(rows, self.rows, strict=True):
            new[: len(order)] = old[order]
        padding = size - len(order)
        self.rows, new_slot = rows, {int(old): new for new, old in enumerate(order)}
        self.held = {index: (new_slot[slot], known) for index, (slot, known) in self.held.items()}
        self.requests = [self.requests[slot] for slot in order] + [None] * padding
        self._parts = [self._parts[slot] for slot in order] + [[] for _ in range(padding)]
        self._versions = [self._versions[slot] for slot in order] + [[] for _ in range(padding)]


def versions_before(request: Request) -> np.ndarray:
    """int32 [n]: versions of a request's earlier tokens, 0 if it does not know them."""
    return request.versions if len(request.versions) else np.zeros(len(request.tokens), np.int32)


def _describe(rows: SlotRows, i: int, request: Request, key_data: np.ndarray) -> None:
    """Fills row i of `rows` from the request."""
    rows.steps[i], rows.limits[i] = len(request.tokens), request.max_tokens
    rows.keys[i], rows.seeds[i] = key_data, request.index if request.seed is None else request.seed
    rows.stop_ids[i] = -1
    rows.stop_ids[i, : len(request.stop_ids)] = request.stop_ids


def check_lengths(positive: dict[str, int], *, length: int, stored_prompts: int) -> None:
    """Raises ValueError, naming the argument, if an Engine cannot run with it.

    positive: name -> value, for arguments that must be at least 1.
    """
    for name, value in positive.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if length <= positive["prompt_length"]:
        raise ValueError(f"length={length} leaves no token to sample after prompt_length={positive['prompt_length']}")
    if stored_prompts < positive["prefill_rows"]:
        raise ValueError(f"stored_prompts={stored_prompts} must be at least prefill_rows={positive['prefill_rows']}")


def check_sizes(slots: int, sizes: tuple[int, ...] | None, shards: int) -> tuple[int, ...]:
    """The row counts to compile for, `slots` first; halves if none are given. Raises ValueError if they are invalid."""
    if sizes is None:
        sizes = [slots]
        while sizes[-1] % (2 * shards) == 0 and sizes[-1] > 4:
            sizes.append(sizes[-1] // 2)
    if sizes[0] != slots or any(small >= large for large, small in zip(sizes, sizes[1:], strict=False)):
        raise ValueError(f"sizes={tuple(sizes)} must decrease, starting from slots={slots}")
    if any(size % shards or size < 1 for size in sizes):
        raise ValueError(f"sizes={tuple(sizes)} must be multiples of {shards}, the devices that rows are split over")
    return tuple(sizes)
