"""rollout/engine.py: the sampler against the scorer, against a loop without a cache, and what a row may depend on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.hf import llama2c
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate, prompt_batch
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, counting_model, prompts, stories_path
from tests.tiny import random_params as make_params

TINY = make_transformer(CONFIG)
LENGTH = 80
TOP_P = Sampling(temperature=0.7, top_p=0.9)
random_params = functools.cache(make_params)  # nothing here writes into them


@functools.cache
def _stories():
    config, params = llama2c.load(stories_path())
    return make_transformer(config), jax.tree.map(jnp.array, params)


def _network(name):
    return _stories() if name == "stories" else (TINY, random_params())


@functools.cache
def _rollout(name, sampling):
    """16 ragged rows; () for EOS, so that every row has LENGTH tokens."""
    model, params = _network(name)
    tokens, mask = prompts([12, 5, 1, 9, 16, 7, 3, 11], 16, model.vocab_size)
    generate = make_generate(model, completion_length=LENGTH, group_size=2, sampling=sampling, eos_ids=())
    return jax.jit(generate)(params, tokens, mask, jax.random.key(0))


@functools.cache
def _scorer(name, sampling):
    return jax.jit(make_score(_network(name)[0], completion_length=LENGTH, sampling=sampling))


def _on_edge(name, rule, batch):
    """bool [B, LENGTH]: where the last token kept and the first one cut are as likely to 1e-5, or the mass is top_p.

    Rounding then decides how many are kept. A prompt of two rows that ends in such a place was seen on an Intel Xeon.
    """
    if rule.top_p == 1.0:
        return np.zeros((len(batch.tokens), LENGTH), bool)
    model, params = _network(name)
    logits = jax.jit(lambda params, batch: model.unembed(params, model.apply(params, batch)))(params, batch)
    probs = np.asarray(jax.nn.softmax(logits[:, -LENGTH - 1 : -1] / rule.temperature), np.float64)
    probs = np.sort(probs)[..., ::-1]
    mass = np.cumsum(probs, axis=-1)
    last = np.argmax(mass >= rule.top_p, axis=-1)[..., None]
    near = [np.take_along_axis(probs, last + step, axis=-1) for step in (-1, 0, 1)]
    tie = [np.abs(other / near[1] - 1.0) < 1e-5 for other in (near[0], near[2])]
    edge = (tie[0] | tie[1])[..., 0] | (np.min(np.abs(mass - rule.top_p), axis=-1) < 1e-6)
    assert edge.mean() < 0.01
    return edge


# The rules do not depend on the model: one of them on a large one, whose raw log-probs are the plain rule's.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampling",
    [
        ("tiny", Sampling()),
        ("tiny", TOP_P),
        ("tiny", Sampling(temperature=0.7, top_k=20)),
        ("stories", TOP_P),
    ],
    ids=["plain-tiny", "top_p-tiny", "top_k-tiny", "top_p-stories"],
)
def test_sampler_and_scorer_agree(name, sampling):
    """The KV-cache forward and the full forward are two programs; log-probs within 1e-4 over > 1000 tokens."""
    rollout = _rollout(name, sampling)
    params = _network(name)[1]
    assert rollout.completion_mask.size >= 1000 and np.all(rollout.completion_mask)
    for rule, ours in ((sampling, rollout.sampled_log_probs), (Sampling(), rollout.raw_log_probs)):
        gaps = np.abs(np.asarray(_scorer(name, rule)(params, rollout.batch).log_probs) - np.asarray(ours))
        gap = np.max(gaps[~_on_edge(name, rule, rollout.batch)])
        print(f"{name} {sampling} scored {rule}: largest gap {gap:.2e}")
        assert gap < 1e-4
    if sampling == Sampling():
        np.testing.assert_array_equal(rollout.sampled_log_probs, rollout.raw_log_probs)
    else:
        assert np.max(np.abs(rollout.sampled_log_probs - rollout.raw_log_probs)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "stories"])
def test_ratio_of_the_first_update_is_one(name):
    """old from the jitted scorer, new from inside jax.grad: exp(new - old) is 1 to 1e-5."""
    rollout = _rollout(name, TOP_P)
    model, params = _network(name)
    score = make_score(model, completion_length=LENGTH)
    old = _scorer(name, Sampling())(params, rollout.batch).log_probs

    @jax.jit
    def deviation(params):
        def loss(params):
            log_ratio = score(params, rollout.batch).log_probs - jax.lax.stop_gradient(old)
            return jnp.mean(jnp.exp(log_ratio)), jnp.max(jnp.abs(jnp.exp(log_ratio) - 1))

        return jax.grad(loss, has_aux=True)(params)

    gradient, largest = deviation(params)
    print(f"{name}: largest |ratio - 1| {float(largest):.2e}")
    assert largest < 1e-5
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))


def _greedy_loop(model, params, width):
    """The plain reference: no cache, no left padding, the whole row forward for every token."""

    @jax.jit
    def next_token(tokens, length):
        columns = jnp.arange(width, dtype=jnp.int32)
        segments = (columns < length).astype(jnp.int32)
        hidden = model.apply(params, TokenBatch(tokens[None], columns[None], segments[None]))
        return jnp.argmax(model.unembed(params, hidden[0, length - 1]))

    def complete(prompt, number):
        row = list(prompt)
        for _ in range(number):
            padded = np.array(row + [0] * (width - len(row)), np.int32)
            row.append(int(next_token(padded, len(row))))
        return row[len(prompt) :]

    return complete


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "stories"])
def test_greedy_tokens_equal_a_loop_without_a_cache(name):
    model, params = _network(name)
    tokens, mask = prompts([6, 2, 8], 8, model.vocab_size)
    generate = make_generate(model, completion_length=24, sampling=Sampling(top_k=1), eos_ids=())
    rollout = jax.jit(generate)(params, tokens, mask, jax.random.key(0))
    completions, complete = np.asarray(rollout.batch.tokens[:, 8:]), _greedy_loop(model, params, 8 + 24)
    for row in range(3):
        prompt = np.asarray(tokens[row])[np.asarray(mask[row])].tolist()
        assert completions[row].tolist() == complete(prompt, 24)
    assert len(np.unique(completions)) > 6, "too monotonous a text to notice a wrong column"


@pytest.mark.slow
def test_samples_of_a_group_equal_separate_calls():
    """One prefill for G samples is a saving and nothing else: a row draws as the same row of a call without groups."""
    tokens, mask = prompts([6, 2, 8], 8)
    options = dict(completion_length=10, sampling=Sampling(temperature=1.5), eos_ids=(5,))
    params, key = random_params(), jax.random.key(3)
    grouped = jax.jit(make_generate(TINY, group_size=4, **options))(params, tokens, mask, key)
    apart = jax.jit(make_generate(TINY, group_size=1, **options))(
        params, jnp.repeat(tokens, 4, axis=0), jnp.repeat(mask, 4, axis=0), key
    )
    for field in ("batch", "completion_mask", "finished", "truncated"):
        jax.tree.map(np.testing.assert_array_equal, getattr(grouped, field), getattr(apart, field))
    np.testing.assert_allclose(grouped.raw_log_probs, apart.raw_log_probs, atol=1e-5)
    completions = np.asarray(grouped.batch.tokens[:4, 8:])
    assert len(np.unique(completions, axis=0)) == 4, "the samples of a group are copies"
    np.testing.assert_array_equal(grouped.batch.tokens[:, :8], np.repeat(tokens, 4, axis=0))


def _rows(rollout, rows, width):
    """What a row is made of, without its prompt's padding."""
    return (
        np.asarray(rollout.batch.tokens[rows, width:]),
        np.asarray(rollout.batch.positions[rows, width:]),
        np.asarray(rollout.completion_mask[rows]),
        np.asarray(rollout.finished[rows]),
    ), np.asarray(rollout.sampled_log_probs[rows])


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_neighbours_nor_on_the_bucket():
    generate = jax.jit(make_generate(TINY, completion_length=10, group_size=2, eos_ids=(5, 9)))
    params, key = random_params(), jax.random.key(1)
    lengths = [6, 2, 8]
    alone, log_probs = _rows(generate(params, *prompts(lengths, 8), key), slice(2, 4), 8)
    tokens, mask = prompts([3, 2, 1], 8, seed=7)
    other = tokens.at[1].set(prompts(lengths, 8)[0][1]), mask
    for rollout, width in ((generate(params, *other, key), 8), (generate(params, *prompts(lengths, 16), key), 16)):
        row, again = _rows(rollout, slice(2, 4), width)
        jax.tree.map(np.testing.assert_array_equal, row, alone)
        np.testing.assert_allclose(again, log_probs, atol=1e-5)
    different, _ = _rows(generate(params, *prompts(lengths, 8), jax.random.key(2)), slice(2, 4), 8)
    assert np.any(different[0] != alone[0])


