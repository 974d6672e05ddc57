"""Advantages of completions [B]: against the loops of tests/numpy_loops, verl, published numbers, and their limits."""

import functools

import jax
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.advantages import groups, passk
from rl_jax.core import binding
from tests.numpy_loops import advantages as reference
from tests.oracles import verl

G, ROWS = 4, 12
LENGTHS = np.int32([3, 1, 6, 2, 5, 5, 1, 4, 6, 2, 3, 1])
MASK = np.arange(6) < LENGTHS[:, None]
COMPONENTS = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32) * np.float32([[1.0, 10.0, 0.1]])
GREEDY = np.repeat(np.float32([0.5, -1.0, 0.25]), G)
# name -> (the function of rewards alone, its loop); G = 4 where groups matter.
LOOPS = {
    "no_baseline": ({}, list),
    "batch_centered": ({}, lambda r: reference.group_centered(r, len(r))),
    "batch_relative": ({}, reference.batch_relative),
    "tracked_baseline": ({"baseline": np.float32(0.3)}, lambda r: [x - np.float32(0.3) for x in r]),
    "tracked_relative": (
        {"baseline": GREEDY},
        lambda r: reference.batch_relative([x - b for x, b in zip(r, GREEDY, strict=True)], eps=1e-8),
    ),
    "remax": ({"greedy_rewards": GREEDY}, lambda r: [x - b for x, b in zip(r, GREEDY, strict=True)]),
    "nemo_leave_one_out": ({"group_size": G}, lambda r: reference.nemo_leave_one_out(r, G)),
    "maxrl": ({"group_size": G}, lambda r: reference.maxrl(r, G)),
    "opo": ({"group_size": G, "lengths": LENGTHS}, lambda r: reference.opo(r, G, LENGTHS)),
    "gpg": ({"group_size": G}, lambda r: reference.gpg(r, G)),
    "gdpo": ({"group_size": G, "components": COMPONENTS}, lambda r: reference.gdpo(COMPONENTS, G, (1, 1, 1))),
    "beta_normalized": ({"group_size": G}, lambda r: reference.beta_normalized(r, G)),
    "best_of_group": ({"group_size": G}, lambda r: reference.best_of_group(r, G)),
    "pass_at_k": ({"group_size": G, "k": 2}, lambda r: reference.pass_at_k(r, G, 2)),
}
# name of ours -> (verl's, what verl takes)
VERL = {
    "group_relative": ("grpo", {}),
    "group_centered": ("grpo", {"norm_adv_by_std_in_grpo": False}),
    "leave_one_out": ("rloo", {}),
    "opo": ("opo", {}),
    "gpg": ("gpg", {}),
    "remax": ("remax", {"reward_baselines": GREEDY}),
    "best_of_group": ("grpo_passk", {}),
}
every_function = pytest.mark.parametrize("name", LOOPS)


@functools.cache
def _compiled(name, static):
    return jax.jit(functools.partial(getattr(advantages, name), **dict(static)))


def _advantages(name, rewards, **keywords):
    arrays = {key: x for key, x in keywords.items() if isinstance(x, np.ndarray | np.generic)}
    static = tuple(sorted((key, x) for key, x in keywords.items() if key not in arrays))
    return np.asarray(_compiled(name, static)(np.asarray(rewards, np.float32), **arrays))


def _binary(seed=0, size=ROWS):
    rewards = (np.random.default_rng(seed).random(size) < 0.5).astype(np.float32)
    rewards[:2] = 1, 0
    return rewards


def _rewards(name, seed=0):
    """Rewards of the kind that the function is for."""
    if name in ("pass_at_k", "beta_normalized"):
        return _binary(seed)
    rewards = np.random.default_rng(seed).normal(size=ROWS).astype(np.float32)
    return np.abs(rewards) if name == "maxrl" else rewards


def _close(found, expected, **tolerances):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-5, "atol": 1e-5} | tolerances))


