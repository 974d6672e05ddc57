"""The losses of the study of suboptimal data, by hand and by their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import suboptimal
from experiments.studies.base import make_objective

REF = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
DRAWN = jnp.array([[0, 2], [1, 3], [2, 2]])
REWARDS = jnp.array([[0.0, 1.0], [0.5, 0.25], [1.0, 1.0]])
GIVEN = dict(beta=0.1, temperature=0.5, clip=0.2, objective=make_objective(dict(beta=0.1)))


def loss(method, logits, old=REF):
    now = jax.nn.log_softmax(logits)
    return suboptimal.arm_loss(method, now, REF, old, DRAWN, REWARDS, **GIVEN)


@pytest.mark.parametrize("method", ["sft", "best_of_n"])
def test_the_best_of_each_group_is_learned(method):
    np.testing.assert_allclose(loss(method, REF), -np.mean([REF[2], REF[1], REF[2]]), rtol=1e-6)


@pytest.mark.parametrize("method", ["rwr", "on_policy_rwr"])
def test_rewards_weigh_every_sample(method):
    weights = np.exp(np.asarray(REWARDS).ravel() / 0.5)
    expected = -np.sum(weights / weights.sum() * np.asarray(REF)[np.asarray(DRAWN).ravel()])
    np.testing.assert_allclose(loss(method, REF), expected, rtol=1e-5)


@pytest.mark.parametrize("method", ["dpo", "on_policy_dpo"])
def test_best_and_worst_are_a_pair(method):
    logits = jnp.array([0.1, 0.5, -0.2, 0.3])
    gap = np.asarray(jax.nn.log_softmax(logits) - REF)
    margins = 0.1 * np.array([gap[2] - gap[0], gap[1] - gap[3], 0.0])
    np.testing.assert_allclose(loss(method, logits), np.mean(np.log1p(np.exp(-margins))), rtol=1e-5)


def test_at_the_policy_that_sampled_ppo_is_reinforce():
    """Their gradients; away from it the clip takes the gradient from both sides."""
    ours, theirs = (jax.grad(lambda x, m=m: loss(m, x))(REF) for m in ("ppo", "reinforce"))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    old = REF + jnp.where(jnp.arange(4) % 2 == 0, -1.0, 1.0)  # ratios far above 1 for 0 and 2, far below for 1 and 3
    flat, places = np.asarray(old - REF)[np.asarray(DRAWN)], np.asarray(DRAWN)
    advantages = np.asarray(REWARDS) - 0.1 * flat
    advantages -= advantages.mean()
    kept = np.where(places % 2 == 0, advantages < 0, advantages > 0)
    assert kept.any() and not kept.all()
    ratio = np.exp(-flat)
    expected = -np.where(kept, advantages * ratio, 0.0) / advantages.size
    gradient = jax.grad(lambda now: suboptimal.arm_loss("ppo", now, REF, old, DRAWN, REWARDS, **GIVEN))(REF)
    np.testing.assert_allclose(gradient, [expected[places == a].sum() for a in range(4)], rtol=1e-4, atol=1e-6)


def test_an_unknown_arm_is_named():
    with pytest.raises(ValueError, match="method='spin' is none of sft, rwr, dpo, best_of_n"):
        loss("spin", REF)
