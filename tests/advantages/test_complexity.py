"""advantages/complexity.py and losses/difficulty.py: APO's two weights by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.advantages import complexity
from rl_jax.losses import difficulty, kl

REWARDS = np.float32([1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1])
LENGTHS = np.int32([10, 69_335, 5, 30, 1, 2, 3, 4, 1, 2, 3, 4])


def test_long_wrong_answers_are_pushed_down_harder():
    plain = np.asarray(advantages.group_relative(REWARDS, group_size=4, eps=1e-9))
    found = np.asarray(complexity.apo(REWARDS, group_size=4, lengths=LENGTHS))
    expected = plain.copy()
    expected[1] *= 1.5  # 69,315 tokens more than the 20 of the right answers
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    rng = np.random.default_rng(0)
    rewards, lengths = rng.choice([0.0, 1.0, 0.99], size=40).astype(np.float32), rng.integers(0, 30, 40)
    rewards[:8] = [0, 0.25, 0, 0.5, 0, 0, 1, 0]  # nobody is right, one is
    expected = []
    for own, n in zip(np.float64(rewards).reshape(-1, 4), lengths.reshape(-1, 4), strict=True):
        right = [length for length, reward in zip(n, own, strict=True) if reward >= 1]
        for reward, length in zip(own, n, strict=True):
            more = length - np.mean(right) if right and reward < 1 else 0.0
            a = (reward - own.mean()) / (own.std(ddof=1) + 1e-9) if np.ptp(own) else 0.0
            expected.append(a * (1 + max(1 - 1.1**-more, 0.0)))
    found = complexity.apo(rewards, group_size=4, lengths=lengths, base=1.1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    small = complexity.apo(REWARDS * 1e-9, group_size=4, lengths=LENGTHS, right=1e-9)  # as small as eps
    std = np.std(REWARDS[:4], ddof=1)  # 1 for the eps
    np.testing.assert_allclose(small[:4], plain[:4] * [1, 1.5, 1, 1] * std / (std + 1), rtol=1e-4)
    with pytest.raises(ValueError, match="base=1.0 must be above 1"):
        complexity.apo(REWARDS, group_size=4, lengths=LENGTHS, base=1.0)


@pytest.mark.parametrize("right", [1, 3, 7])
def test_the_kl_of_right_answers_counts_less_on_hard_prompts(right):
    """1 - exp(-e (1 - d)) with the difficulty d = 1 - right / 8; wrong answers and equal groups keep theirs."""
    rewards = np.float32([1] * right + [0] * (8 - right) + [1] * 8)
    of_rows = advantages.group_relative(rewards, group_size=8)
    mask = jnp.ones((16, 2), bool).at[0, 1].set(False)
    log_probs = jnp.linspace(-2.0, -1.0, 32).reshape(16, 2)
    arrays = (log_probs, log_probs[::-1], mask)
    tokens = jnp.where(mask, jnp.broadcast_to(of_rows[:, None], mask.shape), jnp.nan)
    weighed = difficulty.shaped_k3(*arrays, advantages=tokens, group_size=8)
    weights = np.array([1 - np.exp(-np.e * right / 8)] * right + [1.0] * (16 - right))[:, None]
    np.testing.assert_allclose(weighed, weights * kl.k3(*arrays), rtol=1e-4, atol=1e-7)
    slope = jax.grad(lambda x: difficulty.shaped_k3(*arrays, advantages=x, group_size=8).sum())(tokens)
    np.testing.assert_array_equal(slope, 0.0)
