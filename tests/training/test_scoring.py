"""scoring.py: chunks change nothing but the memory; entropy and cuts against numpy; no [B, C, V] anywhere."""

import dataclasses
import functools
import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rl_jax.core.types import Model, TokenBatch, TokenScores
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from rl_jax.training.packing import pack
from rl_jax.training.scoring import in_micro_batches, make_score, map_columns
from tests.tiny import CONFIG, max_difference, random_params, token_batch

MODEL = make_transformer(CONFIG)
COMPLETION = 10


@functools.cache
def _case():
    return random_params(), token_batch([14, 11, 12], 14)


@functools.cache
def _logits():
    return jax.jit(lambda params, batch: MODEL.unembed(params, MODEL.apply(params, batch)))(*_case())


def _plain(params, batch, temperature=1.0, completion_length=COMPLETION):
    """log_softmax, gather and entropy of all logits at once."""
    logits = MODEL.unembed(params, MODEL.apply(params, batch)) / temperature
    log_probs = jax.nn.log_softmax(logits, axis=-1)[:, -completion_length - 1 : -1]
    picked = jnp.take_along_axis(log_probs, batch.tokens[:, -completion_length:, None], axis=-1)[..., 0]
    return picked, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def _total(scores):
    """A scalar that reads every entry of both, each with a weight of its own."""
    log_probs, entropy = scores[:2]
    weights = jnp.cos(jnp.arange(log_probs.size, dtype=jnp.float32)).reshape(log_probs.shape)
    return jnp.sum(weights * log_probs) + 0.3 * jnp.sum(weights[::-1] * entropy)


@functools.cache
def _plain_at_temperature():
    params, batch = _case()

    def total(params):
        scores = _plain(params, batch, temperature=0.7)
        return _total(scores), scores

    gradient, scores = jax.jit(jax.grad(total, has_aux=True))(params)
    return scores, gradient


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_chunks_change_nothing(chunk):
    params, batch = _case()
    score = make_score(MODEL, completion_length=COMPLETION, sampling=Sampling(temperature=0.7), chunk=chunk)
    expected, plain = _plain_at_temperature()

    def total(params):
        scores = score(params, batch)
        return _total(scores), scores

    ours, scores = jax.jit(jax.grad(total, has_aux=True))(params)
    np.testing.assert_allclose(scores.log_probs, expected[0], atol=1e-5)
    np.testing.assert_allclose(scores.entropy, expected[1], atol=1e-5)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(plain))
    assert max_difference(ours, plain) < 1e-5 * max(1.0, largest)


@pytest.mark.slow
def test_the_sum_of_squared_probabilities():
    """Padded and packed, beside the same log-probs; and a loss has the same gradient with it."""
    params, batch = _case()
    sampling = Sampling(temperature=0.7)
    plain = make_score(MODEL, completion_length=COMPLETION, sampling=sampling, chunk=4)
    score = make_score(MODEL, completion_length=COMPLETION, sampling=sampling, chunk=4, sum_pi_squared=True)
    found, expected = jax.jit(score)(params, batch), jax.jit(plain)(params, batch)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-6)
    logits = np.asarray(_logits(), np.float64) / 0.7
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    squares = np.square(probs / probs.sum(-1, keepdims=True)).sum(-1)[:, -COMPLETION - 1 : -1]
    np.testing.assert_allclose(found.sum_pi_squared, squares, rtol=1e-4)
    assert expected.sum_pi_squared is None
    ours, theirs = (jax.jit(jax.grad(lambda p, f=fn: _total(f(p, batch))))(params) for fn in (score, plain))
    assert max_difference(ours, theirs) < 1e-5


@pytest.mark.slow
def test_temperature_and_entropy_against_numpy():
    params, batch = _case()
    rule = Sampling(temperature=0.5)
    scores = jax.jit(make_score(MODEL, completion_length=COMPLETION, sampling=rule, chunk=4))(params, batch)
    logits = np.asarray(_logits(), np.float64)[:, -COMPLETION - 1 : -1]
    exponent = np.exp(2 * (logits - logits.max(-1, keepdims=True)))
    probs = exponent / exponent.sum(-1, keepdims=True)
    tokens = np.asarray(batch.tokens)[:, -COMPLETION:]
    picked = np.log(np.take_along_axis(probs, tokens[..., None], -1))[..., 0]
    np.testing.assert_allclose(scores.log_probs, picked, atol=2e-5)
    np.testing.assert_allclose(scores.entropy, -(probs * np.log(probs)).sum(-1), atol=2e-5)


