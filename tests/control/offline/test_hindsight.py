"""OPPO: the triplet loss, pairs of episodes, and a policy learned from preferences between episodes alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import control_setup, offline_runs
from rl_jax.control.offline import hindsight
from rl_jax.control.offline.data import make_data
from rl_jax.control.transitions import Transitions
from tests.control.offline.worlds import QUICK, jitted, small


def test_the_triplet_loss():
    anchor = jnp.zeros((3, 2))
    positive, negative = (
        jnp.array([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]]),
        jnp.array([[1.0, 0.0], [0.0, 9.0], [0.0, 1.0]]),
    )
    np.testing.assert_allclose(hindsight.triplet(anchor, positive, negative), [5.0, 0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(hindsight.triplet(anchor, positive, negative, margin=0.5)[2], 0.5, rtol=1e-6)
    slopes = jax.grad(lambda a: hindsight.triplet(a, positive, negative).sum())(anchor)
    np.testing.assert_allclose(slopes[0], [-0.6 + 1.0, -0.8], rtol=1e-5)  # away from n, towards p
    assert np.isfinite(jax.grad(lambda a: hindsight.triplet(a, a, a).sum())(anchor)).all()


def test_pairs_are_whole_episodes_with_the_better_one_first():
    """Three episodes of three steps with returns 0, 3 and 3: equal ones are no preference."""
    count = jnp.arange(9)
    rewards = jnp.asarray([0, 0, 0, 1, 1, 1, 3, 0, 0], jnp.float32)
    rows = Transitions(
        count[:, None] * 1.0, jnp.zeros(9, int), rewards, count[:, None] + 1.0, count % 3 == 2, count < 0
    )
    pairs = jitted(lambda rows, key: hindsight.sample_pairs(make_data(rows, discount=0.9), key, 64, length=4))
    found = pairs(rows, jax.random.key(0))
    episode = np.asarray(found.data.episode[:, :, -1])
    assert found.data.time[:, :, -1].tolist() == [[2, 2]] * 64
    assert found.mask.tolist() == [[[False, True, True, True]] * 2] * 64
    assert {(0, 0), (1, 0), (2, 0), (1, 2), (2, 1)} <= {tuple(x) for x in episode} and not (
        (episode[:, 0] == 0) & (episode[:, 1] > 0)
    ).any()
    np.testing.assert_array_equal(found.decided, (episode == 0).sum(1) == 1)


@functools.cache
def compiled():
    """sign of the rewards -> eval/normalized of 3 seeds."""
    config = small("pointmass,oppo", num_seeds=3, train__batch_size=32)
    config.train.optimizer.learning_rate = 3e-3
    init, advance, _ = offline_runs.make_offline_run(config)

    def run(args):
        key, values, sign = args
        state = init(key, values)
        steps = state.loaded.data.steps
        data = state.loaded.data._replace(steps=steps._replace(rewards=sign * steps.rewards))
        return advance(state._replace(loaded=state.loaded._replace(data=data)), values, 250)[1]["eval/normalized"]

    keys, values = control_setup.runs_of(config)
    program = jax.jit(lambda *args: jax.lax.map(run, args), compiler_options=QUICK)
    return lambda sign: np.asarray(program(keys, values, jnp.full(3, sign)))


@pytest.mark.slow
def test_preferences_choose_the_code():
    """Far above cloning's 60 at most (test_learning.py); preferences turned round choose the worst episodes' code."""
    found, turned = compiled()(1.0), compiled()(-1.0)
    assert (found > 70).all() and (turned < 45).all(), (found, turned)
