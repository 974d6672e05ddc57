"""The continuous engine on a network that sums what it has read, against a loop in numpy: tokens, log-probs, ends."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Model
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.requests import Request
from rl_jax.rollout.lm.sampling import Sampling

WORDS, WIDTH, EOS, KEY = 11, 4, (1,), 7
RULE = Sampling(temperature=0.8, repetition_penalty=1.4)


def _params(seed=0):
    rng = np.random.default_rng(seed)
    return {"words": rng.normal(size=(WORDS, WIDTH)), "head": 0.7 * rng.normal(size=(WIDTH, WORDS))}


def _read(params, tokens, positions):
    return params["words"][tokens] * jnp.cos(positions)[..., None]


def _decode(params, tokens, positions, cache, column, visible):
    rows, column = jnp.arange(len(tokens)), jnp.broadcast_to(column, tokens.shape)
    cache = cache.at[rows, column].set(_read(params, tokens, positions))
    seen = visible & (jnp.arange(cache.shape[1])[None] <= column[:, None])
    return jnp.sum(jnp.where(seen[..., None], cache, 0.0), axis=1), cache


def _extend(params, batch, cache, columns, visible):
    """The whole cache is summed anew, so that a column that was copied wrongly is seen."""
    places = columns[:, None] + jnp.arange(batch.tokens.shape[1])[None]
    cache = cache.at[jnp.arange(len(cache))[:, None], places].set(_read(params, batch.tokens, batch.positions))
    return jnp.take_along_axis(jnp.cumsum(cache, axis=1), places[..., None], axis=1), cache


SUMS = Model(
    init=None,
    apply=lambda params, batch: jnp.cumsum(_read(params, batch.tokens, batch.positions), axis=1),
    unembed=lambda params, hidden: hidden @ params["head"],
    prefill=None,
    decode=_decode,
    init_cache=lambda rows, length: jnp.zeros((rows, length, WIDTH)),
    vocab_size=WORDS,
    extend=_extend,
)


@functools.cache
def _uniforms(number=64, steps=32):
    """[seed, t]: uniform(fold_in(fold_in(key, seed), t))."""

    def one(seed, t):
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(jax.random.key(KEY), seed), t))

    return np.asarray(jax.vmap(lambda seed: jax.vmap(lambda t: one(seed, t))(jnp.arange(steps)))(jnp.arange(number)))


def by_hand(params, request):
    """(tokens, log-probs of the rule, of the model, reason) of what follows request.tokens, one token at a time."""
    text, found = request.context().tolist(), []
    for t in range(len(request.tokens), request.max_tokens):
        hidden = sum(params["words"][word] * np.cos(place) for place, word in enumerate(text))
        logits = hidden @ params["head"]
        raw = logits - np.log(np.exp(logits).sum())
        seen = np.isin(np.arange(WORDS), text)
        ruled = np.where(seen, np.where(logits > 0, logits / 1.4, logits * 1.4), logits) / 0.8
        probs = np.exp(ruled) / np.exp(ruled).sum()
        seed = request.index if request.seed is None else request.seed
        token = int(np.argmax(np.cumsum(probs) > _uniforms()[seed, t]))
        text.append(token)
        found.append((token, np.log(probs[token]), raw[token]))
        if token in EOS or token in request.stop_ids:
            return *zip(*found, strict=True), "eos" if token in EOS else "stop"
    return *zip(*found, strict=True), "length"


def check(params, completions, requests):
    """Each request has one completion, which is by_hand's after the tokens that it came with."""
    assert sorted(c.request.index for c in completions) == sorted(r.index for r in requests)
    by_index = {c.request.index: c for c in completions}
    for request in requests:
        completion, before = by_index[request.index], len(request.tokens)
        *columns, reason = by_hand(params, request)
        np.testing.assert_array_equal(completion.tokens[:before], request.tokens)
        np.testing.assert_array_equal(completion.tokens[before:], columns[0])
        np.testing.assert_allclose(completion.sampled_log_probs[before:], columns[1], atol=1e-4)
        np.testing.assert_allclose(completion.raw_log_probs[before:], columns[2], atol=1e-4)
        assert completion.reason == reason


@functools.cache
def _engine():
    sizes = dict(slots=4, sizes=(4, 2), prompt_length=18, length=30, chunk=4, steps=3, refill=2)
    return Engine(SUMS, sampling=RULE, eos_ids=EOS, prefill_rows=2, stored_prompts=2, **sizes)


