"""advantages/steps.py: numpy loops over episodes, the functions that tokens use, and what is not GAE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import steps, tokens


def batch(seed=0, rows=5, length=12, ends=True):
    """rewards, values, next_values, terminated, truncated [B, T]; V' is V of the next column within an episode."""
    rng = np.random.default_rng(seed)
    rewards, values, other = rng.normal(size=(3, rows, length)).astype(np.float32)
    terminated = (rng.random((rows, length)) < 0.2) & ends
    truncated = (rng.random((rows, length)) < 0.2) & ~terminated & ends
    following = np.concatenate([values[:, 1:], other[:, -1:]], axis=1)
    next_values = np.where(terminated | truncated, other, following)
    return rewards, values, next_values, terminated, truncated


def loop_gae(rewards, values, next_values, terminated, truncated, discount, lam):
    """GAE of every step by its own sum over the rest of its episode."""
    advantages = np.zeros(rewards.shape)
    for b, t in np.ndindex(rewards.shape):
        weight = 1.0
        for k in range(t, rewards.shape[1]):
            ahead = 0.0 if terminated[b, k] else discount * next_values[b, k]
            advantages[b, t] += weight * (rewards[b, k] + ahead - values[b, k])
            weight *= discount * lam
            if terminated[b, k] or truncated[b, k]:
                break
    return advantages


def as_jax(arrays):
    return tuple(jnp.asarray(x) for x in arrays)


@pytest.mark.parametrize("discount, lam", [(0.99, 0.95), (0.9, 0.5), (1.0, 1.0), (0.7, 0.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_gae_matches_the_loop(seed, discount, lam):
    arrays = batch(seed)
    advantages, returns = steps.gae(*as_jax(arrays), discount=discount, lam=lam)
    expected = loop_gae(*arrays, discount, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns, expected + arrays[1], rtol=1e-4, atol=1e-5)


def test_without_ends_it_is_the_gae_of_tokens():
    arrays = batch(2, ends=False)
    mask = jnp.ones(arrays[0].shape, bool)
    kept = dict(discount=0.9, lam=0.6)
    expected = tokens.gae(*as_jax(arrays[:2]), mask, bootstrap_values=jnp.asarray(arrays[2][:, -1]), **kept)
    for found, wanted in zip(steps.gae(*as_jax(arrays), **kept), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_truncation_goes_on_with_the_value_and_termination_does_not():
    one = jnp.ones((1, 1))
    no, yes = jnp.zeros((1, 1), bool), jnp.ones((1, 1), bool)
    cut, _ = steps.gae(one, 0 * one, 10 * one, no, yes, discount=0.5)
    ended, _ = steps.gae(one, 0 * one, 10 * one, yes, no, discount=0.5)
    assert cut[0, 0] == 6.0 and ended[0, 0] == 1.0


def test_the_second_step_weighs_gamma_lambda():
    """peers.md 3.3: r + gamma vs_{t+1} - V, with gamma in the place of gamma lambda, is another estimator below 1."""
    arrays = batch(3, ends=False)
    advantages, returns = steps.gae(*as_jax(arrays), discount=0.99, lam=0.5)
    other = arrays[0] + 0.99 * np.concatenate([returns[:, 1:], arrays[2][:, -1:]], axis=1) - arrays[1]
    assert np.abs(np.asarray(advantages) - other).max() > 0.05


def test_reward_to_go():
    rewards, _, next_values, terminated, truncated = batch(4)
    zeros = np.zeros_like(rewards)
    # With V = 0 inside and V' only where a row or an episode is cut off, lambda 1 is the discounted sum.
    ends = truncated.copy()
    ends[:, -1] |= ~terminated[:, -1]
    expected = loop_gae(rewards, zeros, np.where(ends, next_values, 0), terminated, truncated, 0.9, 1.0)
    arrays = as_jax(batch(4))
    advantages, returns = steps.reward_to_go(*arrays, discount=0.9)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(advantages, returns)


def loop_vtrace(rewards, values, next_values, terminated, truncated, rho, discount, lam, clip):
    rows, length = rewards.shape
    advantages, targets = np.zeros((2, rows, length))
    for b in range(rows):
        for t in reversed(range(length)):
            gamma = 0.0 if terminated[b, t] else discount
            over = terminated[b, t] or truncated[b, t] or t == length - 1
            after = 0.0 if over else targets[b, t + 1] - values[b, t + 1]
            weight, trace = min(rho[b, t], clip["clip_rho"]), min(rho[b, t], clip["clip_c"])
            delta = weight * (rewards[b, t] + gamma * next_values[b, t] - values[b, t])
            targets[b, t] = values[b, t] + delta + gamma * lam * trace * after
            corrected = next_values[b, t] + after
            push = min(rho[b, t], clip["clip_pg_rho"])
            advantages[b, t] = push * (rewards[b, t] + gamma * corrected - values[b, t])
    return advantages, targets


@pytest.mark.parametrize("seed, lam", [(0, 1.0), (1, 0.7)])
def test_vtrace_matches_the_loop(seed, lam):
    arrays = batch(seed)
    rng = np.random.default_rng(seed + 9)
    behavior = rng.normal(size=arrays[0].shape).astype(np.float32)
    log_probs = behavior + rng.normal(size=arrays[0].shape).astype(np.float32)
    clip = dict(clip_rho=1.1, clip_c=0.9, clip_pg_rho=1.3)
    found = steps.vtrace(
        *as_jax(arrays), log_probs=jnp.asarray(log_probs), behavior_log_probs=jnp.asarray(behavior), discount=0.9,
        lam=lam, **clip,
    )  # fmt: skip
    expected = loop_vtrace(*arrays, np.exp(log_probs - behavior), 0.9, lam, clip)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


def test_without_ends_it_is_the_vtrace_of_tokens():
    arrays = batch(5, ends=False)
    rng = np.random.default_rng(0)
    log_probs, behavior = jnp.asarray(rng.normal(size=(2, *arrays[0].shape)), jnp.float32)
    kept = dict(discount=0.9, lam=0.8, log_probs=log_probs, behavior_log_probs=behavior)
    mask = jnp.ones(arrays[0].shape, bool)
    expected = tokens.vtrace(*as_jax(arrays[:2]), mask, bootstrap_values=jnp.asarray(arrays[2][:, -1]), **kept)
    for found, wanted in zip(steps.vtrace(*as_jax(arrays), **kept), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_on_policy_and_with_lambda_one_vtrace_is_gae():
    arrays = as_jax(batch(6))
    same = dict(log_probs=arrays[0], behavior_log_probs=arrays[0])
    for found, wanted in zip(steps.vtrace(*arrays, **same), steps.gae(*arrays, lam=1.0), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_traced_factors_and_wrong_shapes():
    arrays = as_jax(batch(7))
    for found, wanted in (
        (steps.gae(*arrays), steps.gae(*arrays, discount=0.99, lam=0.95)),
        (steps.reward_to_go(*arrays), steps.reward_to_go(*arrays, discount=0.99)),
    ):
        np.testing.assert_array_equal(found, wanted)
    traced = jax.jit(lambda d, lam: steps.gae(*arrays, discount=d, lam=lam)[0])(0.9, 0.5)
    np.testing.assert_allclose(traced, steps.gae(*arrays, discount=0.9, lam=0.5)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        steps.gae(*arrays[:3], arrays[3][:, :-1], arrays[4])
    with pytest.raises(AssertionError):
        steps.gae(*arrays[:3], arrays[0], arrays[4])