# --- Values ----------------------------------------------------------------------------------------------------------


@every_function
@pytest.mark.parametrize("seed", range(4))
def test_matches_the_loop(name, seed):
    keywords, loop = LOOPS[name]
    rewards = _rewards(name, seed)
    found = _advantages(name, rewards, **keywords)
    assert found.shape == rewards.shape and found.dtype == np.float32
    _close(found, loop(rewards))


@pytest.mark.parametrize("name", VERL)
@pytest.mark.parametrize("kind", ["normal", "binary", "signs"])
def test_matches_verl(name, kind):
    rewards = {"normal": _rewards(name, 5), "binary": _binary(5), "signs": 2 * _binary(6) - 1}[kind]
    theirs, settings = VERL[name]
    expected, _ = verl.advantage(theirs, rewards, MASK, group_size=G, **settings)
    known = {"group_size": G, "lengths": LENGTHS, "greedy_rewards": GREEDY}
    needed = binding.needs(getattr(advantages, name))
    found = _advantages(name, rewards, **{key: known[key] for key in needed})
    _close(groups.to_tokens(found, MASK), expected)


def test_best_of_group_without_the_std():
    rewards = _rewards("best_of_group", 7)
    found = _advantages("best_of_group", rewards, group_size=G, normalize=False)
    _close(found, reference.best_of_group(rewards, G, normalize=False))
    assert np.count_nonzero(found) == ROWS // G


@pytest.mark.parametrize("count_groups", [False, True])
def test_gpg_counts_rewards_or_groups(count_groups):
    """Groups with no gradient, 0 in some groups and not in others: both counts differ from B and from each other."""
    rewards = np.float32([1, 0, 0, 0, 1, 1, 1, 1, 2, 0, 2, 0])
    alpha = 3 / 2 if count_groups else 12 / 7
    found = _advantages("gpg", rewards, group_size=G, count_groups=count_groups)
    _close(found, alpha * np.asarray(groups.group_centered(rewards, group_size=G)))
    _close(found, reference.gpg(rewards, G, count_groups))
    lone = _advantages("gpg", np.arange(ROWS) == 5, group_size=G, count_groups=count_groups)
    _close(lone[4:8], np.float32([-0.25, 0.75, -0.25, -0.25]) * (3 if count_groups else 12))
    idle = _advantages("gpg", np.zeros(ROWS), group_size=G, count_groups=count_groups)
    np.testing.assert_array_equal(idle, 0)


@pytest.mark.parametrize(
    "rewards, expected",
    [
        ([1, 0, 0, 0], [1.0, *[-0.57735] * 3]),
        ([1, 1, 1, 0], [*[0.57735] * 3, -1.0]),
        ([1, *[0] * 7], [1.0, *[-0.37796] * 7]),
        ([1, 1, 0, 0], [1.1547, 1.1547, -1.1547, -1.1547]),
        ([1, 0], [1.0, -1.0]),
        ([1, 0, 3], [-0.5 / 4.5**0.5, -2 / 2**0.5, 2.5 / 0.5**0.5]),
    ],
)
def test_published_numbers_of_nemo(rewards, expected):
    """shared/atlas/conventions.md, 5.1."""
    _close(_advantages("nemo_leave_one_out", rewards, group_size=len(rewards)), expected)


def test_published_numbers_of_maxrl():
    """shared/atlas/conventions.md, 5.1."""
    _close(_advantages("maxrl", [1, 0, 0, 0], group_size=4), [3, -1, -1, -1])


def test_maxrl_without_a_success_is_zero():
    np.testing.assert_array_equal(_advantages("maxrl", [0, 0, 0, 0], group_size=4), 0)
    np.testing.assert_array_equal(_advantages("maxrl", [-1, -1, 0, 0], group_size=4), 0)
    _close(_advantages("maxrl", [0.25, 0, 0, 0], group_size=4), [3, -1, -1, -1])


