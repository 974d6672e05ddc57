"""ppo.py: the recipe against loops and verl's GAE, the joint loss against its two halves, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import grpo, ppo, token_weights
from rl_jax.advantages import turn_critics
from rl_jax.advantages.tokens import gae, vtrace
from rl_jax.core.masked import merge
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit.rule import CreditRule
from rl_jax.losses import aggregate, kl, value
from rl_jax.losses.turn_critics import squared_errors
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import masked
from tests.numpy_loops import ppo as reference
from tests.oracles import verl

KL_COEF = 0.3
SUPPORT = value.Support(-2.0, 2.0, num_bins=11, padding=2)
PLAIN = CreditRule()


def make_rollout(batch, truncated=()):
    blank = np.zeros(batch.mask.shape, np.int32)
    cut = np.isin(np.arange(len(batch.mask)), truncated)
    return Rollout(TokenBatch(blank, blank, blank), batch.mask, batch.old_log_probs - 0.1, blank, ~cut, cut)


def inputs(seed=0):
    """(ragged batch, rewards [B], values [B, C + 1])"""
    batch = ragged_batch(seed)
    rng = np.random.default_rng(seed + 50)
    rows, length = batch.mask.shape
    return batch, rng.normal(size=rows).astype(np.float32), rng.normal(size=(rows, length + 1)).astype(np.float32)


def assign(batch, rewards, values, *, credit=PLAIN, truncated=(), kl_coef=KL_COEF, **estimator):
    """ppo.assign with the ragged batch's log_probs as the policy's."""
    return ppo.assign(
        credit,
        ppo.Estimator(**estimator),
        make_rollout(batch, truncated),
        jnp.asarray(rewards),
        jnp.asarray(values),
        group_size=4,
        key=jax.random.key(0),
        log_probs=jnp.asarray(batch.log_probs),
        entropy=-jnp.asarray(batch.log_probs),
        ref_log_probs=jnp.asarray(batch.ref_log_probs),
        reward_kl_coef=kl_coef,
    )


# --- From rewards and values to advantages and returns ---------------------------------------------------------------


@pytest.mark.parametrize("discount, lam", [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.8, 0.0)])
def test_advantages_and_returns_match_the_loop(discount, lam):
    batch, rewards, values = inputs(0)
    estimate = functools.partial(gae, discount=discount, lam=lam)
    found, _ = assign(batch, rewards, values, advantage=estimate, whiten=False)
    on_tokens = reference.token_rewards(rewards, batch.log_probs, batch.ref_log_probs, batch.mask, KL_COEF)
    advantages, returns = reference.gae(on_tokens, values, batch.mask, np.zeros(8), discount, lam)
    np.testing.assert_allclose(found.policy.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.values, np.where(batch.mask, values[:, :-1], 0))
    np.testing.assert_array_equal(found.completion_mask, batch.mask)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_matches_verl(seed):
    """verl's compute_gae_advantage_return, whitening included, on the token rewards of its apply_kl_penalty."""
    batch, rewards, values = inputs(seed)
    found, _ = assign(batch, rewards, values)
    on_tokens = reference.token_rewards(rewards, batch.log_probs, batch.ref_log_probs, batch.mask, KL_COEF)
    advantages, returns = verl.advantage(
        "gae", None, batch.mask, token_rewards=on_tokens, values=values[:, :-1], gamma=1.0, lam=0.95
    )
    on = batch.mask  # behind it, verl's whitening leaves numbers
    np.testing.assert_allclose(np.asarray(found.policy.advantages)[on], advantages[on], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(found.returns)[on], returns[on], rtol=1e-4, atol=1e-5)
    assert not np.asarray(found.policy.advantages)[~on].any() and not np.asarray(found.returns)[~on].any()


