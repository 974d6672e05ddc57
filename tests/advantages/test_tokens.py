"""GAE, V-trace and token rewards [B, T]: against sums written out, verl, rlax, and what they reduce to."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rl_jax.advantages import recursion, tokens
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import advantages as reference
from tests.oracles import verl

ESTIMATORS = ["gae", "length_adaptive_gae", "vtrace"]
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


@functools.cache
def _compiled(name):
    return jax.jit(getattr(tokens, name))


def _data(seed=0, rows=8, length=6, full=False):
    """(token_rewards, values, mask) and the arrays by name; ratios from .4 to 2.5, holes in the mask of two rows."""
    batch, rng = ragged_batch(seed, rows, length), np.random.default_rng(seed)
    mask = np.ones_like(batch.mask) if full else batch.mask.copy()
    if not full and rows > 2:
        mask[2], mask[3] = [False, True, True, False, False, True], False  # a hole, and a row without a token
    rewards, values = rng.normal(size=(2, rows, length)).astype(np.float32)
    bootstrap = rng.normal(size=rows).astype(np.float32)
    named = {"log_probs": batch.log_probs, "behavior_log_probs": batch.old_log_probs, "bootstrap_values": bootstrap}
    return (rewards, values, mask), named


def _estimate(name, arrays, named, **hypers):
    """(advantages, returns) as numpy; hyper-parameters are traced, so that all of them share a program."""
    taken = {key: named[key] for key in inspect.signature(getattr(tokens, name)).parameters if key in named}
    return [np.asarray(x) for x in _compiled(name)(*arrays, **taken, **hypers)]


def _close(found, expected, rtol=1e-5, atol=1e-5):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def _with_values(advantages, values, mask):
    return np.where(mask, advantages + values, 0)


# --- GAE -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount, lam", [(1.0, 0.95), (0.9, 0.7), (0.97, 0.0), (0.8, 1.0)])
def test_gae_matches_the_sum(discount, lam):
    arrays, named = _data(1)
    expected = reference.gae(*arrays, named["bootstrap_values"], discount, lam)
    advantages, returns = _estimate("gae", arrays, named, discount=discount, lam=lam)
    _close(advantages, expected)
    _close(returns, _with_values(expected, *arrays[1:]))


@pytest.mark.parametrize("discount, lam", [(1.0, 0.95), (0.9, 0.7)])
def test_gae_matches_verl(discount, lam):
    """verl whitens the advantages, does not bootstrap, and leaves numbers behind the mask."""
    arrays, named = _data(2)
    rewards, values, mask = arrays
    mask = mask.copy()
    mask[3, 0] = True  # it has no rows without a token
    named["bootstrap_values"] = np.zeros(len(mask), np.float32)
    advantages, returns = _estimate("gae", (rewards, values, mask), named, discount=discount, lam=lam)
    expected, expected_returns = verl.advantage(
        "gae", None, mask, token_rewards=np.where(mask, rewards, 0), values=values, gamma=discount, lam=lam
    )
    _close(verl.masked_whiten(advantages, mask)[mask], expected[mask])
    _close(returns[mask], expected_returns[mask])


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_gae_matches_rlax(lam):
    arrays, named = _data(3, full=True)
    rewards, values, _ = arrays
    found, _ = _estimate("gae", arrays, named, discount=0.9, lam=lam)
    values = np.concatenate([values, named["bootstrap_values"][:, None]], axis=1)
    theirs = jax.jit(jax.vmap(rlax.truncated_generalized_advantage_estimation, (0, 0, None, 0)))
    _close(found, theirs(rewards, np.full_like(rewards, 0.9), lam, values))


def test_a_reward_at_the_end_without_discounts_gives_it_minus_the_value():
    (_, values, mask), named = _data(4, full=True)
    rewards = np.zeros_like(values)
    rewards[:, -1] = np.arange(len(mask))
    named["bootstrap_values"] = np.zeros(len(mask), np.float32)
    advantages, returns = _estimate("gae", (rewards, values, mask), named, lam=1.0)
    _close(advantages, rewards[:, -1:] - values)
    _close(returns, np.broadcast_to(rewards[:, -1:], values.shape))


def test_without_values_gae_is_the_return():
    """REINFORCE++ before its whitening (I2)."""
    (rewards, values, mask), named = _data(5)
    named["bootstrap_values"] = np.zeros(len(mask), np.float32)
    found, _ = _estimate("gae", (rewards, np.zeros_like(values), mask), named, discount=0.9, lam=1.0)
    _close(found, reference.reward_to_go(rewards, mask, 0.9))


def test_where_a_row_was_cut_off_the_value_after_it_counts():
    (rewards, values, mask), named = _data(6)
    named["bootstrap_values"] = np.zeros(len(mask), np.float32)
    ended, _ = _estimate("gae", (rewards, values, mask), named, discount=0.5, lam=1.0)
    named["bootstrap_values"] = np.float32([0, 0, 0, 0, 4, 0, 0, 0])
    cut, _ = _estimate("gae", (rewards, values, mask), named, discount=0.5, lam=1.0)
    n = mask[4].sum()
    np.testing.assert_allclose((cut - ended)[4, :n], 4 * 0.5 ** np.arange(n, 0, -1), rtol=1e-5)
    np.testing.assert_array_equal(np.delete(cut - ended, 4, axis=0), 0)


# --- Length-adaptive -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha, critic_lam", [(0.05, 1.0), (0.5, 0.9), (1.0, 0.0)])
def test_length_adaptive_gae_matches_the_sum(alpha, critic_lam):
    arrays, named = _data(7)
    lam = reference.vapo_lambda(arrays[2], alpha)
    assert alpha == 0.05 or len(set(lam)) > 3
    advantages, returns = _estimate(
        "length_adaptive_gae", arrays, named, discount=0.9, alpha=alpha, critic_lam=critic_lam
    )
    _close(advantages, reference.gae(*arrays, named["bootstrap_values"], 0.9, lam))
    targets = reference.gae(*arrays, named["bootstrap_values"], 0.9, critic_lam)
    _close(returns, _with_values(targets, *arrays[1:]))


def test_by_default_returns_are_unbiased_and_short_rows_look_one_step_ahead():
    arrays, named = _data(8)
    advantages, returns = _estimate("length_adaptive_gae", arrays, named)
    _close(advantages, reference.gae(*arrays, named["bootstrap_values"], 1.0, 0.0))
    _close(returns, _with_values(reference.gae(*arrays, named["bootstrap_values"], 1.0, 1.0), *arrays[1:]))


def test_long_rows_look_further():
    """50 tokens: sum_k lambda^k = alpha n = 2.5, so lambda = .6; the advantage of a reward k tokens ahead is .6^k."""
    n = 50
    rewards = np.zeros((1, n), np.float32)
    rewards[0, -1] = 1
    advantages, _ = tokens.length_adaptive_gae(
        rewards, np.zeros_like(rewards), rewards >= 0, bootstrap_values=np.zeros(1, np.float32)
    )
    np.testing.assert_allclose(advantages[0], 0.6 ** np.arange(n - 1, -1, -1), rtol=1e-4)


# --- V-trace ---------------------------------------------------------------------------------------------------------

HYPERS = [
    {"discount": 1.0, "lam": 1.0, "clip_rho": 1.0, "clip_c": 1.0, "clip_pg_rho": 1.0},
    {"discount": 0.9, "lam": 0.8, "clip_rho": 1.5, "clip_c": 0.9, "clip_pg_rho": 0.7},
    {"discount": 0.9, "lam": 0.8, "clip_rho": 0.7, "clip_c": 1.5, "clip_pg_rho": 1.2},
]


@pytest.mark.parametrize("hypers", HYPERS)
def test_vtrace_matches_the_double_sum(hypers):
    arrays, named = _data(9)
    ratios = np.exp(named["log_probs"] - named["behavior_log_probs"], dtype=np.float64)
    expected = reference.vtrace(*arrays, ratios, named["bootstrap_values"], **hypers)
    for found, part in zip(_estimate("vtrace", arrays, named, **hypers), expected, strict=True):
        _close(found, part)


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("clip_rho, clip_pg_rho", [(1.0, 1.0), (1.5, 0.8)])
def test_vtrace_matches_rlax(lam, clip_rho, clip_pg_rho):
    """Targets for every lambda; the advantages only for 1, since rlax mixes the next target with the next value."""
    arrays, named = _data(10, full=True)
    rewards, values, _ = arrays
    hypers = {"lam": lam, "clip_rho": clip_rho, "clip_pg_rho": clip_pg_rho}
    advantages, targets = _estimate("vtrace", arrays, named, discount=0.9, **hypers)
    after = np.concatenate([values[:, 1:], named["bootstrap_values"][:, None]], axis=1)
    ratios = np.exp(named["log_probs"] - named["behavior_log_probs"])
    theirs = jax.vmap(rlax.vtrace_td_error_and_advantage, (0, 0, 0, 0, 0, None, None, None))
    expected = theirs(values, after, rewards, np.full_like(rewards, 0.9), ratios, lam, clip_rho, clip_pg_rho)
    _close(targets - values, expected.errors)
    if lam == 1:
        _close(advantages, expected.pg_advantage)


def test_on_policy_vtrace_is_gae_with_lambda_1():
    arrays, named = _data(11)
    named["behavior_log_probs"] = named["log_probs"]
    for found, expected in zip(
        _estimate("vtrace", arrays, named, discount=0.9),
        _estimate("gae", arrays, named, discount=0.9, lam=1.0),
        strict=True,
    ):
        _close(found, expected)


def test_vtrace_with_lambda_0_is_one_step_ahead():
    arrays, named = _data(12)
    named["behavior_log_probs"] = named["log_probs"]
    _, targets = _estimate("vtrace", arrays, named, lam=0.0)
    _close(targets, _with_values(reference.gae(*arrays, named["bootstrap_values"], 1.0, 0.0), *arrays[1:]))


# --- Laws of all three -----------------------------------------------------------------------------------------------


@every_estimator
def test_nothing_stands_behind_the_mask_and_nothing_comes_from_there(name):
    arrays, named = _data(13)
    mask = arrays[2]
    expected = _estimate(name, arrays, named)
    for x in expected:
        assert x.shape == mask.shape and x.dtype == np.float32 and np.isfinite(x).all()
        np.testing.assert_array_equal(x[~mask], 0)
    for poison in (np.nan, np.inf, 50.0):
        poisoned = [np.where(mask, x, np.float32(poison)) for x in arrays[:2]]
        hidden = {k: np.where(mask, x, np.float32(poison)) if x.ndim == 2 else x for k, x in named.items()}
        for found, x in zip(_estimate(name, (*poisoned, mask), hidden), expected, strict=True):
            np.testing.assert_array_equal(found, x)


@every_estimator
def test_nothing_behind_the_mask_reaches_a_gradient(name):
    (rewards, values, mask), named = _data(13)
    taken = {k: x for k, x in named.items() if k in inspect.signature(getattr(tokens, name)).parameters}
    floats = {"token_rewards": rewards, "values": values} | taken
    floats = {k: jnp.asarray(np.where(mask, x, np.nan) if x.ndim == 2 else x, jnp.float32) for k, x in floats.items()}

    def total(floats):
        return sum(jnp.sum(jnp.square(x)) for x in getattr(tokens, name)(completion_mask=mask, **floats))

    for gradient in jax.jit(jax.grad(total))(floats).values():
        assert np.isfinite(gradient).all()
        assert gradient.ndim != 2 or not np.any(np.where(mask, 0, gradient))


@every_estimator
def test_tokens_that_the_mask_leaves_out_are_as_if_deleted(name):
    """A tool's output in the middle of a row: the tokens around it are neighbours, whatever the discount."""
    arrays, named = _data(14)
    row, kept = 2, arrays[2][2]
    short = [x[row : row + 1, kept] for x in arrays]
    cut = {k: x[row : row + 1, kept] if x.ndim == 2 else x[row : row + 1] for k, x in named.items()}
    for whole, alone in zip(
        _estimate(name, arrays, named, discount=0.8), _estimate(name, short, cut, discount=0.8), strict=True
    ):
        _close(whole[row, kept], alone[0])


