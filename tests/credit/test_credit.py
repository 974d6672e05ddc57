"""credit.py: rewards through shaping, KL in the reward, advantages and weights, against sums written out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import group_centered
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.credit import rule, shaping
from rl_jax.losses import kl
from rl_jax.testing.batches import ragged_batch

GROUP = 4


def _rollout(batch, truncated=()):
    blank = np.zeros(batch.mask.shape, np.int32)
    cut = np.isin(np.arange(len(batch.mask)), truncated)
    return Rollout(
        TokenBatch(blank, blank, blank), batch.mask, batch.old_log_probs - 0.1, batch.old_log_probs, ~cut, cut
    )


def _rewards(rows=8):
    return np.random.default_rng(0).normal(size=rows).astype(np.float32)


def _assign(choices=None, batch=None, rewards=None, truncated=(), **more):
    batch = ragged_batch(0) if batch is None else batch
    rewards = _rewards() if rewards is None else rewards
    more = {"group_size": GROUP, "key": jax.random.key(0), "ref_log_probs": batch.ref_log_probs} | more
    return rule.assign(choices or rule.CreditRule(), _rollout(batch, truncated), jnp.asarray(rewards), **more)


def test_the_default_is_grpo_without_weights():
    batch, rewards = ragged_batch(0), _rewards()
    found = _assign(batch=batch, rewards=rewards)
    groups = rewards.reshape(-1, GROUP)
    expected = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(found.advantages, np.where(batch.mask, expected.reshape(-1, 1), 0), rtol=1e-5)
    np.testing.assert_array_equal(found.token_weights, batch.mask.astype(np.float32))
    np.testing.assert_array_equal(found.completion_mask, batch.mask)
    assert found.old_log_probs is None and set(found.extras) == {"group_tokens"}
    tokens = batch.mask.sum(1).reshape(-1, GROUP).sum(1)
    np.testing.assert_array_equal(found.extras["group_tokens"], np.repeat(tokens, GROUP))


@pytest.mark.parametrize("estimator", [kl.k1, kl.k2])
def test_kl_in_the_reward_is_taken_off_before_the_baseline(estimator):
    batch, rewards = ragged_batch(1), _rewards()
    choices = rule.CreditRule(advantage=group_centered, reward_kl=estimator)
    found = _assign(choices, batch, rewards, log_probs=batch.log_probs, reward_kl_coef=0.3)
    d = (batch.log_probs - batch.ref_log_probs).astype(np.float64)
    penalty = np.where(batch.mask, d if estimator is kl.k1 else d**2 / 2, 0).sum(1)
    groups = (rewards - 0.3 * penalty).reshape(-1, GROUP)
    expected = (groups - groups.mean(1, keepdims=True)).reshape(-1, 1)
    np.testing.assert_allclose(found.advantages, np.where(batch.mask, expected, 0), rtol=1e-4, atol=1e-6)


def test_an_advantage_of_tokens_gets_the_token_rewards():
    batch, rewards = ragged_batch(2), _rewards()

    def as_they_are(rewards, *, token_rewards):
        return token_rewards

    found = _assign(
        rule.CreditRule(advantage=as_they_are), batch, rewards, log_probs=batch.log_probs, reward_kl_coef=0.5
    )
    expected = np.where(batch.mask, -0.5 * (batch.log_probs - batch.ref_log_probs), 0)
    last = [np.flatnonzero(row)[-1] for row in batch.mask]
    expected[np.arange(8), last] += rewards
    np.testing.assert_allclose(found.advantages, expected, rtol=1e-5, atol=1e-6)


def test_weights_multiply_and_see_what_they_ask_for():
    batch = ragged_batch(3)

    def by_gap(mask, *, log_probs, behavior_log_probs):
        return jnp.where(mask, log_probs - behavior_log_probs, 0.0)

    def by_sign(mask, *, advantages):
        return jnp.where(mask & (advantages > 0), 2.0, 1.0)

    choices = rule.CreditRule(behavior_weight=by_gap, token_weight=by_sign)
    found = _assign(choices, batch, log_probs=batch.old_log_probs)
    sign = np.where(np.asarray(found.advantages) > 0, 2.0, 1.0)
    np.testing.assert_allclose(found.token_weights, np.where(batch.mask, 0.1 * sign, 0), rtol=1e-4)


def test_the_selection_and_the_shaping_are_called():
    batch, rewards = ragged_batch(4), _rewards()

    def positive(mask, *, advantages):
        return mask & (advantages > 0)

    def doubled(rewards, lengths, truncated, key):
        np.testing.assert_array_equal(lengths, batch.mask.sum(1))
        np.testing.assert_array_equal(truncated, np.arange(8) == 3)
        return 2 * rewards

    choices = rule.CreditRule(selection=positive, shape=doubled, advantage=group_centered)
    found = _assign(choices, batch, rewards, truncated=(3,))
    np.testing.assert_array_equal(found.extras["selected"], batch.mask & (np.asarray(found.advantages) > 0))
    plain = _assign(rule.CreditRule(advantage=group_centered), batch, rewards)
    np.testing.assert_allclose(found.advantages, 2 * np.asarray(plain.advantages), rtol=1e-5)


def test_truncated_rows_leave_the_loss_and_stay_in_their_group():
    batch, rewards = ragged_batch(5), _rewards()
    kept = _assign(batch=batch, rewards=rewards)
    cut = _assign(rule.CreditRule(mask_truncated=True), batch, rewards, truncated=(0, 5))
    rows = np.isin(np.arange(8), (0, 5))
    assert not np.asarray(cut.completion_mask)[rows].any() and not np.asarray(cut.token_weights)[rows].any()
    np.testing.assert_array_equal(np.asarray(cut.advantages)[~rows], np.asarray(kept.advantages)[~rows])


@pytest.mark.parametrize("part", [None, 0, 1])
def test_shaping_and_weights_draw_different_numbers(part):
    """Nor if shaping splits its key, as jax.random.permutation does: fold_in(key, 1) is split(key)[1]."""
    batch = ragged_batch(6)

    def noise(mask, *, key):
        return jnp.where(mask, jax.random.uniform(key, mask.shape), 0.0)

    def noisy(rewards, lengths, truncated, key):
        own = key if part is None else jax.random.split(key)[part]
        return jax.random.uniform(own, batch.mask.shape)[:, 0]

    def as_they_are(rewards):
        return rewards

    found = _assign(rule.CreditRule(shape=noisy, advantage=as_they_are, token_weight=noise), batch)
    assert not np.isclose(found.advantages[:, 0], found.token_weights[:, 0])[batch.mask[:, 0]].any()


def test_what_is_not_there_is_refused_with_what_is():
    def greedy(rewards, *, greedy_rewards):
        return rewards - greedy_rewards

    def by_entropy(mask, *, entropy):
        return entropy

    with pytest.raises(ValueError, match="greedy needs greedy_rewards, .*; available: .*group_size"):
        _assign(rule.CreditRule(advantage=greedy))
    with pytest.raises(ValueError, match="by_entropy needs entropy, .*; available: advantages, behavior_log_probs"):
        _assign(rule.CreditRule(token_weight=by_entropy))
    found = _assign(rule.CreditRule(advantage=greedy), greedy_rewards=jnp.asarray(_rewards()))
    np.testing.assert_array_equal(found.advantages, 0)


def test_needs_scores_says_when_a_forward_pass_is_wanted():
    def by_entropy(mask, *, entropy):
        return entropy

    assert not rule.CreditRule().needs_scores()
    assert rule.CreditRule(token_weight=by_entropy).needs_scores()
    assert not rule.CreditRule(token_weight=functools.partial(by_entropy, entropy=1.0)).needs_scores()
    assert not rule.CreditRule(shape=shaping.shuffled).needs_scores()


def test_what_stands_off_the_mask_is_not_earned():
    """A penalty that does not mask itself, ends of steps in the padding, an advantage of tokens without a mask."""
    batch, rewards = ragged_batch(7), _rewards()
    ends = np.ones(batch.mask.shape, bool)
    own = np.where(batch.mask, 0.25, np.nan).astype(np.float32)
    rollout = _rollout(batch)._replace(token_rewards=own, step_ends=ends)
    choices = rule.CreditRule(reward_kl=lambda log_probs, ref_log_probs, mask: jnp.ones(mask.shape))
    named = dict(log_probs=batch.log_probs, ref_log_probs=batch.ref_log_probs, reward_kl_coef=0.5)
    earned = rule.token_rewards(choices, rollout, rewards, group_size=GROUP, key=jax.random.key(0), **named)
    counts = batch.mask.sum(axis=1)
    np.testing.assert_allclose(earned.rows, rewards + (0.25 - 0.5) * counts, rtol=1e-5)
    np.testing.assert_allclose(np.sum(earned.tokens, axis=1), earned.rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(earned.named["step_ends"], batch.mask)
    assert earned.named["token_rewards"] is earned.tokens
    everywhere = rule.token_advantages(
        jnp.asarray(rewards), batch.mask, advantage=lambda rewards: jnp.ones(batch.mask.shape)
    )
    np.testing.assert_array_equal(everywhere, batch.mask)


def test_a_kl_of_the_integer_zero_asks_for_nothing_and_greedy_rewards_for_all_of_theirs():
    found = _assign(ref_log_probs=None, reward_kl_coef=0)
    np.testing.assert_allclose(found.advantages, _assign().advantages, rtol=1e-6)  # CI saw 1e-7 once, of equal calls

    def greedy(rewards, *, greedy_rewards):
        return rewards - greedy_rewards

    choices = rule.CreditRule(advantage=greedy, shape=functools.partial(shaping.clip_rewards, low=-0.1, high=0.1))
    rewards = jnp.asarray(_rewards())
    with pytest.raises(ValueError, match="greedy_rewards also need greedy_lengths and greedy_truncated"):
        _assign(choices, greedy_rewards=rewards, greedy_lengths=jnp.ones(8, int))
    given = dict(greedy_lengths=jnp.ones(8, int), greedy_truncated=jnp.zeros(8, bool))
    np.testing.assert_array_equal(_assign(choices, greedy_rewards=rewards, **given).advantages, 0.0)


def test_weights_may_ask_for_what_is_there_and_for_extras_and_have_a_key_of_their_own():
    batch, keys = ragged_batch(6), []

    def weight(mask, *, there, carried, key):
        keys.append(key)
        return jnp.where(mask, there[:, None] * carried[:, None], 0.0)

    there, carried = np.arange(8.0, dtype=np.float32), np.float32([2, 3, 2, 3, 2, 3, 2, 3])
    found = _assign(rule.CreditRule(token_weight=weight), batch, there=there, extras={"carried": carried})
    np.testing.assert_array_equal(found.token_weights, np.where(batch.mask, (there * carried)[:, None], 0.0))
    np.testing.assert_array_equal(found.extras["carried"], carried)
    assert keys == [jax.random.fold_in(jax.random.key(0), 3)]  # a seeded run stays what it was


def test_the_sampled_tokens_are_the_last_columns():
    batch = ragged_batch(6)
    tokens = np.arange(8 * 10).reshape(8, 10)
    rollout = _rollout(batch)._replace(batch=TokenBatch(tokens, tokens, tokens))
    np.testing.assert_array_equal(rule.completion_tokens(rollout), tokens[:, 10 - batch.mask.shape[1] :])
    assert rule.completion_tokens(rollout._replace(batch=None)) is None  # steps in environments
