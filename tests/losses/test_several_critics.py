"""losses/several_critics.py: each critic learns the target, and the smallest value counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import agents_papers
from experiments.parts import actor_critic
from rl_jax import ppo
from rl_jax.losses import several_critics, value

BINS = value.Support(low=-0.5, high=1.5, num_bins=2, padding=0)  # centres 0 and 1
TWO = several_critics.Smallest(BINS, 2)


def numbers(seed=0):
    rng = np.random.default_rng(seed)
    return np.float32(rng.normal(size=(2, 3, 4))), np.float32([[1, 1, 1], [0, 0, 0]]), np.arange(3) < [[3], [2]]


def test_the_loss_is_the_sum_of_the_cross_entropies_and_the_value_the_smaller_probability():
    logits, outcome, mask = numbers()
    found, smallest = several_critics.each_two_hot(logits, outcome, mask, support=TWO), TWO.mean(logits)
    for b in range(2):
        for t in range(3):
            p = [
                np.exp(x[1]) / np.exp(x).sum() for x in (logits[b, t, :2].astype(float), logits[b, t, 2:].astype(float))
            ]
            loss = sum(-np.log(x if outcome[b, t] else 1 - x) for x in p)
            np.testing.assert_allclose(found.loss[b, t], loss if mask[b, t] else 0, rtol=1e-5)
            np.testing.assert_allclose(smallest[b, t], min(p), rtol=1e-5)
    assert not found.clipped.any() and (TWO.low, TWO.high, TWO.num_bins) == (-0.5, 1.5, 4)
    alone = several_critics.Smallest(BINS, 1)
    one = several_critics.each_two_hot(logits[..., :2], outcome, mask, support=alone)
    np.testing.assert_array_equal(one.loss, value.two_hot(logits[..., :2], outcome, mask, support=BINS).loss)


def test_the_critic_that_is_not_the_smallest_learns_too():
    logits, outcome, mask = numbers(1)
    gradient = jax.grad(lambda x: several_critics.each_two_hot(x, outcome, mask, support=TWO).loss.sum())(logits)
    assert (np.abs(gradient).reshape(2, 3, 2, 2).max(axis=3)[mask] > 1e-3).all() and not gradient[~mask].any()
    with pytest.raises(ValueError, match="critic.support.members to 2 or more"):
        several_critics.each_two_hot(logits[..., :2], outcome, mask, support=BINS)


def test_a_run_has_two_critics_or_one():
    config, one = (agents_papers.get_config(f"webrl,smoke{word}") for word in ("", ",one_critic"))
    objective, other = map(actor_critic.make_objective, (config, one))
    assert (objective.num_outputs(), actor_critic.members_of(objective)) == (4, 2)
    assert (other.num_outputs(), actor_critic.members_of(other)) == (2, 1) and other.support == BINS
    assert actor_critic.members_of(ppo.Objective()) == 1
    logits = jnp.asarray(numbers()[0])
    np.testing.assert_array_equal(objective.values(logits), TWO.mean(logits))
    config.critic.loss = dict(fn="two_hot")
    with pytest.raises(ValueError, match="members=2: critic.loss='two_hot' reads one critic"):
        actor_critic.make_objective(config)