def _count(prompt_ends, *, eos_ids, completion_length=6, on_decode=lambda: None):
    """Rows of the counting model: a prompt ends with `end`, its completion is end + 1, end + 2, ..."""
    tokens = jnp.array([[0, 1, end] for end in prompt_ends], jnp.int32)
    mask = jnp.array([[False, True, True]] * len(prompt_ends))
    generate = make_generate(
        counting_model(on_decode=on_decode),
        completion_length=completion_length,
        sampling=Sampling(top_k=1),
        eos_ids=eos_ids,
    )
    return jax.jit(generate)({}, tokens, mask, jax.random.key(0))


@pytest.mark.slow
def test_ends_of_rows_by_hand():
    rollout = _count([7, 4, 9, 1], eos_ids=(10, 8))
    np.testing.assert_array_equal(
        rollout.batch.tokens[:, 3:],
        [[8, 0, 0, 0, 0, 0], [5, 6, 7, 8, 0, 0], [10, 0, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7]],
    )
    lengths = [1, 4, 1, 6]
    expected = np.arange(6)[None] < np.array(lengths)[:, None]
    np.testing.assert_array_equal(rollout.completion_mask, expected)  # the EOS is inside
    np.testing.assert_array_equal(rollout.finished, [True, True, True, False])
    np.testing.assert_array_equal(rollout.truncated, [False, False, False, True])
    segments = np.concatenate([[[0, 1, 1]] * 4, expected], axis=1)
    np.testing.assert_array_equal(rollout.batch.segment_ids, segments)
    positions = np.concatenate([[[0, 0, 1]] * 4, np.where(expected, np.arange(2, 8), 0)], axis=1)
    np.testing.assert_array_equal(rollout.batch.positions, positions)
    assert not np.any(rollout.sampled_log_probs[~expected]) and not np.any(rollout.raw_log_probs[~expected])


