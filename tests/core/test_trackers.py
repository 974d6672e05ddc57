"""trackers.py: against loops over the samples, verl's controller, batch moments, and fixed points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import binding, trackers
from tests.oracles import verl

# name -> (what the factory is given, the defaults it has, what an update is given)
TABLE = {
    "adaptive_kl": ({}, (0.3, 64.0)),
    "annealed_kl": ({"updates": 4}, (0.3, 64.0)),
    "adaptive_entropy": ({}, (0.1,)),
    "ema_mean": ({}, (np.ones(4),)),
    "running_moments": ({}, (np.arange(4.0),)),
    "feature_moments": ({"shape": (2,)}, (np.arange(6.0).reshape(1, 3, 2),)),
    "reward_scale": ({"num_envs": 2, "discount": 0.9}, (np.ones((2, 3)), np.zeros((2, 3)))),
    "beta_values": ({"num_prompts": 3}, (np.int32([2, 0]), np.ones(2), np.zeros(2))),
}


def _make(name, **changes):
    """(tracker with its update jitted, arguments of an update as float32)."""
    given, arguments = TABLE[name]
    tracker = getattr(trackers, name)(**(given | changes))
    as_jax = [jnp.asarray(x, jnp.int32 if np.asarray(x).dtype == np.int32 else jnp.float32) for x in arguments]
    return tracker._replace(update=jax.jit(tracker.update)), as_jax


def _floats(state):
    return np.array([float(x) for x in state])


# --- All of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_states_are_float32_arrays_of_fixed_shape(name):
    """So that they are checkpointed and donated, and an update never compiles twice."""
    tracker, arguments = _make(name)
    before = tracker.init()
    leaves = jax.tree.leaves(before)
    assert leaves and all(isinstance(x, jax.Array) and x.dtype == jnp.float32 for x in leaves)
    traces = []

    def counted(*state_and_arguments):
        traces.append(1)
        return tracker.update(*state_and_arguments)

    update = jax.jit(counted)
    after = update(update(before, *arguments), *arguments)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
    assert len(traces) == 1  # not the size of jax's cache, which other tests can empty
    assert any(np.any(x != y) for x, y in zip(leaves, jax.tree.leaves(after), strict=True))


@pytest.mark.parametrize("name", TABLE)
def test_the_state_can_be_donated(name):
    """No two of its arrays are one buffer."""
    tracker, arguments = _make(name)
    donating = jax.jit(getattr(trackers, name)(**TABLE[name][0]).update, donate_argnums=0)
    expected = tracker.update(tracker.init(), *arguments)
    for x, y in zip(donating(tracker.init(), *arguments), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_every_tracker_is_in_the_table():
    assert set(binding.public_functions(trackers)) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_other_ranks_are_refused(name):
    tracker, arguments = _make(name)
    for i in range(len(arguments)):
        wrong = arguments[:i] + [arguments[i][None]] + arguments[i + 1 :]
        with pytest.raises(AssertionError):
            tracker.update(tracker.init(), *wrong)


# --- KL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl", [0.0, 0.05, 0.11, 0.09, 5.0])
def test_adaptive_kl_matches_verl(kl):
    tracker, _ = _make("adaptive_kl", initial=0.2, target=0.1, horizon=1000.0)
    state, expected = tracker.init(), 0.2
    for samples in (64, 512, 128):
        state = tracker.update(state, jnp.float32(kl), samples)
        expected = verl.adaptive_kl(expected, kl, samples, target=0.1, horizon=1000)
    np.testing.assert_allclose(state.coef, expected, rtol=1e-5)


def test_annealed_kl_is_one_over_the_share_of_updates_that_are_left():
    """K / (K - k + 1), and K behind the end. Arbitrary KLs and samples change nothing."""
    tracker, _ = _make("annealed_kl")
    state, found = tracker.init(), []
    for update in range(6):
        found.append(float(state.coef))
        state = tracker.update(state, jnp.float32(update), jnp.float32(8.0))
    np.testing.assert_allclose(found, [1.0, 4 / 3, 2.0, 4.0, 4.0, 4.0], rtol=1e-6)
    alone = trackers.annealed_kl(updates=1)
    assert alone.update(alone.init(), jnp.float32(0.0), jnp.float32(8.0)).coef == 1.0
    with pytest.raises(ValueError, match="annealed_kl: updates must be 1 or more, got 0"):
        trackers.annealed_kl(updates=0)


def test_adaptive_kl_takes_its_bound():
    tracker, _ = _make("adaptive_kl", initial=1.0, target=2.0, horizon=100.0, max_error=0.5)
    np.testing.assert_allclose(tracker.update(tracker.init(), jnp.float32(9.0), 10).coef, 1.05, rtol=1e-6)
    np.testing.assert_allclose(tracker.update(tracker.init(), jnp.float32(0.0), 10).coef, 0.95, rtol=1e-6)


# --- Entropy ---------------------------------------------------------------------------------------------------------


def test_adaptive_entropy_is_the_rule_of_trl():
    """Up while the entropy is low, down while it is high, and then not applied; at the target it counts as low."""
    tracker, _ = _make("adaptive_entropy", initial=0.01, target=0.25, step=0.01, high=0.025)
    state = tracker.init()
    np.testing.assert_allclose(_floats(state), [0.01, 0], atol=1e-8)
    seen = []
    for entropy in (0.1, 0.25, 0.3, 0.5, 0.5, 0.5, 0.2):
        state = tracker.update(state, jnp.float32(entropy))
        seen.append(_floats(state))
    expected = [[0.02, 0.02], [0.025, 0.025], [0.015, 0], [0.005, 0], [0, 0], [0, 0], [0.01, 0.01]]
    np.testing.assert_allclose(seen, expected, atol=1e-7)


def test_adaptive_entropy_stays_above_its_floor():
    tracker, _ = _make("adaptive_entropy", initial=0.1, low=0.098)
    np.testing.assert_allclose(_floats(tracker.update(tracker.init(), jnp.float32(3.0))), [0.098, 0], rtol=1e-6)


# --- Mean ------------------------------------------------------------------------------------------------------------


def test_ema_mean_is_used_before_it_is_updated():
    """b of step t knows the batches before it, weighted by decay; the first one replaces the start."""
    tracker, _ = _make("ema_mean", decay=0.75, initial=7.0)
    batches = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    state, used = tracker.init(), []
    for rewards in batches:
        used.append(float(state.value))
        state = tracker.update(state, rewards)
    means = batches.mean(axis=1)
    expected = [7.0, means[0], 0.75 * means[0] + 0.25 * means[1]]
    expected.append(0.75 * expected[2] + 0.25 * means[2])
    np.testing.assert_allclose(used, expected, rtol=1e-5)
    np.testing.assert_allclose(state.updates, 4)


def test_ema_mean_may_keep_its_start():
    tracker, _ = _make("ema_mean", decay=0.75, initial=8.0, replace_initial=False)
    state = tracker.update(tracker.init(), jnp.float32([1.0, 3.0]))
    np.testing.assert_allclose(state.value, 0.75 * 8 + 0.25 * 2)


# --- Moments ---------------------------------------------------------------------------------------------------------


def test_running_moments_are_those_of_all_batches_together():
    tracker, _ = _make("running_moments")
    rng, state, everything = np.random.default_rng(1), tracker.init(), []
    for size, shift in ((5, 0.0), (3, 4.0), (8, -2.0)):
        batch = (rng.normal(size=size) + shift).astype(np.float32)
        state = tracker.update(state, batch)
        everything.append(batch)
        seen = np.concatenate(everything)
        expected = [len(seen), seen.mean(), np.square(seen - seen.mean()).sum()]
        np.testing.assert_allclose(_floats(state), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.std(), seen.std(ddof=1), rtol=1e-5)
        np.testing.assert_allclose(state.std(ddof=0), seen.std(), rtol=1e-5)


def test_running_moments_keep_their_digits_under_a_large_mean():
    tracker, _ = _make("running_moments")
    batches = (np.random.default_rng(2).normal(size=(4, 8)) + 10_000).astype(np.float32)
    state = functools.reduce(tracker.update, batches, tracker.init())
    np.testing.assert_allclose(state.std(), batches.astype(np.float64).std(ddof=1), rtol=1e-3)


def test_without_a_spread_the_std_is_one():
    tracker, _ = _make("running_moments")
    assert tracker.init().std() == 1
    one = tracker.update(tracker.init(), jnp.float32([3.0]))
    assert one.std() == 1 and one.std(ddof=0) == 1 and one.mean == 3
    equal = functools.reduce(tracker.update, np.full((3, 5), 0.1, np.float32), tracker.init())
    assert equal.std() == 1 and equal.squares == 0
    two = tracker.update(tracker.init(), jnp.float32([0.0, 0.5]))
    np.testing.assert_allclose([two.std(), two.std(ddof=0)], [0.5**1.5, 0.25])
    assert two.std(ddof=2) == 1


# --- Values of prompts -----------------------------------------------------------------------------------------------


def test_beta_values_match_the_rule():
    """rho = 2^(-D / .06) within [.875, .96]: both bounds, and one in between; prompt 3 is not visited."""
    tracker, _ = _make("beta_values", num_prompts=4)
    state = tracker.init()
    np.testing.assert_array_equal(state.successes, [0.5] * 4)
    np.testing.assert_array_equal(state.failures, [0.5] * 4)
    divergence = np.float32([0.0, 0.006, 1.0])
    rho = np.clip(2 ** (-divergence / 0.06), 0.875, 0.96)
    assert rho[0] == np.float32(0.96) and 0.875 < rho[1] < 0.96 and rho[2] == 0.875
    prompts, rewards = np.int32([2, 0, 1]), np.float32([1.0, 0.0, 0.25])
    state = tracker.update(state, prompts, rewards, divergence)
    np.testing.assert_allclose(state.successes[prompts], rho * 0.5 + rewards, rtol=1e-6)
    np.testing.assert_allclose(state.failures[prompts], rho * 0.5 + 1 - rewards, rtol=1e-6)
    assert state.successes[3] == 0.5 and state.failures[3] == 0.5
    values = state.values(jnp.int32([1, 1, 3]))
    expected = (rho[2] * 0.5 + 0.25) / (rho[2] + 1)
    np.testing.assert_allclose(values, [expected, expected, 0.5], rtol=1e-6)


def test_beta_values_settle_where_the_atlas_says():
    """Constant rho and reward: alpha + beta -> 1 / (1 - rho), value -> R (I1)."""
    tracker, _ = _make("beta_values", num_prompts=2)
    state = tracker.init()
    for _ in range(400):
        state = tracker.update(state, np.int32([0, 1]), np.float32([1.0, 0.25]), np.float32([1.0, 0.0]))
    np.testing.assert_allclose(state.successes + state.failures, [8.0, 25.0], rtol=1e-4)
    np.testing.assert_allclose(state.values(jnp.arange(2)), [1.0, 0.25], atol=1e-4)


def test_beta_values_without_forgetting_are_running_means():
    tracker, _ = _make("beta_values", num_prompts=1, high=1.0, prior=1.0)
    state, rewards = tracker.init(), np.float32([1, 0, 1, 1, 0.5])
    for reward in rewards:
        state = tracker.update(state, np.int32([0]), reward[None], np.float32([0.0]))
    np.testing.assert_allclose(state.values(jnp.int32([0])), [(rewards.sum() + 1) / 7], rtol=1e-6)


def test_rows_of_one_prompt_add_up_and_forget_once():
    tracker, _ = _make("beta_values", num_prompts=2, half_life=1.0, low=0.1, high=1.0)
    state = tracker.update(
        tracker.init(), np.int32([1, 0, 1]), np.float32([1.0, 1.0, 0.25]), np.float32([0.5, 0.0, 1.5])
    )
    np.testing.assert_allclose(state.successes, [1.5, 0.5 * 0.5 + 1.25], rtol=1e-6)
    np.testing.assert_allclose(state.failures, [0.5, 0.5 * 0.5 + 0.75], rtol=1e-6)


def test_beta_values_from_offline_samples():
    """n0 = 8 samples: alpha = N0 (S + .5) / 9, beta = N0 (8 - S + .5) / 9, N0 = 1 / (1 - .875) = 8."""
    tracker, _ = _make("beta_values", num_prompts=2)
    state = tracker.init(np.array([8, 2]), 8)
    np.testing.assert_allclose(state.successes, [8 * 8.5 / 9, 8 * 2.5 / 9], rtol=1e-6)
    np.testing.assert_allclose(state.failures, [8 * 0.5 / 9, 8 * 6.5 / 9], rtol=1e-6)
    assert state.successes.dtype == state.failures.dtype == jnp.float32
    none = [tracker.init(np.zeros(2, np.float32), *samples).failures for samples in ((), (0,))]
    np.testing.assert_array_equal(*none)
    with pytest.raises(AssertionError):
        tracker.init(np.zeros(3), 8)


def test_beta_values_refuse_rows_of_other_lengths():
    tracker, (prompts, rewards, divergence) = _make("beta_values")
    for arguments in ((prompts[:1], rewards, divergence), (prompts, rewards, divergence[:1])):
        with pytest.raises(AssertionError):
            tracker.update(tracker.init(), *arguments)


# --- Of environments -------------------------------------------------------------------------------------------------


def test_feature_moments_are_those_of_all_batches_together():
    tracker, rng = trackers.feature_moments(shape=(3,)), np.random.default_rng(0)
    shapes = ((4, 7, 3), (1, 1, 3), (3, 3, 3))
    batches = [rng.normal(100.0, [1.0, 5.0, 0.1], size=shape).astype(np.float32) for shape in shapes]
    state = tracker.init()
    for batch in batches:
        state = jax.jit(tracker.update)(state, batch)
    seen = np.concatenate([batch.reshape(-1, 3) for batch in batches]).astype(np.float64)
    assert state.count == len(seen)
    np.testing.assert_allclose(state.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(state.std(), seen.std(0, ddof=1), rtol=1e-3)


def test_feature_moments_over_a_mapped_axis_are_those_of_all_parts():
    whole, spread = trackers.feature_moments(shape=(2,)), trackers.feature_moments(shape=(2,), axis_name="parts")
    x = np.random.default_rng(1).normal(size=(2, 4, 5, 2)).astype(np.float32)
    expected, found = whole.init(), jax.tree.map(lambda x: jnp.stack([x] * 4), spread.init())
    for batch in x:
        expected = whole.update(expected, batch)
        found = jax.vmap(spread.update, axis_name="parts")(found, jnp.asarray(batch)[:, None])
    for part in range(4):
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(left[part], right, rtol=1e-5, atol=1e-6)


def test_reward_scale_is_the_spread_of_discounted_returns_within_episodes():
    tracker, rng = trackers.reward_scale(3, discount=0.8), np.random.default_rng(2)
    rewards, done = rng.normal(size=(3, 10)).astype(np.float32), rng.random((3, 10)) < 0.3
    returns, running = np.zeros((3, 10)), np.zeros(3)
    for t in range(10):
        running = 0.8 * running + rewards[:, t]
        returns[:, t] = running
        running = np.where(done[:, t], 0.0, running)
    state = tracker.init()
    for part in (slice(0, 4), slice(4, 10)):  # what is under way goes on in the next rollout
        state = tracker.update(state, jnp.asarray(rewards[:, part]), jnp.asarray(done[:, part]))
    np.testing.assert_allclose(state.returns, running, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.moments.std(), returns.std(ddof=1), rtol=1e-4)
