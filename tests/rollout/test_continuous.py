"""rollout/continuous.py: the same rows as the lockstep engine's, whatever the slots, the order and the disturbance."""

import copy
import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm import generate, programs
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.generate import ContinuousGenerate
from rl_jax.rollout.lm.requests import Request, requests_of
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.rollout.lm.slots import check_sizes
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, counting_model, prompts
from tests.tiny import random_params as make_params

TINY = make_transformer(CONFIG)
LENGTHS, WIDTH, LIMIT, GROUP = [6, 2, 8, 1, 7], 8, 12, 3
EOS = tuple(range(5, 64, 8))  # so many that rows end at all lengths
ENGINE = dict(slots=4, sizes=(4, 2), prompt_length=WIDTH, length=WIDTH + LIMIT, eos_ids=EOS, chunk=4, steps=5)
KEY = 3
random_params = functools.cache(make_params)  # nothing here writes into them
# A prompt is one chunk, so none begins with another's; rows are prefilled one by one, and one prompt is stored.
ONE_BY_ONE = dict(slots=3, sizes=(3,), steps=64, prefill_rows=1, stored_prompts=1, chunk=8)


@functools.cache
def _lockstep(sampling=Sampling(), seed=0):
    """15 rows of the other engine, of 1 to LIMIT tokens."""
    options = dict(completion_length=LIMIT, group_size=GROUP, sampling=sampling, eos_ids=EOS)
    rollout = jax.jit(make_generate(TINY, **options))(
        random_params(seed=seed), *prompts(LENGTHS, WIDTH), jax.random.key(KEY)
    )
    rollout = jax.device_get(rollout)
    assert len(set(rollout.completion_mask.sum(axis=1))) > 3, "rows of one length would not show a refilled slot"
    return rollout


@functools.cache
def _engine(sampling=Sampling(), **options):
    return Engine(TINY, sampling=sampling, **ENGINE | options)


def _requests(**options):
    return requests_of(*prompts(LENGTHS, WIDTH), group_size=GROUP, **dict(max_tokens=LIMIT) | options)


def _run(engine, requests, params=None, key=KEY):
    engine.submit(requests, jax.random.key(key))
    return engine.run(random_params() if params is None else params)


def _assert_rows(completions, rollout, rows=None):
    """Each completion is the rollout's row of its index."""
    assert [c.request.index for c in completions] == (list(range(15)) if rows is None else rows)
    for completion in completions:
        row, length = completion.request.index, len(completion.tokens)
        assert length == rollout.completion_mask[row].sum()
        np.testing.assert_array_equal(completion.tokens, rollout.batch.tokens[row, WIDTH:][:length])
        np.testing.assert_allclose(completion.sampled_log_probs, rollout.sampled_log_probs[row, :length], atol=1e-5)
        np.testing.assert_allclose(completion.raw_log_probs, rollout.raw_log_probs[row, :length], atol=1e-5)
        assert completion.reason == ("eos" if rollout.finished[row] else "length")


@pytest.mark.slow
def test_rows_are_the_lockstep_engines_in_any_order_and_number():
    requests = _requests()
    _assert_rows(_run(_engine(), requests), _lockstep())
    shuffled = [requests[i] for i in np.random.default_rng(0).permutation(15)]
    _assert_rows(_run(_engine(), shuffled), _lockstep())
    _assert_rows(_run(_engine(), [requests[7]]), _lockstep(), [7])
    _assert_rows(_run(_engine(**ONE_BY_ONE), requests), _lockstep())


@pytest.mark.slow
def test_rules_are_the_lockstep_engines():
    """All at once: a row's own tokens are penalised, in its slot, before the rest is cut."""
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.5, min_p=0.02)
    rollout = _lockstep(sampling)
    _assert_rows(_run(_engine(sampling, sizes=(4,)), _requests()), rollout)
    assert np.max(np.abs(rollout.sampled_log_probs - rollout.raw_log_probs)) > 0.1