@pytest.mark.slow
def test_a_token_that_is_cut_off_is_minus_infinity_and_leaves_the_gradient_finite():
    params, batch = _case()
    score = make_score(MODEL, completion_length=COMPLETION, sampling=Sampling(top_p=0.8), chunk=4)
    scores = jax.jit(score)(params, batch)
    cut = np.isneginf(scores.log_probs)
    assert 0 < cut.sum() < cut.size and not np.any(np.isnan(scores.log_probs))
    assert np.all(np.isfinite(scores.entropy)) and np.all(scores.entropy >= 0)
    plain = jax.jit(_plain)(params, batch)[0]
    assert np.all(np.asarray(scores.log_probs)[~cut] > np.asarray(plain)[~cut])  # renormalised over fewer tokens

    def total(params):
        scores = score(params, batch)
        return jnp.sum(jnp.where(cut, 0.0, scores.log_probs)) + jnp.sum(scores.entropy)

    gradient = jax.jit(jax.grad(total))(params)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    assert any(np.any(g) for g in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_the_log_prob_of_a_token_is_read_one_column_before_it():
    """Changing the last token changes its own log-prob and no other score."""
    params, batch = _case()
    score = jax.jit(make_score(MODEL, completion_length=COMPLETION, chunk=4))
    changed = batch._replace(tokens=batch.tokens.at[:, -1].set(batch.tokens[:, -1] % 60 + 3))
    before, after = score(params, batch), score(params, changed)
    np.testing.assert_array_equal(before.log_probs[:, :-1], after.log_probs[:, :-1])
    np.testing.assert_array_equal(before.entropy, after.entropy)
    assert np.all(before.log_probs[:, -1] != after.log_probs[:, -1])


# 4 rows, 40 columns, 32 of them completion, 512 tokens: [B, C, V] is 65536 numbers and the parameters are fewer.
WIDE = dataclasses.replace(CONFIG, vocab_size=512)


def _compiled(function):
    params = jax.eval_shape(make_transformer(WIDE).init, jax.random.key(0))
    batch = token_batch([40] * 4, 40)
    return jax.jit(function).lower(params, batch).compile()


def _largest_array(compiled):
    shapes = re.findall(r"\b(?:f|bf|s|u|pred)\d*\[([\d,]*)\]", compiled.as_text())
    return max(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("differentiated", [False, True], ids=["forward", "gradient"])
def test_the_compiled_program_holds_no_logits_of_the_batch(differentiated):
    model = make_transformer(WIDE)

    def naive(params, batch):
        log_probs = jax.nn.log_softmax(model.unembed(params, model.apply(params, batch)[:, -33:-1]), axis=-1)
        picked = jnp.take_along_axis(log_probs, batch.tokens[:, -32:, None], axis=-1)[..., 0]
        return _total((picked, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)))

    score = make_score(model, completion_length=32, chunk=4)
    functions = [naive, lambda params, batch: _total(score(params, batch))]
    plain, ours = (_compiled(jax.grad(f) if differentiated else f) for f in functions)
    logits = 4 * 32 * 512
    assert _largest_array(plain) >= logits, "the check itself sees nothing"
    assert _largest_array(ours) < logits
    assert ours.memory_analysis().temp_size_in_bytes < plain.memory_analysis().temp_size_in_bytes


def test_rows_without_a_prompt_are_refused():
    params, batch, _ = _table_case()
    with pytest.raises(ValueError, match="rows of 13 tokens leave no room for a prompt before 13 completion tokens"):
        make_score(_table_model(), completion_length=13)(params, batch)
    with pytest.raises(ValueError, match="top_p=2.0"):
        make_score(MODEL, completion_length=4, sampling=Sampling(top_p=2.0))


@pytest.mark.slow
def test_a_mesh_with_a_sharded_vocabulary_equals_one_device():
    """data:2, fsdp:2, tensor:2: the head is sharded over V and D, rows over data and fsdp."""
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    model, batch = make_transformer(WIDE), token_batch([40, 31, 38, 33], 40, vocab_size=512)
    params = random_params(WIDE)
    score = make_score(model, completion_length=24, sampling=Sampling(temperature=0.7), chunk=4)

    def total(params, batch):
        scores = score(params, batch)
        return _total(scores), scores

    function = jax.grad(total, has_aux=True)
    expected, plain = jax.jit(function)(params, batch)
    shardings = sharding.tree_shardings(params, mesh)
    assert shardings["embed"]["embedding"].spec == PartitionSpec("tensor", "fsdp")
    placed = jax.device_put(params, shardings), jax.device_put(batch, sharding.batch_sharding(mesh))
    compiled = jax.jit(function).lower(*placed).compile()
    # What one device holds of logits: its rows (4 / (data x fsdp)), a chunk of columns, at most the whole vocabulary.
    assert _largest_array(compiled) < 4 * 24 * 512 // 4
    gradient, scores = compiled(*placed)
    np.testing.assert_allclose(scores.log_probs, plain.log_probs, atol=2e-5)
    np.testing.assert_allclose(scores.entropy, plain.entropy, atol=2e-5)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(expected))
    assert max_difference(jax.device_get(gradient), expected) < 2e-5 * largest