@pytest.mark.parametrize("weights", [(1.0, 0.5, 2.0), (0.0, 1.0, 0.0)])
@pytest.mark.parametrize("ddof, eps", [(1, 1e-4), (0, 1e-2)])
def test_gdpo_with_weights(weights, ddof, eps):
    keywords = {"weights": weights, "ddof": ddof, "eps": eps}
    found = _advantages("gdpo", np.zeros(ROWS), group_size=G, components=COMPONENTS, **keywords)
    _close(found, reference.gdpo(COMPONENTS, G, weights, ddof, eps))


def test_gdpo_does_not_drown_a_component():
    """One reward a hundred times another: each keeps its say, which is lost where rewards are added up first."""
    scaled = COMPONENTS * np.float32([[100.0, 1.0, 1.0]])
    keywords = {"group_size": G, "eps": 0.0}
    found = _advantages("gdpo", np.zeros(ROWS), components=scaled, **keywords)
    _close(found, _advantages("gdpo", np.zeros(ROWS), components=COMPONENTS, **keywords), rtol=1e-4)
    one = np.float32(np.where(np.arange(3) == 0, COMPONENTS, 0.1))
    expected = _advantages("group_relative", COMPONENTS[:, 0], group_size=G)
    unit = np.asarray(expected) / np.std(expected, ddof=1)
    _close(_advantages("gdpo", np.zeros(ROWS), components=one, group_size=G), unit, rtol=1e-3)


@pytest.mark.parametrize("ddof, eps", [(0, 0.1), (1, 0.5)])
def test_z_scores_take_ddof_and_eps(ddof, eps):
    rewards = _rewards("", 8)
    _close(_advantages("batch_relative", rewards, ddof=ddof, eps=eps), reference.batch_relative(rewards, ddof, eps))
    found = _advantages("tracked_relative", rewards, baseline=np.float32(0.5), ddof=ddof, eps=eps)
    _close(found, reference.batch_relative(rewards, ddof, eps))
    found = _advantages("best_of_group", rewards, group_size=G, ddof=ddof, eps=eps)
    _close(found, reference.best_of_group(rewards, G, ddof=ddof, eps=eps))
    _close(
        _advantages("nemo_leave_one_out", rewards, group_size=G, eps=eps), reference.nemo_leave_one_out(rewards, G, eps)
    )


# --- Pass@k ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_pass_at_k_for_every_number_of_right_answers(k):
    """c = 0..6 of 6, against all subsets: a group for each."""
    n = 6
    rewards = np.concatenate([np.float32(np.arange(n) < c) for c in range(n + 1)])
    found = _advantages("pass_at_k", rewards, group_size=n, k=k)
    _close(found, reference.pass_at_k(rewards, n, k), rtol=2e-5)
    np.testing.assert_allclose(found.reshape(-1, n).sum(axis=1), 0, atol=1e-5)
    for c, group in enumerate(found.reshape(-1, n)):
        idle = c == 0 or n - c < k  # no subset has a right answer, or every one
        assert (group == 0).all() if idle else np.abs(group).min() > 0.05


def test_pass_at_one_is_grpo_with_ddof_0():
    rewards = _binary(9)
    _close(
        _advantages("pass_at_k", rewards, group_size=G, k=1),
        _advantages("group_relative", rewards, group_size=G, ddof=0),
        atol=1e-5,
    )


def test_what_counts_as_correct_is_above_the_threshold():
    rewards = np.float32([0.5, 0.75, -1.0, 0.0])
    _close(
        _advantages("pass_at_k", rewards, group_size=4, k=2), _advantages("pass_at_k", [0, 1, 0, 0], group_size=4, k=2)
    )
    _close(
        _advantages("pass_at_k", rewards, group_size=4, k=2, threshold=-0.5),
        _advantages("pass_at_k", [1, 1, 0, 1], group_size=4, k=2),
    )


