"""losses/preference/regularizers.py: against loops, and what their expected gradients are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses.preference import regularizers
from tests.numpy_loops.preference import sigmoid

partial = functools.partial
RNG = np.random.default_rng(0)
LENGTHS = np.array([[3, 1, 2], [2, 4, 1]])
MASK = np.arange(4) < LENGTHS[..., None]
LOG_PROBS = np.where(MASK, RNG.uniform(-3, -0.1, MASK.shape), 0.0).astype(np.float32)
RATIOS = np.where(MASK, RNG.uniform(-1, 1, MASK.shape), np.nan).astype(np.float32)
SUMS = LOG_PROBS.sum(-1)


def test_the_chosen_ones_likelihood():
    np.testing.assert_allclose(regularizers.chosen_nll(LOG_PROBS, MASK), -SUMS[:, 0], rtol=1e-6)
    np.testing.assert_allclose(regularizers.chosen_nll(LOG_PROBS, MASK, reduce="mean"), -SUMS[:, 0] / [3, 2], rtol=1e-6)
    tokens = np.full(2, 5 / 2, np.float32)  # five chosen tokens of two prompts
    found = regularizers.chosen_token_nll(LOG_PROBS, MASK, mean_tokens=tokens)
    np.testing.assert_allclose(found.mean(), -LOG_PROBS[:, 0][MASK[:, 0]].mean(), rtol=1e-6)
    with pytest.raises(ValueError, match="reduce='token_mean' is none of sum, mean; .* use chosen_token_nll"):
        regularizers.chosen_nll(LOG_PROBS, MASK, reduce="token_mean")


def test_marked_responses():
    marks = np.array([[False, False, True], [True, True, False]])
    expected = [SUMS[0, 2], SUMS[1, 0] + SUMS[1, 1]]
    np.testing.assert_allclose(regularizers.optimism(LOG_PROBS, MASK, from_reference=marks), expected, rtol=1e-6)
    np.testing.assert_allclose(regularizers.target_nll(LOG_PROBS, MASK, targets=marks), -np.array(expected), rtol=1e-6)


def test_behaviour_cloning_takes_every_response_that_is_there():
    present = np.array([[True, True, False], [True, True, True]])
    means = -SUMS / LENGTHS
    expected = [means[0, :2].mean(), means[1].mean()]
    found = regularizers.behaviour_cloning(LOG_PROBS, MASK, present=present)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    few = np.array([[False, True, False], [False, False, False]])  # one, and none
    found = regularizers.behaviour_cloning(LOG_PROBS, MASK, present=few)
    np.testing.assert_allclose(found, [means[0, 1], 0.0], rtol=1e-6)


def test_degrees_are_the_last_but_one_tokens_of_the_copies():
    """Of the responses after the pair that are there and have two tokens; each prompt's mean is over its own."""
    lengths = np.array([[4, 4, 3, 2, 4], [2, 3, 4, 1, 2], [4, 3, 4, 2, 2], [4, 4, 1, 1, 1]])
    present = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)
    mask = np.arange(4) < lengths[..., None]
    log_probs = np.where(mask, np.random.default_rng(3).uniform(-3, -0.1, mask.shape), 0.0).astype(np.float32)
    expected = []
    for n in range(4):
        copies = [k for k in range(2, 5) if present[n, k] and lengths[n, k] >= 2]
        expected.append(-sum(log_probs[n, k, lengths[n, k] - 2] for k in copies) / max(len(copies), 1))
    found = regularizers.degree_nll(log_probs, mask, present=present)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert expected[3] == 0 and min(expected[:3]) > 0


def test_online_kl():
    sampled = np.array([[False, True, True], [False, False, False]])
    total = np.nansum(RATIOS, axis=-1)
    expected = [(total[0, 1] * SUMS[0, 1] + total[0, 2] * SUMS[0, 2]) / 2, 0.0]
    fn = partial(regularizers.online_kl, mask=MASK, sampled=sampled)
    np.testing.assert_allclose(fn(LOG_PROBS, log_ratios=RATIOS), expected, rtol=1e-5)
    gradient = jax.grad(lambda x: fn(x, log_ratios=x).sum())(LOG_PROBS)  # the ratio is a constant
    weight = np.where(sampled, SUMS, 0.0) / 2
    np.testing.assert_allclose(gradient, np.broadcast_to(weight[..., None], MASK.shape), rtol=1e-5)