@functools.cache
def _head_case():
    """(hidden [2, 7, 3], tokens, weights) for _head."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 7, 3)).astype(np.float32)
    tokens = rng.integers(0, 5, (2, 7)).astype(np.int32)
    weights = {"used": rng.normal(size=(3, 5)).astype(np.float32), "other": np.ones(3, np.float32)}
    return hidden, tokens, weights


def _head(params, hidden, tokens):
    log_probs = jax.nn.log_softmax(hidden @ params["used"])
    picked = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    return TokenScores(picked, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))


@functools.cache
def _differentiated(chunk, counted):
    """_head itself (chunk None) or mapped, compiled once for all counts: (weights, hidden, tokens, wanted, count)."""
    cotangent = np.cos(np.arange(14, dtype=np.float32)).reshape(2, 7)

    def total(weights, hidden, tokens, wanted, count):
        if chunk is None:
            scores = _head(weights, hidden, tokens)
        else:
            scores = map_columns(_head, weights, hidden, tokens, chunk, count if counted else None)
        return jnp.sum(jnp.where(wanted, cotangent * (scores.log_probs + 0.3 * scores.entropy), 0.0)), scores

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 100])
@pytest.mark.parametrize("count", [None, 0, 4, 7])
def test_map_columns_equals_the_head_on_the_columns_that_count(chunk, count):
    hidden, tokens, weights = _head_case()
    wanted = np.arange(7)[None] < (7 if count is None else count)
    given = weights, hidden, tokens, wanted, jnp.int32(count or 0)
    plain, found = _differentiated(None, False)(*given), _differentiated(chunk, count is not None)(*given)
    np.testing.assert_allclose(found[0][1].log_probs[:, wanted[0]], plain[0][1].log_probs[:, wanted[0]], rtol=1e-5)
    np.testing.assert_allclose(found[0][0], plain[0][0], rtol=1e-5, atol=1e-6)
    assert max_difference(found[1], plain[1]) < 1e-5
    beyond = -(-int(wanted.sum()) // -(-7 // -(-7 // chunk))) * -(-7 // -(-7 // chunk))  # the slice is finished
    assert not np.any(np.asarray(found[0][1].log_probs)[:, beyond:]), "columns that nobody wants were computed"


def test_slices_that_nobody_wants_are_skipped():
    """Of seven columns in slices of three: a slice that is needed to its last column does not bring the next one."""
    hidden = jnp.ones((1, 7, 2))
    call = jax.jit(lambda count: map_columns(_same, 2.0, hidden, jnp.zeros((1, 7), jnp.int32), 3, count).log_probs)
    for count, scored in ((0, 0), (1, 3), (3, 3), (4, 6), (6, 6), (7, 7)):
        np.testing.assert_array_equal(call(count), [[2.0] * scored + [0.0] * (7 - scored)])


def _same(scale, hidden, tokens):
    return TokenScores(scale * hidden[..., 0], hidden[..., 1])


@pytest.mark.slow
def test_a_loss_without_entropy_does_not_differentiate_it():
    """The program is then smaller, and the gradient the same."""
    hidden, tokens, weights = _head_case()

    def total(weights, names):
        scores = map_columns(_head, weights, hidden, tokens, 4)
        return sum(jnp.sum(getattr(scores, name)) for name in names)

    both, one = (
        jax.jit(jax.grad(functools.partial(total, names=names))).lower(weights).compile().cost_analysis()["flops"]
        for names in (("log_probs", "entropy"), ("log_probs",))
    )
    assert one < both
    gradient = jax.grad(functools.partial(total, names=("log_probs",)))(weights)
    plain = jax.grad(lambda weights: jnp.sum(_head(weights, hidden, tokens).log_probs))(weights)
    assert max_difference(gradient, plain) < 1e-5


@pytest.mark.slow
def test_scoring_in_micro_batches_changes_nothing():
    """Padded and packed, in the rows' own order; one micro-batch is the function itself."""
    params, batch = random_params(), token_batch([14, 11, 12, 13, 14, 10], 14)
    score = make_score(MODEL, completion_length=8, chunk=4)
    assert in_micro_batches(score, 1) is score
    expected = jax.jit(score)(params, batch)
    found = jax.jit(in_micro_batches(score, 3))(params, batch)
    mask = np.asarray(batch.segment_ids)[:, -8:] != 0
    packed = pack(jax.tree.map(np.asarray, batch), mask, share_prefix=False, num_parts=6, num_micro_batches=3)
    of_packed = jax.jit(in_micro_batches(score, 3))(params, packed)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(
        np.where(mask, of_packed.log_probs, 0.0), np.where(mask, expected.log_probs, 0.0), atol=1e-5
    )
    with pytest.raises(ValueError, match="6 rows do not divide into num_micro_batches=4"):
        in_micro_batches(score, 4)(params, batch)


