"""losses/policy/mixed.py and advantages.hybrid against closed forms and loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.core.binding import bind
from rl_jax.losses import aggregate, policy
from rl_jax.losses.policy.mixed import against_sampler, mixed_rows, probability_shaped
from rl_jax.testing.batches import ragged_batch

FOREIGN = np.arange(8) % 3 == 0


def batch_of(seed):
    """Log-probs of real probabilities, all below 0."""
    batch = ragged_batch(seed)
    return batch._replace(log_probs=batch.log_probs - 1.0, old_log_probs=batch.old_log_probs - 1.0)


def gradient(surrogate, batch):
    def total(log_probs):
        return jnp.sum(surrogate(log_probs, batch.old_log_probs, batch.advantages, batch.mask).loss)

    return np.asarray(jax.grad(total)(batch.log_probs))


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_shaped_probabilities(gamma):
    batch = batch_of(1)
    out = probability_shaped(batch.log_probs, batch.old_log_probs, batch.advantages, batch.mask, gamma=gamma)
    p = np.exp(batch.log_probs)
    np.testing.assert_allclose(out.loss, np.where(batch.mask, -batch.advantages * p / (p + gamma), 0), rtol=1e-5)
    expected = np.where(batch.mask, -batch.advantages * gamma * p / (p + gamma) ** 2, 0)
    found = gradient(functools.partial(probability_shaped, gamma=gamma), batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert not out.clipped_low.any() and not out.clipped_high.any()
    moved = np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0)
    np.testing.assert_allclose(out.ratio, np.exp(moved), rtol=1e-5)
    hidden = [np.where(batch.mask, x, np.nan) for x in batch[:3]]

    def total(part):
        return lambda *x: jnp.sum(getattr(probability_shaped(*x, batch.mask, gamma=gamma), part))

    of = jax.jit(jax.grad(total("loss"), argnums=(0, 1, 2)))(*hidden)
    np.testing.assert_allclose(of[0], expected, rtol=1e-4, atol=1e-7)
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
    assert not np.asarray(jax.grad(total("ratio"))(*hidden)).any()
    if gamma == 0.1:  # the published number
        np.testing.assert_array_equal(probability_shaped(*batch[:3], batch.mask).loss, out.loss)


def test_padding_is_never_read():
    batch = batch_of(2)
    poisoned = batch._replace(log_probs=np.where(batch.mask, batch.log_probs, np.nan))
    surrogate = functools.partial(mixed_rows, foreign=FOREIGN)
    np.testing.assert_array_equal(gradient(surrogate, poisoned), gradient(surrogate, batch))


def test_each_row_has_its_own_loss():
    batch = batch_of(3)
    spec = dict(
        fn="rl_jax.losses.policy.mixed:mixed_rows",
        own=dict(fn="clipped_surrogate", clip_high=0.1),
        other=dict(fn="rl_jax.losses.policy.mixed:probability_shaped", gamma=0.2),
    )
    mixed = functools.partial(bind(spec, policy), foreign=FOREIGN)(*batch[:3], batch.mask)
    own = policy.clipped_surrogate(*batch[:3], batch.mask, clip_high=0.1)
    other = probability_shaped(*batch[:3], batch.mask, gamma=0.2)
    for name in own._fields:
        expected = np.where(FOREIGN[:, None], getattr(other, name), getattr(own, name))
        np.testing.assert_array_equal(getattr(mixed, name), expected)
    assert (np.asarray(own.loss) != np.asarray(other.loss))[batch.mask].any()
    plain = mixed_rows(*batch[:3], batch.mask, foreign=FOREIGN)  # PPO's clip, and shaped probabilities
    clipped, shaped = (fn(*batch[:3], batch.mask).loss for fn in (policy.clipped_surrogate, probability_shaped))
    np.testing.assert_array_equal(plain.loss, np.where(FOREIGN[:, None], shaped, clipped))
    never = functools.partial(bind(spec, policy), foreign=np.zeros(8, bool))(*batch[:3], batch.mask)
    np.testing.assert_array_equal(never.loss, own.loss)


def test_a_ratio_that_the_other_surrogate_does_not_look_at_may_overflow():
    log_probs, advantages, mask = jnp.full((2, 1), -1.0), -jnp.ones((2, 1)), np.ones((2, 1), bool)
    old, foreign = jnp.asarray([[-100.0], [-1.0]]), np.array([True, False])

    def slopes(**surrogates):
        fn = functools.partial(mixed_rows, foreign=foreign, **surrogates)
        return jax.grad(lambda x: fn(x, old, advantages, mask).loss.sum())(log_probs)[:, 0]

    expected = jax.grad(lambda x: probability_shaped(x, old, advantages, mask).loss.sum())(log_probs)[0, 0]
    np.testing.assert_allclose(slopes(), [expected, 1.0], rtol=1e-6)
    foreign = ~foreign
    turned = slopes(own="reinforce", other="importance_sampling")
    np.testing.assert_allclose(turned, [1.0, 1.0], rtol=1e-6)


def test_hpt_is_the_sum_of_sft_and_dr_grpo():
    """arXiv 2509.04419: -1/n sum logp on a demonstration, -1/L sum (R - mean) r on the rows of the other prompts."""
    batch, limit, group = batch_of(4), 20, 4
    lengths, rewards = batch.mask.sum(axis=1), np.float32([9, 0, 0, 0, 1, 0, 0, 1])
    foreign, mask = np.arange(8) == 0, batch.mask & ~np.isin(np.arange(8), (1, 2, 3))[:, None]
    a = advantages.hybrid(rewards, group_size=group, foreign=foreign, lengths=lengths, max_length=limit)
    np.testing.assert_allclose(a[4:], np.array([0.5, -0.5, -0.5, 0.5]) / limit)
    np.testing.assert_allclose(a[0], 1 / lengths[0])
    token_advantages = np.where(mask, np.asarray(a)[:, None], 0).astype(np.float32)
    choice = functools.partial(mixed_rows, foreign=foreign, own="importance_sampling", other="reinforce")

    def ours(log_probs):
        out = choice(log_probs, batch.old_log_probs, token_advantages, mask)
        return aggregate.token_sum(out.loss, mask, batch_rows=np.full(8, 5.0, np.float32)).value()

    def theirs(log_probs):
        nll = -jnp.sum(jnp.where(mask[0], log_probs[0], 0)) / lengths[0]
        ratio = jnp.exp(log_probs - batch.old_log_probs)[4:]
        centred = (rewards - 0.5)[4:, None]
        return nll - jnp.sum(jnp.where(mask[4:], centred * ratio, 0)) / limit

    np.testing.assert_allclose(jax.grad(ours)(batch.log_probs), jax.grad(theirs)(batch.log_probs), rtol=1e-5, atol=1e-8)


def test_without_a_demonstration_hybrid_is_dr_grpo():
    rewards = np.float32([1, 0, 0, 0, 1, 1, 0, 0])
    found = advantages.hybrid(rewards, group_size=4, foreign=np.zeros(8, bool), lengths=np.full(8, 3), max_length=10)
    np.testing.assert_allclose(found, advantages.group_centered(rewards, group_size=4) / 10)


def test_a_replayed_row_is_clipped_about_its_sampler():
    batch = batch_of(5)
    spec = dict(fn="rl_jax.losses.policy.mixed:against_sampler", surrogate=dict(fn="clipped_surrogate", clip_high=0.3))
    chosen = bind(spec, policy)
    found = chosen(*batch[:3], batch.mask, behavior_log_probs=batch.ref_log_probs)
    expected = policy.clipped_surrogate(
        batch.log_probs, batch.ref_log_probs, batch.advantages, batch.mask, clip_high=0.3
    )
    np.testing.assert_array_equal(found.loss, expected.loss)
    assert np.asarray(found.clipped_low | found.clipped_high).any()
    plain = against_sampler(*batch[:3], batch.mask, behavior_log_probs=batch.ref_log_probs)  # PPO's, by default
    again = policy.clipped_surrogate(batch.log_probs, batch.ref_log_probs, batch.advantages, batch.mask)
    np.testing.assert_array_equal(plain.loss, again.loss)