def test_pass_at_k_takes_eps():
    rewards = _binary(10)
    found = _advantages("pass_at_k", rewards, group_size=G, k=2, eps=0.5)
    _close(found, reference.pass_at_k(rewards, G, 2, eps=0.5))


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses_a_k_beyond_the_group(k):
    with pytest.raises(ValueError, match=f"pass@{k} of 4 samples"):
        passk.pass_at_k(_binary(0), group_size=4, k=k)


@pytest.mark.parametrize("group_size", [2, 3, 6])
def test_best_of_groups_of_other_sizes(group_size):
    rewards = _rewards("", 17)
    found = _advantages("best_of_group", rewards, group_size=group_size)
    _close(found, reference.best_of_group(rewards, group_size))


def test_only_the_best_sample_counts_and_a_tie_counts_for_nobody():
    found = _advantages("best_of_group", [3, 7, 5, 1, 2, 2, 0, 1], group_size=4, normalize=False)
    np.testing.assert_array_equal(found, [0, 2, 0, 0, 0, 0, 0, 0])


# --- BNPO ------------------------------------------------------------------------------------------------------------


def test_a_flat_beta_is_dr_grpo():
    """Pass rates as wide as the uniform distribution's, or wider: a <= 0, so alpha = beta = 1."""
    uniform = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    ends = [1, 1, 1, 1, 0, 0, 0, 0] * 2
    for rewards in (uniform, [*ends, 1, 0, 0, 0], [*ends, 1, 1, 1, 0]):
        _close(_advantages("beta_normalized", rewards, group_size=4), reference.group_centered(rewards, 4))


def test_a_round_beta_is_grpo_but_for_a_constant():
    """Pass rates 1/4, 1/2, 3/4: v = 1/16, a = b = 3/2, alpha = beta = 3/2, f = 8/pi sqrt(p (1 - p)) (I1)."""
    rewards = np.float32([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0])
    p = np.repeat([0.25, 0.5, 0.75], 4)
    found = _advantages("beta_normalized", rewards, group_size=4)
    _close(found, np.pi / 8 * (rewards - p) / np.sqrt(p * (1 - p)))


def test_equal_pass_rates_or_one_group_leave_nothing_to_fit():
    for rewards in ([1, 0, 0, 0], [1, 0, 0, 0, 0, 1, 0, 0]):
        _close(_advantages("beta_normalized", rewards, group_size=4), reference.group_centered(rewards, 4))


def test_beta_normalized_maps_its_range_to_0_and_1():
    rewards = _binary(11)
    found = _advantages("beta_normalized", 3 * rewards - 2, group_size=4, low=-2.0, high=1.0)
    _close(found, _advantages("beta_normalized", rewards, group_size=4))


def test_a_pass_rate_that_rounds_to_more_than_one_is_one():
    """(-1.3 + 2) / .7 is 1 + 1.2e-7 in float32, where the density has the log of a negative number."""
    rewards = np.where(np.float32([*[1] * 4, 1, 1, 0, 0, 1, 0, 1, 0]) > 0, np.float32(-1.3), np.float32(-2))
    assert (rewards[0] - np.float32(-2)) / np.float32(-1.3 + 2.0) > 1
    found = _advantages("beta_normalized", rewards, group_size=4, low=-2.0, high=-1.3)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[:4], 0)


def test_beta_normalized_bounds_its_weight():
    """Pass rates .5 (5 groups of 8) and one of .125, far out in a narrow Beta: 1 / f is large there."""
    rewards = np.concatenate([np.tile(np.float32([1, 0] * 4), 40), np.float32([1, *[0] * 7])])
    free = _advantages("beta_normalized", rewards, group_size=8)[-8:]
    _close(free, reference.beta_normalized(rewards, 8)[-8:], rtol=1e-3)
    assert free[0] > 50
    bounded = _advantages("beta_normalized", rewards, group_size=8, max_weight=10.0)
    _close(bounded[-8:], [8.75, *[-1.25] * 7])
    assert np.abs(bounded[:-8]).max() < 1


