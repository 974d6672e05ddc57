"""The seams of credit: the rollout's own token rewards, versions, extras, shaped baselines, group-wise shaping."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages, credit, grpo, ppo
from rl_jax.advantages.tokens import gae
from rl_jax.core.types import PolicyBatch, PreferenceBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit import CreditRule, shaping
from rl_jax.losses import policy
from rl_jax.testing.batches import ragged_batch

GROUP = 4
REWARDS = np.random.default_rng(0).normal(size=8).astype(np.float32)


def rollout_of(batch, **more):
    blank, cut = np.zeros(batch.mask.shape, np.int32), np.zeros(len(batch.mask), bool)
    tokens = TokenBatch(blank, blank, blank)
    return Rollout(tokens, batch.mask, batch.old_log_probs - 0.1, batch.old_log_probs, ~cut, cut, **more)


def assign(rule, batch, rewards=REWARDS, *, of_rollout=None, **more):
    more = {"group_size": GROUP, "key": jax.random.key(0)} | more
    return credit.assign(rule, rollout_of(batch, **(of_rollout or {})), jnp.asarray(rewards), **more)


def step_rewards(batch):
    """Rewards on about every third token, behind the mask nan."""
    rng = np.random.default_rng(1)
    found = rng.normal(size=batch.mask.shape) * (rng.random(batch.mask.shape) < 0.4)
    return np.where(batch.mask, found, np.nan).astype(np.float32)


def as_they_are(rewards, *, token_rewards):
    return token_rewards


def on_last(batch, rewards):
    last = [np.flatnonzero(row)[-1] for row in batch.mask]
    out = np.zeros(batch.mask.shape, np.float32)
    out[np.arange(len(rewards)), last] = rewards
    return out


# --- Token rewards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["rollout", "argument"])
def test_the_rollouts_token_rewards_are_added_to_the_rows(by):
    batch = ragged_batch(0)
    own = step_rewards(batch)
    given = {"of_rollout": {"token_rewards": own}} if by == "rollout" else {"token_rewards": jnp.asarray(own)}
    found = assign(CreditRule(advantage=as_they_are), batch, **given)
    steps = np.where(batch.mask, own, 0)
    np.testing.assert_allclose(found.advantages, on_last(batch, REWARDS) + steps, rtol=1e-6)
    rows = assign(CreditRule(advantage=advantages.no_baseline), batch, **given)
    expected = np.where(batch.mask, (REWARDS + steps.sum(1))[:, None], 0)
    np.testing.assert_allclose(rows.advantages, expected, rtol=1e-5, atol=1e-6)


def test_process_supervision_is_fed_by_the_rollouts_token_rewards():
    batch = ragged_batch(1)
    own = step_rewards(batch)
    found = assign(CreditRule(advantage=advantages.process_supervised), batch, of_rollout={"token_rewards": own})
    steps = jnp.asarray(np.where(batch.mask, own, 0))
    expected = advantages.process_supervised(
        jnp.asarray(REWARDS),
        step_rewards=steps,
        step_ends=steps != 0,
        completion_mask=jnp.asarray(batch.mask),
        group_size=GROUP,
    )
    np.testing.assert_array_equal(found.advantages, expected)
    assert np.ptp(np.asarray(found.advantages)[batch.mask]) > 0.1


def test_a_step_worth_nothing_is_a_step_if_the_caller_says_so():
    batch = ragged_batch(2)
    own = on_last(batch, np.array([1, 0, 0, 0, 0, 0, 1, 1], np.float32))
    ends = on_last(batch, np.ones(8, np.float32)) > 0
    rule = CreditRule(advantage=advantages.process_supervised)
    found = assign(rule, batch, token_rewards=jnp.asarray(own), step_ends=jnp.asarray(ends))
    outcome = assign(CreditRule(), batch, own.sum(1))  # one step at the end of each row
    np.testing.assert_allclose(found.advantages, outcome.advantages, rtol=1e-5, atol=1e-6)
    of_rollout = {"token_rewards": jnp.asarray(own), "step_ends": jnp.asarray(ends)}  # as a judge of steps says it
    np.testing.assert_array_equal(assign(rule, batch, of_rollout=of_rollout).advantages, found.advantages)
    derived = assign(rule, batch, token_rewards=jnp.asarray(own))
    assert not np.allclose(derived.advantages, outcome.advantages)


def test_ppo_credits_the_rollouts_token_rewards():
    batch = ragged_batch(3)
    own, values = step_rewards(batch), np.random.default_rng(2).normal(size=(8, 7)).astype(np.float32)
    estimator = ppo.Estimator(whiten=False)
    found, metrics = ppo.assign(
        CreditRule(),
        estimator,
        rollout_of(batch, token_rewards=own),
        jnp.asarray(REWARDS),
        jnp.asarray(values),
        group_size=GROUP,
        key=jax.random.key(0),
    )
    total = on_last(batch, REWARDS) + np.where(batch.mask, own, 0)
    expected, returns = gae(
        jnp.asarray(total),
        jnp.where(batch.mask, values[:, :-1], 0),
        jnp.asarray(batch.mask),
        bootstrap_values=jnp.zeros(8),
    )
    np.testing.assert_allclose(found.policy.advantages, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["reward/optimized"].value(), total.sum() / 8, rtol=1e-5)


def test_the_three_functions_in_order_are_assign():
    batch, key = ragged_batch(4), jax.random.key(3)
    rule, rollout = CreditRule(shape=shaping.shuffled, mask_truncated=True), rollout_of(batch)
    arrays = {"log_probs": batch.log_probs, "ref_log_probs": batch.ref_log_probs, "reward_kl_coef": 0.2}
    earned = credit.token_rewards(rule, rollout, jnp.asarray(REWARDS), group_size=GROUP, key=key, **arrays)
    found = credit.token_advantages(earned.rows, rule.loss_mask(rollout), group_size=GROUP)
    weighed = credit.weigh(rule, rollout, found, group_size=GROUP, key=key, **arrays)
    whole = credit.assign(rule, rollout, jnp.asarray(REWARDS), group_size=GROUP, key=key, **arrays)
    jax.tree.map(np.testing.assert_array_equal, weighed, whole)
    np.testing.assert_allclose(earned.tokens.sum(1), earned.rows, rtol=1e-5, atol=1e-6)


# --- Versions and extras ---------------------------------------------------------------------------------------------


def test_versions_reach_weights_and_the_surrogate():
    batch = ragged_batch(5)
    versions = np.arange(8, dtype=np.int32)[:, None] + np.zeros(batch.mask.shape, np.int32)

    def fresh(mask, *, versions):
        return jnp.where(mask & (versions >= 4), 1.0, 0.0)

    def stale_out(log_probs, old_log_probs, advantages, mask, *, versions):
        return policy.clipped_surrogate(log_probs, old_log_probs, advantages, mask & (versions >= 6))

    found = assign(CreditRule(token_weight=fresh), batch, of_rollout={"versions": versions})
    np.testing.assert_array_equal(found.token_weights, np.where(batch.mask & (versions >= 4), 1.0, 0.0))
    np.testing.assert_array_equal(found.extras["versions"], versions)
    objective = grpo.Objective(surrogate=stale_out, kl_coef=0.0)

    def loss(log_probs):
        return grpo.loss(TokenScores(log_probs, -log_probs), found, objective)[0].value()

    gradient = np.asarray(jax.grad(loss)(jnp.asarray(batch.log_probs)))
    assert np.abs(gradient[6:]).max() > 0 and not gradient[:6].any()
    with pytest.raises(ValueError, match="fresh needs versions, .*; versions: int32 .B, C., policy version"):
        assign(CreditRule(token_weight=fresh), batch)


def test_a_surrogate_with_an_array_of_its_own_needs_no_edit_of_the_recipe():
    """House.md 1.6 (a'): teacher log-probs through credit.assign(extras=), minibatches and grpo.loss."""
    batch = ragged_batch(6)
    teacher = jnp.asarray(batch.ref_log_probs)

    def distill(log_probs, old_log_probs, advantages, mask, *, teacher_log_probs):
        gap = jnp.where(mask, log_probs - teacher_log_probs, 0.0)
        return policy.reinforce(log_probs, old_log_probs, -jax.lax.stop_gradient(gap), mask)

    found = assign(CreditRule(), batch, extras={"teacher_log_probs": teacher})
    part = jax.tree.map(lambda x: x[2:5], found)
    assert part.extras["teacher_log_probs"].shape == (3, teacher.shape[1])
    objective = grpo.Objective(surrogate=distill, kl_coef=0.0)

    def loss(log_probs, data):
        return grpo.loss(TokenScores(log_probs, -log_probs), data, objective)[0].total

    gradient = jax.grad(loss)(jnp.asarray(batch.log_probs)[2:5], part)
    lengths = batch.mask[2:5].sum(1, keepdims=True)
    expected = np.where(batch.mask, batch.log_probs - batch.ref_log_probs, 0)[2:5] / lengths
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    through = jax.grad(lambda x: loss(batch.log_probs, found._replace(extras={"teacher_log_probs": x})))(teacher)
    np.testing.assert_array_equal(through, 0)  # data
    without = found._replace(extras={})
    with pytest.raises(ValueError, match="distill needs teacher_log_probs, which is not available"):
        loss(jnp.asarray(batch.log_probs), without)


def test_an_advantage_may_read_the_extras():
    batch = ragged_batch(7)

    def centred_on(rewards, *, prompt_values):
        return rewards - prompt_values

    values = jnp.arange(8.0)
    found = assign(CreditRule(advantage=centred_on), batch, extras={"prompt_values": values})
    np.testing.assert_allclose(found.advantages, np.where(batch.mask, (REWARDS - values)[:, None], 0), rtol=1e-6)


@pytest.mark.parametrize("make", [lambda: PolicyBatch(*[None] * 6), lambda: PreferenceBatch(*[None] * 4)])
def test_no_two_batches_share_their_extras(make):
    one, other = make(), make()
    one.extras["x"] = 1
    assert other.extras == {} and make().extras == {} and one.extras == {"x": 1}
    assert jax.tree.structure(other) == jax.tree.structure(make()._replace(extras={}))


# --- Defects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["log_probs", "ref_log_probs"])
def test_a_kl_in_the_reward_without_log_probs_is_refused(missing):
    """D3: the penalty was silently 0 without the policy's log-probs."""
    batch = ragged_batch(0)
    arrays = {"log_probs": batch.log_probs, "ref_log_probs": batch.ref_log_probs} | {missing: None}
    with pytest.raises(ValueError, match="reward_kl_coef=0.1. needs ref_log_probs and log_probs"):
        assign(CreditRule(), batch, reward_kl_coef=0.1, **arrays)
    assign(CreditRule(), batch, reward_kl_coef=0.0, **arrays)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (functools.partial(shaping.clip_rewards, high=1.0), 1.0),
        (functools.partial(shaping.overlong, max_length=6, buffer=2), 8.0 - 0.5),  # 5 of 6 tokens
        (functools.partial(shaping.replace_truncated, reward=-3.0), 8.0),
        (shaping.unchanged, 8.0),
    ],
    ids=["clip", "overlong", "truncated", "unchanged"],
)
def test_greedy_rewards_are_shaped_like_the_rewards(shape, expected):
    """D4: with clip_rewards(high=1) and R = greedy = 8, ReMax gave -7 for every token."""
    batch = ragged_batch(1)
    greedy = {"greedy_lengths": jnp.full(8, 5), "greedy_truncated": jnp.arange(8) == 7}
    rule = CreditRule(shape=shape, advantage=lambda rewards, *, greedy_rewards: greedy_rewards)
    found = assign(rule, batch, np.full(8, 8.0, np.float32), greedy_rewards=jnp.full(8, 8.0), **greedy)
    at_first = np.asarray(found.advantages)[np.arange(8), np.argmax(batch.mask, axis=1)]
    np.testing.assert_allclose(at_first[:7], expected, rtol=1e-6)
    cut = -3.0 if getattr(shape, "func", None) is shaping.replace_truncated else expected
    np.testing.assert_allclose(at_first[7], cut, rtol=1e-6)


def test_shaped_greedy_rewards_need_their_lengths():
    rule = CreditRule(shape=shaping.clip_rewards, advantage=advantages.remax)
    with pytest.raises(ValueError, match="need greedy_lengths and greedy_truncated"):
        assign(rule, ragged_batch(1), greedy_rewards=jnp.ones(8))


def test_a_shape_may_ask_for_the_group_size():
    """D9: no group-wise reward fitted into the slot."""
    batch = ragged_batch(2)

    def best_only(rewards, lengths, truncated, key, *, group_size):
        groups = rewards.reshape(-1, group_size)
        return jnp.where(groups == groups.max(1, keepdims=True), groups, 0.0).reshape(-1)

    found = assign(CreditRule(shape=best_only, advantage=advantages.no_baseline), batch)
    groups = REWARDS.reshape(-1, GROUP)
    expected = np.where(groups == groups.max(1, keepdims=True), groups, 0).reshape(-1, 1)
    np.testing.assert_allclose(found.advantages, np.where(batch.mask, expected, 0), rtol=1e-6)
