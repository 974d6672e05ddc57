"""control/curricula.py with envs/worlds/hovering.py: weights and rewards against loops, and what old draws are paid."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import replay as configs
from experiments.parts import adversaries, control_setup, replay_runs
from rl_jax.control import curricula, replay, replay_learning, replay_types
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds import hovering

FIELDS = dict(first=(5.0, 5.0, 0.01, 0.8), factors=(1.2, 1.0, 1.4, 1.4), limits=(40.0, 5.0, 1.0, 1.0), every=3)
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def moved(true, action):
    """A step of one quadrotor in plain Python."""
    x, z, vx, vz, tilt, turning, left, right, fx, fz = map(float, true)
    a, b = np.clip(action, -1.0, 1.0)
    left, right = left + 0.5 * (a - left), right + 0.5 * (b - right)
    thrust = 9.81 * (1 + (left + right) / 2)
    vx, vz = vx + 0.04 * (-thrust * np.sin(tilt) + fx), vz + 0.04 * (thrust * np.cos(tilt) - 9.81 + fz)
    turning += 0.04 * 40 * (left - right) / 2
    return np.array([x + 0.04 * vx, z + 0.04 * vz, vx, vz, tilt + 0.04 * turning, turning, left, right, fx, fz])


def paid(true, action, weights):
    """The reward of one step in plain Python."""
    after = moved(true, action)
    if max(abs(after[0]), abs(after[1])) > 0.6 or abs(after[4]) > np.pi / 2:
        return 0.0
    action = np.clip(action, -1.0, 1.0)
    cost = [true[0] ** 2 + true[1] ** 2, 1 - np.cos(true[4] / 2) ** 2, true[2] ** 2 + true[3] ** 2, (action**2).sum()]
    return 2.0 - 0.5 * float(np.dot(weights, cost))


def test_weights_grow_to_their_limits():
    weights = list(FIELDS["first"])
    for updates in range(13):
        if updates and updates % 3 == 0:
            weights = [min(w * f, m) for w, f, m in zip(weights, FIELDS["factors"], FIELDS["limits"], strict=True)]
        np.testing.assert_allclose(curricula.weights_at(jnp.int32(updates), **FIELDS), weights, rtol=1e-5)
    assert weights[3] == 1.0 and weights[1] == 5.0
    for wrong in (dict(first=(1.0,)), dict(every=0), dict(limits=(4.0, 5.0, 1.0, 1.0))):
        with pytest.raises(ValueError, match="curriculum: "):
            curricula.curriculum(hovering.reward, hovering.TERMS, **(FIELDS | wrong))


@pytest.fixture(scope="module")
def flown():
    """Transitions [2, 8] of random actions, some of which end an episode (resets are left to a new start)."""
    env, rng = hovering.environment(history=2), np.random.default_rng(0)
    reset, step = (jax.jit(f, compiler_options=QUICK) for f in (env.reset, env.step))
    rows, found = [], None
    for i in range(16):
        if i % 8 == 0:
            state, seen = reset(jax.random.key(i))
            high = state.state.true.at[1].set(0.5 if i else 0.0).at[3].set(2.0 if i else 0.0)
            state = state._replace(state=state.state._replace(true=high))
            seen = seen.at[-10:].set(high)
        action = np.float32(rng.uniform(-1.5, 1.5, 2))
        state, found = step(jax.random.key(i), state, jnp.asarray(action))
        rows.append(Transitions(seen, action, found.reward, found.observation, found.terminated, found.truncated))
        seen = found.observation
    return jax.tree.map(lambda *x: jnp.stack(x).reshape(2, 8, *np.shape(x[0])), *rows)


def test_a_quadrotor_moves_and_is_paid_as_in_plain_python(flown):
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(16, *x.shape[2:]), flown)
    assert flat.terminated.any() and not flat.terminated[:8].all()
    for i in range(16):
        true, action = flat.observations[i, -10:].astype(float), flat.actions[i]
        np.testing.assert_allclose(flat.next_observations[i, -10:], moved(true, action), atol=1e-5)
        assert flat.rewards[i] == pytest.approx(paid(true, action, hovering.TARGET), abs=1e-4)
        np.testing.assert_allclose(flat.next_observations[i, 8:10], np.clip(action, -1, 1))  # the newest action
        seen, real = flat.next_observations[i, :6], flat.next_observations[i, -10:-4]
        assert 0 < np.abs(seen - real).max() < 0.01
    still = jnp.zeros(hovering.STATE)
    np.testing.assert_array_equal(hovering.advance(still, jnp.zeros(2)), still)
    assert hovering.reward(still, jnp.zeros(2), jnp.ones(4)) == 2.0
    with pytest.raises(ValueError, match="history=0 must be 1 or more"):
        hovering.environment(history=0)


@pytest.mark.parametrize("constant", [False, True])
def test_old_steps_are_paid_by_the_newest_weights(flown, constant):
    """Draws of the same replay, later in training; weights that stay are the environment's own reward."""
    fields = FIELDS | (dict(first=hovering.TARGET, limits=hovering.TARGET, factors=(1.0,) * 4) if constant else {})
    made = curricula.curriculum(hovering.reward, hovering.TERMS, **fields)
    settings = replay_types.ReplaySettings(slots=8, warmup=8, batch_size=16, discount=0.9)
    draws = replay_learning.make_draws(settings, None, made)
    state, seen = made.init(jax.random.key(0)), {}
    for update in range(7):
        state, metrics = made.fit(state, None, None)
        if update not in (0, 6):
            continue
        carried = types.SimpleNamespace(trackers={"adversary": state})
        batch = draws(
            types.SimpleNamespace(train=carried, replay=replay.Replay(flown, ()), written=jnp.int32(8)),
            jax.random.key(1),
        )
        weights = np.minimum(np.array(fields["first"]) * np.array(fields["factors"]) ** (update // 3), fields["limits"])
        assert float(metrics["curriculum/position"]) == pytest.approx(weights[0])
        steps = jax.device_get(batch.steps)
        each = [paid(o[-10:].astype(float), a, weights) for o, a in zip(steps.observations, steps.actions, strict=True)]
        np.testing.assert_allclose(steps.rewards, each, atol=1e-4)
        stored = np.asarray(flown.rewards)[tuple(np.asarray(batch.places).T)]
        assert np.allclose(steps.rewards, stored, atol=1e-4) == constant
        seen[update] = steps.rewards
    assert np.allclose(seen[0], seen[6]) == constant


def test_the_actor_of_learn_to_fly_sees_less_than_its_critic():
    config = configs.get_config("learn_to_fly,smoke")
    groups, env = control_setup.settings_of(config), control_setup.load_env(config, 2)
    built = replay_runs.build(config, groups["algorithm"], env)
    params = built.method.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    one, other = (jnp.asarray(rng.normal(size=(3, 24)), jnp.float32) for _ in range(2))
    mixed = jnp.concatenate([one[:, :14], other[:, 14:]], axis=1)
    outputs = built.method.policy(params, one)
    np.testing.assert_array_equal(outputs, built.method.policy(params, mixed))
    assert np.abs(outputs - built.method.policy(params, other)).max() > 1e-4
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes["critic"]["layer_0"]["kernel"][1] == 26 and shapes["actor"]["layer_0"]["kernel"][0] == 14
    assert adversaries.make_payer(config, groups["algorithm"], env, None).pay is not None
    config.env.name = "probes/docking"
    with pytest.raises(ValueError, match="weighs the terms of probes/hover"):
        adversaries.make_payer(config, groups["algorithm"], env, None)
    with pytest.raises(ValueError, match="there are none for docking"):
        configs.get_config("docking,learn_to_fly")