def test_whitening_is_over_the_mask_and_leaves_the_returns():
    batch, rewards, values = inputs(2)
    plain, _ = assign(batch, rewards, values, whiten=False)
    white, _ = assign(batch, rewards, values)
    expected = masked.masked_whiten(np.asarray(plain.policy.advantages), batch.mask, ddof=1, eps=1e-8)
    np.testing.assert_allclose(white.policy.advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(white.returns, plain.returns)


def test_one_reward_at_the_end_and_no_discount_is_reward_less_value():
    """online.md B25: gamma = lambda = 1, terminal reward: A_t = R - V_t and every return is R. A true critic: A = 0."""
    batch, rewards, values = inputs(3)
    estimate = functools.partial(gae, lam=1.0)
    found, metrics = assign(batch, rewards, values, advantage=estimate, whiten=False, kl_coef=0.0)
    everywhere = np.broadcast_to(rewards[:, None], batch.mask.shape)
    np.testing.assert_allclose(found.returns, np.where(batch.mask, everywhere, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found.policy.advantages, np.where(batch.mask, everywhere - values[:, :-1], 0), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(metrics["reward/optimized"].value(), rewards.mean(), rtol=1e-5)
    true = np.concatenate([everywhere, np.zeros((8, 1))], axis=1).astype(np.float32)
    perfect, metrics = assign(batch, rewards, true, advantage=estimate, whiten=False, kl_coef=0.0)
    np.testing.assert_allclose(perfect.policy.advantages, 0.0, atol=1e-5)
    assert metrics["value/explained_variance"].value() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_row_that_was_cut_off_ends_or_goes_on(bootstrap):
    batch, rewards, values = inputs(4)
    truncated = (0, 3)
    found, _ = assign(batch, rewards, values, truncated=truncated, whiten=False, bootstrap_truncated=bootstrap)
    after = np.where(np.isin(np.arange(8), truncated) & bootstrap, values[:, -1], 0.0)
    on_tokens = reference.token_rewards(rewards, batch.log_probs, batch.ref_log_probs, batch.mask, KL_COEF)
    advantages, returns = reference.gae(on_tokens, values, batch.mask, after, 1.0, 0.95)
    np.testing.assert_allclose(found.policy.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-4, atol=1e-5)


def test_an_estimator_may_ask_for_the_two_policies_log_probs():
    batch, rewards, values = inputs(4)
    found, _ = assign(batch, rewards, values, advantage=vtrace, whiten=False)
    on_tokens = reference.token_rewards(rewards, batch.log_probs, batch.ref_log_probs, batch.mask, KL_COEF)
    advantages, returns = vtrace(
        on_tokens.astype(np.float32),
        values[:, :-1],
        batch.mask,
        log_probs=batch.log_probs,
        behavior_log_probs=batch.old_log_probs - 0.1,
        bootstrap_values=np.zeros(len(values), np.float32),
    )
    np.testing.assert_allclose(found.policy.advantages, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-4, atol=1e-5)


def test_by_default_a_row_that_was_cut_off_ends():
    assert ppo.Estimator() == ppo.Estimator(gae, whiten=True, bootstrap_truncated=False)
    batch, rewards, values = inputs(4)
    one, _ = assign(batch, rewards, values, truncated=(0, 3))
    other, _ = assign(batch, rewards, values)
    np.testing.assert_array_equal(one.returns, other.returns)


def test_rows_that_the_loss_leaves_out_are_in_neither_half():
    batch, rewards, values = inputs(5)
    found, metrics = assign(batch, rewards, values, credit=CreditRule(mask_truncated=True), truncated=(0, 5))
    kept = batch.mask & ~np.isin(np.arange(8), (0, 5))[:, None]
    np.testing.assert_array_equal(found.completion_mask, kept)
    for array in (found.policy.advantages, found.returns, found.values):
        assert not np.asarray(array)[~kept].any() and np.asarray(array)[kept].all()
    on = np.asarray(found.policy.advantages)[kept]
    assert abs(on.mean()) < 1e-5 and on.std(ddof=1) == pytest.approx(1.0, abs=1e-4)  # whitened over what is kept
    assert metrics["returns/mean"].count == kept.sum()


def test_weights_and_selections_see_the_advantages_of_the_critic():
    batch, rewards, values = inputs(6)

    def half_where_worse(mask, *, advantages):
        return jnp.where(advantages < 0, 0.5, 1.0) * mask

    def worse(mask, *, advantages):
        return mask & (advantages < 0)

    credit = CreditRule(behavior_weight=token_weights.exact, token_weight=half_where_worse, selection=worse)
    found, _ = assign(batch, rewards, values, credit=credit)
    plain, _ = assign(batch, rewards, values)
    np.testing.assert_array_equal(found.policy.advantages, plain.policy.advantages)
    below = batch.mask & (np.asarray(found.policy.advantages) < 0)
    assert below.any() and (batch.mask & ~below).any()
    np.testing.assert_array_equal(found.policy.extras["selected"], below)
    ratio = np.exp(batch.log_probs - (batch.old_log_probs - 0.1))
    np.testing.assert_allclose(
        found.policy.token_weights, np.where(batch.mask, ratio * np.where(below, 0.5, 1.0), 0), rtol=1e-5
    )


def test_the_penalty_and_the_shaping_are_the_credits():
    def doubled(rewards, lengths, truncated, key):
        return 2 * rewards

    batch, rewards, values = inputs(7)
    found, metrics = assign(batch, rewards, values, credit=CreditRule(shape=doubled, reward_kl=kl.k2), whiten=False)
    d = np.where(batch.mask, batch.log_probs.astype(np.float64) - batch.ref_log_probs, 0)
    last = reference.token_rewards(2 * rewards, batch.log_probs, batch.ref_log_probs, batch.mask, 0.0)
    on_tokens = last - KL_COEF * d**2 / 2
    _, returns = reference.gae(on_tokens, values, batch.mask, np.zeros(8), 1.0, 0.95)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["reward/optimized"].value(), on_tokens.sum() / 8, rtol=1e-4)


def test_metrics_of_the_batch():
    batch, rewards, values = inputs(8)
    found, metrics = assign(batch, rewards, values)
    assert set(metrics) == {"reward/optimized", "returns/mean", "value/mean", "value/explained_variance"}
    returns, on = np.asarray(found.returns), batch.mask
    np.testing.assert_allclose(metrics["returns/mean"].value(), returns[on].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["value/mean"].value(), values[:, :-1][on].mean(), rtol=1e-5)
    np.testing.assert_allclose(
        metrics["value/explained_variance"].value(),
        reference.explained_variance(values[:, :-1], returns, on),
        rtol=1e-4,
    )


def test_explained_variance_is_0_for_a_constant_and_where_nothing_varies():
    batch, rewards, values = inputs(8)
    returns = np.asarray(assign(batch, rewards, values)[0].returns)
    assert ppo.explained_variance(0 * returns + 3, returns, batch.mask).value() == pytest.approx(0.0, abs=1e-5)
    assert ppo.explained_variance(returns, 0 * returns, batch.mask).value() == 0.0


def test_nothing_behind_the_mask_or_the_end_is_read():
    batch, rewards, values = inputs(9)
    truncated = (0,)
    clean = assign(batch, rewards, values, truncated=truncated, bootstrap_truncated=True)

    def spoil(x):
        return np.where(batch.mask, x, np.float32(np.nan))

    spoilt = batch._replace(log_probs=spoil(batch.log_probs), ref_log_probs=spoil(batch.ref_log_probs))
    after = np.where(np.arange(8) == 0, values[:, -1], np.nan)[:, None].astype(np.float32)
    poisoned = np.concatenate([spoil(values[:, :-1]), after], axis=1)
    found = assign(spoilt, rewards, poisoned, truncated=truncated, bootstrap_truncated=True)
    np.testing.assert_array_equal(found[0].policy.advantages, clean[0].policy.advantages)
    np.testing.assert_array_equal(found[0].returns, clean[0].returns)
    np.testing.assert_array_equal(found[0].values, clean[0].values)
    for name in clean[1]:
        assert found[1][name].value() == clean[1][name].value()


def test_the_critics_gradient_does_not_come_through_the_advantages():
    batch, rewards, values = inputs(10)

    def total(values):
        found, metrics = assign(batch, rewards, values)
        return (found.policy.advantages**2).sum() + found.returns.sum() + found.values.sum()

    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray(values)), 0.0)