# --- Limits and laws -------------------------------------------------------------------------------------------------


def test_opo_with_equal_lengths_is_centred():
    rewards, lengths = _rewards("", 12), np.full(ROWS, 7, np.int32)
    _close(_advantages("opo", rewards, group_size=G, lengths=lengths), reference.group_centered(rewards, G), rtol=1e-4)


def test_opo_with_few_tokens_or_none():
    """All tokens in one row, one token in all, none: the first group's baseline is that row's reward."""
    rewards = _rewards("", 12)
    lengths = np.int32([0, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    found = _advantages("opo", rewards, group_size=G, lengths=lengths)
    _close(found[:8], rewards[:8] - np.repeat(rewards[[2, 5]], G))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("reward", [0.1, 0.7, 100.1])
def test_opo_of_equal_rewards_is_zero_whatever_the_lengths(reward):
    lengths = np.random.default_rng(3).integers(1, 5000, 64).astype(np.int32)
    found = _advantages("opo", np.full(64, reward), group_size=64, lengths=lengths)
    np.testing.assert_array_equal(found, 0)


def test_opo_minimises_the_weighted_square():
    rewards, lengths = np.float32([1, 0, 0, 1]), np.int32([3, 7, 2, 9])
    baseline = rewards[0] - _advantages("opo", rewards, group_size=4, lengths=lengths)[0]
    _close(baseline, 12 / 21)


def test_a_baseline_of_each_row_and_one_for_all():
    rewards = _rewards("", 13)
    one = _advantages("tracked_baseline", rewards, baseline=np.float32(0.5))
    np.testing.assert_array_equal(
        one, _advantages("tracked_baseline", rewards, baseline=np.full(ROWS, np.float32(0.5)))
    )
    np.testing.assert_array_equal(one, rewards - np.float32(0.5))


@pytest.mark.parametrize(
    "name", ["batch_centered", "batch_relative", "nemo_leave_one_out", "maxrl", "opo", "gpg", "best_of_group"]
)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, 100.1, 10000.3])
def test_equal_rewards_give_exactly_zero(name, reward):
    keywords, _ = LOOPS[name]
    np.testing.assert_array_equal(_advantages(name, np.full(ROWS, reward), **keywords), 0, err_msg=f"{reward}")


