"""control/aligned_rewards.py against plain loops: what phi pays, and what it is judged by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import aligned_rewards
from rl_jax.control.aligned_rewards import Steps
from rl_jax.models.agents.distributions import categorical
from tests.control.relabelling.rows import random_rows

RNG = np.random.default_rng(0)


def random_steps(num_envs=4, num_steps=6, size=3, actions=2):
    shape = (num_envs, num_steps)
    return Steps(
        RNG.normal(size=(*shape, size)).astype(np.float32),
        RNG.integers(0, actions, shape),
        *RNG.normal(size=(2, *shape)).astype(np.float32),
        RNG.random(shape) < 0.3,
    )


def to_go(rewards, over, discount):
    """G of each step, one after the other."""
    found = np.zeros_like(rewards)
    for row in range(rewards.shape[0]):
        following = 0.0
        for t in reversed(range(rewards.shape[1])):
            following = rewards[row, t] + (0.0 if over[row, t] else discount * following)
            found[row, t] = following
    return found


def test_returns_and_their_derivatives_by_the_reward_and_the_discount():
    steps = random_steps()
    found, slope = jax.jvp(
        lambda gamma: aligned_rewards.rewards_to_go(jnp.asarray(steps.rewards), steps.over, gamma), (0.8,), (1.0,)
    )
    np.testing.assert_allclose(found, to_go(steps.rewards, steps.over, 0.8), rtol=1e-5, atol=1e-6)
    exact = np.asarray(steps.rewards, np.float64)
    difference = (to_go(exact, steps.over, 0.8 + 1e-5) - to_go(exact, steps.over, 0.8 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of_state", [True, False])
def test_barfi_begins_at_the_sum_and_pays_what_phi_says(of_state):
    design = aligned_rewards.barfi(
        observation_shape=(2,),
        distribution=categorical(2),
        discount=0.9,
        auxiliary=dict(fn="feature", index=1),
        scale=2.0,
        of_state=of_state,
    )
    rows = random_rows(actions=2)
    rows = rows._replace(observations=rows.observations[..., :2], next_observations=rows.next_observations[..., :2])
    steps, phi = design.read(rows), design.begin()
    np.testing.assert_allclose(steps.auxiliary, 2.0 * rows.next_observations[..., 1], rtol=1e-6)
    np.testing.assert_array_equal(steps.over, rows.terminated | rows.truncated)
    np.testing.assert_allclose(design.rewards(phi, steps), rows.rewards + steps.auxiliary, rtol=1e-5, atol=1e-6)
    assert float(design.discount(phi)) == pytest.approx(0.9) and design.fixed == ("primary",)
    phi = {name: jnp.asarray(RNG.normal(size=x.shape), jnp.float32) for name, x in phi.items()}
    each = {}
    for name in aligned_rewards.PARTS:
        *w, b = np.asarray(phi[name])
        each[name] = np.array([[np.dot(w, o) + b if of_state else b for o in row] for row in steps.observations])
    expected = each["bonus"] + each["primary"] * steps.rewards + each["auxiliary"] * steps.auxiliary
    np.testing.assert_allclose(design.rewards(phi, steps), expected, rtol=1e-4, atol=1e-5)
    measured = design.measure(phi, steps)
    assert float(measured["phi/bonus"]) == pytest.approx(each["bonus"].mean(), rel=1e-4, abs=1e-5)


def test_barfi_is_judged_by_the_primary_reward_alone():
    options = dict(observation_shape=(3,), distribution=categorical(2), discount=0.9, auxiliary="own")
    design = aligned_rewards.barfi(**options, discount_cost=0.5, reward_cost=0.2)
    steps, phi = random_steps(), design.begin()
    log_probs = jnp.asarray(RNG.normal(size=steps.rewards.shape), jnp.float32)
    value, slopes = jax.value_and_grad(design.judge, argnums=(0, 1))(log_probs, phi, steps, jax.random.key(0))
    returns = to_go(steps.rewards, steps.over, 0.9)
    expected = -np.mean(np.asarray(log_probs) * returns) + 0.5 * 0.9 + 0.5 * 0.2 * 2.0  # phi_2 = phi_3 = 1
    assert float(value) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(slopes[0], -returns / returns.size, rtol=1e-4, atol=1e-6)
    assert float(slopes[1]["discount"]) == pytest.approx(0.5 * 0.9 * 0.1, rel=1e-4)
    np.testing.assert_allclose(slopes[1]["auxiliary"], [0, 0, 0, 0.2], rtol=1e-5)


def test_parl_against_loops_over_pairs():
    """The value is the mean nll; the policy's part of the gradient is (nll - mean) / N for both segments' log-probs."""
    steps, length = random_steps(num_envs=4, num_steps=6), 3
    design = aligned_rewards.parl(
        observation_shape=(3,), distribution=categorical(2), discount=0.9, num_envs=4, num_steps=6, length=3, beta=1e4
    )
    kernel, bias = RNG.normal(size=(3, 2)), RNG.normal(size=2)
    phi = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    paid = np.array(
        [
            [o @ kernel[:, a] + bias[a] for o, a in zip(*row, strict=True)]
            for row in zip(steps.observations, steps.actions, strict=True)
        ]
    )
    np.testing.assert_allclose(design.rewards(phi, steps), paid, rtol=1e-4, atol=1e-5)
    log_probs = jnp.asarray(RNG.normal(size=paid.shape), jnp.float32)
    value, slope = jax.value_and_grad(design.judge)(log_probs, phi, steps, jax.random.key(0))
    nlls, places, right = [], [], 0
    for row in range(2):
        for begin in (0, 3):
            part = slice(begin, begin + length)
            true, own = (x[row, part].sum() - x[row + 2, part].sum() for x in (steps.rewards, paid))
            right += np.sign(true) == np.sign(own)
            nlls.append(np.log1p(np.exp(-np.sign(true) * own)))
            places.append((row, part))
    assert float(value) == pytest.approx(np.mean(nlls), rel=1e-4)
    expected = np.zeros_like(paid)
    for nll, (row, part) in zip(nlls, places, strict=True):
        expected[row, part] = expected[row + 2, part] = (nll - np.mean(nlls)) / len(nlls)
    np.testing.assert_allclose(slope, expected, rtol=1e-3, atol=1e-5)
    assert float(design.measure(phi, steps)["reward/accuracy"]) == pytest.approx(right / 4)
    for implicit in (True, False):  # the same value, of which only one has a gradient by the policy
        loss, slope = jax.value_and_grad(aligned_rewards.preference_loss)(
            log_probs[0], jnp.arange(6.0), np.ones(6, bool), implicit=implicit
        )
        assert float(loss) == pytest.approx(np.mean(np.log1p(np.exp(-np.arange(6.0)))), rel=1e-5)
        assert np.any(np.asarray(slope)) == implicit


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        (
            "barfi",
            dict(auxiliary="own", fixed=("weight",)),
            "fixed='weight' is none of bonus, primary, auxiliary, disc",
        ),
        ("parl", dict(num_envs=4, num_steps=6, length=4), "4 environments x 6 steps do not divide into pairs"),
        ("parl", dict(num_envs=3, num_steps=6, length=3), "3 environments x 6 steps do not divide into pairs"),
    ],
)
def test_what_is_refused(name, fields, match):
    with pytest.raises(ValueError, match=match):
        known = dict(observation_shape=(3,), distribution=categorical(2), discount=0.9)
        getattr(aligned_rewards, name)(**known, **fields)
