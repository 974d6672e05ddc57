"""shaping.py: rewards before the advantage."""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import group_relative
from rl_jax.core import trackers
from rl_jax.credit import shaping

REWARDS = jnp.array([1.0, 0.0, 0.5, 1.0, 0.25, 0.0])
LENGTHS = jnp.array([3, 12, 14, 16, 20, 13])
TRUNCATED = LENGTHS == 20


def test_unchanged():
    np.testing.assert_array_equal(shaping.unchanged(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0)), REWARDS)


def test_shuffled_keeps_the_rewards_and_breaks_their_order():
    rewards = jnp.arange(64.0)
    first = jax.jit(shaping.shuffled)(rewards, rewards, rewards > 5, jax.random.key(0))
    np.testing.assert_array_equal(jnp.sort(first), rewards)
    assert np.mean(np.asarray(first == rewards)) < 0.2
    again, other = (shaping.shuffled(rewards, rewards, rewards > 5, jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    with pytest.raises(AssertionError):
        shaping.shuffled(jnp.zeros((2, 2)), LENGTHS, TRUNCATED, jax.random.key(0))


@pytest.mark.parametrize("buffer", [0, -1, 17])
def test_overlong_needs_a_buffer_within_the_length(buffer):
    """With 0, a completion of the whole length would get 0 / 0."""
    with pytest.raises(ValueError, match=f"0 < buffer <= max_length, got buffer={buffer} and max_length=16"):
        shaping.overlong(jnp.zeros(2), jnp.full(2, 16), None, None, max_length=16, buffer=buffer)


def test_overlong_is_linear_inside_the_buffer():
    """max_length 16, buffer 4: nothing up to 12 tokens, -1/4 a token from there, -penalty at 16."""
    shape = functools.partial(shaping.overlong, max_length=16, buffer=4)
    change = shape(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0)) - REWARDS
    np.testing.assert_allclose(change, [0, 0, -0.5, -1, -2, -0.25], atol=1e-6)
    half = shape(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0), penalty=0.5) - REWARDS
    np.testing.assert_allclose(half, np.asarray(change) / 2, atol=1e-6)
    with pytest.raises(AssertionError):
        shape(REWARDS[:2], LENGTHS, TRUNCATED, jax.random.key(0))


# --- Truncation, bounds, scale ---------------------------------------------------------------------------------------

KEY = jax.random.key(0)


def _shape(name, rewards=REWARDS, **keywords):
    return np.asarray(getattr(shaping, name)(rewards, LENGTHS, TRUNCATED, KEY, **keywords))


def test_completions_that_were_cut_off_lose_keep_a_part_of_or_replace_their_reward():
    rest = np.asarray(~TRUNCATED)
    for name, keywords, expected in [
        ("missing_eos_penalty", {}, -0.75),
        ("missing_eos_penalty", {"penalty": 0.5}, -0.25),
        ("replace_truncated", {}, -1.0),
        ("replace_truncated", {"reward": -10}, -10.0),
        ("scale_truncated", {}, 0.0),
        ("scale_truncated", {"factor": 0.5}, 0.125),
    ]:
        found = _shape(name, **keywords)
        assert found[4] == expected and found.dtype == np.float32, name
        np.testing.assert_array_equal(found[rest], REWARDS[rest], err_msg=name)


def test_clip_rewards():
    rewards = jnp.float32([-20, -10, -3, 4, 10, 11])
    np.testing.assert_array_equal(_shape("clip_rewards", rewards), [-10, -10, -3, 4, 10, 10])
    np.testing.assert_array_equal(_shape("clip_rewards", rewards, low=-3.5, high=2.0), [-3.5, -3.5, -3, 2, 2, 2])


