"""by_code: candidates beside numpy, one chosen under vmap, and what is measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control.relabelling import by_code
from rl_jax.control.relabelling.coded import known_names
from rl_jax.models.agents.distributions import tanh_gaussian
from tests.control.relabelling.rows import TWO, random_rows

NAMES = ("height", "speed", "angle", "turn")
GOOD = "up = next_height - height\nhold = exp(-abs(next_obs[2]))\nreward = up + 0.5 * hold - 0.1 * action"
BROKEN = "reward = log(next_speed)"
TERMS = dict(gain=dict(fn="progress", index=1), own=dict(fn="own"))


def relabel(**fields):
    known = dict(distribution=TWO, observation_size=4, programs=(GOOD, BROKEN, "gain + own - task_reward"))
    return by_code(**(known | dict(names=NAMES, terms_of=TERMS) | fields))


def test_each_candidate_beside_numpy_in_one_program():
    rows = random_rows()

    def paid(choice):
        made = relabel(choice=choice)
        state, found = made.apply(made.init(), rows)
        return found.rewards, made.measure(state)

    rewards, measured = jax.jit(jax.vmap(paid))(jnp.arange(3.0))
    before, after = rows.observations, rows.next_observations
    up, hold = after[..., 0] - before[..., 0], np.exp(-abs(after[..., 2]))
    positive = after[..., 1] > 0
    np.testing.assert_allclose(rewards[0], up + 0.5 * hold - 0.1 * rows.actions, rtol=1e-5, atol=1e-6)
    logs = np.log(np.where(positive, after[..., 1], 1.0))
    np.testing.assert_allclose(rewards[1], logs, rtol=1e-5, atol=1e-6)  # 0 where it is nan
    np.testing.assert_allclose(rewards[2], after[..., 1] - before[..., 1], rtol=1e-5, atol=1e-5)
    assert set(measured) == {f"relabel/{x}" for x in ("component_0", "component_1", *OWN)}
    np.testing.assert_allclose(measured["relabel/component_0"], [up.mean(), 0, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(measured["relabel/component_1"], [hold.mean(), 0, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(measured["relabel/not_finite"], [0, 1 - positive.mean(), 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(measured["relabel/task_reward"], [rows.rewards.mean()] * 3, rtol=1e-5)
    np.testing.assert_allclose(measured["relabel/reward"], np.mean(rewards, axis=(1, 2)), rtol=1e-5, atol=1e-6)


OWN = ("reward", "task_reward", "not_finite")


@pytest.mark.parametrize("choice", [3.0, -1.0, 0.5, float("nan"), np.float32(7)])
def test_a_choice_that_is_no_text_is_refused_and_a_traced_one_pays_nan(choice):
    with pytest.raises(ValueError, match=rf"by_code: choice={choice} is the index of no text: there are 3, from 0 on"):
        relabel(choice=choice)

    def paid(choice):
        made = relabel(choice=choice)
        state, found = made.apply(made.init(), random_rows())
        return found.rewards, made.measure(state)

    rewards, measured = jax.jit(paid)(choice)
    assert np.isnan(rewards).all() and measured["relabel/not_finite"] == 1.0 and np.isnan(measured["relabel/reward"])


def test_one_text_measures_its_components_by_name_and_continuous_actions_are_a_vector():
    box = tanh_gaussian(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
    rows = random_rows()
    rows = rows._replace(actions=np.zeros((3, 8, 2), np.float32) + np.float32(0.3))
    made = relabel(distribution=box, programs=("cost = action[1] ** 2\nreward = -cost * (1 - terminated)",))
    state, found = made.apply(made.init(), rows)
    cost = np.tanh(0.3) ** 2
    np.testing.assert_allclose(found.rewards, -cost * (1.0 - rows.terminated), rtol=1e-5)
    np.testing.assert_allclose(made.measure(state)["relabel/cost"], cost, rtol=1e-5)
    known = known_names(distribution=box, observation_size=4)
    assert known.vectors == {"obs": 4, "next_obs": 4, "action": 2} and "action" not in known.scalars


def test_a_text_without_components_has_a_state_that_can_be_mapped_over_runs():
    made = relabel(programs=("height",))
    state, found = made.apply(made.init(), random_rows())
    np.testing.assert_array_equal(found.rewards, random_rows().observations[..., 0])
    assert all(x.size for x in jax.tree.leaves((made.init(), state)))
    assert set(made.measure(state)) == {f"relabel/{name}" for name in OWN}


@pytest.mark.parametrize(
    "fields, complaint",
    [
        (dict(programs=()), "programs must be a tuple of one text or more"),
        (dict(programs="reward = 1"), "programs must be a tuple of one text or more"),
        (dict(programs=("reward = 1", "reward = far")), "by_code: program 1, line 1: far is an unknown name"),
        (dict(names=("a", "b")), "2 names for an observation of 4 entries"),
        (dict(names=("a", "b", "c", "d e")), "'d e' is no name of its own"),
        (dict(names=("a", "b", "c", "next_a")), "'next_a' is no name of its own"),
        (dict(names=("a", "b", "c", "exp")), "'exp' is no name of its own"),
        (dict(terms_of=dict(height=dict(fn="own"))), "'height' is no name of its own"),
        (dict(programs=("far",), terms_of=dict(far=dict(fn="closenes"))), "nearest"),
    ],
)
def test_what_is_refused(fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        relabel(**fields)
