"""advantages.py against the loops of tests/numpy_loops, the published numbers and the identities of the atlas."""

import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.advantages import groups
from rl_jax.testing import advantage_laws as laws
from rl_jax.testing.advantage_laws import advantage_case
from tests.numpy_loops import advantages as reference

# rewards of one group -> advantages, measured on the frameworks' own code (shared/atlas/conventions.md, 5.1)
GOLDEN = [
    ("verl", advantages.group_relative, {"eps": 1e-6}, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
    ("TRL", advantages.group_relative, {"eps": 1e-4}, [1, 0, 0, 0], [1.4997, -0.4999, -0.4999, -0.4999]),
    ("R1 text, ddof 0", advantages.group_relative, {"ddof": 0}, [1, 0, 0, 0], [3**0.5, *[-(3**-0.5)] * 3]),
    ("open-instruct", advantages.group_centered, {}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
    ("rloo", advantages.leave_one_out, {}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
]
FUNCTIONS = {
    "group_relative": (advantages.group_relative, reference.group_relative),
    "group_relative ddof 0": (
        lambda r, group_size: advantages.group_relative(r, group_size=group_size, ddof=0, eps=1e-4),
        lambda r, group_size: reference.group_relative(r, group_size, ddof=0, eps=1e-4),
    ),
    "group_centered": (advantages.group_centered, reference.group_centered),
    "leave_one_out": (advantages.leave_one_out, reference.leave_one_out),
    "group_mean_batch_std": (advantages.group_mean_batch_std, reference.group_mean_batch_std),
    "group_mean_batch_std ddof 0": (
        lambda r, group_size: advantages.group_mean_batch_std(r, group_size=group_size, ddof=0, eps=1e-4),
        lambda r, group_size: reference.group_mean_batch_std(r, group_size, ddof=0, eps=1e-4),
    ),
}
all_functions = pytest.mark.parametrize("fn, loop", FUNCTIONS.values(), ids=FUNCTIONS)


def _rewards(seed, size=12):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.mark.parametrize("name, fn, keywords, rewards, expected", GOLDEN, ids=[row[0] for row in GOLDEN])
def test_published_numbers(name, fn, keywords, rewards, expected):
    out = fn(np.array(rewards, np.float32), group_size=4, **keywords)
    np.testing.assert_allclose(out, expected, atol=6e-5 if name == "TRL" else 5e-6)


@all_functions
@pytest.mark.parametrize("group_size", [2, 3, 4, 12])
def test_matches_the_loop(fn, loop, group_size):
    laws.matches_the_loop(advantage_case(fn, loop), group_size)


@pytest.mark.parametrize("ddof", [0, 1])
def test_group_std_matches_numpy(ddof):
    rewards = _rewards(0)
    out = groups.group_std(rewards, group_size=4, ddof=ddof)
    np.testing.assert_allclose(out, rewards.reshape(3, 4).std(axis=1, ddof=ddof), rtol=1e-6)


@all_functions
@pytest.mark.parametrize("group_size", [2, 3, 7, 8])
def test_equal_rewards_give_exactly_zero(fn, loop, group_size):
    laws.equal_rewards_give_exactly_zero(advantage_case(fn, loop), group_size)


@pytest.mark.parametrize("name", ["group_relative", "group_mean_batch_std"])
def test_rewards_equal_up_to_rounding_give_exactly_zero(name):
    rewards = np.float32([0.3, 0.3, 0.3, np.nextafter(np.float32(0.3), np.float32(1))])
    assert len(set(rewards.tolist())) == 2
    np.testing.assert_array_equal(FUNCTIONS[name][0](rewards, group_size=4), 0.0)


def test_an_equal_group_does_not_hide_its_neighbour():
    out = advantages.group_relative(np.float32([0.1] * 3 + [1, 0, 0]), group_size=3)
    np.testing.assert_array_equal(out[:3], 0.0)
    np.testing.assert_allclose(out[3:], reference.group_relative([1, 0, 0], 3), rtol=1e-5)


@all_functions
@pytest.mark.parametrize("shift", [-5.0, 0.25, 30.0])
def test_a_shift_of_the_rewards_changes_nothing(fn, loop, shift):
    laws.a_shift_of_the_rewards_changes_nothing(advantage_case(fn, loop), shift)


@pytest.mark.parametrize("scale", [0.125, 16.0])
@pytest.mark.parametrize(
    "name, power", [("group_relative", 0), ("group_centered", 1), ("leave_one_out", 1), ("group_mean_batch_std", 0)]
)
def test_scaling_the_rewards(name, power, scale):
    fn, rewards = getattr(advantages, name), _rewards(2)
    keywords = {"eps": 0.0} if power == 0 else {}
    scaled = fn(rewards * np.float32(scale), group_size=4, **keywords)
    np.testing.assert_allclose(scaled, fn(rewards, group_size=4, **keywords) * scale**power, rtol=1e-5)


@all_functions
def test_a_group_sums_to_zero(fn, loop):
    laws.a_group_sums_to_zero(advantage_case(fn, loop))


@all_functions
def test_samples_of_a_group_and_whole_groups_may_change_places(fn, loop):
    laws.samples_of_a_group_and_whole_groups_may_change_places(advantage_case(fn, loop))


@pytest.mark.parametrize("name", ["group_relative", "group_centered", "leave_one_out"])
def test_groups_do_not_see_each_other(name):
    fn, rewards = getattr(advantages, name), _rewards(5)
    alone = np.concatenate([fn(rewards[i : i + 4], group_size=4) for i in (0, 4, 8)])
    np.testing.assert_allclose(fn(rewards, group_size=4), alone, rtol=1e-6)


def test_squares_of_a_normalised_group_sum_to_g_minus_one():
    out = advantages.group_relative(_rewards(6), group_size=4, eps=0.0)
    np.testing.assert_allclose(np.square(out).reshape(3, 4).sum(axis=1), 3.0, rtol=1e-5)


@pytest.mark.parametrize("correct", [1, 3, 7])
def test_binary_rewards_have_the_closed_form(correct):
    g, p = 8, correct / 8
    out = advantages.group_relative(np.float32([1] * correct + [0] * (g - correct)), group_size=g, eps=0.0)
    bessel = ((g - 1) / g) ** 0.5
    np.testing.assert_allclose(out[0], ((1 - p) / p) ** 0.5 * bessel, rtol=1e-5)
    np.testing.assert_allclose(out[-1], -((p / (1 - p)) ** 0.5) * bessel, rtol=1e-5)


def test_leave_one_out_is_a_multiple_of_centred():
    rewards = _rewards(7)
    centred = advantages.group_centered(rewards, group_size=4)
    np.testing.assert_allclose(advantages.leave_one_out(rewards, group_size=4), centred * (4 / 3), rtol=1e-5)


def test_one_group_makes_the_batch_std_the_groups_std():
    rewards = _rewards(8)
    expected = advantages.group_relative(rewards, group_size=12)
    np.testing.assert_allclose(advantages.group_mean_batch_std(rewards, group_size=12), expected, rtol=1e-6)


def test_to_tokens_repeats_along_the_mask_and_nowhere_else():
    mask = np.array([[True, True, False], [False, False, False], [True, False, True]])
    out = groups.to_tokens(np.float32([1.5, np.nan, -2.0]), mask)
    np.testing.assert_array_equal(out, [[1.5, 1.5, 0], [0, 0, 0], [-2, 0, -2]])


@all_functions
def test_bad_input_is_refused(fn, loop):
    laws.bad_input_is_refused(advantage_case(fn, loop))


@pytest.mark.parametrize("name", ["group_relative", "leave_one_out", "group_mean_batch_std"])
def test_a_group_of_one_has_nothing_to_compare_with(name):
    with pytest.raises(ValueError, match="group of (1|one)"):
        getattr(advantages, name)(np.ones(1, np.float32), group_size=1)
