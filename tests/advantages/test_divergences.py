"""advantages/divergences.py and the tracker of memory.py: against autodiff of the divergences, by enumeration."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import divergences, memory

RNG = np.random.default_rng(0)
ANSWERS = 6
LOGITS, REFERENCE = RNG.normal(size=(2, ANSWERS))
FEATURES = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
# f(t) of each divergence, by hand.
F = {
    "kl": lambda t: -jnp.log(t),
    "reverse_kl": lambda t: t * jnp.log(t),
    "js": lambda t: t * jnp.log(2 * t / (t + 1)) + jnp.log(2 / (t + 1)),
    "tv": lambda t: jnp.abs(1 - t) / 2,
    "chi2": lambda t: (t - 1) ** 2 / t,
    "reverse_chi2": lambda t: (t - 1) ** 2,
}


@pytest.mark.parametrize("f", divergences.DIVERGENCES)
def test_the_pseudo_rewards_gradient_is_the_divergences(f):
    """E_pi[f'(t) grad log pi] = grad E_p[f(pi / p)], over all answers."""
    with jax.enable_x64(True):
        target = jax.nn.log_softmax(jnp.asarray(REFERENCE + FEATURES / 0.4))
        expected = jax.grad(lambda x: jnp.sum(jnp.exp(target) * F[f](jnp.exp(jax.nn.log_softmax(x) - target))))(LOGITS)
        log_pi = jax.nn.log_softmax(jnp.asarray(LOGITS))
        slope = divergences.f_prime(log_pi - target, f=f)
        found = jax.grad(lambda x: jnp.sum(jnp.exp(log_pi) * slope * jax.nn.log_softmax(x)))(LOGITS)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_slope_is_the_derivative_itself():
    """Its constant, too, which no gradient sees: it is the reward of a single sample."""
    t = np.array([0.1, 0.7, 1.5, 4.0])
    with jax.enable_x64(True):
        for f in divergences.DIVERGENCES:
            expected = jax.vmap(jax.grad(F[f]))(jnp.asarray(t))
            np.testing.assert_allclose(divergences.f_prime(np.log(t), f=f), expected, rtol=1e-9, err_msg=f)


def test_a_slope_is_finite_however_far_the_target_is():
    for f in divergences.DIVERGENCES:
        assert np.isfinite(divergences.f_prime(jnp.array([-1e4, 0.0, 1e4]), f=f)).all(), f
    np.testing.assert_array_equal(divergences.f_prime(jnp.array([-41.0, 41.0]), f="reverse_kl"), [-39.0, 41.0])
    with pytest.raises(ValueError, match="f='jensen' is none of kl, reverse_kl, js, tv, chi2, reverse_chi2"):
        divergences.f_prime(jnp.zeros(1), f="jensen")


# --- f-DPG -----------------------------------------------------------------------------------------------------------

FIRST = np.zeros((8, 3), np.float32)
REWARDS = np.float32([1.0, 0.2, -0.4, 0.3, 0.0, 0.0, 0.1, 0.7])
fdpg = functools.partial(divergences.f_dpg, group_size=4, reward_kl_coef=0.5)


def test_reverse_kl_is_the_reward_with_its_kl():
    """-f' = (R - beta log(pi / ref)) / beta - log Z - 1: RLHF's reward over beta, up to the prompt's constant."""
    found = fdpg(jnp.asarray(REWARDS), partition=FIRST, f="reverse_kl").reshape(2, 4)
    expected = REWARDS.reshape(2, 4) / 0.5
    expected = expected - np.log(np.exp(expected).mean(axis=1, keepdims=True)) - 1.0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(  # the default is Jensen-Shannon
        fdpg(jnp.asarray(REWARDS), partition=FIRST), fdpg(jnp.asarray(REWARDS), partition=FIRST, f="js")
    )


def test_where_the_policy_is_the_target_nothing_is_learned():
    """P / pi is the same number for all answers: t = 1, and f'(1) - f'(1) = 0 once the baseline has seen it."""
    for f in ("kl", "js", "chi2"):
        tracker = memory.partitions(num_prompts=2, reward_kl_coef=0.5, f=f)
        state, prompts = tracker.init(), jnp.repeat(jnp.arange(2), 4)
        rewards = jnp.where(prompts == 0, 0.3, -2.0)
        state = tracker.update(state, prompts, rewards, jnp.zeros(8))
        np.testing.assert_allclose(fdpg(rewards, f=f, **state.named(prompts)), 0.0, atol=1e-5)


def test_the_tracker_remembers_each_prompts_samples_and_the_newest_pseudo_rewards():
    """Prompts with one row and with several, and rewards whose exp is no float32."""
    tracker = memory.partitions(num_prompts=3, reward_kl_coef=0.5, f="reverse_kl", window=6)
    state, points, last = tracker.init(), {0: [], 2: []}, []
    np.testing.assert_array_equal(state.named(jnp.array([2]))["partition"], 0.0)
    update = jax.jit(tracker.update)
    for prompts, scale in (([2], 1.0), ([0, 2, 0, 2], 1.0), ([2], 1.0), ([2, 0, 2, 2], 90.0), ([0, 0, 0, 2], 1.0)):
        rewards = scale * RNG.normal(size=len(prompts)).astype(np.float32)
        state = update(state, jnp.asarray(prompts), jnp.asarray(rewards), jnp.zeros(len(prompts)))
        for prompt, reward in zip(prompts, rewards, strict=True):
            points[prompt].append(np.exp(np.float64(reward) / 0.5))
        for prompt, reward in zip(prompts, rewards, strict=True):
            log_t = np.log(np.mean(points[prompt])) - np.float64(reward) / 0.5
            last.append(-1.0 - np.clip(log_t, -40.0, 40.0))
        found = state.named(jnp.array([2, 0, 1]))["partition"]
        logs = [np.log(np.mean(points[prompt])) if points[prompt] else 0.0 for prompt in (2, 0)]
        np.testing.assert_allclose(found[:, 0], [*logs, 0.0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found[:, 1], [len(points[2]), len(points[0]), 0])
        np.testing.assert_allclose(found[:, 2], np.mean(last[-6:]), rtol=1e-5, atol=1e-6)
    assert state.seen == 6 and state.values(jnp.array([1])) == 0
    usual = memory.partitions(num_prompts=2, reward_kl_coef=0.5)  # a window of 1024, Jensen-Shannon
    rewards = jnp.array([0.3, -0.2, 0.8])
    state = jax.jit(usual.update)(usual.init(), jnp.zeros(3, int), rewards, jnp.zeros(3))
    assert state.pseudo_rewards.shape == (1024,)
    t = np.mean(np.exp(2 * np.float64(rewards))) / np.exp(2 * np.float64(rewards))
    np.testing.assert_allclose(state.pseudo_rewards[-3:], -np.log(2 * t / (t + 1)), rtol=1e-5)
    for seen, expected in ((0.0, 0.0), (1.0, 0.75), (2.0, 0.375)):  # of the window's three there are so many
        kept = memory.Partition(*np.zeros((2, 3)), np.array([0.0, 0.0, 0.75 if seen else 0.0]), np.float32(seen))
        assert kept.baseline() == expected


def test_a_target_without_a_strength_is_refused():
    with pytest.raises(ValueError, match="reward_kl_coef=0.0 must be above 0"):
        divergences.f_dpg(jnp.ones(8), group_size=4, partition=FIRST, reward_kl_coef=0.0)
    with pytest.raises(ValueError, match="reward_kl_coef=0 must be above 0"):
        divergences.f_dpg(jnp.ones(8), group_size=4, partition=FIRST, reward_kl_coef=0)
    with pytest.raises(ValueError, match="8 rewards do not divide into groups of group_size=3"):
        divergences.f_dpg(jnp.ones(8), group_size=3, partition=FIRST, reward_kl_coef=0.1)


# --- GDC -------------------------------------------------------------------------------------------------------------


def test_the_fitted_strength_reaches_the_moment():
    with jax.enable_x64(True):
        features = jnp.asarray(RNG.normal(size=40))
        for moment in (-0.5, 0.0, 0.8):
            strength = divergences.fit_moment(features, moment)
            weights = np.exp(np.float64(strength * features))
            np.testing.assert_allclose((weights * features).sum() / weights.sum(), moment, atol=1e-9)
        binary = jnp.asarray([1.0] * 3 + [0.0] * 7)  # log odds of the moment over those of the reference
        found = divergences.fit_moment(binary, 0.6)
        np.testing.assert_allclose(found, np.log(0.6 / 0.4) - np.log(0.3 / 0.7), rtol=1e-9)
        none = jnp.zeros(4)  # no sample has the feature: every halving leaves the upper half
        assert 20.0 - divergences.fit_moment(none, 0.5) == pytest.approx(20 / 2**50, rel=0.2, abs=0)
        assert divergences.fit_moment(none, 0.5, largest=4.0, iterations=3) == 3.5


def test_gdc_is_the_gradient_towards_the_constrained_target():
    """Every answer once, the reference's samples by their exact shares; the gradient of KL(p || pi), and its zero."""
    shares = np.array([3, 2, 2, 1, 1, 1]) / 10
    sampled = np.repeat(FEATURES, [3, 2, 2, 1, 1, 1])
    weights = shares * np.exp(np.float64(divergences.fit_moment(jnp.asarray(sampled, jnp.float32), 0.7)) * FEATURES)
    target = weights / weights.sum()
    np.testing.assert_allclose(target @ FEATURES, 0.7, atol=1e-5)
    policy = np.exp(LOGITS) / np.exp(LOGITS).sum()

    def advantages(probs, **more):
        # Two tokens per answer, and garbage after the second.
        def tokens(x):
            return jnp.asarray(np.stack([np.log(x) / 2, np.log(x) / 2, np.full(ANSWERS, np.nan)], axis=1), jnp.float32)

        mask = np.broadcast_to([True, True, False], (ANSWERS, 3))
        arrays = dict(log_probs=tokens(probs), ref_log_probs=tokens(shares), completion_mask=mask)
        samples = jnp.asarray(np.tile(sampled, (ANSWERS, 1)), jnp.float32)
        rewards = jnp.asarray(FEATURES, jnp.float32)
        return np.asarray(divergences.gdc(rewards, reference_rewards=samples, moment=0.7, **arrays, **more))

    np.testing.assert_allclose(advantages(policy), target / policy - 1.0, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantages(policy, constant=0.0), target / policy, rtol=1e-4)
    np.testing.assert_allclose(advantages(target), 0.0, atol=1e-5)
    slope = policy * advantages(policy)  # minus the gradient of KL(p || pi) by the logits is p - pi
    np.testing.assert_allclose(slope - policy * slope.sum(), target - policy, atol=1e-5)
