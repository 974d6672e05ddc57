"""Direct advantage regression: its minimum, its gradient in both directions, and its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import steps
from rl_jax.losses.policy import regression

MASK = jnp.array([[True, True, True, True, False], [True, False, True, True, True]])
TOKENS = jnp.array([[1, 7, 2, 1, 7], [7, 7, 1, 7, 2]])
ENDS = [[False, True, False, True, False], [True, False, False, True, True]]
OLD = jnp.full(MASK.shape, -1.0)
ADVANTAGES = jnp.array([[0.2, 0.2, -0.1, -0.1, np.nan], [-0.3, np.nan, 0.1, 0.1, 0.4]])


def test_a_step_ends_at_a_separator_and_at_the_end():
    """A separator outside the mask ends nothing; without separators an answer is one step."""
    np.testing.assert_array_equal(steps.step_ends(MASK, tokens=TOKENS, separators=(7,)), ENDS)
    whole = steps.step_ends(MASK, tokens=TOKENS)
    np.testing.assert_array_equal(whole.sum(axis=1), [1, 1])


def loss(log_probs, beta=0.5):
    found = regression.direct_advantage(log_probs, OLD, ADVANTAGES, MASK, selected=jnp.array(ENDS), beta=beta)
    return found.loss.sum()


def test_the_minimum_is_the_advantage_over_beta():
    """Each step's log ratio is A / beta, however it is shared among its tokens; both sides of it pull back."""
    best = OLD + jnp.array([[0.3, 0.1, -0.5, 0.3, 0.0], [-0.6, 5.0, 0.0, 0.2, 0.8]])
    np.testing.assert_allclose(loss(best), 0.0, atol=1e-9)
    up, down = jax.grad(loss)(best + 0.1), jax.grad(loss)(best - 0.1)
    assert np.all(np.asarray(up)[MASK] > 0) and np.all(np.asarray(down)[MASK] < 0)
    assert not np.asarray(up)[~MASK].any()


def test_the_first_gradient_is_the_policy_gradient():
    """At the old policy: -A / beta on every token of the step, for either sign of A."""
    gradient = jax.grad(loss)(OLD)
    np.testing.assert_allclose(gradient, jnp.where(MASK, -ADVANTAGES / 0.5, 0.0), rtol=1e-6)


def test_its_ratio_is_each_tokens_and_nothing_is_clipped():
    moved = jnp.linspace(-0.4, 0.6, MASK.size).reshape(MASK.shape)
    arrays = jnp.where(MASK, OLD + moved, jnp.nan), OLD, ADVANTAGES, MASK
    found = jax.jit(regression.direct_advantage)(*arrays, selected=jnp.array(ENDS))
    np.testing.assert_allclose(found.ratio, np.where(MASK, np.exp(moved), 1.0), rtol=1e-5)
    assert not np.any(found.clipped_low | found.clipped_high)


def test_beta_is_above_zero():
    with pytest.raises(ValueError, match="beta=0 must be above 0"):
        loss(OLD, beta=0)


def test_offline_it_is_fitted_to_the_policy_that_sampled():
    """However far the policy was before these updates: the minimum is A / beta from the sampler's log-probs."""
    arrays = dict(selected=jnp.array(ENDS), beta=0.5)

    def offline(log_probs, old):
        found = regression.offline_direct_advantage(
            log_probs, old, ADVANTAGES, MASK, behavior_log_probs=OLD, **arrays
        )
        return found.loss.sum()

    moved = OLD + jnp.linspace(-0.4, 0.6, MASK.size).reshape(MASK.shape)
    for old in (OLD, OLD - 3.0):
        np.testing.assert_allclose(offline(moved, old), loss(moved), rtol=1e-6)
        np.testing.assert_allclose(jax.grad(offline)(moved, old), jax.grad(loss)(moved), rtol=1e-6)


