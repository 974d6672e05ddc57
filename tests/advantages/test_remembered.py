"""advantages/remembered.py, memory.py, off_policy.py, discriminative.py: limits, identities, and what they remember."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import trackers as program
from rl_jax import advantages
from rl_jax.advantages import discriminative, memory, off_policy, remembered
from rl_jax.testing.advantage_laws import check_advantage, rewards_of
from tests.experiments.small import config as small_config

G = 4
BINARY = np.float32([1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0])
FIRST = np.zeros((12, 3), np.float32)


def dcpo_loop(groups, moments, ddof=1, tolerance=1e-6):
    """The docstring's equations, group by group, in float64."""
    found = []
    for rewards, (before, old_mean, old_std) in zip(np.float64(groups), np.float64(moments), strict=True):
        i, mean, std = before + 1, rewards.mean(), rewards.std(ddof=ddof)
        all_mean = (before * old_mean + mean) / i
        all_std = np.sqrt((before * old_std**2 + std**2 + before / i * (mean - old_mean) ** 2) / i)
        largest = max(max(abs(rewards)), abs(all_mean))
        newest = (rewards - mean) / std if std > tolerance * largest else np.zeros(len(rewards))
        overall = (rewards - all_mean) / all_std if all_std > tolerance * largest else np.zeros(len(rewards))
        for new, everything in zip(newest, overall, strict=True):
            mixtures = (i - 1) / i * new + 1 / i * everything, 1 / i * new + (i - 1) / i * everything
            found.append(min(mixtures, key=abs))
    return found


@pytest.mark.parametrize("settings", [{}, {"ddof": 0}, {"tolerance": 0.5}], ids=str)
def test_dcpo_is_its_equations_group_by_group(settings):
    """Both signs, equal rewards, prompts that are new, seen once and often, and of another size than their history."""
    rng = np.random.default_rng(1)
    groups = rng.normal(size=(40, G)).astype(np.float32) + rng.integers(-2, 3, size=(40, 1)).astype(np.float32)
    groups[:8] = groups[:8, :1]
    moments = np.stack([rng.integers(0, 5, 40), 5 * rng.normal(size=40), 2 * rng.random(40)], axis=1)
    moments = np.where(moments[:, :1] > 0, moments, 0.0).astype(np.float32)
    named = {"relative_tolerance" if name == "tolerance" else name: value for name, value in settings.items()}
    run = jax.jit(functools.partial(remembered.smooth_standardized, group_size=G, **named))
    found = run(groups.reshape(-1), prompt_moments=np.repeat(moments, G, axis=0))
    np.testing.assert_allclose(found, dcpo_loop(groups, moments, **settings), rtol=1e-3, atol=1e-4)
    with pytest.raises(AssertionError):
        remembered.smooth_standardized(groups.reshape(-1), group_size=G, prompt_moments=FIRST)


def test_a_spread_of_a_millionth_is_one():
    """std / largest = 1.07e-6 is above the default of 1e-6, .97e-6 is not: for a visit and for a bundle."""
    for steps, spread in ((11, True), (10, False)):
        rewards = np.float32([1 - steps * 2.0**-23, 1, 1, 1 + steps * 2.0**-23])
        found = remembered.smooth_standardized(rewards, group_size=G, prompt_moments=FIRST[:G])
        np.testing.assert_allclose(found, np.sqrt([1.5, 0, 0, 1.5]) * [-spread, 0, 0, spread], rtol=1e-3)
        given = dict(group_size=G, score_quantiles=np.float32([0, 2, 1]), bundle_size=1, eps=0.0)
        risk = np.asarray(remembered.bundled_risk(rewards, **given))
        np.testing.assert_allclose(risk[0] < -1e4, spread)  # (1 - 2) / .6 / 2.5, over the std if there is one


def test_at_a_first_visit_dcpo_is_grpo():
    found = remembered.smooth_standardized(BINARY, group_size=G, prompt_moments=FIRST)
    np.testing.assert_allclose(found, advantages.group_relative(BINARY, group_size=G, eps=0.0), rtol=1e-5)