def test_values_need_the_column_behind_the_last():
    batch, rewards, values = inputs(0)
    for bad in (values[:, :-1], np.repeat(values[:, :-1, None], 2, axis=2)):  # of a critic, and of a pair of them
        with pytest.raises(AssertionError, match="assert_axis_dimension"):
            assign(batch, rewards, bad)


def test_pairs_of_critics_learn_at_the_ends_of_turns():
    """ArCHer by plain loops: A = min Q - min V of a turn on its tokens, the targets of both on its last one."""
    batch, rewards, _ = inputs(12)
    rng = np.random.default_rng(12)
    rows, width = batch.mask.shape
    turns = np.where(batch.mask, (np.cumsum(batch.mask, axis=1) - 1) // 2, -1)
    values, slow = rng.normal(size=(2, rows, width + 1, 4)).astype(np.float32)
    given = dict(group_size=4, key=jax.random.key(0), turns=turns, extras={"turns": turns})

    def passed_on(token_rewards, values, mask, *, target_values):
        return jnp.zeros(mask.shape), target_values + values

    def run(values, slow, advantage):
        estimator = ppo.Estimator(advantage, whiten=False)
        found, metrics = ppo.assign(
            PLAIN, estimator, make_rollout(batch), jnp.asarray(rewards), values, target_values=slow, **given
        )
        return found.policy.advantages.sum() + found.returns.sum() + found.values.sum(), (found, metrics)

    for advantage in (passed_on, turn_critics.archer_td):
        slope_of = jax.grad(run, argnums=(0, 1), has_aux=True)
        slopes, (found, metrics) = slope_of(jnp.asarray(values), jnp.asarray(slow), advantage)
        for slope in slopes:
            np.testing.assert_array_equal(slope, 0.0)
    advantages, ends = np.zeros((rows, width)), np.zeros((rows, width), bool)
    returns, at_ends = np.zeros((2, rows, width, 4))
    for i in range(rows):
        parts = [np.flatnonzero(turns[i] == j) for j in range(turns[i].max() + 1)]
        for own, after in zip(parts, [*parts[1:], None], strict=True):
            end = own[-1]
            ends[i, end] = True
            at_ends[i, end] = [*values[i, end + 1, :2], *values[i, own[0], 2:]]
            advantages[i, own] = min(at_ends[i, end, :2]) - min(at_ends[i, end, 2:])
            ahead = np.full(2, rewards[i]) if after is None else 0.95 * slow[i, after[0], 2:]
            returns[i, end] = [*ahead, *slow[i, end + 1, :2]]
    for ours, theirs in ((found.policy.advantages, advantages), (found.returns, returns), (found.values, at_ends)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.value_mask, ends)
    first = at_ends[..., 0][ends], returns[..., 0][ends]
    np.testing.assert_allclose(metrics["value/mean"].value(), first[0].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["returns/mean"].value(), first[1].mean(), rtol=1e-5)
    explained = 1 - np.var(first[1] - first[0]) / np.var(first[1])
    np.testing.assert_allclose(metrics["value/explained_variance"].value(), explained, rtol=1e-4)
    objective = ppo.Objective(value_loss=squared_errors, pairs=2)
    assert objective.num_outputs() == 4 and objective.values(values) is values
    outputs = rng.normal(size=values.shape).astype(np.float32)
    read = turn_critics.at_turns(outputs, turns, batch.mask)
    np.testing.assert_array_equal(objective.read(outputs, found), read)
    np.testing.assert_array_equal(ppo.Objective().read(outputs, found), outputs[:, :-1])
    loss, _ = ppo.value_loss(objective.read(outputs, found), found, objective)
    errors = np.where(ends[..., None], read - returns, 0.0)
    np.testing.assert_allclose(loss.total, (errors**2).sum(), rtol=1e-5)
    assert loss.count == ends.sum()


def test_an_estimator_sees_zeros_where_the_loss_sees_nothing():
    batch, rewards, values = inputs(13)
    values[:, :-1] = np.where(batch.mask, values[:, :-1], np.nan)
    seen = []

    def estimate(token_rewards, values, mask, *, bootstrap_values):
        seen.extend([token_rewards, values])
        return jnp.where(mask, 1e-4 * values, 2.0), values

    rule = CreditRule(mask_truncated=True)
    run = functools.partial(assign, batch, rewards, values, credit=rule, truncated=(0, 5), advantage=estimate)
    found, _ = run(whiten=False, kl_coef=0.0)
    kept = np.asarray(found.completion_mask)
    np.testing.assert_array_equal(np.asarray(seen[0])[~kept], 0.0)
    np.testing.assert_array_equal(np.asarray(seen[1]) != 0, kept)
    np.testing.assert_array_equal(np.asarray(found.policy.advantages) != 0, kept)
    small = 1e-4 * values[:, :-1][kept].astype(float)  # whitened beside an eps as large as their variance
    white = (small - small.mean()) / np.sqrt(small.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.asarray(run(kl_coef=0.0)[0].policy.advantages)[kept], white, rtol=1e-3, atol=1e-4)


def test_an_episode_stops_after_its_last_token_and_an_answer_at_the_last_column():
    mask = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], bool)
    values = np.arange(15.0, dtype=np.float32).reshape(3, 5)
    rollout = Rollout(None, mask, *[None] * 4)
    np.testing.assert_array_equal(ppo.at_the_end(values, rollout), [4, 9, 14])
    np.testing.assert_array_equal(ppo.at_the_end(values, rollout._replace(turns=True)), [3, 5, 14])