@pytest.mark.slow
def test_rollout_equals_the_lockstep_engines_and_the_scorer():
    generate = ContinuousGenerate(
        TINY, prompt_length=WIDTH, completion_length=LIMIT, group_size=GROUP, eos_ids=EOS, slots=4, sizes=(4, 2),
        chunk=4, steps=5,
    )  # fmt: skip
    tokens, mask = prompts(LENGTHS, WIDTH)
    rollout, expected = generate(random_params(), tokens, mask, jax.random.key(KEY)), _lockstep()
    for field in ("batch", "completion_mask", "finished", "truncated"):
        jax.tree.map(np.testing.assert_array_equal, getattr(rollout, field), getattr(expected, field))
        dtypes = [jax.tree.map(lambda x: x.dtype, getattr(r, field)) for r in (rollout, expected)]
        assert dtypes[0] == dtypes[1]
    scores = jax.jit(make_score(TINY, completion_length=LIMIT))(random_params(), rollout.batch)
    gap = np.where(rollout.completion_mask, scores.log_probs - rollout.raw_log_probs, 0.0)
    assert np.max(np.abs(gap)) < 1e-5
    limits = np.arange(15) % 4 + 1
    short = generate(random_params(), tokens, mask, jax.random.key(KEY), limits)
    np.testing.assert_array_equal(
        short.completion_mask.sum(axis=1), np.minimum(limits, expected.completion_mask.sum(axis=1))
    )
    np.testing.assert_array_equal(
        short.batch.tokens[:, WIDTH:][short.completion_mask], expected.batch.tokens[:, WIDTH:][short.completion_mask]
    )
    lockstep = make_generate(TINY, completion_length=LIMIT, group_size=GROUP, eos_ids=EOS)
    lockstep = jax.jit(lockstep)(random_params(), tokens, mask, jax.random.key(KEY), jnp.array(limits, jnp.int32))
    for field in ("batch", "completion_mask", "finished", "truncated"):
        jax.tree.map(np.testing.assert_array_equal, getattr(short, field), getattr(lockstep, field))
    with pytest.raises(ValueError, match="max_tokens=13 is above completion_length=12"):
        generate(random_params(), tokens, mask, jax.random.key(KEY), limits + 9)


@pytest.mark.slow
def test_shared_beginnings_and_chunks_change_nothing():
    """Prompts with one system prompt, in one chunk and in many, one by one and together."""
    tokens, mask = prompts([8, 8, 8, 8], 8)
    tokens = tokens.at[:, :5].set(tokens[0, :5])  # one whole chunk of 4, and a token of the next
    expected = jax.jit(make_generate(TINY, completion_length=6, eos_ids=()))(
        random_params(), tokens, mask, jax.random.key(0)
    )
    for options in (dict(), dict(chunk=2, prefill_rows=1), ONE_BY_ONE):
        engine = _engine(**options)
        starts, add = [], engine._prompts.add
        engine._prompts.add = lambda *a, add=add, starts=starts: starts.append(add(*a)) or starts[-1]
        requests = [r._replace(max_tokens=6) for r in requests_of(tokens, mask, group_size=1, max_tokens=6)]
        completions = _run(engine, requests, make_params(), key=0)  # new params: nothing is stored yet
        del engine._prompts.add
        assert [place.start for place in starts] == [0] + [{4: 4, 2: 4, 8: 0}[engine._prompts.chunk]] * 3
        for row, completion in enumerate(completions):
            length = len(completion.tokens)
            np.testing.assert_array_equal(completion.tokens, expected.batch.tokens[row, 8 : 8 + length])
            np.testing.assert_allclose(completion.raw_log_probs, expected.raw_log_probs[row, :length], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(), (3, 0)], ids=["full", "window"])
def test_extend_equals_the_whole_forward(windows):
    """Chunks of 3 at columns of each row's own against `apply`, for rows that begin at other columns."""
    import dataclasses

    model = make_transformer(dataclasses.replace(CONFIG, windows=windows))
    tokens, starts = jax.random.randint(jax.random.key(1), (3, 9), 3, 64), jnp.array([0, 2, 5])
    positions = jnp.broadcast_to(jnp.arange(9, dtype=jnp.int32)[None], (3, 9))
    expected = jax.jit(model.apply)(random_params(), TokenBatch(tokens, positions, jnp.ones((3, 9), jnp.int32)))
    cache, found = model.init_cache(3, 14), []
    visible = jnp.arange(14)[None] >= starts[:, None]
    extend = jax.jit(model.extend)
    for first in range(0, 9, 3):
        part = slice(first, first + 3)
        batch = TokenBatch(tokens[:, part], positions[:, part], jnp.ones((3, 3), jnp.int32))
        hidden, cache = extend(random_params(), batch, cache, starts + first, visible)
        found.append(hidden)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, atol=2e-5)


