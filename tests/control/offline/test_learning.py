"""Offline methods learn from data of mixed quality, on 3 of 3 seeds, what cloning does not; a planted fault misses."""

import functools

import numpy as np
import pytest

from configs.control import offline as configs
from rl_jax.control import offline
from rl_jax.core.binding import bind
from tests.control.offline.worlds import make_fitted, world

pytestmark = pytest.mark.slow
UPDATES = 500


def normalized(place, state):
    _, _, loaded, judge = world(place)
    return judge({"policy": state.params["policy"]}, loaded)["eval/normalized"]


@functools.cache
def program(place, word):
    """Loaded -> (TrainState, metrics) of each seed."""
    _, networks, _, _ = world(place)
    return make_fitted(networks, bind(configs.METHODS[word], offline)(networks), updates=UPDATES)


@functools.cache
def trained(place, word):
    """eval/normalized of each seed."""
    state, metrics = program(place, word)(world(place)[2])
    assert all(np.isfinite(x).all() for x in metrics.values())
    return normalized(place, state)


@pytest.mark.parametrize("word", ["iql", "xql", "dual_chi2", "dual_tv", "awr", "td3_bc", "a2pr"])
def test_pointmass(word):
    """A tenth of the data is the expert's. Cloning gives half of the way from random to it."""
    cloned, found = trained("pointmass", "bc"), trained("pointmass", word)
    assert (cloned < 65).all() and (found > 65).all() and (found > cloned + 10).all(), (word, found, cloned)


def test_cql_in_a_gridworld():
    cloned, found = trained("gridworld", "bc"), trained("gridworld", "cql")
    assert (found > 85).all() and (cloned < 85).any(), (found, cloned)


def test_negated_rewards_teach_the_contrary():
    """The same program on the same data, every reward with the other sign: iql ends below cloning."""
    loaded = world("pointmass")[2]
    wrong = loaded.data._replace(steps=loaded.data.steps._replace(rewards=-loaded.data.steps.rewards))
    state, _ = program("pointmass", "iql")(loaded._replace(data=wrong))
    assert (normalized("pointmass", state) < 40).all()