def test_equal_rewards_learn_from_the_visits_before():
    """1/i A_all, the README's case; and nothing if the prompt has always had this reward, in float32 too."""
    rewards = np.full(4, 1.0, np.float32)
    moments = np.tile(np.float32([1, 0.25, 0.5]), (4, 1))
    mean, std = remembered.pooled(2.0, 1.0, 0.0, 0.25, 0.5)
    found = remembered.smooth_standardized(rewards, group_size=G, prompt_moments=moments)
    np.testing.assert_allclose(found, (1 - mean) / std / 2, rtol=1e-5)
    for reward in (0.1, 0.7, 100.1):
        state = memory.prompt_moments(num_prompts=1)
        kept = state.init()
        for _ in range(3):
            kept = state.update(kept, jnp.zeros(G, int), jnp.full(G, reward), jnp.zeros(G))
        seen = kept.named(jnp.zeros(G, int))["prompt_moments"]
        found = remembered.smooth_standardized(jnp.full(G, reward), group_size=G, prompt_moments=seen)
        np.testing.assert_array_equal(found, 0.0)


def test_moments_of_the_visits_are_those_of_all_samples():
    """Exact with ddof 0: the mean and the variance of the concatenation. The tracker's are by prompt, of ddof 1."""
    rng = np.random.default_rng(0)
    visits = rng.normal(size=(5, 6))
    mean, std = visits[0].mean(), visits[0].std()
    for i, visit in enumerate(visits[1:], start=2):
        mean, std = remembered.pooled(float(i), visit.mean(), visit.std(), mean, std)
    np.testing.assert_allclose((mean, std), (visits.mean(), visits.std()), rtol=1e-5)
    tracker = memory.prompt_moments(num_prompts=3)
    state = tracker.update(tracker.init(), jnp.repeat(jnp.array([2, 0]), 6), jnp.asarray(visits[:2].ravel()), 0.0)
    np.testing.assert_array_equal(state.visits, [1, 0, 1])
    np.testing.assert_allclose(state.means, [visits[1].mean(), 0, visits[0].mean()], rtol=1e-5)
    np.testing.assert_allclose(state.stds, [visits[1].std(ddof=1), 0, visits[0].std(ddof=1)], rtol=1e-5)
    again = tracker.update(state, jnp.full(6, 2), jnp.asarray(visits[2]), 0.0)
    np.testing.assert_array_equal(again.visits, [1, 0, 2])
    rewards = jnp.array([4.0, 1.0, 2.0, 0.0, 3.0, 3.0])  # one row, two and three
    single = tracker.update(again, jnp.array([1, 0, 0, 2, 2, 2]), rewards, 0.0)
    np.testing.assert_array_equal(single.visits, [2, 1, 3])
    assert (single.means[1], single.stds[1]) == (4.0, 0.0)
    pooled = remembered.pooled(2.0, 1.5, np.sqrt(0.5), again.means[0], again.stds[0])
    np.testing.assert_allclose((single.means[0], single.stds[0]), pooled, rtol=1e-5)
    assert again.means[0] == state.means[0] and again.means[2] != state.means[2]


def test_risk_has_three_slopes():
    """w / low, 1 / (high - low) and 0, over 1 + w; the levels .2 and .8 give 3, .667 and 0 (before the std)."""
    scores = np.float32([0.0, 0.5, 1.5, 2.0, 3.5, 4.5])
    quantiles = np.float32([1.0, 3.0, 1.0])
    found = remembered.bundled_risk(
        jnp.asarray(scores), group_size=6, score_quantiles=quantiles, bundle_size=1, relative_tolerance=1e9
    )
    slopes = np.diff(found) / np.diff(scores)
    np.testing.assert_allclose(slopes[[0, 2, 4]], [3.0, 1 / 0.6 / 2.5, 0.0], rtol=1e-5)
    mean = remembered.bundled_risk(
        jnp.asarray(scores), group_size=6, score_quantiles=np.float32([-9, 9, 1]), bundle_size=1, low=1e-6, high=1.0
    )
    np.testing.assert_allclose(np.diff(mean) / np.diff(scores), np.full(5, 1 / 2.5) / scores.std(ddof=1), rtol=1e-4)


