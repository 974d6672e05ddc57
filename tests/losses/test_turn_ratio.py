"""losses/policy/turns.py: one ratio per turn is one per row for one turn, and one per token for turns of one token."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.losses.policy.clipped import clipped_surrogate
from rl_jax.losses.policy.sequence import gspo, product_ratio_clip
from rl_jax.losses.policy.turns import turn_clip
from rl_jax.testing.batches import ragged_batch
from rl_jax.testing.laws import check_surrogate

BATCH = ragged_batch(0)
ROWS = np.where(BATCH.mask, BATCH.advantages.mean(axis=1, keepdims=True), 0).astype(np.float32)


def arrays(advantages):
    return BATCH.log_probs, BATCH.old_log_probs, advantages, BATCH.mask


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_one_turn_is_the_ratio_of_the_row_and_turns_of_a_token_are_ppo():
    clip = dict(clip_low=0.2, clip_high=0.28)
    one = np.where(BATCH.mask, 0, -1)
    same(turn_clip(*arrays(ROWS), turns=one, **clip), gspo(*arrays(ROWS), **clip))
    same(turn_clip(*arrays(ROWS), turns=one, geometric=False, **clip), product_ratio_clip(*arrays(ROWS), **clip))
    each = np.where(BATCH.mask, np.cumsum(BATCH.mask, axis=1) - 1, -1)
    same(turn_clip(*arrays(BATCH.advantages), turns=each, **clip), clipped_surrogate(*arrays(BATCH.advantages), **clip))


def test_two_turns_by_hand():
    log_ratio = np.float32([[0.1, 0.3, 9.0, -0.4]])
    mask = np.bool_([[1, 1, 0, 1]])
    number = np.int32([[0, 0, -1, 1]])
    advantages = np.float32([[1.0, 3.0, 7.0, -1.0]])
    found = turn_clip(log_ratio, np.zeros_like(log_ratio), advantages, mask, turns=number)
    np.testing.assert_allclose(found.ratio, [[np.exp(0.2), np.exp(0.2), 1.0, np.exp(-0.4)]], rtol=1e-6)
    np.testing.assert_allclose(found.loss, [[-2 * 1.2, -2 * 1.2, 0.0, 0.8]], rtol=1e-6)  # both clips are active
    np.testing.assert_array_equal(found.clipped_high, [[True, True, False, False]])
    np.testing.assert_array_equal(found.clipped_low, [[False, False, False, True]])
    hidden = [np.where(mask, x, np.nan) for x in (log_ratio, np.zeros_like(log_ratio), advantages)]
    same(turn_clip(*hidden, mask, turns=number), found)
    whole = turn_clip(*hidden, mask, turns=number, geometric=False)
    np.testing.assert_allclose(whole.ratio, [[np.exp(0.4), np.exp(0.4), 1.0, np.exp(-0.4)]], rtol=1e-6)
    # A turn's ratio beyond float32 is clipped, and its tokens have no gradient and no nan.
    far = np.where(mask, 200.0, 0.0).astype(np.float32)
    value, slope = jax.jit(
        jax.value_and_grad(
            lambda x: jnp.sum(turn_clip(x, np.zeros_like(far), np.abs(advantages), mask, turns=number).loss)
        )
    )(far)
    np.testing.assert_allclose(value, -1.2 * (2 + 2 + 1), rtol=1e-6)
    np.testing.assert_array_equal(slope, 0.0)


def test_it_obeys_the_laws():
    def two_by_two(log_probs, old_log_probs, advantages, mask):
        number = jnp.where(mask, (jnp.cumsum(mask, axis=1) - 1) // 2, -1)
        return turn_clip(log_probs, old_log_probs, advantages, mask, turns=number)

    check_surrogate(two_by_two, on_policy=False)
