"""Continuous batching: rows that end make room for the next request, and few rows run as a small program.

The loop on the host is admit, compact, decode; the programs are in programs.py. A request's tokens depend only on its
key, its prompt and the params, not on its slot, its neighbours, or the order of requests.
"""

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import chex
import jax
import numpy as np

from rl_jax.core.types import Model, Params
from rl_jax.rollout.lm.cache import Place, PromptStore
from rl_jax.rollout.lm.programs import Drawn, EnginePrograms, shards_of
from rl_jax.rollout.lm.requests import Completion, Request, check_request
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.rollout.lm.slots import Slots, check_lengths, check_sizes, versions_before


class Engine:
    """Requests in, completions out, over `slots` rows of KV cache.

    The full-size cache is kept from one use to the next; compacted ones are made when needed. On the CPU backend an
    unstacked copy of the params is kept too (see engine.for_decoding). Of a model that records routes, completions have
    the experts that ran for their tokens. The attribute `programs` holds the compiled
    programs (see programs.EnginePrograms).

    Args:
      model: with `extend`.
      slots: rows decoded at once, at most.
      prompt_length: the longest context that a request may start with (its prompt, and the earlier tokens if it is
        resumed); rounded up to whole chunks.
      length: the longest sequence; rounded up to whole chunks.
      sampling: as in engine.make_generate.
      eos_ids: as in engine.make_generate.
      chunk: tokens per prefill iteration; prompts share prefixes in whole chunks.
      steps: the most tokens per row that are decoded before the host checks (aborts, stop strings, new params).
      sizes: the row counts that programs are compiled for, by default `slots` and its halves down to 4. With no request
        waiting, the live rows move to the smallest size that holds them.
      refill: how many slots must be free before waiting requests are admitted; 0 is an eighth of `slots`.
      prefill_rows: prompts per prefill call.
      stored_prompts: rows of the prompt store.
      stop_width: the most stop ids that a request may have.
      decode_text: token ids -> text, for stop strings.
      rows_sharding: NamedSharding of [slots, ...], as from sharding.batch_sharding; None is one device.

    Raises:
      ValueError: if a size is invalid, or the model has no `extend`.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        prompt_length: int,
        length: int,
        sampling: Sampling = Sampling(),
        eos_ids: tuple[int, ...],
        chunk: int = 32,
        steps: int = 64,
        sizes: tuple[int, ...] | None = None,
        refill: int = 0,
        prefill_rows: int = 4,
        stored_prompts: int = 8,
        stop_width: int = 4,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        rows_sharding: jax.sharding.NamedSharding | None = None,
    ):
        sampling.check(model.vocab_size)
        if model.extend is None:
            raise ValueError("the model has no `extend`, which continuous batching needs: use engine.make_generate")
        positive = dict(slots=slots, prompt_length=prompt_length, chunk=chunk, steps=steps, prefill_rows=prefill_rows)
        check_lengths(positive, length=length, stored_prompts=stored_prompts)
        self.sizes = check_sizes(slots, sizes, shards_of(rows_sharding))
        self.prompt_length, self.length = (-(-n // chunk) * chunk for n in (prompt_length, length))
        self.refill = refill or max(1, slots // 8)
        self.programs = EnginePrograms(
            model,
            sampling,
            chunk=chunk,
            steps=steps,
            length=self.length,
            eos_ids=tuple(eos_ids),
            prefill_rows=prefill_rows,
            rows_sharding=rows_sharding,
        )
        self._prefill_rows = prefill_rows
        self._admit_sizes = sorted({min(self.refill, slots), slots})
        self._chunk, self._holds = chunk, rows_sharding is None
        self._limits = dict(
            vocab_size=model.vocab_size,
            prompt_length=self.prompt_length,
            length=self.length,
            stop_width=stop_width,
            has_text=decode_text is not None,
        )
        self._prompts = PromptStore(stored_prompts, chunk)
        self._queue: deque[tuple[Request, np.ndarray]] = deque()
        self._slots = Slots(
            slots,
            eos_ids=tuple(eos_ids),
            stop_width=stop_width,
            key_data=np.asarray(jax.random.key_data(jax.random.key(0))),
            decode_text=decode_text,
            routes_of=(lambda slot: self.programs.recorded(self._state, slot)) if model.routes else None,
        )
        self._store = self._state = self._unstacked = None  # made with the first params
        self._spare = None  # the full-size state while a smaller one is in use
        self._known_params: list[weakref.ref] = []

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._queue and not self._slots.rows.live.any()

    def compile_count(self) -> int:
        """Number of programs compiled so far: constant after warm_up, for any requests."""
        return self.programs.compile_count()

    def submit(self, requests: Iterable[Request], key: chex.PRNGKey) -> None:
        """Queues requests.

        Args:
          requests: with indices that are not in the engine yet.
          key: one typed key, whose fold_in with a request's seed is the row's.

        Raises:
          ValueError: if a request does not fit, naming it and the field; nothing is queued then.
        """
        key_data = np.asarray(jax.random.key_data(key))
        if key_data.shape != self._slots.rows.keys.shape[1:]:
            raise ValueError(f"key has {key_data.shape} words: use jax's default implementation of random keys")
        requests = list(requests)
        inside = [request for request, _ in self._queue] + self._slots.requests
        known = {request.index for request in inside if request is not None}
        for request in requests:
            check_request(request, **self._limits)
            if request.index in known:
                raise ValueError(f"request {request.index}: a request with this index is already in the engine")
            if request.hold and not self._holds:
                raise ValueError(f"request {request.index}: hold=True works on one device only")
            known.add(request.index)
        self._queue.extend((request, key_data) for request in requests)

    def abort(self, indices: Collection[int] | None = None) -> list[Completion]:
        """Removes requests, waiting or running, and returns what they have so far; None removes all."""

        def wanted(request: Request | None) -> bool:
            return request is not None and (indices is None or request.index in indices)

        self._slots.held = {} if indices is None else {k: v for k, v in self._slots.held.items() if k not in indices}
        waiting = [request for request, _ in self._queue if wanted(request)]
        self._queue = deque(entry for entry in self._queue if not wanted(entry[0]))
        running = [slot for slot, request in enumerate(self._slots.requests) if wanted(request)]
        return [self._slots.complete(slot, "aborted") for slot in running] + [
            Completion(r, r.tokens, r.sampled_log_probs, r.raw_log_probs, "aborted", versions_before(r))
            for r in waiting
        ]

    def step(self, params: Params, version: int = 0) -> list[Completion]:
        """Fills free slots, decodes up to `steps` tokens per row, and returns the requests that ended.

        New params are used from here on: the rows keep their caches, the prompt store is emptied.

        Args:
          params: of the policy.
          version: of these params; written beside each token that they draw.
        """
        params, self._slots.version = self._prepare(params), version
        done = self._resume(params) + self._admit(params)
        self._compact()
        if self._slots.rows.live.any():
            done += self._decode(params)
        return done

    def begun(self) -> dict[int, int]:
        """Index of each request, waiting or running, that has a token -> version of its oldest token."""
        waiting = {r.index: int(versions_before(r)[0]) for r, _ in self._queue if len(r.tokens)}
        return waiting | self._slots.begun()

    def run(self, params: Params) -> list[Completion]:
        """Steps until nothing is left. Returns completions in the order of their indices."""
        done = []
        while not self.idle:
            done += self.step(params)
        return sorted(done, key=lambda completion: completion.request.index)

    def warm_up(self, params: Params, *, hold: bool = False) -> None:
        """Compiles every program. hold: those for held rows, too. Raises RuntimeError if requests are in the engine."""
        if not self.idle:
            raise RuntimeError("warm_up was called with requests in the engine: call it before submitting any")
        params = self._prepare(params)
        self._resize(self.sizes[0])
        for _ in range(2):  # the second round gets buffers as the programs return them
            for rows in (1, self._prefill_rows):
                nowhere = Place(self._prompts.rows, 0, 0)
                self._prefill(params, [(nowhere, np.zeros(1, np.int32))] * rows)
            for width in self._admit_sizes:
                self._enter(params, [], width)
                if hold:
                    self._reenter(params, [], width)
            for size in self.sizes:
                self._resize(size)
                self._state, *_ = self.programs.decode_steps(params, self._state, self._slots.rows, np.int32(0))
                self.programs.recorded(self._state, 0)
            for size in self.sizes[1:]:
                self._resize(self.sizes[0])
                self._resize(size)
            self._resize(self.sizes[0])

    def _prepare(self, params: Params) -> Params:
        """The params in the form that the programs take. Makes the buffers; forgets the prompts if params are new."""
        if self._state is None:
            self._state = self.programs.init_state(self.sizes[0], params)
            self._store = self.programs.init_store(self._prompts.rows, self.prompt_length, params)
        leaves = jax.tree.leaves(params)
        known = [reference() for reference in self._known_params]
        same = len(leaves) == len(known) and all(a is b for a, b in zip(leaves, known, strict=True))
        if not same or not all(isinstance(leaf, jax.Array) for leaf in leaves):  # other arrays may change in place
            self._prompts.clear()
            self._known_params = [weakref.ref(leaf) for leaf in leaves]
            self._unstacked = self.programs.unstack(params) if self.programs.unstack else None
        return params if self._unstacked is None else self._unstacked

    def _admit(self, params: Params) -> list[Completion]:
        """Fills free slots until there are none, or no request waits: a first token may end a row at once."""
        done = []
        while self._queue and (self._slots.count() < self.sizes[0]):
            self._resize(self.sizes[0])
            self._state, self._store = self.programs.cleaned(self._state, self._store, self._slots, self._prompts)
            done += self._enter(params, self._take(params, len(self._slots.free())))
        return done

    def _resume(self, params: Params) -> list[Completion]:
        """Continues the rows that slots hold, whatever else waits: they need no slot."""
        if not self._slots.held:
            return []
        held, others = [], deque()
        for request, key_data in self._queue:
            place = self._slots.continued(request)
            if place is None:
                others.append((request, key_data))
            else:
                held.append((request, key_data, *place))
        if not held:
            return []
        self._queue, width = others, self._admit_sizes[-1]
        self._resize(self.sizes[0])
        moved = [(request, key, self._slots.held[request.index][0], filled) for request, key, _, filled in held]
        parts = [moved[start : start + width] for start in range(0, len(moved), width)]
        return [completion for part in parts for completion in self._reenter(params, part)]

    def _reenter(self, params: Params, taken: list, width: int = 0) -> list[Completion]:
        """Reads what is new in held rows and samples their next tokens; returns the rows that those end.

        Args:
          params: in the form that the programs take.
          taken: (request, key data, slot, filled columns) each.
          width: at least this many rows, for warm_up.
        """
        width = next(size for size in self._admit_sizes if size >= max(width, len(taken)))
        slots, starts, lengths = np.full(width, self._slots.size, np.int32), *np.ones((2, width), np.int32)
        tokens, starts[:] = np.zeros((width, self.length), np.int32), 0
        for i, (request, _, slot, filled) in enumerate(taken):
            context = request.context()
            slots[i], starts[i], lengths[i] = slot, filled // self._chunk * self._chunk, len(context)
            tokens[i, : len(context)] = context
        rows = self._slots.entrants(width, [(request, key_data) for request, key_data, *_ in taken])
        like = self._store.hidden
        self._state, drawn = self.programs.resume(params, self._state, like, slots, rows, tokens, starts, lengths)
        drawn = jax.device_get(drawn)
        entered = [
            self._slots.enter(slot, request, key_data, Drawn(*(x[i : i + 1] for x in drawn)))
            for i, (request, key_data, slot, _) in enumerate(taken)
        ]
        return [completion for completion in entered if completion is not None]

    def _take(self, params: Params, number: int) -> list[tuple[Request, np.ndarray, int]]:
        """Up to `number` requests off the queue, each with its key and the store's row that holds its context."""
        taken, kept, pending = [], set(), []

        def flush():
            if pending:
                self._prefill(params, pending)
                pending.clear()

        while self._queue and len(taken) < number:
            request, key_data = self._queue[0]
            context = request.context()
            row = self._prompts.find(context)
            if row is None:
                if len(kept) == self._prompts.rows:
                    break
                place = self._prompts.add(context, kept)
                if any(place.source == waiting.row for waiting, _ in pending):
                    flush()  # the prefix that this one shares is not computed yet
                pending.append((place, context))
                row = place.row
                if len(pending) == self._prefill_rows:
                    flush()
            kept.add(row)
            taken.append((*self._queue.popleft(), row))
        flush()
        return taken

    def _prefill(self, params: Params, pending: list[tuple[Place, np.ndarray]]) -> None:
        """Computes the caches of a few prompts: one program for a single prompt, and one for prefill_rows."""
        width = 1 if len(pending) == 1 else self._prefill_rows
        rows, sources, starts = np.full(width, self._prompts.rows, np.int32), *np.zeros((2, width), np.int32)
        tokens, lengths = np.zeros((width, self.prompt_length), np.int32), np.ones(width, np.int32)
        for i, (place, context) in enumerate(pending):
            rows[i], sources[i], starts[i] = place
            tokens[i, : len(context)], lengths[i] = context, len(context)
        self._store = self.programs.prefill(params, self._store, rows, sources, tokens, starts, lengths)

    def _enter(self, params: Params, taken: list, width: int = 0) -> list[Completion]:
        """Copies prompts into free slots and samples first tokens; returns the rows that those end."""
        width = next(size for size in self._admit_sizes if size >= max(width, len(taken)))
        free, count = self._slots.free(), len(taken)
        slots, sources = np.full(width, self._slots.size, np.int32), np.zeros(width, np.int32)
        tokens, lengths = np.zeros((width, self.prompt_length), np.int32), np.zeros(width, np.int32)
        slots[:count], sources[:count] = free[:count], [row for *_, row in taken]
        for i, (request, *_) in enumerate(taken):
            context = request.context()
            tokens[i, : len(context)], lengths[i] = context, len(context)
        rows = self._slots.entrants(width, [(request, key_data) for request, key_data, _ in taken])
        self._state, drawn = self.programs.admit(
            params, self._state, self._store, slots, sources, np.int32(count), rows, tokens, lengths
        )
        drawn = jax.device_get(drawn)
        entered = [
            self._slots.enter(slots[i], request, key_data, Drawn(*(x[i : i + 1] for x in drawn)))
            for i, (request, key_data, _) in enumerate(taken)
        ]
        return [completion for completion in entered if completion is not None]

    def _decode(self, params: Params) -> list[Completion]:
        """One call of the decoding program; its tokens are appended to their rows."""
        size, live = self._slots.size, np.flatnonzero(self._slots.rows.live)
        if self._queue:
            threshold = size - min(self.refill, len(self._queue), size)
        else:
            threshold = next((smaller for smaller in self.sizes if smaller < size), 0)
        threshold -= len(self._slots.held)  # they take slots, too
        threshold = min(max(threshold, 0), len(live) - 1)  # a call decodes at least one token
        self._state, drawn, counts = self.programs.decode_steps(
            params, self._state, self._slots.rows, np.int32(threshold)
        )
        drawn, counts = jax.device_get((drawn, counts))
        parts = (self._slots.append(i, Drawn(*(x[i, : counts[i]] for x in drawn))) for i in live)
        return [completion for completion in parts if completion is not None]

    def _compact(self) -> None:
        """Moves the live rows to the smallest size that holds them, if no request waits for the other slots."""
        if not self._queue:
            self._resize(min(size for size in self.sizes if size >= self._slots.count()))

    def _resize(self, size: int) -> None:
        """Moves to `size` slots, which hold all live rows: down by one size at a time, up at once."""
        while self._slots.size > size:
            smaller = next(s for s in self.sizes if s < self._slots.size)
            order = np.argsort(~self._slots.occupied(), kind="stable")[:smaller].astype(np.int32)
            if self._spare is None:
                self._spare = self._state
            self._state = self.programs.compact(self._state, order)
            self._slots.resize(order, smaller)
        if self._slots.size < size:
            self._state, self._spare = self.programs.grow(self._spare, self._state), None
            self._slots.resize(np.arange(self._slots.size), size)