@every_estimator
def test_width_of_the_padding_changes_nothing(name):
    arrays, named = _data(15)
    pad = [(0, 1), (1, 2)]
    wide = {k: np.pad(x, pad[: x.ndim]) for k, x in named.items()}
    for found, x in zip(
        _estimate(name, [np.pad(x, pad) for x in arrays], wide), _estimate(name, arrays, named), strict=True
    ):
        _close(found, np.pad(x, pad), rtol=1e-6, atol=1e-6)


@every_estimator
def test_bad_input_is_refused(name):
    (rewards, values, mask), named = _data(16)
    taken = {k: x for k, x in named.items() if k in inspect.signature(getattr(tokens, name)).parameters}
    fn = functools.partial(getattr(tokens, name), **taken)
    for arrays in (
        (rewards[:, 1:], values, mask),
        (rewards, values[1:], mask),
        (rewards, values, mask[:, 1:]),
        (rewards.astype(int), values, mask),
        (rewards, values.astype(int), mask),
        (rewards, values, mask.astype(np.float32)),
        (rewards[0], values[0], mask[0]),
    ):
        with pytest.raises(AssertionError):
            fn(*arrays)
    for bootstrap in (np.zeros(3, np.float32), np.zeros((8, 1), np.float32), np.zeros(8, int)):
        with pytest.raises(AssertionError):
            fn(rewards, values, mask, bootstrap_values=bootstrap)