def test_online_kls_expected_gradient_is_that_of_the_kl():
    """Every sequence of two tokens out of three, weighed by its probability under the policy."""
    with jax.enable_x64(True):
        ref = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(1).normal(size=(2, 3))))
        logits = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3)))
        first, second = (x.ravel() for x in np.meshgrid(range(3), range(3), indexing="ij"))

        def tokens(logits):
            log_probs = jax.nn.log_softmax(logits)
            return jnp.stack([log_probs[0][first], log_probs[1][second]], axis=1)[None]

        ref_tokens = tokens(ref)
        weights = jax.lax.stop_gradient(jnp.exp(tokens(logits).sum(-1)))[0]
        mask, sampled = np.ones((9, 1, 2), bool), np.ones((9, 1), bool)

        def surrogate(logits):
            log_probs = tokens(logits).reshape(9, 1, 2)
            ratios = log_probs - ref_tokens.reshape(9, 1, 2)
            return weights @ regularizers.online_kl(log_probs, mask, log_ratios=ratios, sampled=sampled)

        def kl(logits):
            log_probs = jax.nn.log_softmax(logits)
            return jnp.sum(jnp.exp(log_probs) * (log_probs - ref))

        np.testing.assert_allclose(jax.grad(surrogate)(logits), jax.grad(kl)(logits), rtol=1e-10, atol=1e-14)


def test_token_rewards():
    log_probs, mask, scores = LOG_PROBS[:, :2], MASK[:, :2], np.array([[0.5, -0.2], [-1.0, 2.0]], np.float32)
    fn = partial(regularizers.token_rewards, mask=mask, sequence_scores=scores, beta=0.7)
    rewards = np.where(mask, RNG.uniform(-0.5, 0.5, mask.shape), np.nan).astype(np.float32)
    weight = [sigmoid(0.7 * (-0.2 - 0.5)), sigmoid(0.7 * 3.0)]
    credited = np.where(mask, rewards * log_probs, 0.0).sum((1, 2))
    np.testing.assert_allclose(fn(log_probs, token_rewards=rewards), -0.7 * np.multiply(weight, credited), rtol=1e-5)
    np.testing.assert_array_equal(fn(log_probs, token_rewards=np.zeros_like(rewards)), [0.0, 0.0])
    # 1/2 on every token: both are imitated, by the weight that DPO's own gradient has
    half = fn(log_probs, token_rewards=np.full_like(rewards, 0.5))
    np.testing.assert_allclose(half, -0.35 * np.multiply(weight, SUMS[:, :2].sum(1)), rtol=1e-5)


def test_rows_of_one_token_and_of_none():
    """Means over a single token, or over nothing, which is 0."""
    mask = np.arange(3) < np.array([[1, 0], [0, 1], [2, 1]])[..., None]
    log_probs = np.where(mask, np.float32(-0.7), np.float32(0.0))
    found = regularizers.chosen_nll(log_probs, mask, reduce="mean")
    np.testing.assert_allclose(found, [0.7, 0.0, 0.7], rtol=1e-6)
    tokens = np.float32([0.5, 0.0, 0.5])
    found = regularizers.chosen_token_nll(log_probs, mask, mean_tokens=tokens)
    np.testing.assert_allclose(found, [1.4, 0.0, 2.8], rtol=1e-6)
    cloned = regularizers.behaviour_cloning(log_probs, mask, present=np.ones((3, 2), bool))
    np.testing.assert_allclose(cloned, [0.35, 0.35, 0.7], rtol=1e-6)
    sampled = np.array([[True, False], [False, False], [True, True]])
    found = regularizers.online_kl(log_probs, mask, log_ratios=log_probs, sampled=sampled)
    np.testing.assert_allclose(found, [0.49, 0.0, (1.4**2 + 0.49) / 2], rtol=1e-6)


def test_only_log_probs_are_differentiated():
    tokens = np.float32([2.0, 3.0])
    slope = jax.grad(lambda x: regularizers.chosen_token_nll(LOG_PROBS, MASK, mean_tokens=x).sum())(tokens)
    assert not np.asarray(slope).any()
    scores, rewards = np.float32([[0.5, -0.2], [-1.0, 2.0]]), np.where(MASK[:, :2], np.float32(0.3), np.nan)

    def total(log_probs, rewards, scores):
        fn = regularizers.token_rewards
        return fn(log_probs, MASK[:, :2], token_rewards=rewards, sequence_scores=scores, beta=0.7).sum()

    of = jax.grad(total, argnums=(0, 1, 2))(LOG_PROBS[:, :2], rewards, scores)
    weight = np.array([sigmoid(-0.49), sigmoid(2.1)])[:, None, None]
    np.testing.assert_allclose(of[0], np.where(MASK[:, :2], -0.7 * 0.3 * weight, 0.0), rtol=1e-5)
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