def test_the_newest_version_may_be_the_first():
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    for newest, versions in ((0, [[0, 0, 0], [0, 9, 0]]), (3, [[2, 3, 3], [3, 9, 3]])):
        rollout = Rollout(None, mask, *[None] * 4)._replace(versions=np.array(versions))
        found = ppo.of_newest(rollout).completion_mask
        np.testing.assert_array_equal(found, mask & (np.array(versions) == newest))


# --- The losses ------------------------------------------------------------------------------------------------------


def ppo_batch(seed=0):
    """A PPOBatch of old log-probs, advantages and returns at random."""
    batch = ragged_batch(seed)
    values, returns = np.random.default_rng(seed + 70).normal(size=(2, *batch.mask.shape)).astype(np.float32)
    policy = PolicyBatch(
        None, batch.mask, batch.advantages, batch.old_log_probs, batch.old_log_probs, batch.ref_log_probs
    )
    return batch, ppo.PPOBatch(policy, values, returns)


def outputs_of(batch, num_outputs=1, seed=0):
    """What a value head gives: values up to 1 beside the old ones, or logits."""
    noise = np.random.default_rng(seed + 90).uniform(-1, 1, (*batch.values.shape, num_outputs)).astype(np.float32)
    return noise if num_outputs > 1 else batch.values[..., None] + noise