@pytest.mark.slow
def test_abort_and_resume_equal_undisturbed():
    engine = _engine(prompt_length=WIDTH + LIMIT, length=WIDTH + 2 * LIMIT, steps=3)
    engine.submit(_requests(), jax.random.key(KEY))
    done = [c for _ in range(2) for c in engine.step(random_params())]
    (chosen,) = engine.abort([engine._slots.requests[0].index])
    stopped = [chosen, *engine.abort()]
    assert engine.idle and len(done) + len(stopped) == 15 and {c.reason for c in stopped} == {"aborted"}
    parts = sorted(len(c.tokens) for c in stopped)
    assert parts[0] == 0 and parts[-1] > 0, "both waiting and running requests were to be aborted"
    done += _run(engine, [c.resumed() for c in reversed(stopped)])
    _assert_rows(sorted(done, key=lambda c: c.request.index), _lockstep())


@pytest.mark.slow
def test_nothing_is_compiled_after_warm_up():
    traces = []

    def counted(fn):
        return lambda *args: traces.append(1) or fn(*args)

    model = TINY._replace(decode=counted(TINY.decode), extend=counted(TINY.extend), unembed=counted(TINY.unembed))
    engine, params = Engine(model, **ENGINE | dict(sizes=(4, 2, 1))), random_params()
    engine.warm_up(params)
    warm = len(traces), engine.compile_count()
    assert warm[0] >= 5
    rng = np.random.default_rng(0)
    for call in range(30):
        lengths = rng.integers(1, WIDTH + 1, rng.integers(1, 6))
        requests = requests_of(*prompts(lengths, WIDTH, seed=call), group_size=rng.integers(1, 3), max_tokens=LIMIT)
        requests = [r._replace(max_tokens=int(rng.integers(1, LIMIT + 1)), stop_ids=(call,)) for r in requests]
        engine.submit(requests[:3], jax.random.key(call))
        engine.step(params)
        engine.submit([r._replace(index=100 + r.index) for r in requests], jax.random.key(call))  # into a small program
        if call % 3 == 0:
            engine.step(jax.tree.map(lambda x: x * 1.01, params))
            engine.abort([100])
        engine.run(params)
    assert len(traces) == warm[0] and engine.compile_count() <= warm[1]  # jax may have forgotten some, among many tests


def test_rows_of_nan_leave_nothing_to_the_next_rows_of_their_slots():
    """0 x nan is nan: what a row does not attend to must be finite, too, in slots, spare slots and stored prompts.

    One token's embedding is nan: rows that read it are nan from there on, as in the lockstep engine, whose cache is new
    at each call; the others are finite, whoever had their slot before.
    """
    model = make_transformer(dataclasses.replace(CONFIG, num_layers=1, tied_head=False))
    good = model.init(jax.random.key(0))
    tokens, mask = prompts(LENGTHS, WIDTH)
    bad = copy.deepcopy(good)
    bad["embed"]["embedding"] = good["embed"]["embedding"].at[tokens[1, -1]].set(np.nan)
    options = dict(completion_length=LIMIT, group_size=GROUP, eos_ids=EOS[:2])
    lockstep = jax.jit(make_generate(model, **options))
    slots = dict(slots=4, sizes=(4, 1), prompt_length=WIDTH, chunk=4, steps=2, stored_prompts=2, prefill_rows=1)
    generate = ContinuousGenerate(model, **slots, **options)

    def check(params, key):
        found, expected = generate(params, tokens, mask, key), lockstep(params, tokens, mask, key)
        np.testing.assert_array_equal(found.batch.tokens, expected.batch.tokens)
        np.testing.assert_allclose(found.raw_log_probs, expected.raw_log_probs, atol=1e-5)  # nan is nan
        return np.isnan(found.raw_log_probs).any(axis=1)

    for seed in range(2):
        assert 0 < check(bad, jax.random.key(seed)).sum() < len(mask) * GROUP
    check(jax.tree.map(lambda x: x * np.nan, good), jax.random.key(0))
    assert not check(good, jax.random.key(0)).any()
    engine, requests = generate.engine, requests_of(tokens, mask, group_size=1, max_tokens=LIMIT)
    engine.submit([requests[1]._replace(max_tokens=3)], jax.random.key(0))
    engine.step(bad)
    engine.abort()  # a row that did not end has filled a slot, too
    assert not check(good, jax.random.key(0)).any() and not engine._slots.spoilt
    engine._slots.held, engine._slots.spoilt = {9: (0, tokens[0])}, True
    for held in (True, False):  # until it is let go a row that is held may be such a one
        engine._state, engine._store = engine.programs.cleaned(
            engine._state, engine._store, engine._slots, engine._prompts
        )
        assert engine._slots.spoilt == held
        engine._slots.held = {}


