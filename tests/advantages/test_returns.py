"""Advantages of tokens [B, T] without a critic: against loops, verl's estimators, and what they reduce to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.core import binding
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import advantages as reference
from tests.oracles import verl

G, ROWS, LENGTH = 4, 8, 6
NAMES = [
    "gdpo_tokens",
    "optimal_token_baseline",
    "prime",
    "process_supervised",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax_to_go",
    "reward_to_go",
]
COUPLED = ["gdpo_tokens", "prime", "reinforce_pp", "reinforce_pp_baseline"]  # over the whole batch
every_function = pytest.mark.parametrize("name", NAMES)


@functools.cache
def _compiled(name, static):
    return jax.jit(functools.partial(getattr(advantages, name), **dict(static)))


def _data(seed=0, prefix=False):
    """(rewards, everything that a function may ask for); prefix: masks without holes, and no empty row."""
    batch, rng = ragged_batch(seed, ROWS, LENGTH), np.random.default_rng(seed)
    mask = batch.mask.copy()
    if prefix:
        mask = np.arange(LENGTH) < mask.sum(axis=1, keepdims=True)
    else:
        mask[2], mask[3] = [False, True, True, False, False, True], False
    ends = mask & (rng.random(mask.shape) < 0.5)
    named = {
        "token_rewards": rng.normal(size=mask.shape).astype(np.float32),
        "completion_mask": mask,
        "greedy_rewards": np.repeat(rng.normal(size=ROWS // G), G).astype(np.float32),
        "group_size": G,
        "components": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "log_probs": batch.log_probs,
        "sum_pi_squared": rng.uniform(0, 1, mask.shape).astype(np.float32),
        "step_rewards": rng.normal(size=mask.shape).astype(np.float32),
        "step_ends": ends,
    }
    return rng.normal(size=ROWS).astype(np.float32), named


def _advantages(name, rewards, named, **hypers):
    named = {key: x for key, x in named.items() if key in binding.needs(getattr(advantages, name))}
    size = {key: named.pop(key) for key in ("group_size",) if key in named}
    static = size | {key: hypers.pop(key) for key in ("weights", "ddof") if key in hypers}
    return np.asarray(_compiled(name, tuple(static.items()))(rewards, **named, **hypers))


def _close(found, expected, rtol=1e-5, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_reward_to_go(discount):
    rewards, named = _data(1)
    found = _advantages("reward_to_go", rewards, named, discount=discount)
    _close(found, reference.reward_to_go(named["token_rewards"], named["completion_mask"], discount))


def test_the_score_alone_stands_on_every_token():
    rewards, named = _data(2)
    mask = named["completion_mask"]
    named["token_rewards"] = np.float32(reference.assemble(rewards, np.zeros(mask.shape), mask, 0.0))
    _close(_advantages("reward_to_go", rewards, named), reference.on_tokens(rewards, mask))
    expected = reference.on_tokens(rewards - named["greedy_rewards"], mask)
    _close(_advantages("remax_to_go", rewards, named), expected)


def test_remax_to_go_matches_verl():
    rewards, named = _data(3)
    mask = named["completion_mask"]
    token_rewards = np.where(mask, named["token_rewards"], 0)
    expected, _ = verl.advantage(
        "remax", None, mask, token_rewards=token_rewards, reward_baselines=named["greedy_rewards"]
    )
    found = _advantages("remax_to_go", rewards, named)
    _close(found[mask], expected[mask])  # verl leaves returns on the tokens that the mask leaves out
    loop = reference.reward_to_go(named["token_rewards"], mask) - named["greedy_rewards"][:, None]
    _close(found, np.where(mask, loop, 0))


@pytest.mark.parametrize("discount, ddof, eps", [(1.0, 1, 1e-8), (0.9, 0, 0.5)])
def test_reinforce_pp_matches_the_loop(discount, ddof, eps):
    rewards, named = _data(4)
    mask = named["completion_mask"]
    found = _advantages("reinforce_pp", rewards, named, discount=discount, ddof=ddof, eps=eps)
    _close(found, reference.whiten(reference.reward_to_go(named["token_rewards"], mask, discount), mask, ddof, eps))


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_reinforce_pp_matches_verl(discount):
    rewards, named = _data(5)
    token_rewards = np.where(named["completion_mask"], named["token_rewards"], 0)
    expected, _ = verl.advantage(
        "reinforce_plus_plus", None, named["completion_mask"], token_rewards=token_rewards, gamma=discount
    )
    _close(_advantages("reinforce_pp", rewards, named, discount=discount), expected)


@pytest.mark.parametrize("ddof, eps", [(1, 1e-8), (0, 0.5)])
def test_reinforce_pp_baseline_matches_the_loop(ddof, eps):
    rewards, named = _data(6)
    mask = named["completion_mask"]
    expected = reference.whiten(reference.on_tokens(reference.group_centered(rewards, G), mask), mask, ddof, eps)
    _close(_advantages("reinforce_pp_baseline", rewards, named, ddof=ddof, eps=eps), expected)


def test_reinforce_pp_baseline_matches_verl():
    rewards, named = _data(7, prefix=True)
    mask = named["completion_mask"]
    expected, _ = verl.advantage("reinforce_plus_plus_baseline", rewards, mask, group_size=G)
    _close(_advantages("reinforce_pp_baseline", rewards, named), expected)


@pytest.mark.parametrize("weights", [None, (1.0, 0.5, 2.0)])
def test_gdpo_tokens_matches_verl(weights):
    rewards, named = _data(8, prefix=True)
    mask = named["completion_mask"]
    settings = {} if weights is None else {"gdpo_reward_weights": list(weights)}
    expected, _ = verl.advantage("gdpo", None, mask, group_size=G, components=named["components"], **settings)
    found = _advantages("gdpo_tokens", rewards, named, weights=weights)
    _close(found, expected, rtol=1e-4)


@pytest.mark.parametrize("ddof, eps, whiten_eps", [(1, 1e-6, 1e-8), (0, 0.3, 0.5)])
def test_gdpo_tokens_matches_the_loop(ddof, eps, whiten_eps):
    rewards, named = _data(9)
    mask = named["completion_mask"]
    combined = reference.combined_components(named["components"], G, (1, 1, 1), ddof, eps)
    expected = reference.whiten(reference.on_tokens(combined, mask), mask, ddof, whiten_eps)
    found = _advantages("gdpo_tokens", rewards, named, ddof=ddof, eps=eps, whiten_eps=whiten_eps)
    _close(found, expected, rtol=1e-4)


@pytest.mark.parametrize("ddof, eps", [(1, 1e-6), (0, 0.5)])
def test_process_supervised_matches_the_loop(ddof, eps):
    rewards, named = _data(10)
    named["step_ends"][:G] = named["completion_mask"][:G]
    named["step_ends"][0, 2] = False
    named["step_ends"][1] = True  # behind the mask, too: no steps
    arrays = named["step_rewards"], named["step_ends"], named["completion_mask"]
    found = _advantages("process_supervised", rewards, named, ddof=ddof, eps=eps)
    _close(found, reference.process_supervised(*arrays, G, ddof, eps))
    assert np.abs(found[:G]).max() > 0.5


def test_one_step_a_row_is_grpo():
    rewards, named = _data(11, prefix=True)
    mask = named["completion_mask"]
    last = mask & (np.cumsum(mask, axis=1) == mask.sum(axis=1, keepdims=True))
    named |= {"step_ends": last, "step_rewards": np.where(last, rewards[:, None], 99).astype(np.float32)}
    found = _advantages("process_supervised", rewards, named)
    _close(found, reference.on_tokens(reference.group_relative(rewards, G), mask))


def test_steps_without_a_spread_give_exactly_zero():
    """Equal ones, equal up to rounding, a single one, and none; the other group is not hidden by them."""
    rewards, named = _data(12, prefix=True)
    named["completion_mask"][:] = True
    named["step_ends"][:] = True
    named["step_ends"][:, 0] = False
    named["step_rewards"][:G] = 0.1
    for change in range(4):
        if change == 1:
            named["step_rewards"][0, 1] = np.nextafter(np.float32(0.1), np.float32(1))
        if change > 1:
            named["step_ends"][:G] = False
            named["step_ends"][1, 3] = change == 2
        found = _advantages("process_supervised", rewards, named, eps=0.0)
        np.testing.assert_array_equal(found[:G], 0)
        assert np.abs(found[G:]).max() > 0.5


@pytest.mark.parametrize("reward", [0.1, 0.7, 3.3, 100.1])
def test_equal_steps_are_zero_without_any_tolerance(reward):
    """20 steps of one reward: their float32 mean is another number, which is not to be seen."""
    rewards, named = _data(12, prefix=True)
    named["completion_mask"][:] = True
    named["step_ends"][:] = True
    named["step_ends"][:, 0] = False
    named["step_rewards"][:] = reward
    found = _advantages("process_supervised", rewards, named, eps=0.0, relative_tolerance=0.0)
    np.testing.assert_array_equal(found, 0)


def test_optimal_token_baseline_matches_the_loop():
    rewards, named = _data(13)
    arrays = named["token_rewards"], named["completion_mask"], G, named["log_probs"], named["sum_pi_squared"]
    found = _advantages("optimal_token_baseline", rewards, named)
    _close(found, reference.optimal_token_baseline(*arrays))
    found = _advantages("optimal_token_baseline", rewards, named, eps=0.5)
    _close(found, reference.optimal_token_baseline(*arrays, eps=0.5))


def test_optimal_token_baseline_matches_verl():
    rewards, named = _data(14, prefix=True)
    mask = named["completion_mask"]
    expected, _ = verl.advantage(
        "optimal_token_baseline",
        None,
        mask,
        group_size=G,
        token_rewards=named["token_rewards"],
        old_log_probs=named["log_probs"],
        sum_pi_squared=named["sum_pi_squared"],
    )
    found = _advantages("optimal_token_baseline", rewards, named)
    _close(found, expected)
    alone = mask.reshape(-1, G, LENGTH).sum(axis=1) == 1
    assert alone.any()  # where the longest of a group goes on by itself, it has no baseline
    to_go = reference.reward_to_go(named["token_rewards"], mask)
    where = np.repeat(alone, G, axis=0) & mask
    _close(found[where], to_go[where])


# --- Laws ------------------------------------------------------------------------------------------------------------


@every_function
def test_nothing_stands_behind_the_mask_and_nothing_comes_from_there(name):
    rewards, named = _data(15)
    mask = named["completion_mask"]
    expected = _advantages(name, rewards, named)
    assert expected.shape == mask.shape and expected.dtype == np.float32 and np.isfinite(expected).all()
    np.testing.assert_array_equal(expected[~mask], 0)
    assert np.abs(expected).max() > 0.1
    for poison in (np.nan, np.inf, 50.0):
        poisoned = {
            key: np.where(mask, x, np.float32(poison)) if np.shape(x) == mask.shape and x.dtype == np.float32 else x
            for key, x in named.items()
        }
        np.testing.assert_array_equal(_advantages(name, rewards, poisoned), expected)


@every_function
def test_nothing_behind_the_mask_reaches_a_gradient(name):
    rewards, named = _data(15)
    mask = named["completion_mask"]
    needed = _needed(name, named)
    floats = {
        key: jnp.asarray(np.where(mask, x, np.nan) if x.shape == mask.shape else x, jnp.float32)
        for key, x in needed.items()
        if getattr(x, "dtype", None) == np.float32
    }
    rest = {key: x for key, x in needed.items() if key not in floats}

    def total(rewards, floats):
        return jnp.sum(jnp.square(getattr(advantages, name)(rewards, **floats, **rest)))

    for gradient in jax.tree.leaves(jax.jit(jax.grad(total, argnums=(0, 1)))(rewards, floats)):
        assert np.isfinite(gradient).all()
        assert gradient.shape != mask.shape or not np.any(np.where(mask, 0, gradient))


@every_function
def test_width_of_the_padding_changes_nothing(name):
    rewards, named = _data(16)
    pad = [(0, 0), (1, 2)]
    wide = {key: np.pad(x, pad) if np.shape(x) == named["completion_mask"].shape else x for key, x in named.items()}
    _close(_advantages(name, rewards, wide), np.pad(_advantages(name, rewards, named), pad))


@every_function
def test_groups_of_a_coupled_one_see_each_other_and_others_do_not(name):
    rewards, named = _data(17)
    half = {key: x[:G] if isinstance(x, np.ndarray) else x for key, x in named.items()}
    whole, alone = _advantages(name, rewards, named)[:G], _advantages(name, rewards[:G], half)
    assert np.allclose(whole, alone, rtol=1e-5, atol=1e-6) == (name not in COUPLED)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline", "gdpo_tokens"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 10000.3])
def test_equal_rewards_give_exactly_zero(name, reward):
    _, named = _data(18)
    mask = named["completion_mask"]
    rewards = np.full(ROWS, reward, np.float32)
    named["components"] = np.full((ROWS, 3), reward, np.float32)
    named["token_rewards"] = np.float32(reference.assemble(rewards, np.zeros(mask.shape), mask, 0.0))
    np.testing.assert_array_equal(_advantages(name, rewards, named), 0)


@every_function
def test_a_batch_without_a_token_is_zero(name):
    rewards, named = _data(19)
    named["completion_mask"] = np.zeros_like(named["completion_mask"])
    np.testing.assert_array_equal(_advantages(name, rewards, named), 0)


# --- Interface -------------------------------------------------------------------------------------------------------


def _needed(name, named):
    return {key: x for key, x in named.items() if key in binding.needs(getattr(advantages, name))}


@every_function
def test_arrays_of_other_shapes_are_refused(name):
    rewards, named = _data(20)
    needed = _needed(name, named)
    fn = getattr(advantages, name)
    for other in (rewards[:, None], rewards[:G]):
        with pytest.raises(AssertionError):
            fn(other, **needed)
    for key, x in needed.items():
        if isinstance(x, np.ndarray):
            with pytest.raises(AssertionError):
                fn(rewards, **(needed | {key: x[1:]}))
            if "token_rewards" in needed and x.ndim == 2:
                with pytest.raises(AssertionError):
                    fn(rewards, **(needed | {key: x[:, 1:]}))


@pytest.mark.parametrize("name", [name for name in NAMES if "group_size" in binding.needs(getattr(advantages, name))])
def test_groups_that_do_not_divide_the_rows_are_refused(name):
    rewards, named = _data(21)
    with pytest.raises(ValueError, match="8 rewards do not divide into groups of group_size=3"):
        getattr(advantages, name)(rewards, **(_needed(name, named) | {"group_size": 3}))


def test_types_are_checked():
    rewards, named = _data(22)
    needed = _needed("process_supervised", named)
    for key, dtype in (("step_rewards", int), ("step_ends", np.float32)):
        with pytest.raises(AssertionError):
            advantages.process_supervised(rewards, **(needed | {key: needed[key].astype(dtype)}))


def test_every_token_function_is_in_the_list():
    functions = binding.public_functions(advantages)
    assert {name for name, fn in functions.items() if "completion_mask" in binding.needs(fn)} == set(NAMES)