def test_a_risk_whose_spread_is_as_small_as_eps():
    """The README's formula, where 1e-6 is as much as the std."""
    scores, low, high = np.float64([0.0, 1.0, 2.0, 4.0]) * 1e-6, 1e-6, 3e-6
    wanted = (np.maximum(scores - low, 0) - np.maximum(scores - high, 0) + low - high) / 0.6
    wanted = (1.5 * -np.maximum(low - scores, 0) / 0.2 + wanted) / 2.5 / (scores.std(ddof=1) + 1e-6)
    quantiles = np.float32([low, high, 1.0])
    found = remembered.bundled_risk(np.float32(scores), group_size=4, score_quantiles=quantiles, bundle_size=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("baseline", [True, False])
def test_risk_is_the_readme_of_riskpo_with_and_without_its_baseline(baseline):
    """Bundles above q_high have the advantage 0 with the baseline, (high quantile less low one) / .6 / 2.5 without."""
    scores, low, high = np.float32([0.0, 0.5, 1.5, 2.0, 3.5, 4.5]), 1.0, 3.0
    wanted = np.maximum(scores - low, 0) - np.maximum(scores - high, 0) + (low - high if baseline else 0.0)
    wanted = (1.5 * -np.maximum(low - scores, 0) / 0.2 + wanted / 0.6) / 2.5 / (scores.std(ddof=1) + 1e-6)
    quantiles, only = np.float32([low, high, 1.0]), {} if baseline else {"natural_baseline": False}
    found = remembered.bundled_risk(scores, group_size=6, score_quantiles=quantiles, bundle_size=1, **only)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.all(found[4:] > 0.1) != baseline


def test_bundles_are_of_neighbouring_prompts_and_the_last_may_be_short():
    rewards = jnp.arange(12.0)
    scores = remembered.bundle_scores(rewards, group_size=G, bundle_size=2)
    np.testing.assert_array_equal(scores, [[4, 6, 8, 10], [8, 9, 10, 11]])
    found = remembered.bundled_risk(rewards, group_size=G, score_quantiles=np.zeros(3, np.float32), bundle_size=2)
    assert found.shape == (12,)
    np.testing.assert_array_equal(found[:4], found[4:8])
    pairs = np.float32([1, 3, 0, 2, 5, 0, 0, 1, 2, 2, 1, 0])  # the default of 5 prompts, in groups of 2
    risk = remembered.bundled_risk(pairs, group_size=2, score_quantiles=np.float32([4, 9, 1]))
    wanted = []
    for bundle in (np.array([8, 8]), np.array([1, 0])):  # the second one is of the last prompt alone
        middle = (np.maximum(bundle - 4.0, 0) - np.maximum(bundle - 9.0, 0) + 4 - 9) / 0.6
        mixed = (1.5 * -np.maximum(4.0 - bundle, 0) / 0.2 + middle) / 2.5
        wanted.append(mixed / (bundle.std(ddof=1) + 1e-6) if bundle.std() else mixed)
    np.testing.assert_allclose(risk, np.concatenate([np.tile(wanted[0], 5), wanted[1]]), rtol=1e-5)
    np.testing.assert_array_equal(
        remembered.bundle_scores(jnp.arange(4.0), group_size=1, bundle_size=3), [[0 + 1 + 2], [3]]
    )
    with pytest.raises(ValueError, match="high=1.5 must be levels"):
        remembered.bundled_risk(rewards, group_size=G, score_quantiles=jnp.zeros(3), high=1.5)
    with pytest.raises(ValueError, match="bundle_size=0 must be at least 1"):
        remembered.bundle_scores(rewards, group_size=G, bundle_size=0)
    with pytest.raises(ValueError, match="low=0.9 and high=0.8"):
        remembered.bundled_risk(rewards, group_size=G, score_quantiles=jnp.zeros(3), low=0.9)


def test_quantiles_follow_the_scores():
    tracker = memory.bundle_quantiles(group_size=G, bundle_size=2, low=0.25, high=0.75)
    update = jax.jit(tracker.update)
    first = update(tracker.init(), jnp.arange(8.0))
    np.testing.assert_allclose((first.low, first.high), np.quantile([4, 6, 8, 10], [0.25, 0.75]))
    second = update(first, jnp.zeros(8))  # all scores 0, below both
    np.testing.assert_allclose((second.low, second.high), (first.low + 0.1 * (0.25 - 1), first.high + 0.1 * -0.25))
    np.testing.assert_allclose(second.named()["score_quantiles"], [second.low, second.high, 2.0])
    usual = memory.bundle_quantiles(group_size=1)  # five prompts to a bundle, .2 and .8
    first = usual.update(usual.init(), jnp.arange(10.0) ** 2)
    np.testing.assert_allclose((first.low, first.high), np.quantile([30, 255], [0.2, 0.8]), rtol=1e-6)


def test_a_soft_baseline_lies_between_mean_and_best():
    rewards = rewards_of(0)
    cold = off_policy.opmd(rewards, group_size=G, tau=1e-3)
    np.testing.assert_allclose(cold, rewards - np.repeat(rewards.reshape(-1, G).max(axis=1), G), atol=5e-3)
    hot = off_policy.opmd(rewards, group_size=G, tau=1e3) * 1001.0
    np.testing.assert_allclose(hot, advantages.group_centered(rewards, group_size=G), atol=2e-3)
    mean = off_policy.opmd(rewards, group_size=G, tau=1.0, soft=False)
    np.testing.assert_allclose(2 * mean, advantages.group_centered(rewards, group_size=G), rtol=1e-6)
    groups = np.float64(rewards).reshape(-1, G)
    expected = (groups - np.log(np.exp(groups).mean(axis=1, keepdims=True))) / 2  # tau = 1
    np.testing.assert_allclose(off_policy.opmd(rewards, group_size=G), expected.reshape(-1), rtol=1e-4, atol=1e-6)
    far = off_policy.opmd(BINARY + np.float32(2**22), group_size=G)  # the same wherever the rewards are
    np.testing.assert_allclose(far, off_policy.opmd(BINARY, group_size=G), rtol=1e-6)
    usual = off_policy.asymmetric(rewards, group_size=G)
    np.testing.assert_allclose(usual, (groups - groups.mean(axis=1, keepdims=True) + 0.1).reshape(-1), atol=1e-5)
    with pytest.raises(ValueError, match="tau=0 must be above 0"):
        off_policy.opmd(rewards, group_size=G, tau=0)


def test_they_obey_the_laws_of_groups():
    check_advantage(off_policy.opmd, except_for=("a_group_sums_to_zero",))
    check_advantage(
        functools.partial(off_policy.asymmetric, shift=-0.1),
        lambda rewards, size: [r - g.mean() + 0.1 for g in rewards.reshape(-1, size) for r in g],
        except_for=("a_group_sums_to_zero", "equal_rewards_give_exactly_zero"),
    )
    random_drop = ("samples_of_a_group_and_whole_groups_may_change_places",)
    check_advantage(functools.partial(off_policy.balanced, key=jax.random.key(0)), except_for=random_drop)


@pytest.mark.parametrize("seed", range(3))
def test_bad_answers_are_dropped_until_there_are_as_many_as_good_ones(seed):
    found = np.asarray(off_policy.balanced(BINARY, group_size=G, key=jax.random.key(seed))).reshape(-1, G)
    assert sorted(found[0]) == [-0.5, 0.0, 0.0, 0.5] and found[0, 0] == 0.5  # one good, one of three bad ones
    np.testing.assert_array_equal(found[1], [0.25, 0.25, 0.25, -0.75])  # fewer bad ones: all stay
    np.testing.assert_array_equal(found[2], 0.0)
    far = np.asarray(off_policy.balanced(BINARY + np.float32(2**22), group_size=G, key=jax.random.key(seed)))
    np.testing.assert_array_equal(far.reshape(-1, G), found)
    # What is good is good beside its own group, and what is at the mean is good.
    apart = np.float32([16, 0, 0, 0, 1, 0, 0, 0, 1, 0.5, 0.5, 0])
    found = np.asarray(off_policy.balanced(apart, group_size=G, key=jax.random.key(seed))).reshape(-1, G)
    assert sorted(found[0]) == [-8, 0, 0, 8] and sorted(found[1]) == [-0.5, 0, 0, 0.5]
    np.testing.assert_array_equal(found[2], [0.5, 0, 0, -0.5])


def test_the_drawn_ones_are_those_of_the_third_part_of_the_key():
    """A seeded run stays what it was: the bad answers with the least noise stay."""
    for seed in range(4):
        found = np.asarray(off_policy.balanced(BINARY, group_size=G, key=jax.random.key(seed)))
        noise = np.asarray(jax.random.uniform(jax.random.fold_in(jax.random.key(seed), 3), (3, G)))[0]
        assert np.flatnonzero(found[:G] < 0).tolist() == [1 + np.argmin(noise[1:])]


def test_which_bad_answers_are_dropped_is_random():
    kept = {
        tuple(np.asarray(off_policy.balanced(BINARY[:G], group_size=G, key=jax.random.key(seed))) < 0)
        for seed in range(20)
    }
    assert len(kept) == 3


def scores_of(values) -> dict:
    return {"log_probs": jnp.asarray(values, jnp.float32)[:, None], "completion_mask": jnp.ones((len(values), 1), bool)}


def test_disco_is_the_gradient_of_its_objective():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=8).astype(np.float32)
    rewards = np.float32([1, 0, 0, 1, 0, 0, 0, 0])

    def objective(s):
        right, wrong = s[jnp.array([0, 3])], s[jnp.array([1, 2])]
        return right.mean() - 2.0 * jnp.log(jnp.mean(jnp.exp(wrong / 2.0)))

    found = discriminative.disco(rewards, group_size=4, tau=2.0, **scores_of(scores))
    np.testing.assert_allclose(found[:4] / 4, jax.grad(objective)(jnp.asarray(scores[:4])), rtol=1e-5)
    np.testing.assert_array_equal(found[4:], 0.0)  # no right answer: the group counts, and gives nothing
    even = discriminative.disco(rewards, group_size=4, tau=np.inf, **scores_of(scores))
    np.testing.assert_allclose(even[:4], [2.0, -2.0, -2.0, 2.0])  # DisCO-b
    with pytest.raises(ValueError, match="tau=0.0 must be above 0"):
        discriminative.disco(rewards, group_size=4, tau=0.0, **scores_of(scores))