@pytest.mark.slow
def test_new_params_between_steps():
    engine, old, new = _engine(), random_params(), random_params(seed=1)
    engine.warm_up(old)
    _assert_rows(_run(engine, _requests(), old), _lockstep())
    count = engine.compile_count()
    _assert_rows(_run(engine, _requests(), new), _lockstep(seed=1))  # and no prompt of the old params
    engine.submit(_requests()[:4], jax.random.key(KEY))
    first = engine.step(old)
    engine_tokens = {r.index: np.concatenate([p.tokens for p in engine._slots._parts[slot]])
                     for slot, r in enumerate(engine._slots.requests) if r is not None}  # fmt: skip
    mixed = [c for c in engine.run(new) if c.request.index in engine_tokens]
    assert mixed and engine.compile_count() <= count and len(first) + len(mixed) == 4
    changed = 0
    for completion in mixed:
        row, before = completion.request.index, engine_tokens[completion.request.index]
        np.testing.assert_array_equal(completion.tokens[: len(before)], before)
        alone = _lockstep().batch.tokens[row, WIDTH:][: len(completion.tokens)]
        np.testing.assert_array_equal(before, alone[: len(before)])
        changed += not np.array_equal(completion.tokens, alone)
    assert changed


def test_buffers_are_made_in_their_shards(monkeypatch):
    """A device never has another's rows or heads, not even before the first call; over `context` all are equal."""
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,context:2,tensor:2"))
    rows, model = sharding.batch_sharding(mesh), sharding.model_on_mesh(TINY, mesh)
    engine = Engine(model, **ENGINE | dict(slots=8, sizes=(8, 4), rows_sharding=rows))
    monkeypatch.setattr(jax, "device_put", None)  # nothing is made elsewhere and moved
    params = jax.eval_shape(TINY.init, jax.random.key(0))
    state = engine.programs.init_state(8, params)
    store = engine.programs.init_store(4, 8, params)
    state = engine.programs.clean_state(state, np.zeros(8, bool))
    store = engine.programs.clean_store(store, np.zeros(4, bool))
    heads = CONFIG.num_kv_heads // 2
    for tree, rows in ((state.cache, 4), (store.cache, 4)):
        for leaf in jax.tree.leaves(tree):
            assert {shard.data.shape[:2] for shard in leaf.addressable_shards} == {(rows, heads)}
            assert not np.any(np.asarray(leaf)) and leaf.committed
    assert all(shard.data.shape == store.hidden.shape for shard in store.hidden.addressable_shards)