@pytest.mark.parametrize("name", ["gdpo", "beta_normalized", "pass_at_k"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_rewards_give_exactly_zero_here_too(name, reward):
    keywords = LOOPS[name][0] | ({"components": np.full((ROWS, 3), np.float32(reward))} if name == "gdpo" else {})
    np.testing.assert_array_equal(_advantages(name, np.full(ROWS, reward), **keywords), 0)


@pytest.mark.parametrize("name", ["batch_relative", "nemo_leave_one_out", "best_of_group"])
def test_rewards_equal_up_to_rounding_are_not_blown_up(name):
    rewards = np.float32([0.3, 0.3, 0.3, np.nextafter(np.float32(0.3), np.float32(1))])
    keywords = {} if name == "batch_relative" else {"group_size": 4}
    assert np.abs(_advantages(name, rewards, **keywords)).max() < 1e-6
    wide = {"relative_tolerance": 0.0}
    assert np.abs(_advantages(name, rewards, **keywords, **wide, eps=0.0)).max() > 0.4


def test_a_spread_is_more_than_the_rounding_of_the_largest():
    """Of one group, of several, and of signed values: 1e-6 of 1000 is .001."""
    values = np.float32([[-1000, 0, 1], [1000, 0, 1], [1, 0, -1]])
    np.testing.assert_array_equal(groups.has_spread(values, np.full(3, 9e-4, np.float32), 1e-6), [False, False, True])
    np.testing.assert_array_equal(groups.has_spread(values, np.full(3, 1.1e-3, np.float32), 1e-6), [True] * 3)
    assert groups.has_spread(values[0], np.float32(11.0), 0.01) and not groups.has_spread(
        values[0], np.float32(9), 0.01
    )
    assert not groups.has_spread(np.zeros(3, np.float32), np.float32(0), 1e-6)


@pytest.mark.parametrize("name", [name for name in LOOPS if name not in ("no_baseline", "remax", "tracked_baseline")])
def test_samples_of_a_group_and_whole_groups_may_change_places(name):
    order = np.arange(ROWS).reshape(3, G)[[1, 2, 0]][:, [2, 0, 3, 1]].reshape(-1)
    keywords, _ = LOOPS[name]
    rewards = _rewards(name, 14)
    moved = {key: x[order] if isinstance(x, np.ndarray) else x for key, x in keywords.items()}
    _close(_advantages(name, rewards[order], **moved), _advantages(name, rewards, **keywords)[order])


@pytest.mark.parametrize("name", ["nemo_leave_one_out", "maxrl", "opo", "best_of_group", "pass_at_k"])
def test_groups_do_not_see_each_other(name):
    keywords, rewards = LOOPS[name][0], _rewards(name, 15)
    alone = []
    for start in range(0, ROWS, G):
        rows = slice(start, start + G)
        part = {key: x[rows] if isinstance(x, np.ndarray) else x for key, x in keywords.items()}
        alone.append(_advantages(name, rewards[rows], **part))
    _close(_advantages(name, rewards, **keywords), np.concatenate(alone), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["batch_centered", "batch_relative", "tracked_relative", "nemo_leave_one_out", "opo"])
def test_a_shift_of_the_rewards_changes_nothing(name):
    keywords, rewards = LOOPS[name][0], _rewards(name, 16)
    shifted = _advantages(name, rewards + np.float32(8), **keywords)
    _close(shifted, _advantages(name, rewards, **keywords), rtol=1e-4, atol=2e-5)


# --- Interface -------------------------------------------------------------------------------------------------------


@every_function
def test_bad_input_is_refused(name):
    fn = functools.partial(getattr(advantages, name), **LOOPS[name][0])
    with pytest.raises(AssertionError):
        fn(np.ones((ROWS, 1), np.float32))
    if name == "gdpo":
        with pytest.raises(AssertionError):
            fn(np.ones(8, np.float32))
        with pytest.raises(ValueError, match="2 weights for 3 reward components"):
            fn(np.ones(ROWS, np.float32), weights=(1.0, 1.0))
    else:
        with pytest.raises(AssertionError):
            fn(np.ones(ROWS, int))
    if LOOPS[name][0].get("group_size"):
        with pytest.raises(ValueError, match="12 rewards do not divide into groups of group_size=5"):
            fn(np.ones(ROWS, np.float32), group_size=5)


@pytest.mark.parametrize("name", ["opo", "remax"])
def test_arrays_of_another_length_are_refused(name):
    keywords = {key: x[:G] if isinstance(x, np.ndarray) else x for key, x in LOOPS[name][0].items()}
    with pytest.raises(AssertionError):
        getattr(advantages, name)(np.ones(ROWS, np.float32), **keywords)


@pytest.mark.parametrize("name", ["nemo_leave_one_out", "best_of_group"])
def test_a_group_of_one_has_nothing_to_compare_with(name):
    with pytest.raises(ValueError, match=f"{name} needs group_size >= 2"):
        getattr(advantages, name)(np.ones(4, np.float32), group_size=1)


def test_a_batch_of_one_has_no_std():
    with pytest.raises(ValueError, match="group of 1"):
        advantages.batch_relative(np.ones(1, np.float32))


def test_every_outcome_function_is_in_a_table():
    known = {"group_size", "lengths", "baseline", "greedy_rewards", "components", "k"}
    outcomes = {name for name, fn in binding.public_functions(advantages).items() if binding.needs(fn) <= known}
    assert outcomes == set(LOOPS) | {"group_relative", "group_centered", "leave_one_out", "group_mean_batch_std"}
