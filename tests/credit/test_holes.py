"""Rows of episodes have holes where an environment speaks: they change no advantage, loss, gradient or metric."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages, credit, grpo
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.losses import aggregate, kl, policy

ROWS, LENGTH, WIDE, GROUP = 4, 5, 9, 2
LENGTHS = np.array([5, 3, 4, 1])
REWARDS = np.array([1.0, -0.5, 0.25, 0.0], np.float32)


def placed(seed):
    """Columns of the WIDE rows that the tokens of the short rows go to, in order: int [B, LENGTH]."""
    rng = np.random.default_rng(seed)
    return np.stack([np.sort(rng.choice(WIDE, LENGTH, replace=False)) for _ in range(ROWS)])


def spread(values, places, fill):
    """The short rows with holes."""
    wide = np.full((ROWS, WIDE), fill, np.asarray(values).dtype)
    np.put_along_axis(wide, places, np.asarray(values), axis=1)
    return wide


@functools.cache
def arrays(seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(LENGTH)[None] < LENGTHS[:, None]
    floats = {name: -rng.uniform(0.1, 2.0, (ROWS, LENGTH)).astype(np.float32) for name in ("new", "old", "ref", "mu")}
    return mask, floats | {"entropy": rng.uniform(0.1, 2.0, (ROWS, LENGTH)).astype(np.float32)}


def outcome(choice, places):
    """(advantages, loss, gradient, metrics) with the tokens at `places`, or in short rows for None."""
    mask, values = arrays()
    if places is not None:
        mask = spread(mask, places, False)
        values = {name: spread(value, places, 77.0) for name, value in values.items()}  # what a hole holds is not read
    batch = TokenBatch(*[jnp.zeros((ROWS, 2 + mask.shape[1]), jnp.int32)] * 3)
    done = np.ones(ROWS, bool)
    rollout = Rollout(batch, jnp.asarray(mask), jnp.asarray(values["mu"]), jnp.asarray(values["mu"]), done, ~done)
    rule = credit.CreditRule(advantage=choice.get("advantage", advantages.group_relative), reward_kl=kl.k1)
    options = dict(group_size=GROUP, key=jax.random.key(0), ref_log_probs=jnp.asarray(values["ref"]))
    options |= dict(log_probs=jnp.asarray(values["old"]), reward_kl_coef=choice.get("reward_kl_coef", 0.0))
    assigned = credit.assign(rule, rollout, jnp.asarray(REWARDS), **options)
    assigned = assigned._replace(old_log_probs=jnp.asarray(values["old"]))
    objective = grpo.Objective(
        surrogate=choice.get("surrogate", policy.clipped_surrogate),
        aggregate=choice.get("aggregate", aggregate.token_mean),
        entropy_coef=0.1,
    )

    def loss(log_probs):
        total, metrics = grpo.loss(TokenScores(log_probs, jnp.asarray(values["entropy"])), assigned, objective)
        return total.total / total.count, metrics

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(values["new"]))
    return np.asarray(assigned.advantages), float(value), np.asarray(gradient), jax.tree.map(float, metrics)


@pytest.mark.parametrize("reward_discount, outcome_discount", [(1.0, 0.5), (0.5, 1.0), (0.8, 0.9)])
def test_prime_discounts_tokens_and_no_holes(reward_discount, outcome_discount):
    places, (mask, values) = placed(3), arrays()
    discounts = dict(reward_discount=reward_discount, outcome_discount=outcome_discount)
    prime = functools.partial(advantages.prime, jnp.asarray(REWARDS), group_size=GROUP, **discounts)
    short = prime(step_rewards=jnp.asarray(values["new"]), completion_mask=mask)
    wide = prime(step_rewards=spread(values["new"], places, 77.0), completion_mask=spread(mask, places, False))
    np.testing.assert_allclose(wide, spread(short, places, 0.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "choice",
    [
        dict(),
        dict(advantage=advantages.leave_one_out, aggregate=aggregate.seq_mean_token_mean),
        dict(aggregate=aggregate.seq_mean_token_sum, surrogate=policy.gspo),
        dict(aggregate=aggregate.group_token_mean, reward_kl_coef=0.1),
    ],
    ids=["default", "rloo", "gspo", "kl in the reward"],
)
def test_holes_change_nothing(choice):
    places = placed(1)
    short, wide = outcome(choice, None), outcome(choice, places)
    mask = arrays()[0]
    for index in (0, 2):  # advantages and gradients: the same on the tokens, 0 in the holes
        expected = spread(np.where(mask, short[index], 0), places, 0)
        np.testing.assert_allclose(wide[index], expected, rtol=1e-5, atol=1e-6)
    assert wide[1] == pytest.approx(short[1], rel=1e-5)
    for one, other in zip(jax.tree.leaves(short[3]), jax.tree.leaves(wide[3]), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