@pytest.mark.slow
def test_a_mesh_of_eight_devices():
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    rows = sharding.batch_sharding(mesh)
    engine = Engine(TINY, **ENGINE | dict(slots=8, sizes=(8, 4), rows_sharding=rows))
    params = jax.device_put(random_params(), sharding.tree_shardings(random_params(), mesh))
    engine.warm_up(params)
    count = engine.compile_count()
    _assert_rows(_run(engine, _requests(), params), _lockstep())
    assert engine.compile_count() <= count
    leaf = jax.tree.leaves(engine._state)[0]
    assert leaf.sharding.shard_shape(leaf.shape)[:2] == (leaf.shape[0] // 4, CONFIG.num_kv_heads // 2)
    with pytest.raises(ValueError, match=r"sizes=\(6, 3\) must be multiples of 4, the devices"):
        Engine(TINY, **ENGINE | dict(slots=6, sizes=(6, 3), rows_sharding=rows))


def _counting(**options):
    """An engine of the counting model: the completion of a prompt that ends with n is n + 1, n + 2, ..."""
    model = counting_model()
    model = model._replace(extend=lambda params, batch, cache, columns, visible: (model.apply(params, batch), cache))
    defaults = dict(slots=2, sizes=(2,), prompt_length=4, length=16, eos_ids=(15,), chunk=4, sampling=Sampling(top_k=1))
    return Engine(model, **defaults | options)


def _letters(ids):
    return "".join(chr(ord("a") + i) for i in ids)


@pytest.mark.slow
def test_ends_by_hand():
    ends = {
        "limit": dict(max_tokens=3),
        "eos": dict(max_tokens=12, prompt=np.array([1, 12])),
        "eos as the last": dict(max_tokens=3, prompt=np.array([1, 12])),
        "stop id": dict(max_tokens=9, stop_ids=(7, 6)),
        "stop id at once": dict(max_tokens=9, stop_ids=(2,)),
        "stop string": dict(max_tokens=9, stop_strings=("zz", "ef")),
        "string before id": dict(max_tokens=9, stop_strings=("d",), stop_ids=(9,)),
        "string at once": dict(max_tokens=9, stop_strings=("c",)),
        "string of the prompt": dict(max_tokens=3, stop_strings=("b",)),
    }
    requests = [Request(**dict(index=i, prompt=np.array([3, 1])) | end) for i, end in enumerate(ends.values())]
    expected = [
        ("length", [2, 3, 4]), ("eos", [13, 14, 15]), ("eos", [13, 14, 15]), ("stop", [2, 3, 4, 5, 6]), ("stop", [2]),
        ("stop", [2, 3, 4, 5]), ("stop", [2, 3]), ("stop", [2]), ("length", [2, 3, 4]),
    ]  # fmt: skip
    for steps in (3, 64):
        completions = _run(_counting(steps=steps, decode_text=_letters), requests, {"w": jnp.zeros(1)})
        found = [(c.reason, c.tokens.tolist()) for c in completions]
        assert found == expected, f"steps={steps}"
        assert all(len(c.tokens) == len(c.sampled_log_probs) == len(c.raw_log_probs) for c in completions)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(slots=0), "slots=0 must be at least 1"),
        (dict(chunk=0), "chunk=0"),
        (dict(length=4), "length=4 leaves no token to sample after prompt_length=4"),
        (dict(sizes=(1, 2)), r"sizes=\(1, 2\) must decrease, starting from slots=2"),
        (dict(stored_prompts=2), "stored_prompts=2 must be at least prefill_rows=4"),
        (dict(sampling=Sampling(temperature=0)), "temperature=0"),
    ],
    ids=str,
)
def test_senseless_engines_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        _counting(**options)


def test_an_eighth_of_the_slots_is_refilled_if_nothing_else_is_said():
    for slots, refill, expected in ((2, 0, 1), (8, 0, 1), (16, 0, 2), (40, 0, 5), (16, 7, 7)):
        assert _counting(slots=slots, sizes=(slots,), refill=refill).refill == expected


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_devices_compute_their_own_prompts_where_these_divide_over_them(monkeypatch, rows):
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2"), jax.devices()[:2])
    places, make_prefill = [], programs.make_prefill
    split, shardings_of = [], programs.cache_layouts.shardings_of

    def shardings(tree, mesh, *, split_rows):
        split.append(split_rows)
        return shardings_of(tree, mesh, split_rows=split_rows)

    monkeypatch.setattr(programs.cache_layouts, "shardings_of", shardings)
    monkeypatch.setattr(programs.cache_layouts, "constrain_rows", lambda tree, mesh: ("by rows", mesh))
    monkeypatch.setattr(
        programs, "make_prefill", lambda *a, **b: places.append(b["constrain"]) or make_prefill(*a, **b)
    )
    fields = dict(slots=8, sizes=(8, 4), prefill_rows=rows, rows_sharding=sharding.batch_sharding(mesh))
    Engine(TINY, **ENGINE | fields)
    assert split == [True, False], "of the slots, and of the prompts, which all devices have"
    assert places[0]("tree") == ("tree" if rows == 3 else ("by rows", mesh))


