"""OPPO: the triplet loss, pairs of episodes, and a policy learned from preferences between episodes alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import control_setup, offline_runs
from rl_jax.control.offline import hindsight
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.labelling import with_rewards
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


def pairs_of(rewards, lengths, *, length, size=256):
    """EpisodePairs of episodes of these lengths; the observation is the step's number."""
    count, last = jnp.arange(sum(lengths)), jnp.cumsum(jnp.asarray(lengths)) - 1
    ends = jnp.isin(count, last)
    rows = Transitions(
        count[:, None] * 1.0,
        jnp.zeros(len(count), int),
        jnp.asarray(rewards, jnp.float32),
        count[:, None] + 1.0,
        ends,
        ~ends & ends,
    )
    sampled = jitted(lambda rows, key: hindsight.sample_pairs(make_data(rows, discount=0.9), key, size, length=length))
    return sampled(rows, jax.random.key(0))


def test_pairs_are_compared_by_the_returns_of_whole_episodes():
    """Returns 7, 6 and 6. The last two steps, and the windows' own rewards, say something else in many pairs."""
    found = pairs_of([5, 1, 1, 0, 0, 1, 2, 3, 0, 0, 0, 6], (5, 3, 4), length=2)
    episode = np.asarray(found.data.episode[:, :, 0])
    assert {tuple(x) for x in episode} == {(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)}
    np.testing.assert_array_equal(found.decided, (episode == 0).sum(1) == 1)


def test_windows_begin_at_any_step_and_end_with_their_episode():
    """As OPPO's get_batch: rows 2, 3, 4 of an episode of five, then only 3, 4; all steps are seen."""
    found = pairs_of([1.0] * 9, (5, 4), length=3)
    time, episode, mask = (np.asarray(x) for x in (found.data.time, found.data.episode, found.mask))
    begins, last = time[:, :, 0], np.where(episode[:, :, 0] == 0, 4, 3)
    np.testing.assert_array_equal(mask, begins[:, :, None] + np.arange(3) <= last[:, :, None])
    np.testing.assert_array_equal(time[mask], (begins[:, :, None] + np.arange(3))[mask])
    seen = np.unique(found.data.steps.observations[:, :, 0, 0], return_counts=True)
    assert seen[0].tolist() == list(range(9)) and (abs(seen[1] - 512 / 9) < 25).all()
    better = (episode[:, 0, 0] == 0) & (episode[:, 1, 0] == 1)  # 5 steps with a reward of 1 against 4, as in CartPole
    np.testing.assert_array_equal(found.decided, better)
    assert better.any() and not (episode[:, 0, 0] > episode[:, 1, 0]).any()


@functools.cache
def compiled():
    """sign of the rewards -> eval/normalized of 3 seeds."""
    config = small("pointmass,oppo", num_seeds=3, train__batch_size=32)
    config.train.optimizer.learning_rate = 3e-3
    init, advance, _ = offline_runs.make_offline_run(config)

    def run(args):
        key, values, sign = args
        state = init(key, values)
        data = with_rewards(state.loaded.data, sign * state.loaded.data.steps.rewards, discount=0.99)
        return advance(state._replace(loaded=state.loaded._replace(data=data)), values, 250)[1]["eval/normalized"]

    keys, values = control_setup.runs_of(config)
    program = jax.jit(lambda *args: jax.lax.map(run, args), compiler_options=QUICK)
    return lambda sign: np.asarray(program(keys, values, jnp.full(3, sign)))


@pytest.mark.slow
def test_preferences_choose_the_code():
    """Far above cloning's 60 at most (test_learning.py); preferences turned round choose the worst episodes' code."""
    found, turned = compiled()(1.0), compiled()(-1.0)
    assert (found > 70).all() and (turned < 50).all(), (found, turned)