def test_each_token_may_be_a_step_and_what_ends_outside_of_the_mask_is_no_end():
    """By loops: rows of four steps and of none, ends behind the mask; beta is .1 and the advantages are data."""
    mask = np.bool_([[1, 1, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0]])
    ends = np.bool_([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 0]])
    moved = np.float32(np.random.default_rng(0).normal(size=(3, 4)) * 0.3)
    advantages = np.float32([[0.1, -0.2, 0.3, 0.0], [0.2, 0.2, np.nan, 0.2], [np.nan] * 4])
    log_probs, old = (np.where(mask, x, np.nan).astype(np.float32) for x in (moved - 1, np.full((3, 4), -1.0)))
    expected = np.zeros((3, 4))
    for row in range(3):
        total = 0.0
        for t in np.flatnonzero(mask[row]):
            total += moved[row, t]
            if ends[row, t]:
                expected[row, t], total = 0.5 * (advantages[row, t] / 0.1 - total) ** 2, 0.0

    def summed(part):
        def fn(*arrays):
            found = regression.direct_advantage(*arrays, mask, selected=ends)
            return jnp.sum(getattr(found, part)), found

        return fn

    of, found = jax.jit(jax.grad(summed("loss"), argnums=(0, 1, 2), has_aux=True))(log_probs, old, advantages)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-4, atol=1e-6)
    assert found.clipped_low.shape == found.clipped_high.shape == mask.shape
    assert np.isfinite(of[0]).all() and not np.asarray(of[0])[~mask].any()
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
    assert not np.asarray(jax.jit(jax.grad(summed("ratio"), has_aux=True))(log_probs, old, advantages)[0]).any()
    offline = regression.offline_direct_advantage(
        log_probs, np.zeros((3, 4), np.float32), advantages, mask, selected=ends, behavior_log_probs=old
    )
    np.testing.assert_allclose(offline.loss, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(AssertionError):
        regression.offline_direct_advantage(
            log_probs, old[:, :1], advantages, mask, selected=ends, behavior_log_probs=old
        )

    def toward(log_probs):
        found = regression.toward_advantage(log_probs, old - 0.5, advantages, mask, ref_log_probs=old)
        return jnp.sum(found.ratio), found

    slope, found = jax.grad(toward, has_aux=True)(log_probs)  # beta is 1
    gaps = np.where(mask, moved, 0).sum(axis=1)
    wanted = np.zeros((3, 4))
    wanted[0, 3], wanted[1, 3] = (gaps[0] - 0.0) ** 2, (gaps[1] - 0.2) ** 2
    np.testing.assert_allclose(found.loss, wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.ratio, np.where(mask, np.exp(moved + 0.5), 1.0), rtol=1e-4)
    assert not np.asarray(slope).any()


def test_each_turn_is_drawn_towards_its_own_advantage():
    """By a plain loop, with holes, turns side by side and tokens of no turn; one turn is toward_advantage."""
    rng = np.random.default_rng(3)
    turns = np.int32([[0, 0, -1, 2, 2, -1], [0, 1, 1, -1, -1, -1], [0, 0, 0, 0, -1, -1], [-1] * 6])
    mask = turns >= 0
    mask[2, 1] = False
    mask[1, 4] = True  # sampled, and of no turn
    log_probs, old, ref = (rng.uniform(-2, 0, turns.shape).astype(np.float32) for _ in range(3))
    advantages = rng.normal(size=4).astype(np.float32)[turns]
    expected, wanted = np.zeros(turns.shape), np.zeros(turns.shape)
    for row in range(4):
        for number in sorted(set(turns[row][mask[row] & (turns[row] >= 0)].tolist())):
            columns = np.flatnonzero(mask[row] & (turns[row] == number))
            gap = 0.5 * sum(log_probs[row, columns] - ref[row, columns]) - advantages[row, columns[0]]
            expected[row, columns[-1]] = gap**2
            wanted[row, columns] = 2 * gap * 0.5
    arguments = old, advantages, jnp.asarray(mask)

    def summed(log_probs):
        found = regression.toward_turn_advantage(log_probs, *arguments, ref_log_probs=ref, turns=turns, beta=0.5)
        return found.loss.sum(), found

    slope, found = jax.grad(summed, has_aux=True)(log_probs)
    np.testing.assert_allclose(found.loss, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-6)
    one = np.where(mask & (turns >= 0), 0, -1).astype(np.int32)
    of_rows = regression.toward_advantage(log_probs, old, advantages, jnp.asarray(one == 0), ref_log_probs=ref)
    of_turns = regression.toward_turn_advantage(log_probs, *arguments, ref_log_probs=ref, turns=one)
    np.testing.assert_allclose(of_turns.loss, of_rows.loss, rtol=1e-6)
    with pytest.raises(ValueError, match="beta=0 must be above 0"):
        regression.toward_turn_advantage(log_probs, *arguments, ref_log_probs=ref, turns=turns, beta=0)