def test_a_model_without_extend_is_named():
    with pytest.raises(ValueError, match="the model has no `extend`"):
        Engine(counting_model(), **ENGINE)


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(prompt=np.array([], int)), "request 1: prompt is empty"),
        (dict(prompt=np.array([1] * 5)), "request 1: prompt and earlier tokens are 5, above prompt_length=4"),
        (dict(prompt=np.array([1, 16])), "request 1: a token of prompt or tokens is outside the vocabulary of 16"),
        (dict(max_tokens=0), "request 1: max_tokens=0 leaves nothing to sample after 0 tokens"),
        (dict(max_tokens=15), "request 1: a prompt of 2 and max_tokens=15 are above length=16"),
        (dict(tokens=np.array([3])), "request 1: tokens, sampled_log_probs and raw_log_probs differ in length"),
        (dict(stop_ids=(1, 2, 3, 4, 5)), "request 1: stop_ids has 5 tokens, above stop_width=4"),
        (dict(stop_strings=("a",)), r"request 1: stop_strings=\('a',\) need an engine with decode_text"),
        (dict(index=0), "request 0: a request with this index is already"),
    ],
    ids=str,
)
def test_senseless_requests_are_named_and_nothing_is_queued(fields, message):
    engine = _counting()
    good = Request(0, np.array([3, 1]), 3)
    with pytest.raises(ValueError, match=message):
        engine.submit([good, good._replace(**dict(index=1) | fields)], jax.random.key(0))
    assert engine.idle


@pytest.mark.parametrize("copy", [programs._copy, programs._copy_sharded])
def test_prompts_are_copied_into_the_first_columns_of_their_slots(copy):
    rng = np.random.default_rng(0)
    to, source = rng.normal(size=(4, 5, 2)), rng.normal(size=(3, 3, 2))
    expected = to.copy()
    expected[2, :3], expected[0, :3] = source[1], source[2]
    slots, sources = jnp.array([2, 0, 4]), jnp.array([1, 2, 0])  # two of them: slot 4 is none
    found = copy(jnp.array(to), jnp.array(source), slots, sources, jnp.int32(2))
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_an_empty_slot_has_no_stop_id_and_no_limit():
    rows = programs.empty_rows(2, 3, np.uint32([5, 6]))
    assert (rows.stop_ids == -1).all() and rows.stop_ids.shape == (2, 3) and not rows.live.any()
    assert rows.keys.tolist() == [[5, 6]] * 2 and not any(x.any() for x in rows[:5]) and not rows.seeds.any()


def test_sizes_are_halves_down_to_four_and_multiples_of_the_devices():
    assert check_sizes(32, None, 1) == (32, 16, 8, 4) and check_sizes(24, None, 4) == (24, 12)
    assert check_sizes(3, None, 1) == (3,) and check_sizes(9, (9, 2), 1) == (9, 2)
    for sizes, shards, said in (
        ((8, 8), 1, "must decrease"),
        ((4, 2), 1, "must decrease"),
        ((8, 2), 4, "of 4, the"),
        ((8, 0), 1, "of 1, the"),
    ):
        with pytest.raises(ValueError, match=said):
            check_sizes(8, sizes, shards)


def test_programs_are_compiled_once_and_nothing_is_left_after_an_error(monkeypatch):
    called = []

    def run(params):
        called.append("run")
        if params == "bad":
            raise RuntimeError("lost")

    notes = {name: lambda *_, name=name: called.append(name) for name in ("warm_up", "submit", "abort")}
    sampler = object.__new__(ContinuousGenerate)
    sampler.engine, sampler._is_warm = SimpleNamespace(run=run, **notes), False
    sampler._completion_length, sampler._group_size, sampler._pad_id, sampler._stop_strings = 4, 1, 0, ()
    monkeypatch.setattr(generate, "as_rollout", lambda *_, **__: "rollout")
    tokens, mask = np.array([[3, 4]]), np.array([[True, True]])
    for _ in range(2):
        assert sampler("params", tokens, mask, None) == "rollout"
    with pytest.raises(RuntimeError, match="lost"):
        sampler("bad", tokens, mask, None)
    assert called == ["warm_up", *["submit", "run", "abort"] * 3]


def test_more_tokens_than_columns_are_refused():
    few = SimpleNamespace(_completion_length=4)
    with pytest.raises(ValueError, match="max_tokens=5 is above completion_length=4"):
        ContinuousGenerate.__call__(few, None, None, None, None, max_tokens=np.array([3, 5]))
