"""The road: both rewards by numpy, what a faultless drive adds up to, its ends, and which optimum each reward has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import driving, probes

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def some_steps(seed=0, rows=50):
    rng = np.random.default_rng(seed)
    progress = rng.uniform(0.0, 3.0, rows).astype(np.float32)
    factors = np.where(rng.random((rows, 3)) < 0.5, 1.0, rng.random((rows, 3))).astype(np.float32)
    return progress, factors, rng.random(rows) < 0.2


def test_both_rewards_are_numpys():
    progress, factors, infraction = some_steps()
    product, terms = [], []
    for gain, (ttc, speed, comfort), broken in zip(progress, factors, infraction, strict=True):
        product.append(gain * ttc * speed * comfort - (2.0 if broken else 0.0))
        paid = 5.0 * gain + 100 / 40 * (5.0 * (ttc == 1.0) + 4.0 * (speed == 1.0) + 2.0 * (comfort == 1.0))
        terms.append(paid / 16.0 - (1.0 if broken else 0.0))
    arrays = [jnp.asarray(x) for x in (progress, factors, infraction)]
    np.testing.assert_allclose(driving.product_of_factors(*arrays, penalty=2.0), product, rtol=1e-6)
    np.testing.assert_allclose(driving.sum_of_terms(*arrays, length=40.0), terms, rtol=1e-5)
    speeds = jnp.asarray([0.0, 10.0, 11.115, 12.23, 20.0])
    np.testing.assert_allclose(driving.overspeed_factor(speeds, 10.0), [1.0, 1.0, 0.5, 0.0, 0.0], atol=1e-6)


def test_the_product_pays_for_progress_only_and_never_more_than_it():
    progress, factors, _ = (jnp.asarray(x) for x in some_steps(1))
    found = driving.product_of_factors(progress, factors, jnp.zeros(50, bool))
    assert (found >= 0.0).all() and (found <= progress).all()
    np.testing.assert_array_equal(driving.product_of_factors(0.0 * progress, factors, jnp.zeros(50, bool)), 0.0)
    assert (driving.sum_of_terms(0.0 * progress, jnp.ones_like(factors), jnp.zeros(50, bool)) > 1.0).all()


@functools.cache
def drive(driver, reward="product", seeds=64, steps=200):
    """(return, last Step, steps) of one episode for each seed; driver: observation [5] -> acceleration [1]."""
    env = probes.drive(reward=reward)

    def turn(carry, key):
        state, observation, alive, total, length, last = carry
        state, now = env.step(key, state, driver(observation))
        last = jax.tree.map(lambda new, old: jnp.where(alive, new, old), now, last)
        total, length = total + jnp.where(alive, now.reward, 0.0), length + alive
        return (state, now.observation, alive & ~now.done, total, length, last), None

    def episode(key):
        reset_key, key = jax.random.split(key)
        state, observation = env.reset(reset_key)
        empty = driving.Step(observation, jnp.float32(0.0), jnp.bool_(False), jnp.bool_(False))
        carry = (state, observation, jnp.bool_(True), jnp.float32(0.0), jnp.int32(0), empty)
        carry = jax.lax.scan(turn, carry, jax.random.split(key, steps))[0]
        return carry[3], carry[5], carry[4]

    return jax.jit(jax.vmap(episode), compiler_options=QUICK)(jax.random.split(jax.random.key(0), seeds))


def careful(observation):
    """Follows at three seconds, within the limit, never harshly."""
    speed, gap, lead = observation[0] * 10.0, observation[1] * 50.0 - driving.CAR, observation[2] * 10.0
    target = jnp.minimum(jnp.minimum(gap / 3.0, lead + 0.3 * (gap - 8.0)), 9.9)
    return jnp.clip((target - speed) / driving.SECONDS, -2.0, 2.0)[None]


def parked(observation):
    """The same, but never gets there: stops ten metres before the goal."""
    left = observation[3] * 200.0 - 10.0
    slow = jnp.sqrt(jnp.maximum(2.0 * left, 0.0)) - observation[0] * 10.0
    return jnp.minimum(careful(observation), jnp.maximum(slow / driving.SECONDS, -2.0))


def test_a_drive_without_a_fault_adds_up_to_one_hundred():
    total, last, length = drive(careful)
    faultless = np.asarray(total) > 99.9
    assert faultless.mean() > 0.8 and (np.asarray(total) < 100.01).all()
    assert last.terminated.all() and (length < 120).all()
    np.testing.assert_allclose(last.observation[:, 3] <= 0.0, True)


def test_a_collision_ends_it_with_the_penalty():
    total, last, _ = drive(lambda observation: jnp.full(1, 3.0))
    hit = np.asarray(last.observation[:, 3]) > 0.0
    assert hit.any() and last.terminated.all()
    # At full speed the overspeed factor is 0: nothing but the penalty is left.
    np.testing.assert_allclose(np.asarray(last.reward)[hit & (np.asarray(last.observation[:, 0]) > 1.23)], -1.0)
    assert (np.asarray(total) < 40.0).all()


def test_standing_still_is_cut_off_and_earns_nothing():
    total, last, length = drive(lambda observation: jnp.full(1, -1.0))
    assert (np.asarray(total) == 0.0).all() and last.truncated.all() and (length == 200).all()


@pytest.mark.slow
def test_the_sum_of_terms_prefers_to_stop_before_the_goal():
    """Each reward's own judgement of two drivers: the product's best is to arrive, the sum's to park."""
    arrive, park = (drive(d)[0].mean() for d in (careful, parked))
    assert arrive > park + 4.0
    arrive, park = (drive(d, "sum")[0].mean() for d in (careful, parked))
    assert park > 1.5 * arrive


def test_an_unknown_reward():
    with pytest.raises(ValueError, match="'mean' is none of product, sum"):
        probes.drive(reward="mean")
