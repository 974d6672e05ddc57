"""The continuous engine's compiled programs: prefill a few prompts, admit them to slots, decode, compact.

Sequences start at column 0 of a cache, so a token's column is its position. Later columns of a slot hold leftovers of
earlier requests, and nothing attends to them before they are overwritten. Small arrays (tokens, positions, limits) live
on the host and are passed with each call; caches stay on the device and are donated.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.packed_rows import hidden_of_one
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.rollout.lm import cache_layouts
from rl_jax.rollout.lm.engine import for_decoding, is_any, mark_seen, seen_tokens
from rl_jax.rollout.lm.sampling import Sampling, sample


class State(NamedTuple):
    """The device's state of S slots, rows first.

    Attributes:
      cache: the model's.
      seen: bool [S, V]; None without a repetition penalty.
    """

    cache: Any
    seen: chex.Array | None


class Store(NamedTuple):
    """The prompts' caches.

    Attributes:
      cache: the model's, N rows.
      hidden: [N, D], the hidden state of each prompt's last token.
    """

    cache: Any
    hidden: chex.Array


class SlotRows(NamedTuple):
    """The host's state of S slots, numpy. Token t is sampled with fold_in(fold_in(key, seed), t).

    Attributes:
      tokens: int32 [S]. The last token, which is not in the cache yet.
      positions: int32 [S]. The column of the last token.
      steps: int32 [S]. Number of tokens sampled.
      limits: int32 [S]. The most tokens that a row may sample.
      live: bool [S].
      keys: uint32 [S, 2].
      seeds: int32 [S].
      stop_ids: int32 [S, M]. The row's own; -1 is none.
    """

    tokens: np.ndarray
    positions: np.ndarray
    steps: np.ndarray
    limits: np.ndarray
    live: np.ndarray
    keys: np.ndarray
    seeds: np.ndarray
    stop_ids: np.ndarray


class Drawn(NamedTuple):
    """What was sampled, all [S, k] or [S].

    Attributes:
      tokens: int32.
      sampled_log_probs: float32.
      raw_log_probs: float32.
    """

    tokens: chex.Array
    sampled_log_probs: chex.Array
    raw_log_probs: chex.Array


def empty_rows(size: int, stop_width: int, key_data: np.ndarray) -> SlotRows:
    """`size` empty slots."""
    zeros = (np.zeros(size, np.int32) for _ in range(4))
    keys = np.broadcast_to(key_data, (size, *key_data.shape)).copy()
    stop_ids = np.full((size, stop_width), -1, np.int32)
    return SlotRows(*zeros, np.zeros(size, bool), keys, np.zeros(size, np.int32), stop_ids)


def make_prefill(model: Model, *, chunk: int, constrain: Callable = lambda x: x) -> Callable:
    """prefill(params, Store, rows, sources, tokens, starts, lengths) -> Store: R prompts, chunk by chunk.

    The arguments of prefill:

        rows: int32 [R]. The row that a prompt goes to; N drops it.
        sources: int32 [R]. The row whose first columns it shares.
        tokens: int32 [R, W], W the store's columns, a multiple of `chunk`.
        starts: int32 [R]. Number of columns that are copied instead of computed, a multiple of `chunk`.
        lengths: int32 [R], larger than starts.
    """

    def prefill(params: Params, store: Store, rows, sources, tokens, starts, lengths) -> Store:
        chex.assert_rank([rows, sources, tokens, starts, lengths], [1, 1, 2, 1, 1])
        visible = jnp.ones(tokens.shape, bool)
        final = (lengths - 1) // chunk * chunk  # a finished row repeats its last chunk: the same numbers

        def fill(turn, carry):
            cache, last = carry
            columns = jnp.minimum(starts + turn * chunk, final)
            part = jax.vmap(lambda row, column: jax.lax.dynamic_slice_in_dim(row, column, chunk))(tokens, columns)
            positions = columns[:, None] + jnp.arange(chunk)[None]
            real = positions < lengths[:, None]
            batch = TokenBatch(part, jnp.where(real, positions, 0), real.astype(jnp.int32))
            hidden, cache = model.extend(params, batch, cache, columns, visible)
            inside = lengths - 1 - columns
            ends = jnp.take_along_axis(hidden, jnp.minimum(inside, chunk - 1)[:, None, None], axis=1)[:, 0]
            return constrain((cache, jnp.where((inside < chunk)[:, None], ends.astype(last.dtype), last)))

        turns = jnp.max((lengths - starts + chunk - 1) // chunk)
        copied = jax.tree.map(lambda x: x[sources], store)
        filled = jax.lax.fori_loop(0, turns, fill, constrain((copied.cache, copied.hidden)))
        return jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), store, Store(*filled))

    return prefill


def make_admit(model: Model, sampling: Sampling, *, sharded: bool) -> Callable:
    """admit(params, State, Store, slots, sources, count, SlotRows, tokens, lengths) -> State, Drawn [I].

    Copies `count` prompts into slots and samples each row's next token. The arguments of admit:

        slots: int32 [I]; from `count` on they are S, which drops them.
        sources: int32 [I]; any from `count` on.
        SlotRows: of I rows; steps counts the tokens sampled before.
        tokens: int32 [I, W], the rows' contexts, for the repetition penalty.
        lengths: int32 [I], of the contexts.

    Args:
      model: with `unembed`.
      sampling: the sampling rule.
      sharded: whether the slots are on several devices.
    """

    def admit(params: Params, state: State, store: Store, slots, sources, count, rows: SlotRows, tokens, lengths):
        chex.assert_rank([slots, sources, count, tokens, lengths], [1, 1, 0, 2, 1])
        copy = _copy_sharded if sharded else _copy
        cache = jax.tree.map(lambda to, source: copy(to, source, slots, sources, count), state.cache, store.cache)
        seen = context = None
        if state.seen is not None:
            context = seen_tokens(tokens, jnp.arange(tokens.shape[1])[None] < lengths[:, None], model.vocab_size)
            seen = state.seen.at[slots].set(context, mode="drop")
        logits = model.unembed(params, store.hidden[sources])
        drawn = Drawn(*sample(logits, _uniforms(rows, 1)[:, 0], sampling, context))
        if seen is not None:
            seen = seen.at[slots].set(mark_seen(context, drawn.tokens), mode="drop")
        return State(cache, seen), drawn

    return admit


def make_resume(model: Model, sampling: Sampling, *, chunk: int, prefill: Callable) -> Callable:
    """resume(params, State, hidden, slots, SlotRows, tokens, starts, lengths) -> State, Drawn [I].

    Reads what follows the contexts that slots hold, and samples each row's next token. The arguments of resume:

        hidden: [N, D], of any values: the hidden states' width and type.
        slots: int32 [I]; those of no row are S, which drops them.
        SlotRows: of I rows.
        tokens: int32 [I, L], whole contexts; L the cache's columns.
        starts: int32 [I]. Number of columns that the slots have, rounded down to a multiple of `chunk`.
        lengths: int32 [I], of the contexts.

    Args:
      model: with `extend` and `unembed`.
      sampling: the sampling rule.
      chunk: as in make_prefill.
      prefill: of make_prefill.
    """

    def resume(params: Params, state: State, hidden, slots, rows: SlotRows, tokens, starts, lengths):
        chex.assert_rank([slots, tokens, starts, lengths], [1, 2, 1, 1])
        size = jax.tree.leaves(state.cache)[0].shape[0]
        sources = jnp.minimum(slots, size - 1)
        store = Store(state.cache, jnp.zeros((size, hidden.shape[-1]), hidden.dtype))
        cache, hidden = prefill(params, store, slots, sources, tokens, starts, lengths)
        seen = context = None
        if state.seen is not None:
            context = seen_tokens(tokens, jnp.arange(tokens.shape[1])[None] < lengths[:, None], model.vocab_size)
            seen = state.seen.at[slots].set(context, mode="drop")
        drawn = Drawn(*sample(model.unembed(params, hidden[sources]), _uniforms(rows, 1)[:, 0], sampling, context))
        if seen is not None:
            seen = seen.at[slots].set(mark_seen(context, drawn.tokens), mode="drop")
        return State(cache, seen), drawn

    return resume


def _copy(to, source, slots, sources, count):
    """Row by row, in place, so that the cost of an admission does not depend on the number of slots."""

    def one(i, to):
        row = jax.lax.dynamic_slice_in_dim(source, sources[i], 1)
        return jax.lax.dynamic_update_slice(to, row, (slots[i],) + (0,) * (to.ndim - 1))

    return jax.lax.fori_loop(0, count, one, to)


def _copy_sharded(to, source, slots, sources, count):
    """Every slot looks up whether it gets a new row, so that no device writes into another's rows."""
    size = to.shape[0]
    source_of = jnp.full(size, -1, jnp.int32).at[slots].set(sources, mode="drop")
    old = to[(slice(None), *(slice(n) for n in source.shape[1:]))]
    new = jnp.where((source_of >= 0).reshape(size, *[1] * (to.ndim - 1)), source[jnp.maximum(source_of, 0)], old)
    return jax.lax.dynamic_update_slice(to, new, (0,) * to.ndim)


