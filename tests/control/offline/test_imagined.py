"""Real and imagined steps: where each comes from, and the share of a batch that each has."""

import jax
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.parts import control_setup, offline_data, offline_runs
from rl_jax.control.offline import data as datasets
from rl_jax.envs.worlds.pointmass import FORCE
from tests.control.offline.worlds import QUICK


def loader(config):
    networks = offline_data.make_offline_networks(config, control_setup.load_env(config, 1))
    return offline_data.make_loader(config, networks, config.dataset.discount)


@pytest.mark.slow
def test_imagined_steps_are_a_source_of_their_own_and_have_their_share_of_a_batch():
    config = configs.get_config("pointmass,imagined,smoke")
    config.dataset.returns = (-30.0, 0.0)
    load, mixing = loader(config), tuple(config.dataset.mixing)
    assert mixing == (0.5, 0.5)

    def drawn(key):
        data = load(key).data
        return data, *(datasets.sample_mixed(data, key, 400, shares).source for shares in (mixing, (0.9, 0.1)))

    data, half, tenth = jax.jit(drawn, compiler_options=QUICK)(jax.random.key(0))
    real = np.asarray(data.source) == 0
    assert (real.sum(), (~real).sum()) == (8 * 20, 4 * 20), "of 8 and 4 environments, 20 steps each"
    assert set(data.behaviour[real].tolist()) == {0, 1} and set(data.behaviour[~real].tolist()) == {2}
    # The inertia of each world: v' = inertia v + FORCE a.
    steps = data.steps
    speed, following = np.asarray(steps.observations[:, 2:]), np.asarray(steps.next_observations[:, 2:])
    for rows, inertia in ((real, 0.5), (~real, 0.3)):
        np.testing.assert_allclose(following[rows], (inertia * speed + FORCE * steps.actions)[rows], atol=1e-5)
    assert abs(half.mean() - 0.5) < 0.08 and abs(tenth.mean() - 0.1) < 0.05
    ends = np.flatnonzero(np.asarray(data.time) == 0)
    assert 8 * 20 in ends, "no episode goes from one into the other"


def test_refusals():
    config = configs.get_config("pointmass,imagined,smoke")
    config.dataset.mixing = (0.5, 0.3, 0.2)
    with pytest.raises(ValueError, match="the data have 2 sources"):
        loader(config)
    config.dataset.update(mixing=(0.5, 0.5), path="somewhere")
    with pytest.raises(ValueError, match="imagined: its steps join scripted ones"):
        loader(config)
    with pytest.raises(ValueError, match="imagined is for pointmass, whose inertia is wrong in it, not for aim"):
        configs.get_config("aim,imagined")
    with pytest.raises(ValueError, match="oer is of several tasks: leave out imagined"):
        configs.get_config("oer,imagined")


def test_a_method_that_draws_without_the_mixture_refuses_it():
    with pytest.raises(ValueError, match="draws its batches without it; set it to"):
        offline_runs.check_unread(configs.get_config("pointmass,dt,imagined,smoke"))