# --- Token rewards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_assemble_matches_the_loop(kl_coef):
    (kl, _, mask), named = _data(17)
    rewards = named["bootstrap_values"]
    found = jax.jit(tokens.assemble)(rewards, kl, mask, kl_coef=kl_coef)
    _close(found, reference.assemble(rewards, kl, mask, kl_coef), rtol=1e-6, atol=1e-7)
    assert found.dtype == np.float32


def test_token_rewards_add_up_to_what_the_row_earned():
    (kl, _, mask), named = _data(18)
    rewards = named["bootstrap_values"]
    found = tokens.assemble(rewards, kl, mask, kl_coef=0.25)
    expected = np.where(mask.any(axis=1), rewards - 0.25 * np.where(mask, kl, 0).sum(axis=1), 0)
    _close(found.sum(axis=1), expected)
    np.testing.assert_array_equal(np.asarray(found)[~mask], 0)


def test_assemble_does_not_see_behind_the_mask():
    (kl, _, mask), named = _data(19)
    rewards = named["bootstrap_values"]
    poisoned = np.where(mask, kl, np.float32(np.nan))
    found = tokens.assemble(rewards, poisoned, mask, kl_coef=jnp.float32(0.5))
    np.testing.assert_array_equal(found, tokens.assemble(rewards, kl, mask, kl_coef=jnp.float32(0.5)))