def make_decode_steps(
    model: Model, sampling: Sampling, *, length: int, steps: int, eos_ids: tuple[int, ...]
) -> Callable:
    """decode_steps(params, State, SlotRows, threshold) -> State, Drawn [S, steps], counts int32 [S].

    Runs for `steps` tokens, or until at most `threshold` rows are live. Row i got counts[i] tokens; later entries of
    Drawn are not part of it.

    Args:
      model: with `decode`.
      sampling: the sampling rule.
      length: the cache's columns.
      steps: the most tokens per row.
      eos_ids: any of them ends a row.
    """

    def decode_steps(params: Params, state: State, rows: SlotRows, threshold):
        size = rows.tokens.shape[0]
        visible = jnp.ones((size, length), bool)
        uniforms = _uniforms(rows, steps)

        def body(carry):
            step, state, tokens, live, counts, out = carry
            positions = rows.positions + counts
            hidden, cache = model.decode(params, tokens, positions, state.cache, positions, visible)
            uniform = jax.lax.dynamic_slice_in_dim(uniforms, step, 1, axis=1)[:, 0]
            drawn = Drawn(*sample(model.unembed(params, hidden), uniform, sampling, state.seen))
            out = jax.tree.map(lambda o, x: jax.lax.dynamic_update_slice(o, x[:, None], (0, step)), out, drawn)
            counts += live
            stopped = jnp.any(drawn.tokens[:, None] == rows.stop_ids, axis=1)
            ended = is_any(drawn.tokens, eos_ids) | stopped | (rows.steps + counts >= rows.limits)
            tokens = jnp.where(live, drawn.tokens, tokens)
            return step + 1, State(cache, mark_seen(state.seen, tokens)), tokens, live & ~ended, counts, out

        blank = jnp.zeros((size, steps), jnp.float32)
        out = Drawn(jnp.zeros((size, steps), jnp.int32), blank, blank)
        carry = (jnp.int32(0), state, rows.tokens, rows.live, jnp.zeros(size, jnp.int32), out)
        carry = jax.lax.while_loop(lambda c: (c[0] < steps) & (jnp.sum(c[3]) > threshold), body, carry)
        _, state, _, _, counts, out = carry
        return state, out, counts

    return decode_steps