def disco_loop(rewards, log_probs, mask, tau=10.0):
    """The weights of J's gradient by each row's score, group by group."""
    found = []
    for group in range(len(rewards) // G):
        rows = range(group * G, group * G + G)
        scores = {i: log_probs[i][mask[i]].astype(np.float64).mean() for i in rows}
        right, wrong = [i for i in rows if rewards[i] > 0.5], [i for i in rows if rewards[i] <= 0.5]
        total = sum(np.exp(scores[i] / tau) for i in wrong)
        for i in rows:
            share = 1 / len(right) if i in right else -np.exp(scores[i] / tau) / total
            found.append(G * share if right and wrong else 0.0)
    return found


def test_disco_is_a_plain_loop_over_ragged_rows():
    """Groups with one, three, all and no right answers; .5 is wrong and .52 right; nan behind the rows' ends."""
    rewards = np.float32([0.52, 0.5, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0])
    mask = np.arange(5) < np.tile([5, 3, 1, 4], 4)[:, None]
    log_probs = np.where(mask, 3 * np.random.default_rng(2).normal(size=mask.shape), np.nan).astype(np.float32)
    for named in ({}, {"tau": 0.7}):

        def summed(x, named=named):
            found = discriminative.disco(rewards, group_size=G, log_probs=x, completion_mask=mask, **named)
            return jnp.sum(found * jnp.arange(16.0)), found

        slope, found = jax.jit(jax.grad(summed, has_aux=True))(log_probs)
        np.testing.assert_allclose(found, disco_loop(rewards, log_probs, mask, **named), rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(slope, 0.0)


def test_disco_gives_every_prompt_the_same_weight():
    """GRPO's is sqrt(p (1 - p)) of it: its push of the right answers falls for hard and easy prompts alike."""
    for right in (1, 2, 3):
        rewards = np.float32([1] * right + [0] * (4 - right))
        found = discriminative.disco(rewards, group_size=4, tau=np.inf, **scores_of(np.zeros(4)))
        np.testing.assert_allclose(found[rewards > 0].sum(), 4.0, rtol=1e-6)
        grpo = advantages.group_relative(rewards, group_size=4, ddof=0, eps=0.0)
        p = right / 4
        np.testing.assert_allclose(grpo, np.sqrt(p * (1 - p)) * found, rtol=1e-5)


def test_a_program_hands_an_advantage_what_the_tracker_remembers(tmp_path):
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.trackers.baseline = dict(fn="rl_jax.advantages.memory:bundle_quantiles", bundle_size=2)
    made = program.make_trackers(config)
    states = program.init(made)
    rewards = np.arange(2 * config.sample.group_size, dtype=np.float32)
    states = program.observe(made, states, rewards, {"entropy": 1.0})
    known = program.known(config, states)
    assert known["score_quantiles"].shape == (3,) and "baseline" not in known and states["baseline"].updates == 1
    assert program.metrics_of(states)["tracker/baseline/high"] > program.metrics_of(states)["tracker/baseline/low"]


def test_disco_leaves_rows_without_a_token_out():
    """An answer that mask_truncated has emptied has no score: 0 would be the likeliest of the wrong ones."""
    log_probs = jnp.full((12, 5), -8.0)
    mask = np.ones((12, 5), bool)
    mask[[3, 4, 10, 11]] = False  # a wrong answer; the only right one; both wrong ones
    rewards = jnp.asarray([1.0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0])
    for tau in (1.0, 10.0, np.inf):
        found = discriminative.disco(rewards, group_size=4, log_probs=log_probs, completion_mask=mask, tau=tau)
        np.testing.assert_allclose(found, [4, -2, -2, 0, 0, 0, 0, 0, 0, 0, 0, 0], rtol=1e-6)
    mask[:] = True
    mask[1] = False
    found = discriminative.disco(1 - rewards, group_size=4, log_probs=log_probs, completion_mask=mask)
    np.testing.assert_allclose(found[:4], [-4, 0, 2, 2], rtol=1e-6)