def test_value_loss_matches_verl():
    _, batch = ppo_batch(1)
    outputs = outputs_of(batch)
    objective = ppo.Objective(value_loss=functools.partial(value.clipped, value_clip=0.5))

    def total(outputs):
        mean, metrics = ppo.value_loss(outputs, batch, objective)
        return mean.value(), metrics

    (found, metrics), gradient = jax.value_and_grad(total, has_aux=True)(outputs)
    expected, slope = verl.value_loss(
        outputs[..., 0], batch.returns, batch.values, batch.completion_mask, cliprange_value=0.5
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient[..., 0], slope, rtol=1e-5, atol=1e-7)
    near = np.clip(outputs[..., 0], batch.values - 0.5, batch.values + 0.5)
    is_clipped = ((near - batch.returns) ** 2 > (outputs[..., 0] - batch.returns) ** 2)[batch.completion_mask]
    np.testing.assert_allclose(metrics["value/clipped"].value(), is_clipped.mean(), rtol=1e-6)
    assert set(metrics) == {"value/loss", "value/clipped"}
    assert metrics["value/loss"].value() == found and 0 < metrics["value/clipped"].value() < 1


def test_the_value_loss_is_aggregated_as_the_policys():
    _, batch = ppo_batch(2)
    outputs = outputs_of(batch)
    policy = grpo.Objective(kl_coef=0.0, aggregate=aggregate.seq_mean_token_mean)
    mean, _ = ppo.value_loss(outputs, batch, ppo.Objective(policy, value.mse))
    errors = np.where(batch.completion_mask, (outputs[..., 0] - batch.returns) ** 2 / 2, 0)
    rows = errors.sum(1) / batch.completion_mask.sum(1)
    np.testing.assert_allclose(mean.value(), rows.mean(), rtol=1e-5)


