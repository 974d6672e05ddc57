"""credit/step_rewards.py by loops over solutions: nothing is read where no step is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.credit import step_rewards

RNG = np.random.default_rng(0)
MASK = np.arange(5) < np.array([5, 3, 2, 1, 0])[:, None]
REWARDS = np.where(MASK, RNG.normal(size=MASK.shape), np.nan).astype(np.float32)


def rows():
    return [row[on].astype(float).tolist() for row, on in zip(REWARDS, MASK, strict=True)]


def padded(lines):
    return np.array([line + [0.0] * (5 - len(line)) for line in lines])


def test_clipped_steps_and_deltas():
    found = step_rewards.clip_steps(REWARDS, MASK, threshold=0.25)
    np.testing.assert_allclose(found, padded([[min(r - 0.25, 0.0) for r in row] for row in rows()]), rtol=1e-6)
    deltas = []
    for row in rows():
        ahead = [*row[1:-1], 0.0]  # the step before the last earns its own reward, the last one nothing
        deltas.append([r - after for r, after in zip(row[:-1], ahead, strict=False)] + [0.0] if row else [])
    np.testing.assert_allclose(step_rewards.delta_steps(REWARDS, MASK), padded(deltas), rtol=1e-5, atol=1e-6)


def test_signs_are_of_more_than_a_half():
    probs = np.float32([[0.52, 0.5, 0.48, np.nan], [0.7, np.nan, np.nan, np.nan]])
    mask = ~np.isnan(probs)
    np.testing.assert_array_equal(step_rewards.signed(probs, mask), [[1, -1, -1, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(step_rewards.signed(probs, mask, threshold=0.6), [[-1, -1, -1, 0], [1, 0, 0, 0]])


def test_rewards_of_steps_that_end_on_one_token_are_summed():
    ends = np.array([[0, 2, 2, 2, 6], [1, 1, 3, 9, 9], [0, 6, 0, 0, 0], [4, 4, 4, 4, 4], [0, 0, 0, 0, 0]])
    expected = np.zeros((5, 7))
    for row, line in enumerate(rows()):
        for reward, column in zip(line, ends[row], strict=False):
            expected[row, column] += reward
    found = step_rewards.at_tokens(REWARDS, MASK, jnp.asarray(ends), completion_length=7)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for wrong in ((REWARDS[:, 1:], MASK, ends), (REWARDS, MASK, ends[:, 1:])):
        with pytest.raises(AssertionError):
            step_rewards.at_tokens(*wrong, completion_length=7)


@pytest.mark.parametrize("scale", [1.0, -1e-6])
def test_primes_largest_return_to_go_is_one(scale):
    """1e-6 beside it, so that small ratios stay small; data, without a gradient."""
    ratios = (scale * REWARDS).astype(np.float32)
    largest = max(abs(sum(row[t:])) for row in rows() for t in range(len(row))) * abs(scale)
    expected = padded(rows()) * scale / (largest + 1e-6)

    def total(x):
        found = step_rewards.prime_token_rewards(x, MASK)
        return jnp.sum(found**2), found

    slope, found = jax.grad(total, has_aux=True)(ratios)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(slope, 0.0)
    plain = step_rewards.prime_token_rewards(ratios, MASK, normalize=False)
    np.testing.assert_allclose(plain, padded(rows()) * scale, rtol=1e-6)