def make_routes(model: Model) -> Callable:
    """routes(State, slot) -> int16 [length, L, k]: the experts that a slot's cache has recorded. slot: int32 []."""

    def routes(state: State, slot: chex.Array) -> chex.Array:
        one = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, slot, 1), state.cache)
        return model.routes(one)[0]

    return routes


def compact(state: State, slots: chex.Array) -> State:
    """The State of the given slots only, in their order: int32 [s] of S -> State of s rows."""
    return jax.tree.map(lambda x: x[slots], state)


class EnginePrograms:
    """The programs, compiled for one model and its sizes, and their initial buffers.

    rows_sharding: NamedSharding of [slots, ...]; None is one device. With a sharding, a device has its own slots and
    heads; the prompt store has all rows on each of those that share heads. If prefill_rows is a multiple of the number
    of row shards, each shard computes its own prompts.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        *,
        chunk: int,
        steps: int,
        length: int,
        eos_ids: tuple[int, ...],
        prefill_rows: int,
        rows_sharding: jax.sharding.NamedSharding | None,
    ):
        self._model, self._length, self._penalty = model, length, sampling.repetition_penalty != 1.0
        self._mesh = mesh = None if rows_sharding is None else rows_sharding.mesh
        everywhere = of_state = of_store = None
        constrain = lambda tree: tree  # noqa: E731
        if mesh is not None:
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            count = shards_of(rows_sharding)
            of_state = cache_layouts.shardings_of(self._state_shapes(count), mesh, split_rows=True)
            cache = jax.eval_shape(lambda: model.init_cache(1, length))
            caches = cache_layouts.shardings_of(cache, mesh, split_rows=False)
            of_store = Store(caches, everywhere)
            if prefill_rows % count == 0:
                constrain = functools.partial(cache_layouts.constrain_rows, mesh=mesh)

        def program(fn, donated, out_shardings):
            if mesh is None:
                return jax.jit(fn, donate_argnums=donated)
            return jax.jit(cache_layouts.on(mesh, fn), donate_argnums=donated, out_shardings=out_shardings)

        prefill = make_prefill(model, chunk=chunk, constrain=constrain)
        self.prefill = program(prefill, 1, of_store)
        resume = make_resume(model, sampling, chunk=chunk, prefill=prefill)
        self.resume = program(resume, 1, (of_state, everywhere))
        admit = make_admit(model, sampling, sharded=rows_sharding is not None)
        self.admit = program(admit, 1, (of_state, everywhere))
        decode_steps = make_decode_steps(model, sampling, length=length, steps=steps, eos_ids=eos_ids)
        self.decode_steps = program(decode_steps, 1, (of_state, everywhere, everywhere))
        self.compact = program(compact, (), of_state)
        self.grow = program(grow, 0, of_state)
        # Not compiled ahead, and not counted: a run whose rows are finite has no use for them.
        self.clean_state, self.clean_store = program(clean, 0, of_state), program(clean, 0, of_store)
        self.routes = program(make_routes(model), (), everywhere) if model.routes else None
        unstack = for_decoding(model)
        self.unstack = jax.jit(unstack) if unstack else None

    def compile_count(self) -> int:
        """Number of programs compiled so far."""
        compiled = (self.prefill, self.admit, self.resume, self.decode_steps, self.compact, self.grow)
        return sum(program._cache_size() for program in (*compiled, self.routes) if program is not None)

    def cleaned(self, state: State, store: Store, slots: Any, prompts: Any) -> tuple[State, Store]:
        """The buffers without what rows that were not finite left in them, before another row gets such a slot.

        A row does not attend to what an earlier one left in its slot, but 0 x nan is nan. To zero a slot at each
        admission, or masked values at each step, would cost all runs what only these need: rows whose log-probs are
        nan, which the host sees when they end. Slots in use keep their contents: rows are independent of each other.

        Args:
          state: donated if there is such a row.
          store: of prompts; donated likewise.
          slots: slots.Slots; not spoilt after this.
          prompts: cache.PromptStore; forgets its prompts if there is such a row.
        """
        if not slots.spoilt:
            return state, store
        prompts.clear()
        slots.spoilt = bool(slots.held)  # a held row may be such a one: it is not seen when it is let go
        return self.clean_state(state, slots.occupied()), self.clean_store(store, np.zeros(prompts.rows, bool))

    def recorded(self, state: State, slot: int) -> np.ndarray | None:
        """int16 [length, L, k]. The experts that a slot's cache has, leftovers included; None if it records none."""
        return None if self.routes is None else jax.device_get(self.routes(state, np.int32(slot)))

    def init_state(self, size: int, params: Params) -> State:
        """The State of `size` empty slots."""
        if self._mesh is None:
            return _beside(self._empty_state(size), params)
        return cache_layouts.make_in_shards(lambda: self._empty_state(size), self._mesh, split_rows=True)

    def _empty_state(self, size: int) -> State:
        seen = jnp.zeros((size, self._model.vocab_size), bool) if self._penalty else None
        return State(self._model.init_cache(size, self._length), seen)

    def _state_shapes(self, size: int) -> State:
        return jax.eval_shape(lambda: self._empty_state(size))

    def init_store(self, rows: int, length: int, params: Params) -> Store:
        """An empty Store of `rows` prompts of `length` columns."""
        hidden = hidden_of_one(self._model.apply, params)

        def make():
            return Store(self._model.init_cache(rows, length), jnp.zeros((rows, hidden.shape[-1]), hidden.dtype))

        if self._mesh is None:
            return _beside(make(), params)
        return cache_layouts.make_in_shards(make, self._mesh, split_rows=False)