def test_an_eos_as_the_last_token_is_no_truncation():
    rollout = _count([4, 3], eos_ids=(10,), completion_length=6)
    assert rollout.finished.tolist() == [True, False] and rollout.truncated.tolist() == [False, True]
    assert np.all(rollout.completion_mask)


@pytest.mark.slow
def test_an_eos_in_the_prompt_ends_nothing_and_no_eos_never_ends():
    rollout = _count([10], eos_ids=(10,), completion_length=4)
    assert rollout.batch.tokens[0, 3:].tolist() == [11, 12, 13, 14]
    rollout = _count([7], eos_ids=())
    assert rollout.truncated.tolist() == [True] and np.all(rollout.completion_mask)


@pytest.mark.parametrize("ends, decodes", [([7, 7], 0), ([7, 4], 3), ([4, 1], 5)])
def test_stops_when_every_row_has_ended(ends, decodes):
    calls = []
    jax.block_until_ready(_count(ends, eos_ids=(8,), on_decode=lambda: calls.append(1)))
    jax.effects_barrier()
    assert len(calls) == decodes  # the first token comes from the prefill, the last one is not decoded any further


def test_a_completion_of_one_token():
    rollout = _count([7, 4], eos_ids=(8,), completion_length=1)
    assert rollout.batch.tokens[:, 3].tolist() == [8, 5] and rollout.finished.tolist() == [True, False]


@pytest.mark.slow
def test_two_buckets_are_two_programs():
    traces, plain = [], make_generate(TINY, completion_length=4, group_size=2, eos_ids=(5,))

    def counted(*arguments):
        traces.append(1)
        return plain(*arguments)

    generate = jax.jit(counted)
    params = random_params()
    rng = np.random.default_rng(0)
    for call in range(20):
        width = (8, 16)[call % 2]
        tokens, mask = prompts(rng.integers(1, width + 1, 3), width, seed=call)
        jax.block_until_ready(generate(params, tokens, mask, jax.random.key(call)))
    assert len(traces) == 2  # not the size of jax's cache, which many other tests can fill


def test_prompt_batch_counts_real_tokens():
    batch = prompt_batch(jnp.array([[0, 0, 5, 6]]), jnp.array([[False, False, True, True]]))
    assert batch.positions.tolist() == [[0, 0, 0, 1]] and batch.segment_ids.tolist() == [[0, 0, 1, 1]]


def test_senseless_sizes_and_rules_are_named():
    with pytest.raises(ValueError, match="completion_length=0 and group_size=1"):
        make_generate(TINY, completion_length=0, eos_ids=())
    with pytest.raises(ValueError, match="group_size=0"):
        make_generate(TINY, completion_length=1, group_size=0, eos_ids=())
    with pytest.raises(ValueError, match="temperature=0"):
        make_generate(TINY, completion_length=1, sampling=Sampling(temperature=0), eos_ids=())