def test_assemble_refuses_bad_input():
    (kl, _, mask), named = _data(19)
    rewards = named["bootstrap_values"]
    for arrays in (
        (rewards[:3], kl, mask),
        (rewards, kl[:, 1:], mask),
        (rewards[:, None], kl, mask),
        (rewards.astype(int), kl, mask),
        (rewards, kl.astype(int), mask),
        (rewards, kl, mask.astype(int)),
    ):
        with pytest.raises(AssertionError):
            tokens.assemble(*arrays, kl_coef=0.1)


# --- The recursions, for environments --------------------------------------------------------------------------------


def test_episodes_in_one_row_do_not_leak_into_each_other():
    """Two episodes and the start of a third: the first terminates, the second is truncated and goes on with V'."""
    rng = np.random.default_rng(20)
    rewards, values, next_values = rng.normal(size=(3, 1, 9)).astype(np.float32)
    ends, gamma, lam = [3, 7, 9], 0.9, 0.8
    terminated, truncated = np.zeros((1, 9), bool), np.zeros((1, 9), bool)
    terminated[0, 2], truncated[0, 6] = True, True
    next_values[0, [0, 1, 3, 4, 5, 7]] = values[0, [1, 2, 4, 5, 6, 8]]
    found = recursion.lambda_advantages(
        rewards,
        values,
        next_values,
        discounts=np.where(terminated, 0, np.float32(gamma)),
        decays=np.where(terminated | truncated, 0, np.float32(gamma * lam)),
    )
    start = 0
    for end, after in zip(ends, [0.0, next_values[0, 6], next_values[0, 8]], strict=True):
        part = slice(start, end)
        mask = np.ones((1, end - start), bool)
        expected = reference.gae(rewards[:, part], values[:, part], mask, [after], gamma, lam)
        np.testing.assert_allclose(found[:, part], expected, rtol=1e-5, atol=1e-6)
        start = end


def test_backward_sums():
    increments, decays = np.random.default_rng(21).normal(size=(2, 3, 5)).astype(np.float32)
    found = recursion.backward_sums(increments, decays)
    expected = np.zeros((3, 6))
    for t in reversed(range(5)):
        expected[:, t] = increments[:, t] + decays[:, t] * expected[:, t + 1]
    np.testing.assert_allclose(found, expected[:, :5], rtol=1e-5)
    for arrays in ((increments, decays[1:]), (increments[0], decays[0]), (increments.astype(int), decays.astype(int))):
        with pytest.raises(AssertionError):
            recursion.backward_sums(*arrays)


def test_following_is_the_next_one_on_the_mask():
    mask = np.array([[True, False, True, False], [False, True, True, False], [False] * 4])
    x = np.where(mask, np.arange(12.0).reshape(3, 4), np.nan).astype(np.float32)
    found = recursion.following(x, mask, np.float32([-1, -2, -3]))
    np.testing.assert_array_equal(found, [[2, 2, -1, -1], [5, 6, -2, -2], [-3] * 4])
    for arrays in ((x[:, 1:], mask, x[:, 0]), (x, mask.astype(int), x[:, 0]), (x, mask, x[:2, 0]), (x, mask, x)):
        with pytest.raises(AssertionError):
            recursion.following(*arrays)


def test_lambda_advantages_refuses_other_shapes():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(AssertionError):
        recursion.lambda_advantages(x, x, x[:, 1:], discounts=x, decays=x)
    with pytest.raises(AssertionError):
        recursion.lambda_advantages(x[0], x[0], x[0], discounts=x[0], decays=x[0])