# --- Against numpy, on a network that is a table -----------------------------------------------------------------

WORDS, COLUMNS = 5, 10
CHUNKS = ((10, 4, 4), (9, 6, 5), (7, 7, 7), (7, 100, 7), (3, 1, 1))  # columns, chunk, the largest even share below it


def _table_model(split_head=None):
    """Hidden states of a token and its position; V = 5."""

    def apply(params, batch):
        return params["table"][batch.tokens] * (1.0 + 0.1 * batch.positions[..., None])

    unused = dict.fromkeys(("init", "prefill", "decode", "init_cache"))
    unembed = lambda params, hidden: hidden @ params["head"]  # noqa: E731
    return Model(apply=apply, unembed=unembed, vocab_size=WORDS, split_head=split_head, **unused)


@functools.cache
def _table_case():
    """(params, TokenBatch [4, 13], mask bool [4, 10] with holes)."""
    rng = np.random.default_rng(5)
    params = {"table": rng.normal(size=(WORDS, 3)), "head": rng.normal(size=(3, WORDS))}
    params = {name: x.astype(np.float32) for name, x in params.items()}
    tokens = rng.integers(0, WORDS, (4, COLUMNS + 3)).astype(np.int32)
    positions = np.broadcast_to(np.arange(COLUMNS + 3, dtype=np.int32), tokens.shape).copy()
    mask = np.ones((4, COLUMNS), bool)
    mask[0, 1::3] = mask[1, 6:] = mask[2] = False
    return params, TokenBatch(tokens, positions, np.ones_like(tokens)), mask


def _table_scores(params, batch, temperature, allowed=None):
    """(log-probs, entropies, sums of squares) of the last columns, float64 [4, 10] each."""
    hidden = params["table"][batch.tokens].astype(np.float64) * (1 + 0.1 * batch.positions[..., None])
    logits = (hidden @ params["head"])[:, -COLUMNS - 1 : -1] / temperature
    masses = np.exp(logits) * (1.0 if allowed is None else allowed)
    probs = masses / masses.sum(-1, keepdims=True)
    picked = np.take_along_axis(probs, batch.tokens[:, -COLUMNS:, None], -1)[..., 0]
    with np.errstate(divide="ignore"):
        return np.log(picked), -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1), (probs**2).sum(-1)


