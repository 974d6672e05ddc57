"""experiments/parts/trackers.py: each estimator is read and fed where the loop says."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.parts import schedules, trackers
from rl_jax.core.types import PolicyBatch
from rl_jax.training import sharding
from rl_jax.training.step import init_state
from tests.experiments.small import config as small_config

REWARDS = np.float32([1.0, 0.0, 3.0, 0.0])
METRICS = {"kl/k1": 0.2, "entropy": 0.1}


def _run(tmp_path, steps=1, metrics=METRICS, **specs):
    """(config, trackers, states) after `steps` steps with the same rewards and metrics."""
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.reward_kl_coef = 0.5
        for place, spec in specs.items():
            config.algorithm.trackers[place] = spec
    made = trackers.make_trackers(config)
    states = trackers.init(made)
    for _ in range(steps):
        states = trackers.see_rewards(made, states, REWARDS)
        states = trackers.observe(made, states, REWARDS, metrics)
    return config, made, states


def test_without_trackers_the_configs_constants_hold(tmp_path):
    config, made, states = _run(tmp_path)
    assert made == states == {}
    assert trackers.known(config, states) == {"reward_kl_coef": 0.5}
    assert trackers.metrics_of(states) == {}


def test_the_baseline_is_that_of_the_steps_before(tmp_path):
    config, made, states = _run(tmp_path, 0, baseline=dict(fn="ema_mean", decay=0.5))
    assert float(trackers.known(config, states)["baseline"]) == 0
    states = trackers.see_rewards(made, states, REWARDS)
    assert float(states["baseline"].value) == 0, "it must not see what it is taken from"
    states = trackers.observe(made, states, REWARDS, METRICS)
    assert float(trackers.known(config, states)["baseline"]) == 1.0


def test_the_scale_has_seen_the_rewards_that_it_scales(tmp_path):
    config, made, states = _run(tmp_path, 0, reward_scale=dict(fn="running_moments"))
    states = trackers.see_rewards(made, states, REWARDS)
    known = trackers.known(config, states)
    np.testing.assert_allclose(known["reward_mean"], REWARDS.mean(), rtol=1e-6)
    np.testing.assert_allclose(known["reward_std"], REWARDS.std(ddof=1), rtol=1e-6)
    after = trackers.observe(made, states, REWARDS, METRICS)
    np.testing.assert_array_equal(after["reward_scale"].count, 4)  # once a step


@pytest.mark.parametrize("place", ["reward_kl", "loss_kl"])
def test_the_kl_is_steered_by_the_metric(tmp_path, place):
    spec = dict(fn="adaptive_kl", initial=0.1, target=0.1, horizon=8.0)
    config, made, states = _run(tmp_path, **{place: spec})
    # KL / target - 1 = 1, bounded by .2; 4 samples of a horizon of 8
    np.testing.assert_allclose(states[place].coef, 0.1 * (1 + 0.2 * 4 / 8), rtol=1e-6)
    in_reward = trackers.known(config, states)["reward_kl_coef"]
    np.testing.assert_allclose(in_reward, 0.11 if place == "reward_kl" else 0.5, rtol=1e-6)
    assert trackers.metrics_of(states) == {f"tracker/{place}/coef": pytest.approx(0.11)}


def test_weights_of_the_regularisers_reach_the_batch(tmp_path):
    specs = {
        "loss_kl": dict(fn="adaptive_kl", initial=0.3),
        "entropy": dict(fn="adaptive_entropy", initial=0.2, step=0.1, target=0.5),
    }
    _, _, states = _run(tmp_path, 1, **specs)
    mask = jnp.ones((4, 2), bool)
    batch = trackers.weigh(PolicyBatch(None, mask, *[jnp.zeros((4, 2))] * 4), states)
    # Below the target: .2 + .1, applied.
    np.testing.assert_allclose(batch.extras["entropy_coefs"], np.full(4, 0.3), rtol=1e-6)
    np.testing.assert_allclose(batch.extras["kl_coefs"], np.full(4, states["loss_kl"].coef))
    assert {x.shape for x in batch.extras.values()} == {(4,)}
    plain = trackers.weigh(PolicyBatch(None, mask, *[jnp.zeros((4, 2))] * 4), {})
    assert plain.extras == {}
    scheduled = {schedules.PLACE: {"low": np.float32(0.25)}, "entropy": states["entropy"]}
    carried = trackers.weigh(PolicyBatch(None, mask, *[jnp.zeros((4, 2))] * 4, extras={"own": 1}), scheduled).extras
    assert set(carried) == {"own", "entropy_coefs", schedules.EXTRA + "low"}
    np.testing.assert_array_equal(carried[schedules.EXTRA + "low"], np.full(4, 0.25))


def test_a_tracker_of_rewards_sees_what_it_asks_for_of_the_turns():
    def update(state, rewards, *, turn_cost):
        return state + float(turn_cost.sum() + rewards.sum())

    made = {"reward_scale": types.SimpleNamespace(update=update)}
    counted = {"turn_cost": np.float32([1, 2]), "turns": np.zeros(2)}
    assert trackers.see_rewards(made, {"reward_scale": 0.5}, REWARDS, counted) == {"reward_scale": 7.5}
    made = {"reward_scale": types.SimpleNamespace(update=lambda state, rewards: state + float(rewards.sum()))}
    assert trackers.see_rewards(made, {"reward_scale": 0.5}, REWARDS) == {"reward_scale": 4.5}


def test_a_step_that_did_not_train_the_policy_moves_no_coefficient(tmp_path):
    _, _, states = _run(tmp_path, 1, {}, reward_kl=dict(fn="adaptive_kl", initial=0.1), baseline=dict(fn="ema_mean"))
    np.testing.assert_allclose(states["reward_kl"].coef, 0.1)
    np.testing.assert_allclose(states["baseline"].value, 1.0)


def test_an_unknown_tracker_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="no function 'ema'; it has: .*ema_mean"):
        _run(tmp_path, baseline=dict(fn="ema"))


def test_a_tracker_whose_state_its_place_cannot_read_is_refused(tmp_path):
    """D6: a tracker without a baseline crashed in the middle of the first step."""
    said = "baseline='running_moments': its state lacks value or values or named, .* use ema_mean or beta_values"
    with pytest.raises(ValueError, match=said):
        _run(tmp_path, 0, baseline=dict(fn="running_moments"))


def test_a_baseline_of_each_prompt_is_that_of_the_steps_before(tmp_path):
    """SPO: alpha and beta start at .5 and forget by `high` as long as the policy has not moved."""
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.trackers.baseline = dict(fn="beta_values", half_life=1.0, low=0.5, high=0.9)
    task = types.SimpleNamespace(data_source=lambda split: range(6))
    made = trackers.make_trackers(config, task)
    states, prompts = trackers.init(made), np.int32([4, 4, 2, 1])
    known = trackers.known(config, states, {"prompt_ids": prompts})
    np.testing.assert_array_equal(known["baseline"], 0.5)
    rewards, named = np.float32([1, 0, 1, 0]), {"prompt_ids": prompts}
    moved = trackers.observe(made, states, rewards, METRICS, named | {"divergence": np.float32([0, 0, 1, 0])})
    np.testing.assert_allclose(moved["baseline"].successes[2], 0.25 + 1, rtol=1e-6)  # rho = 2^-1
    states = trackers.observe(made, states, rewards, METRICS, named)
    after = trackers.known(config, states, {"prompt_ids": np.int32([4, 2, 1, 0])})["baseline"]
    np.testing.assert_allclose(after, [1.45 / 2.9, 1.45 / 1.9, 0.45 / 1.9, 0.5], rtol=1e-6)
    metrics = trackers.metrics_of(states)
    np.testing.assert_allclose(metrics["tracker/baseline/successes"], (1.45 * 2 + 0.45 + 1.5) / 6, rtol=1e-6)


def test_the_states_stay_where_the_train_step_leaves_them(tmp_path):
    """A number in another place would be another program: the whole train step would be compiled again."""
    specs = {"reward_kl": dict(fn="adaptive_kl"), "reward_scale": dict(fn="running_moments")}
    config, made, states = _run(tmp_path, 0, **specs)
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2"), jax.devices()[:2])
    fresh = init_state({"w": jnp.zeros(2)}, optax.sgd(1.0), jax.random.key(0), states)
    state = jax.device_put(fresh, sharding.replicated(mesh))
    judged = types.SimpleNamespace(result=types.SimpleNamespace(rewards=REWARDS))
    collected = types.SimpleNamespace(judged=judged, named={})
    step = jax.jit(lambda state: state)
    for number in (1, 2):
        seen = trackers.see(made, state, collected, number)
        state, _ = trackers.observe_step(mesh, made, step(seen), collected, METRICS)
        for left in (seen, state):
            assert all(x.sharding == state.step.sharding for x in jax.tree.leaves(left.trackers))
    assert float(state.trackers["reward_scale"].count) == 8


def test_the_schedules_follow_the_number_of_the_step(tmp_path):
    config = small_config(tmp_path).copy_and_resolve_references().unlock()
    config.schedules = dict(kl=dict(field="algorithm.kl_coef", fn="linear", start=0.4, end=0.0, steps=4))
    made = trackers.make_trackers(config)
    assert set(made) == {schedules.PLACE}
    state = init_state({"w": jnp.zeros(2)}, optax.sgd(1.0), jax.random.key(0), trackers.init(made))
    judged = types.SimpleNamespace(result=types.SimpleNamespace(rewards=REWARDS))
    for number in (1, 3):
        seen = trackers.see(made, state, types.SimpleNamespace(judged=judged, named={}), number)
        expected = schedules.at(config, number)
        assert trackers.metrics_of(seen.trackers) == {"schedule/kl": pytest.approx(expected["kl"])}
    assert expected["kl"] < schedules.at(config, 1)["kl"]