def shards_of(rows_sharding: jax.sharding.NamedSharding | None) -> int:
    """Number of devices, or groups of devices, that rows are split over."""
    if rows_sharding is None:
        return 1
    devices = rows_sharding.num_devices
    return devices // rows_sharding.shard_shape((devices,))[0]


def _beside(tree, params):
    """`tree` placed and committed like the params.

    Otherwise a second call of a program that returns such buffers would compile again.
    """
    leaf = jax.tree.leaves(params)[0]
    return jax.device_put(tree, leaf.sharding) if isinstance(leaf, jax.Array) and leaf.committed else tree


def grow(large: State, small: State) -> State:
    """`large` with its first slots replaced by those of `small`."""
    return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice(x, y, (0,) * x.ndim), large, small)


def clean(rows: State | Store, kept: chex.Array) -> State | Store:
    """The buffers with zeros in the rows that are not kept; kept: bool [S] or [N]."""
    return jax.tree.map(lambda x: jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros_like(x)), rows)


def _uniforms(rows: SlotRows, number: int) -> chex.Array:
    """Each row's uniform numbers for its next tokens: float32 [S, number]."""
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(rows.keys), rows.seeds)
    steps = rows.steps[:, None] + jnp.arange(number)[None]
    one = jax.vmap(lambda key, step: jax.random.uniform(jax.random.fold_in(key, step)), in_axes=(None, 0))
    return jax.vmap(one)(keys, steps)
