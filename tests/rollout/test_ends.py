"""Which rows count as finished and which as truncated, where an EOS may stand in the padding or a row was aborted."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.rollout.lm.engine import make_generate, mark_seen, seen_tokens
from rl_jax.rollout.lm.programs import Drawn
from rl_jax.rollout.lm.requests import Completion, as_rollout, requests_of, versions_of
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.rollout.lm.slots import Slots
from tests.tiny import counting_model


def test_an_eos_that_only_pads_finishes_nothing():
    """Most published tokenizers pad with their EOS: a row cut off by its own limit is full of it."""
    generate = make_generate(counting_model(), completion_length=5, sampling=Sampling(top_k=1), eos_ids=(8,), pad_id=8)
    tokens = jnp.array([[8, 1, 1], [8, 1, 6]], jnp.int32)  # the prompts are padded with it, too
    mask = jnp.array([[False, True, True]] * 2)
    run = jax.jit(generate)
    rollout = run({}, tokens, mask, jax.random.key(0), jnp.array([3, 3], jnp.int32))
    np.testing.assert_array_equal(rollout.batch.tokens[:, 3:], [[2, 3, 4, 8, 8], [7, 8, 8, 8, 8]])
    np.testing.assert_array_equal(rollout.finished, [False, True])
    np.testing.assert_array_equal(rollout.truncated, [True, False])
    np.testing.assert_array_equal(rollout.completion_mask.sum(axis=1), [3, 2])
    more = run({}, tokens, mask, jax.random.key(0), jnp.array([9, 9], jnp.int32))  # there are five columns all the same
    np.testing.assert_array_equal(more.batch.tokens[:, 3:], [[2, 3, 4, 5, 6], [7, 8, 8, 8, 8]])
    np.testing.assert_array_equal(more.truncated, [True, False])


def test_every_penalty_but_one_reads_the_tokens_before():
    """Without them there is no such distribution (sampled_log_softmax refuses)."""
    prompt, caches = (jnp.array([[2, 1]], jnp.int32), jnp.ones((1, 2), bool), jax.random.key(0)), []
    model = counting_model()
    model = model._replace(init_cache=lambda *sizes, of=model.init_cache: caches.append(sizes) or of(*sizes))
    for penalty in (0.9, 1.0, 1.1, 2.0):
        rule = Sampling(repetition_penalty=penalty)
        rollout = jax.eval_shape(make_generate(model, completion_length=3, sampling=rule, eos_ids=()), {}, *prompt)
        assert rollout.completion_mask.shape == (1, 3)
    assert set(caches) == {(1, 5)}, "a column for each token of prompt and completion"


def test_a_token_that_was_seen_stays_seen():
    seen = jnp.array([[True, False, False], [False, True, False]])
    found = mark_seen(seen, jnp.array([2, 1], jnp.int32))
    np.testing.assert_array_equal(found, [[True, False, True], [False, True, False]])
    assert mark_seen(None, jnp.array([2, 1], jnp.int32)) is None
    tokens, mask = jnp.array([[3, 1, 0], [2, 2, 1]]), jnp.array([[False, True, True], [True, True, False]])
    np.testing.assert_array_equal(seen_tokens(tokens, mask, 4), [[1, 1, 0, 0], [0, 0, 1, 0]])


def test_where_no_token_is_the_version_is_the_newest():
    rows = [np.array(row, np.int32) for row in ([4, 7], [], [5, 2, 3])]
    found = versions_of([Completion(None, row, row, row, "eos", row) for row in rows], 4)
    np.testing.assert_array_equal(found, [[4, 7, 7, 7], [7, 7, 7, 7], [5, 2, 3, 7]])
    none = versions_of([Completion(None, rows[1], rows[1], rows[1], "aborted", rows[1])], 2)
    np.testing.assert_array_equal(none, [[0, 0]])


def test_the_last_token_of_a_completion_has_no_routes():
    """It is sampled, and the row ends before anything reads it."""
    recorded = np.arange(6, dtype=np.int16).reshape(6, 1, 1)
    slots = Slots(2, eos_ids=(1,), stop_width=1, key_data=np.zeros(2, np.uint32), decode_text=None,
                  routes_of=lambda slot: recorded + 10 * np.int16(slot))  # fmt: skip
    (request,) = requests_of(np.array([[4, 5]], np.int32), np.ones((1, 2), bool), group_size=1, max_tokens=2)
    first, last = (Drawn(np.array([token], np.int32), *np.zeros((2, 1), np.float32)) for token in (3, 1))
    assert slots.enter(1, request, np.zeros(2, np.uint32), first) is None
    found = slots.append(1, last).routes
    assert found[:, 0, 0].tolist() == [10, 11, 12, -1] and found.dtype == np.int16
    assert recorded[3] == 3, "the cache's own record is left alone"


def test_a_row_ends_for_one_of_four_reasons():
    tokens, mask = np.array([[0, 5], [4, 5]], np.int32), np.array([[False, True], [True, True]])
    requests = requests_of(tokens, mask, group_size=2, max_tokens=3)
    reasons = ("eos", "stop", "length", "aborted")
    rows = [np.arange(1, 2 + i, dtype=np.int32) for i in (0, 1, 2, 1)]
    completions = [
        Completion(request, row, -row.astype(np.float32), -2.0 * row.astype(np.float32), reason)
        for request, row, reason in zip(requests, rows, reasons, strict=True)
    ]
    rollout = as_rollout(completions, tokens, mask, completion_length=3, pad_id=9)
    np.testing.assert_array_equal(rollout.finished, [True, True, False, False])
    np.testing.assert_array_equal(rollout.truncated, [False, False, True, False])  # an aborted row is neither
    np.testing.assert_array_equal(
        rollout.batch.tokens, [[0, 5, 1, 9, 9], [0, 5, 1, 2, 9], [4, 5, 1, 2, 3], [4, 5, 1, 2, 9]]
    )
    np.testing.assert_array_equal(
        rollout.batch.positions, [[0, 0, 1, 0, 0], [0, 0, 1, 2, 0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    )
    np.testing.assert_array_equal(
        rollout.batch.segment_ids, [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    )
    np.testing.assert_array_equal(rollout.completion_mask, [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(rollout.sampled_log_probs, [[-1, 0, 0], [-1, -2, 0], [-1, -2, -3], [-1, -2, 0]])
    np.testing.assert_array_equal(rollout.raw_log_probs, 2 * rollout.sampled_log_probs)