def _check_scores(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_padded_and_packed_rows_of_a_table_have_the_scores_of_numpy():
    """And one gradient; a column that no part scores has 0."""
    params, batch, mask = _table_case()
    packed = pack(batch, mask, share_prefix=False, num_parts=2)
    rule = Sampling(temperature=0.7)
    score = make_score(_table_model(), completion_length=COLUMNS, sampling=rule, chunk=4, sum_pi_squared=True)

    def total(params, rows):
        scores = score(params, rows)
        return jnp.sum(jnp.where(mask, jnp.cos(jnp.arange(40.0)).reshape(4, 10) * (scores[0] + scores[1]), 0.0)), scores

    both = jax.jit(lambda params: [jax.grad(total, has_aux=True)(params, rows) for rows in (batch, packed)])
    (of_padded, padded), (of_packed, shortened) = both(params)
    expected = _table_scores(params, batch, 0.7)
    _check_scores(padded, expected)
    _check_scores(shortened, [np.where(mask, x, 0.0) for x in expected])
    assert max_difference(of_padded, of_packed) < 1e-5
    weights, values = mask * np.cos(np.arange(40.0)).reshape(4, 10), []
    for step in (1e-4, -1e-4):
        moved = {name: x.astype(np.float64) for name, x in params.items()}
        moved["head"][1, 2] += step
        values.append((weights * sum(_table_scores(moved, batch, 0.7)[:2])).sum())
    np.testing.assert_allclose(of_padded["head"][1, 2], (values[0] - values[1]) / 2e-4, rtol=1e-3)


def test_columns_with_tokens_of_their_own_are_scored_among_those():
    params, batch, _ = _table_case()
    allowed = np.random.default_rng(0).random((4, COLUMNS, WORDS)) < 0.6
    np.put_along_axis(allowed, batch.tokens[:, -COLUMNS:, None], True, axis=-1)
    allowed[0, 0], allowed[0, 0, (batch.tokens[0, -COLUMNS] + 1) % WORDS] = False, True
    score = make_score(_table_model(), completion_length=COLUMNS, chunk=4, sum_pi_squared=True)
    found = jax.jit(score)(params, batch._replace(allowed=np.packbits(allowed, axis=-1)))
    _check_scores(found, _table_scores(params, batch, 1.0, allowed))
    assert np.isneginf(found.log_probs[0, 0]) and found.entropy[0, 0] == 0.0


@pytest.mark.parametrize(("columns", "chunk", "width"), CHUNKS)
def test_slices_are_even_shares_of_the_columns(columns, chunk, width):
    seen = set()

    def head(params, hidden, tokens):
        seen.add((hidden.shape, tokens.shape))
        return TokenScores(hidden[..., 0] * params, hidden[..., 1], None)

    hidden, tokens = (jax.ShapeDtypeStruct(s, t) for s, t in (((2, columns, 3), "float32"), ((2, columns), "int32")))
    found = jax.eval_shape(lambda h, t: map_columns(head, jnp.float32(1.0), h, t, chunk), hidden, tokens)
    assert seen == {((2, width, 3), (2, width))} and found.entropy.shape == (2, columns)


def test_a_split_head_s_ring_is_that_of_a_slice():
    """Of padded rows a slice is [B, chunk]; of packed ones it has all rows of a part in a row of columns."""
    params, batch, mask = _table_case()
    asked = []

    class Asked(Exception):
        pass

    def ring(rows, columns):
        asked.append((rows, columns))
        raise Asked

    split = SimpleNamespace(takes=lambda rows: True, ring=ring)
    for chunk, of_padded, of_packed in ((4, (4, 4), (2, 8)), (64, (4, 10), (2, 20))):
        score = make_score(_table_model(lambda params: split), completion_length=COLUMNS, chunk=chunk)
        for rows in (batch, pack(batch, mask, share_prefix=False, num_parts=2)):
            with pytest.raises(Asked):
                jax.eval_shape(score, params, rows)
        assert asked == [of_padded, of_packed]
        asked.clear()


def test_micro_batches_keep_the_rows_order():
    rows = np.arange(12).reshape(6, 2)
    found = in_micro_batches(lambda params, x: (x + params, x[:, 0]), 3)(10, rows)
    np.testing.assert_array_equal(found[0], rows + 10)
    np.testing.assert_array_equal(found[1], rows[:, 0])