def _requests():
    """Twelve rows of five prompts, three of which begin with the same chunk; of other limits and stop ids."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(2, WORDS, length).astype(np.int32) for length in (9, 6, 9, 1, 4)]
    texts[1][:4] = texts[2][:4] = texts[0][:4]
    return [Request(i, texts[i % 5], 1 + 3 * i % 10, stop_ids=(2, 5) if i % 4 == 3 else ()) for i in range(12)]


def test_a_warm_up_begins_and_ends_with_the_most_slots():
    """So does one of an engine that has no other number of them."""
    for sizes, places in (((4,), [4] * 5), ((4, 2), [4, 4, 2, 4, 2, 4, 4, 2, 4, 2, 4])):
        engine = Engine(SUMS, eos_ids=EOS, slots=4, sizes=sizes, prompt_length=3, length=6, chunk=2, steps=1, refill=2)
        engine._prepare, resized = (lambda params: params), []
        engine._prefill = engine._enter = lambda *_: None
        engine._resize = resized.append
        engine.programs = SimpleNamespace(decode_steps=lambda *_: (None,), recorded=lambda *_: None)
        engine.warm_up({})
        assert resized == places


def test_rows_are_those_of_a_loop_whatever_their_number_and_a_prompt_is_read_once():
    engine, params, requests = _engine(), _params(), _requests()
    placed, read, drawn = jax.tree.map(jnp.float32, params), [], []
    engine.warm_up(placed, hold=True)
    count, prefill, decode = engine.compile_count(), engine.programs.prefill, engine.programs.decode_steps

    def decode_steps(params, state, rows, threshold):
        """While requests wait, until two slots are free; then, until the rows are few enough for a smaller program."""
        few = 4 - min(2, len(engine._queue)) if engine._queue else {4: 2, 2: 0}[len(rows.live)]
        assert threshold == min(few, rows.live.sum() - 1)
        result = decode(params, state, rows, threshold)
        drawn.append(int(result[2].max()))
        return result

    engine.programs.prefill = lambda *given: read.append(given[2].tolist()) or prefill(*given)
    engine.programs.decode_steps = decode_steps
    try:
        engine.submit(requests, jax.random.key(KEY))
        found = engine.run(placed)
        check(params, found, requests)
        reasons = [completion.reason for completion in found]
        assert set(reasons) == {"eos", "stop", "length"} and engine.idle
        assert max(drawn) == 3, "rows that have not ended go on to the last step of a call"
        assert not any(completion.versions.any() for completion in found)
        assert engine._slots.size == 2, "the last rows run as a small program"
        assert sum(row < 2 for rows in read for row in rows) >= 5 and {len(rows) for rows in read} == {1, 2}
        read.clear()
        for _ in range(2):
            engine.submit(requests[:1], jax.random.key(KEY))
            check(params, engine.run(placed), requests[:1])
        assert len(read) <= 1, "the store forgot a prompt of the same params"
        fresh = _params(1)
        engine.submit(requests[:6], jax.random.key(KEY))
        check(fresh, engine.run(jax.tree.map(jnp.float32, fresh)), requests[:6])
    finally:
        engine.programs.prefill, engine.programs.decode_steps = prefill, decode
    assert engine.compile_count() == count


def test_rows_that_are_stopped_or_held_go_on_as_if_they_were_not():
    engine, params = _engine(), _params()
    placed, requests = jax.tree.map(jnp.float32, params), [r._replace(max_tokens=10) for r in _requests()[:6]]
    engine.submit(requests, jax.random.key(KEY))
    done = engine.step(placed, 4)
    assert set(engine.begun().values()) == {4}
    running = [r.index for r in engine._slots.requests if r is not None]
    (kept,) = engine.abort(running[:1])
    assert kept.reason == "aborted" and kept.request.index == running[0] and 0 < len(kept.tokens) == len(kept.versions)
    others = engine.abort()
    assert engine.idle and len(done) + len(others) + 1 == 6 and min(len(c.tokens) for c in others) == 0
    engine.submit([c.resumed() for c in (*others, kept)], jax.random.key(KEY))
    while not engine.idle:
        done += engine.step(placed, 9)
    check(params, done, requests)
    again = next(c for c in done if c.request.index == running[0])
    assert again.versions.tolist() == [4] * len(kept.tokens) + [9] * (len(again.tokens) - len(kept.tokens))
    # Turns: what the environment says follows the end of a held row, whose slot has the columns before it.
    held = [r._replace(hold=True, seed=40 + r.index, max_tokens=10, stop_ids=()) for r in _requests()]
    ends = [by_hand(params, r) for r in held]
    held = [r for r, end in zip(held, ends, strict=True) if end[-1] == "eos" and len(r.prompt) + len(end[0]) < 17][:3]
    engine.submit(held, jax.random.key(KEY))
    first = engine.run(placed)
    check(params, first, held)
    assert sorted(engine._slots.held) == [r.index for r in held] and len(held) == 3 == engine._slots.count()
    engine.abort([held[-1].index])
    first = [c for c in first if c.request.index != held[-1].index]
    assert sorted(engine._slots.held) == [r.index for r in held[:2]] and engine._slots.count() == 2
    unknown = np.zeros(3, np.float32)
    turns = [
        c.resumed()._replace(
            tokens=np.concatenate([c.tokens, np.int32([3, 8, 2])]),
            sampled_log_probs=np.concatenate([c.sampled_log_probs, unknown]),
            raw_log_probs=np.concatenate([c.raw_log_probs, unknown]),
            versions=np.zeros(0, np.int32),
            max_tokens=len(c.tokens) + 6,
            hold=False,
        )
        for c in first
    ]
    read, prefill = [], engine.programs.prefill
    engine.programs.prefill = lambda *given: read.append(1) or prefill(*given)
    try:
        engine.submit(turns, jax.random.key(KEY))
        check(params, engine.run(placed), turns)
    finally:
        engine.programs.prefill = prefill
    assert not read and not engine._slots.held and engine._slots.count() == 0