def test_scaled_is_that_of_ppo_max():
    """By the running std, with or without the running mean, and within bounds."""
    state = trackers.running_moments().update(trackers.running_moments().init(), REWARDS)
    known = {"reward_mean": state.mean, "reward_std": state.std()}
    rewards = np.asarray(REWARDS, np.float64)
    np.testing.assert_allclose(_shape("scaled", **known), rewards / rewards.std(ddof=1), rtol=1e-5)
    centred = (rewards - rewards.mean()) / rewards.std(ddof=1)
    np.testing.assert_allclose(_shape("scaled", **known, center=True), centred, rtol=1e-5, atol=1e-6)
    small = {"reward_mean": jnp.float32(0.5), "reward_std": jnp.float32(0.04)}
    np.testing.assert_allclose(_shape("scaled", **small), [10, 0, 10, 10, 6.25, 0], rtol=1e-6)
    np.testing.assert_allclose(_shape("scaled", **small, center=True), [10, -10, 0, 10, -6.25, -10], rtol=1e-6)
    np.testing.assert_allclose(_shape("scaled", **small, bound=3.0), [3, 0, 3, 3, 3, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["missing_eos_penalty", "replace_truncated", "scale_truncated", "clip_rewards", "scaled"]
)
def test_bad_input_is_refused(name):
    known = {"reward_mean": jnp.float32(0), "reward_std": jnp.float32(1)} if name == "scaled" else {}
    fn = functools.partial(getattr(shaping, name), **known)
    for rewards, truncated in (
        (REWARDS[:2], TRUNCATED),
        (REWARDS[:, None], TRUNCATED[:, None]),
        (REWARDS.astype(int), TRUNCATED),
        (REWARDS, TRUNCATED.astype(int)),
    ):
        with pytest.raises(AssertionError):
            fn(rewards, LENGTHS, truncated, KEY)
    if name == "scaled":
        for key in known:
            with pytest.raises(AssertionError):
                fn(REWARDS, LENGTHS, TRUNCATED, KEY, **{key: REWARDS})


# --- Learned rewards -------------------------------------------------------------------------------------------------

REFERENCES = jnp.asarray(np.random.default_rng(3).normal(size=(6, 4)), jnp.float32)


def test_shapings_against_references_are_those_of_pars_code():
    """calculate_relative_sigmoid, _tanh, calculate_centered and the lsc branch, its loops written out."""
    rewards, references = np.asarray(REWARDS, np.float64), np.asarray(REFERENCES, np.float64)
    gaps = [[r - s for s in row] for r, row in zip(rewards, references, strict=True)]
    expected = {
        ("against_references", 1.0): np.mean([[1 / (1 + np.exp(-g)) for g in row] for row in gaps], axis=1),
        ("against_references", 3.0): np.mean([[1 / (1 + np.exp(-3 * g)) for g in row] for row in gaps], axis=1),
        ("tanh_against_references", None): np.mean(np.tanh(gaps), axis=1),
        ("centered_on_references", None): np.mean(gaps, axis=1),
    }
    for (name, slope), values in expected.items():
        found = _shape(name, reference_rewards=REFERENCES, **({} if slope is None else {"slope": slope}))
        np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    quantile = statistics.NormalDist().inv_cdf(0.85)
    centre = references.mean(1) + (references.std(1) + 1e-5) * quantile
    found = _shape("log_sigmoid_centered", reference_rewards=REFERENCES)
    np.testing.assert_allclose(found, -np.log1p(np.exp(centre - rewards)), rtol=1e-4)


def test_references_that_agree_have_the_small_spread_of_the_code():
    with jax.enable_x64(True):
        rewards, references = np.array([0.0, 0.5]), np.array([[0.25] * 3, [0.5] * 3])
        found = shaping.log_sigmoid_centered(
            rewards, np.ones(2, int), np.zeros(2, bool), jax.random.key(0), reference_rewards=references
        )
        centre = references[:, 0] + 1e-5 * statistics.NormalDist().inv_cdf(0.85)
        np.testing.assert_allclose(found, -np.log1p(np.exp(centre - rewards)), rtol=1e-9)


def test_par_is_a_probability_of_winning():
    equal = jnp.broadcast_to(REWARDS[:, None], (6, 3))
    np.testing.assert_allclose(_shape("against_references", reference_rewards=equal), 0.5)
    one = REFERENCES[:, :1]  # M = 1: that of Bradley and Terry
    np.testing.assert_allclose(
        _shape("against_references", reference_rewards=one), 1 / (1 + np.exp(one[:, 0] - REWARDS)), rtol=1e-6
    )
    hacked = _shape("against_references", rewards=REWARDS + 1e4, reference_rewards=REFERENCES)
    np.testing.assert_allclose(hacked, 1.0)


def test_an_affine_shaping_is_nothing_to_an_advantage_that_divides_by_the_std():
    rewards = REWARDS + jnp.arange(6.0)
    known = {"reward_mean": jnp.float32(2.0), "reward_std": jnp.float32(3.0)}
    scaled = _shape("scaled", rewards=rewards, **known, center=True)
    bounded = _shape("against_references", rewards=rewards, reference_rewards=REFERENCES)
    advantages = [np.asarray(group_relative(jnp.asarray(x), group_size=6, eps=0.0)) for x in (rewards, scaled, bounded)]
    np.testing.assert_allclose(advantages[0], advantages[1], rtol=1e-4, atol=1e-5)
    assert np.abs(advantages[0] - advantages[2]).max() > 0.05


def test_clipped_to_spread_and_length_penalty():
    known = {"reward_mean": jnp.float32(0.5), "reward_std": jnp.float32(0.25)}
    np.testing.assert_allclose(_shape("clipped_to_spread", **known), [0.75, 0.25, 0.5, 0.75, 0.25, 0.25])
    found = _shape("length_penalty", free_length=13, penalty=0.5) - np.asarray(REWARDS)
    np.testing.assert_allclose(found, -0.5 * np.maximum(np.asarray(LENGTHS) - 13, 0))


@pytest.mark.parametrize("name", ["against_references", "tanh_against_references", "log_sigmoid_centered"])
def test_references_of_a_wrong_rank_are_refused(name):
    with pytest.raises(AssertionError):
        _shape(name, reference_rewards=REFERENCES[:, 0])


# --- What is remembered of a prompt ----------------------------------------------------------------------------------


def test_shorter_than_before_is_its_formula():
    """h = 4: half as long, as long, one and a half times, over twice; wrong, short and long; a prompt without an h."""
    rewards = jnp.asarray([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    lengths = jnp.asarray([2, 4, 6, 20, 2, 9, 3])
    best = jnp.asarray([4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.0])
    cut = jnp.zeros(7, bool)
    found = shaping.shorter_than_before(rewards, lengths, cut, KEY, best_lengths=best, lowest=-0.9)
    half = 0.5**0.5
    np.testing.assert_allclose(found, [1 + half, 1.0, 1 - half, 0.1, 0.0, -1.0, 1.0], atol=1e-6)
    assert found[3] > max(found[4], 0.0), "any right answer beats any wrong one"
    plain = shaping.shorter_than_before(rewards, lengths, cut, KEY, best_lengths=best, weight=0.0)
    np.testing.assert_array_equal(plain, rewards)
    usual = shaping.shorter_than_before(rewards, lengths, cut, KEY, best_lengths=best / 8)  # h = 1/2
    np.testing.assert_allclose(usual, [0.3] * 4 + [-1.0, -1.0, 1.0], atol=1e-6)
    none = shaping.shorter_than_before(rewards, lengths, cut, KEY, best_lengths=jnp.zeros(7))
    np.testing.assert_array_equal(none, rewards)  # before the first right answer it is the reward itself
    with pytest.raises(AssertionError):
        shaping.shorter_than_before(rewards, lengths, cut, KEY, best_lengths=best[:3])


def test_a_soft_threshold_brings_high_rewards_together_and_low_ones_apart():
    """TempSamp-R1, by hand at t = .8, a = .01, b = 1."""
    rewards = np.float32([1.0, 0.9, 0.8, 0.7, 0.5, 0.0])
    found = shaping.soft_threshold(rewards, np.ones(6, int), np.zeros(6, bool), jax.random.key(0))
    above = [0.8 + 0.01 * np.log(1.2), 0.8 + 0.01 * np.log(1.1), 0.8]
    below = [0.8 - np.expm1(0.8 - r) / np.expm1(1.0) for r in (0.7, 0.5, 0.0)]
    np.testing.assert_allclose(found, above + below, rtol=1e-5)
    assert np.all(np.diff(found) < 0)
