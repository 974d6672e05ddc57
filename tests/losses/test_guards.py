"""Guards and ends of ranges of the objectives: what an empty batch, a tiny number or a gradient shows."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import credit
from rl_jax.advantages import tokens as token_advantages
from rl_jax.core import binding
from rl_jax.core.masked import Mean
from rl_jax.core.trackers import Moments
from rl_jax.core.types import Rollout
from rl_jax.losses import policy
from rl_jax.losses.policy import bands, hinged, mixed, stale, turns
from rl_jax.losses.policy.clipped import ppo_clip
from rl_jax.losses.policy.gates import dppo_kl_gate
from rl_jax.losses.policy.sequence import gmpo
from rl_jax.losses.preference import batch_stats, compare, offsets, regularizers, scales, score_maps
from rl_jax.losses.preference.links import logistic
from rl_jax.token_weights import tokens as token_weights


def test_an_empty_mean_has_a_gradient():
    for argument in (0, 1):
        gradient = jax.grad(lambda total, count: Mean(total, count).value(), argnums=argument)(0.0, 0.0)
        assert gradient == 0


def test_moments_of_one_value_have_a_gradient():
    std = jax.grad(lambda squares: Moments(jnp.float32(1.0), jnp.float32(0.0), squares).std())
    assert std(jnp.float32(2.0)) == 0


def by_component(mask, *, components):
    return jnp.broadcast_to(components[:, :1], mask.shape)


def test_token_weights_are_given_what_the_caller_has():
    mask = jnp.ones((2, 3), bool)
    rollout = Rollout(None, mask, jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.ones(2, bool), jnp.zeros(2, bool))
    rule = credit.CreditRule(token_weight=by_component)
    given = dict(group_size=2, key=jax.random.key(0), components=jnp.array([[2.0], [3.0]]))
    batch = credit.rule.weigh(rule, rollout, jnp.ones((2, 3)), **given)
    np.testing.assert_array_equal(batch.token_weights, [[2.0] * 3, [3.0] * 3])


@pytest.mark.parametrize(("sign", "ratio", "flag"), [(-1.0, 0.1, "clipped_low"), (1.0, 3.0, "clipped_high")])
def test_nothing_is_clipped_outside_the_mask(sign, ratio, flag):
    mask = jnp.array([[True, False]])
    surrogate = ppo_clip(jnp.full((1, 2), ratio), jnp.full((1, 2), sign), mask, clip_low=0.2, clip_high=0.2)
    np.testing.assert_array_equal(getattr(surrogate, flag), mask)


def test_dppo_masks_from_a_ratio_of_one_on():
    """A likely token whose ratio is little above 1 has a divergence of .046 nats."""
    old = jnp.log(jnp.array([[0.94]]))
    bounds = dict(old_log_probs=old, divergence_low=0.01, divergence_high=0.01, ratio_max=10.0)
    for sign, ratio in ((1.0, 1.05), (-1.0, 0.95)):
        gate = functools.partial(dppo_kl_gate, jnp.array([[ratio]]), **bounds)
        assert gate(jnp.array([[sign]])) == 0
        assert gate(jnp.array([[-sign]])) == pytest.approx(ratio)


SURROGATES = {
    name: fn
    for module in (policy, bands, hinged, mixed, stale, turns)
    for name, fn in binding.public_functions(module).items()
    if list(inspect.signature(fn).parameters)[:2] == ["log_probs", "old_log_probs"]
}


@pytest.mark.parametrize("old", [-30.0, -101.0, -1001.0])
@pytest.mark.parametrize("name", SURROGATES)
def test_without_an_advantage_a_ratio_beyond_float32_is_no_nan(name, old):
    """One row with A = 0 whose ratios, or whose product of them, overflow; the other is on-policy."""
    log_probs, mask = jnp.full((2, 4), -1.0), jnp.ones((2, 4), bool)
    old_log_probs = jnp.stack([jnp.full(4, old), log_probs[1]])
    advantages = jnp.stack([jnp.zeros(4), jnp.ones(4)])
    level = {"level": "product"} if name == "gated" else {}
    known = {
        "behavior_log_probs": old_log_probs,
        "selected": mask,
        "lags": jnp.full((2, 4), 3),
        "turns": jnp.tile(jnp.arange(4) // 2, (2, 1)),
        "foreign": jnp.zeros(2, bool),
        "gate": "importance_sampling_gate",
    }
    fn = binding.supply(functools.partial(SURROGATES[name], **level), known)
    losses, slopes = jax.value_and_grad(lambda x: fn(x, old_log_probs, advantages, mask).loss.sum())(log_probs)
    assert np.isfinite(losses) and np.isfinite(slopes).all() and slopes[1].any()


@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_an_interpolated_policy_far_from_the_sampler_is_no_nan(advantage):
    """A weight beyond float32, of tokens that the clip holds or that have no advantage."""
    mask, mu, lags = jnp.ones((1, 2), bool), jnp.full((1, 2), -1001.0), jnp.full((1, 2), 3)

    def loss(log_probs):
        return stale.interpolated(
            log_probs, mu, jnp.full((1, 2), advantage), mask, behavior_log_probs=mu, lags=lags
        ).loss.sum()

    np.testing.assert_array_equal(jax.grad(loss)(jnp.full((1, 2), -1.0)), 0.0)


def test_the_row_of_gmpo_is_finite_where_its_clip_holds_it():
    """With A > 0 the ratio is bounded above; with A < 0 a huge ratio is a huge loss, and says so."""
    mask, old = jnp.ones((1, 2), bool), jnp.full((1, 2), -200.0)
    for sign, finite in ((1.0, True), (-1.0, False)):
        surrogate = gmpo(jnp.full((1, 2), -1e-3), old, jnp.full((1, 2), sign), mask)
        assert bool(jnp.isfinite(surrogate.loss).all()) == finite


def test_the_filter_of_beta_dpo_sees_a_small_spread():
    """Margins of hundredths: the outlier is 10 deviations away, and is the one that is dropped."""
    gaps = jnp.array([0.0, 0.001, -0.001, 0.1])
    before = batch_stats.GlobalBatch(jnp.stack([gaps, jnp.zeros(4)], axis=1), jnp.ones((4, 2), bool))
    statistics = batch_stats.beta_statistics(beta=0.1, dropped=0.25, momentum=1.0)
    state = batch_stats.GapStatistics(jnp.float32(0.0), jnp.float32(0.01))
    keys = jax.random.split(jax.random.key(0), 20)
    kept = jax.vmap(lambda key: statistics.update(state, before, key)[1]["kept"])(keys)
    assert not kept[:, 3].any() and kept[:, :3].all()


def test_nca_of_a_prompt_without_responses_is_nothing():
    present = jnp.array([[True, True], [False, False]])
    losses = compare.nca(jnp.array([[0.5, -0.5], [0.0, 0.0]]), present, logistic)
    assert losses[0] > 0 and losses[1] == 0


def test_rewards_are_data():
    """Margins and scales made of rewards have no gradient with respect to them."""
    rewards = jnp.array([[1.0, 0.2], [0.9, 0.4]])
    present = jnp.ones((2, 2), bool)
    of_offset = jax.grad(lambda x: offsets.log_reward_gap(present, rewards=x).sum())(rewards)
    of_scale = jax.grad(lambda x: scales.reward_adapted(0.1, rewards=x).sum())(rewards)
    assert not of_offset.any() and not of_scale.any()


def test_less_than_a_token_per_prompt_is_divided_by():
    """A mean of tokens over prompts is below 1 if most prompts have none."""
    log_probs, mask = jnp.full((2, 2, 3), -1.0), jnp.ones((2, 2, 3), bool)
    nll = regularizers.chosen_token_nll(log_probs, mask, mean_tokens=jnp.full(2, 0.5))
    np.testing.assert_allclose(nll, 6.0)


@pytest.mark.parametrize("score", [-0.1, -3.0])
def test_log_odds_have_a_gradient_on_both_sides_of_their_branch(score):
    gradient = jax.grad(lambda u: score_maps.log_odds(u).sum())(jnp.array([[score]]))
    np.testing.assert_allclose(gradient, 1.0 / (1.0 - np.exp(score)), rtol=1e-5)


def test_a_bootstrap_of_another_batch_is_refused():
    two = jnp.zeros((2, 3))
    with pytest.raises(AssertionError):
        token_advantages.gae(two, two, jnp.ones((2, 3), bool), bootstrap_values=jnp.zeros(1))


@pytest.mark.parametrize("length", [4, 5])
def test_random_bits_of_any_length_differ(length):
    bits = token_weights._random_bits(jax.random.key(0), (3, length))
    assert bits.shape == (3, length) and len(np.unique(bits)) == 3 * length
