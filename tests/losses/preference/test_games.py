"""losses/preference/compare/games.py: loops in float64, TRL's Nash-MD, laws of the methods."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.binding import supply
from rl_jax.losses.preference import compare
from tests.numpy_loops import games as reference
from tests.oracles import trl_online, trl_preference

N, K, C = 5, 3, 4
BETA = 0.3


def _batch(seed=0):
    """log_probs, log_ratios [N, K, C], 0 behind the mask; mask, present, rewards in [0, 1]."""
    rng = np.random.default_rng(seed)
    present = np.arange(K) < np.array([3, 2, 1, 3, 2])[:, None]
    mask = (np.arange(C) < rng.integers(1, C + 1, (N, K, 1))) & present[:, :, None]
    log_probs = np.where(mask, np.float32(rng.uniform(-2.0, -0.1, (N, K, C))), np.float32(0.0))
    refs = np.where(mask, np.float32(rng.uniform(-2.0, -0.1, (N, K, C))), np.float32(0.0))
    return log_probs, refs, mask, present, np.float32(rng.random((N, K)))


def _value_and_gradient(compared, log_probs, refs, present, **more):
    """The losses [N] and the gradient of their sum in log_probs, called as by rl_jax.dpo with beta = BETA."""

    def total(log_probs):
        ratios = log_probs - refs
        arrays = {"log_probs": log_probs, "log_ratios": ratios, "beta": BETA}
        losses = supply(compared, arrays | more)(BETA * jnp.sum(ratios, axis=2), present, None)
        return jnp.sum(losses), losses

    gradient, losses = jax.jit(jax.grad(total, has_aux=True))(jnp.asarray(log_probs))
    return np.asarray(losses), np.asarray(gradient)


def _check(found, expected, mask):
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found[1][mask], expected[1][mask], rtol=1e-4, atol=2e-6)


def test_win_rates_match_the_loop():
    log_probs, refs, mask, present, rates = _batch()
    found = _value_and_gradient(compare.win_rates, log_probs, refs, present, rewards=rates)
    _check(found, reference.win_rates(log_probs - refs, present, rates, BETA), mask)


def test_certain_win_rates_are_half_of_trls_sppo_hard():
    log_probs, refs = (x[:, :2] for x in _batch()[:2])
    mask, there = np.ones((N, 2, C), bool), np.ones((N, 2), bool)
    won = np.float32([[1.0, 0.0]] * N)
    losses, gradient = _value_and_gradient(compare.win_rates, log_probs, refs, there, rewards=won)
    value, expected = trl_preference.dpo_loss(log_probs, refs, mask, loss_type=["sppo_hard"], beta=BETA)
    np.testing.assert_allclose(losses.mean(), value / 2, rtol=1e-5)
    np.testing.assert_allclose(gradient / N, expected / 2, rtol=1e-4, atol=1e-6)


def test_contrastive_policy_gradient_matches_the_loop():
    log_probs, refs, mask, present, rewards = _batch()
    compared = compare.contrastive_policy_gradient
    found = _value_and_gradient(compared, log_probs, refs, present, rewards=rewards)
    _check(found, reference.contrastive_policy_gradient(log_probs - refs, present, rewards, BETA), mask)
    assert found[0][2] == 0.0  # a response alone has nothing to be contrasted with


@pytest.mark.parametrize("seed", [0, 1])
def test_nash_md_matches_the_loop(seed):
    log_probs, refs, mask, present, rates = _batch(seed)
    found = _value_and_gradient(compare.nash_md, log_probs, refs, present, rewards=rates)
    _check(found, reference.nash_md(log_probs, log_probs - refs, present, rates, BETA), mask)


@pytest.mark.parametrize("seed", [0, 1])
def test_nash_md_by_token_is_trls(seed):
    log_probs, refs, mask, _, rates = _batch(seed)
    log_probs, refs, mask, rates = log_probs[:, :1], refs[:, :1], mask[:, :1], rates[:, :1]
    by_token = functools.partial(compare.nash_md, kl_granularity="token")
    losses, gradient = _value_and_gradient(by_token, log_probs, refs, np.ones((N, 1), bool), rewards=rates)
    value, expected = trl_online.nash_md_loss(log_probs[:, 0], refs[:, 0], mask[:, 0], rates[:, 0], beta=BETA)
    np.testing.assert_allclose(losses.mean(), value, rtol=1e-5)
    np.testing.assert_allclose(gradient[:, 0][mask[:, 0]] / N, expected[mask[:, 0]], rtol=1e-4, atol=1e-6)
    sequence = _value_and_gradient(compare.nash_md, log_probs, refs, np.ones((N, 1), bool), rewards=rates)[1]
    assert np.max(np.abs(sequence - gradient)[mask]) > 1e-2  # the two are not one


def test_nash_md_granularities_are_one_for_a_single_token():
    log_probs, refs, _, present, rates = _batch()
    found = [
        _value_and_gradient(
            functools.partial(compare.nash_md, kl_granularity=kl),
            log_probs[..., :1],
            refs[..., :1],
            present,
            rewards=rates,
        )
        for kl in ("sequence", "token")
    ]
    np.testing.assert_allclose(*[losses for losses, _ in found], rtol=1e-6)
    np.testing.assert_allclose(*[gradient for _, gradient in found], rtol=1e-6)


def test_advantage_leftover_matches_the_loop():
    log_probs, refs, mask, present, rewards = _batch()
    values = np.float32([0.1, 0.5, 0.0, 0.3, 0.9])
    clipped, by_group = (
        functools.partial(fn, clip=0.5) for fn in (compare.advantage_leftover, compare.group_advantage_leftover)
    )
    found = _value_and_gradient(clipped, log_probs, refs, present, rewards=rewards, values=values)
    expected = reference.advantage_leftover(log_probs, log_probs - refs, present, rewards, values, 0.5)
    _check(found, expected, mask)
    ratio = np.exp((log_probs - refs).sum(axis=2))[present]
    assert (ratio < 0.5).any() and (ratio > 1.5).any() and ((ratio > 0.5) & (ratio < 1.5)).any()
    assert (found[1][mask] == 0).any()  # what is below the value teaches nothing
    means = np.array([r[there].mean() for r, there in zip(rewards, present, strict=True)])
    found = _value_and_gradient(by_group, log_probs, refs, present, rewards=rewards)
    _check(found, reference.advantage_leftover(log_probs, log_probs - refs, present, rewards, means, 0.5), mask)


def test_unknown_names_are_refused():
    log_probs, refs, _, present, rewards = _batch()
    with pytest.raises(ValueError, match="kl_granularity='word'"):
        by_word = functools.partial(compare.nash_md, kl_granularity="word")
        _value_and_gradient(by_word, log_probs, refs, present, rewards=rewards)


def test_the_mixture_that_answers_nash_md():
    """TRL mixes logits with mixture_coef on the reference; alpha 0 is the policy, 1 the reference."""
    rng = np.random.default_rng(0)
    logits, refs = rng.normal(size=(2, 3, 6))
    mixed = np.exp((1 - 0.3) * jax.nn.log_softmax(logits) + 0.3 * jax.nn.log_softmax(refs))
    expected = trl_online.geometric_mixture(logits, refs, mixture_coef=0.3)
    np.testing.assert_allclose(mixed / mixed.sum(axis=1, keepdims=True), np.exp(expected), rtol=1e-5)
