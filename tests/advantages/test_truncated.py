"""EGAE beside plain loops, and the batch that windows make of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import credit, ppo
from rl_jax.advantages import tokens, truncated
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.losses import value

ROWS, LENGTH = 4, 6
LENGTHS = (6, 3, 6, 2)
UNFINISHED = np.array([True, True, False, False])


def case(seed=0):
    """(rewards, values, mask, bootstrap): rows that go on, one that was cut off at the limit, one that ended."""
    rng = np.random.default_rng(seed)
    mask = np.arange(LENGTH)[None] < np.array(LENGTHS)[:, None]
    rewards, values = (rng.normal(size=mask.shape).astype(np.float32) for _ in range(2))
    return np.where(mask, rewards, 0.0), values, mask, np.array([9.0, 9.0, 0.5, 0.0], np.float32)


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 0.95), (0.9, 0.5)])
def test_egae_is_the_sum_of_its_deltas(discount, lam):
    rewards, values, mask, after = case()
    found = truncated.extended_gae(
        rewards, values, mask, unfinished=UNFINISHED, bootstrap_values=after, discount=discount, lam=lam
    )
    for row, n in enumerate(LENGTHS):
        last = values[row, n - 1] if UNFINISHED[row] else after[row]
        states = [*values[row, :n].astype(float), float(last)]
        deltas = [rewards[row, t] + discount * states[t + 1] - states[t] for t in range(n)]
        for t in range(n):
            advantage = sum((discount * lam) ** (k - t) * deltas[k] for k in range(t, n))
            target = sum(discount ** (k - t) * rewards[row, k] for k in range(t, n)) + discount ** (n - t) * states[n]
            np.testing.assert_allclose(found[0][row, t], advantage, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found[1][row, t], target, rtol=1e-4, atol=1e-5)
    assert not np.asarray(found[0])[~mask].any() and not np.asarray(found[1])[~mask].any()


def test_it_is_gae_if_every_answer_is_over():
    rewards, values, mask, after = case(1)
    found, _ = truncated.extended_gae(
        rewards, values, mask, unfinished=np.zeros(ROWS, bool), bootstrap_values=after
    )
    expected, _ = tokens.gae(rewards, values, mask, bootstrap_values=after, discount=1.0, lam=0.95)
    np.testing.assert_array_equal(found, expected)


def test_the_last_token_of_an_answer_that_goes_on_earns_its_reward_alone():
    rewards, values, mask, after = case(2)
    found, _ = truncated.extended_gae(rewards, values, mask, unfinished=UNFINISHED, bootstrap_values=after)
    np.testing.assert_allclose(found[0, 5], rewards[0, 5], rtol=1e-5)


def windowed(versions):
    """(rollout, PPOBatch) of rows whose tokens have these versions."""
    _, values, mask, _ = case(3)
    blank = np.zeros(mask.shape, np.int32)
    log_probs = np.full(mask.shape, -1.0, np.float32)
    finished = np.array([False, False, False, True])
    rollout = Rollout(
        TokenBatch(blank, blank, blank), mask, log_probs, log_probs, finished, np.array([False, False, True, False])
    )
    rollout = rollout._replace(versions=versions)
    estimator = ppo.Estimator(truncated.extended_gae, windowed=True)
    values = np.concatenate([values, np.ones((ROWS, 1), np.float32)], axis=1)
    rewards = np.array([0.0, 0.0, 1.0, 1.0], np.float32)
    batch, metrics = ppo.assign(
        credit.CreditRule(), estimator, rollout, rewards, values, group_size=1, key=jax.random.key(0)
    )
    return rollout, batch, metrics, values


def test_policy_and_critic_learn_from_their_own_tokens():
    """The policy from the newest window, whitened over it; the critic from answers that are over, Monte Carlo."""
    versions = np.array([[1, 1, 2, 2, 3, 3], [3, 3, 3, 0, 0, 0], [1, 1, 2, 2, 3, 3], [3, 3, 0, 0, 0, 0]], np.int32)
    rollout, batch, metrics, values = windowed(versions)
    newest = rollout.completion_mask & (versions == 3)
    np.testing.assert_array_equal(batch.completion_mask, newest)
    over = rollout.completion_mask & np.array([False, False, True, True])[:, None]
    np.testing.assert_array_equal(batch.value_mask, over)
    np.testing.assert_allclose(np.asarray(batch.returns)[over], 1.0, atol=1e-6)
    chosen = np.asarray(batch.policy.advantages)
    assert not chosen[~newest].any()
    np.testing.assert_allclose([chosen[newest].mean(), chosen[newest].std(ddof=1)], [0.0, 1.0], atol=1e-4)
    np.testing.assert_allclose(metrics["value/mean"].value(), values[:, :-1][over].mean(), rtol=1e-5)

    def loss(outputs):
        objective = ppo.Objective(value_loss=lambda v, g, m: value.ValueLoss(jnp.square(v - g) / 2, m & False))
        return ppo.value_loss(outputs[..., None], batch, objective)[0].value()

    gradient = jax.grad(loss)(jnp.zeros(over.shape))
    np.testing.assert_allclose(gradient, np.where(over, -1.0 / over.sum(), 0.0), atol=1e-6)


def test_what_was_earned_counts_in_the_newest_window():
    """The last row was over in the window before: its reward was counted there."""
    versions = np.array([[1, 1, 2, 2, 3, 3], [3, 3, 3, 0, 0, 0], [1, 1, 2, 2, 3, 3], [2, 2, 0, 0, 0, 0]], np.int32)
    metric = windowed(versions)[2]["reward/optimized"]
    assert (metric.total, metric.count) == (1.0, ROWS)


def test_windows_need_versions():
    with pytest.raises(ValueError, match="needs rollout.versions"):
        windowed(None)
