"""Offline methods learn from data of mixed quality, on 3 of 3 seeds, what cloning does not; a planted fault misses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from rl_jax.control import offline
from rl_jax.control.offline import in_sample
from rl_jax.core.binding import bind
from tests.control.offline.worlds import make_fitted, world

pytestmark = pytest.mark.slow
UPDATES = 500
FAMILY = ("iql", "xql", "dual_chi2", "dual_tv")  # they differ in V's loss


def normalized(place, state):
    _, _, loaded, judge = world(place)
    return judge({"policy": state.params["policy"]}, loaded)["eval/normalized"]


@functools.cache
def program(place, word):
    """Loaded -> (TrainState, metrics) of each seed."""
    _, networks, _, _ = world(place)
    return make_fitted(networks, bind(configs.METHODS[word], offline)(networks), updates=UPDATES)


@functools.cache
def family():
    """(Loaded, word) -> the same of one of FAMILY on pointmass: V's loss is chosen in one program, not in four."""
    _, networks, _, _ = world("pointmass")
    given = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_sample, "_in_sample", lambda nets, *args: given.append(args))
        for word in FAMILY:
            bind(configs.METHODS[word], offline)(networks)
    # (V's loss, beta, max_weight, discount, target_rate) and the critics' delta, inf by default.
    assert {args[1:5] for args in given} == {(3.0, 100.0, 0.99, 0.005)}
    deltas = jnp.asarray([args[5] if len(args) > 5 else jnp.inf for args in given])

    def recipe(which):
        def loss(values, q):
            return jax.lax.switch(which, [args[0] for args in given], values, q)

        return in_sample._in_sample(networks, loss, *given[0][1:5], deltas[which])

    fitted = make_fitted(networks, recipe, updates=UPDATES, choice=True)
    return lambda loaded, word: fitted(loaded, FAMILY.index(word))


def fit_of(place, word, loaded):
    """(TrainState, metrics) of each seed."""
    return family()(loaded, word) if word in FAMILY and place == "pointmass" else program(place, word)(loaded)


@functools.cache
def trained(place, word):
    """eval/normalized of each seed."""
    state, metrics = fit_of(place, word, world(place)[2])
    assert all(np.isfinite(x).all() for x in metrics.values())
    return normalized(place, state)


@pytest.mark.parametrize("word", ["iql", "xql", "dual_chi2", "dual_tv", "awr", "td3_bc", "a2pr"])
def test_pointmass(word):
    """A tenth of the data is the expert's. Cloning gives half of the way from random to it."""
    cloned, found = trained("pointmass", "bc"), trained("pointmass", word)
    assert (cloned < 65).all() and (found > 65).all() and (found > cloned + 10).all(), (word, found, cloned)


def test_recoil_imitates_the_experts_rows_of_mixed_data_and_reads_no_reward():
    loaded = world("pointmass")[2]
    none = jax.tree.map(jnp.zeros_like, loaded.data.steps.rewards)
    blind = loaded._replace(data=loaded.data._replace(steps=loaded.data.steps._replace(rewards=none)))
    state, metrics = fit_of("pointmass", "recoil", blind)
    found = normalized("pointmass", state)
    np.testing.assert_allclose(metrics["data/expert"], 0.15, atol=0.02)  # 3 of 20 rows
    assert (found > 65).all() and (found > trained("pointmass", "bc") + 10).all(), (found, trained("pointmass", "bc"))


def test_a2pr_is_ahead_of_td3_bc():
    """arXiv 2405.19909's order on mixed data, on 3 of 3 seeds."""
    assert (trained("pointmass", "a2pr") > trained("pointmass", "td3_bc")).all()


def test_iql_improves_on_a_middling_policy_under_delay_and_wind():
    """neorl2: the data's only policy acts at random every other step."""
    _, _, loaded, judge = world("neorl2")
    state, _ = fit_of("neorl2", "iql", loaded)
    assert (judge({"policy": state.params["policy"]}, loaded)["eval/improvement"] > 1.0).all()


def test_cql_in_a_gridworld():
    cloned, found = trained("gridworld", "bc"), trained("gridworld", "cql")
    assert (found > 85).all() and (cloned < 85).any(), (found, cloned)


def test_negated_rewards_teach_the_contrary():
    """The same program on the same data, every reward with the other sign: iql ends below cloning."""
    loaded = world("pointmass")[2]
    wrong = loaded.data._replace(steps=loaded.data.steps._replace(rewards=-loaded.data.steps.rewards))
    state, _ = fit_of("pointmass", "iql", loaded._replace(data=wrong))
    assert (normalized("pointmass", state) < 40).all()