def test_a_categorical_critic():
    _, batch = ppo_batch(3)
    objective = ppo.Objective(value_loss=value.hl_gauss, support=SUPPORT)
    assert objective.num_outputs() == 11 and ppo.Objective().num_outputs() == 1
    outputs = outputs_of(batch, 11)
    mean, metrics = ppo.value_loss(outputs, batch, objective)
    loss = value.hl_gauss(outputs, batch.returns, batch.completion_mask, support=SUPPORT).loss
    np.testing.assert_allclose(mean.value(), loss.sum() / batch.completion_mask.sum(), rtol=1e-5)
    np.testing.assert_array_equal(objective.values(outputs), SUPPORT.mean(outputs))
    np.testing.assert_array_equal(ppo.Objective().values(outputs_of(batch)), outputs_of(batch)[..., 0])
    on = batch.returns[batch.completion_mask]
    outside = (np.abs(on) > 2).mean()
    assert (on > 2).any() and (on < -2).any()
    np.testing.assert_allclose(metrics["value/outside_support"].value(), outside, rtol=1e-5)


def test_the_joint_loss_is_the_sum_of_its_halves():
    ragged, batch = ppo_batch(4)
    objective = ppo.Objective(value_coef=0.3)
    outputs = outputs_of(batch)
    entropy = np.zeros_like(ragged.log_probs)

    def joint(log_probs, outputs):
        mean, metrics = ppo.loss(TokenScores(log_probs, entropy), outputs, batch, objective)
        return mean.value(), metrics

    (found, metrics), gradients = jax.value_and_grad(joint, argnums=(0, 1), has_aux=True)(ragged.log_probs, outputs)

    def of_policy(log_probs):
        return grpo.loss(TokenScores(log_probs, entropy), batch.policy, objective.policy)[0].value()

    def of_critic(outputs):
        return ppo.value_loss(outputs, batch, objective)[0].value()

    policy, policy_gradient = jax.value_and_grad(of_policy)(ragged.log_probs)
    critic, critic_gradient = jax.value_and_grad(of_critic)(outputs)
    np.testing.assert_allclose(found, policy + 0.3 * critic, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], policy_gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradients[1], 0.3 * critic_gradient, rtol=1e-5, atol=1e-7)
    assert {"clip/low", "kl/k1", "value/loss", "value/clipped"} <= set(metrics)


def test_micro_batches_change_nothing():
    ragged, batch = ppo_batch(5)
    outputs = outputs_of(batch)
    scores = TokenScores(ragged.log_probs, -ragged.log_probs)
    whole = ppo.loss(scores, outputs, batch, ppo.Objective())
    parts = []
    for rows in (slice(0, 2), slice(2, 8)):
        cut = jax.tree.map(lambda x, rows=rows: x[rows], (scores, outputs, batch))
        parts.append(ppo.loss(*cut, ppo.Objective()))
    together = merge(*parts)
    for left, right in zip(jax.tree.leaves(together), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (ppo.Objective(value_loss=value.hl_gauss), "needs the support of its bins"),
        (ppo.Objective(value_loss=value.mse, support=SUPPORT), "scalars takes no support"),
        (ppo.Objective(value_loss=value.hl_gauss, support=SUPPORT, pairs=2), "pairs=2 critics of turns regress"),
    ],
)
def test_losses_and_heads_that_do_not_fit_are_refused(objective, said):
    _, batch = ppo_batch(6)
    with pytest.raises(ValueError, match=said):
        ppo.value_loss(outputs_of(batch), batch, objective)


def test_a_head_of_another_width_is_refused():
    _, batch = ppo_batch(6)
    with pytest.raises(AssertionError):
        ppo.value_loss(outputs_of(batch, 11), batch, ppo.Objective())
    with pytest.raises(AssertionError):
        ppo.value_loss(outputs_of(batch), batch, ppo.Objective(value_loss=value.two_hot, support=SUPPORT))
