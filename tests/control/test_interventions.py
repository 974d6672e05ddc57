"""control/interventions.py and hil_serl: who takes over, which steps are drawn as shown ones, and that it helps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import replay as configs
from experiments.parts import control_runs, control_setup, replay_runs
from rl_jax.control import interventions, replay
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds import docking
from rl_jax.models.agents import exploration

LOW, HIGH = np.array([-1.0, -2.0], np.float32), np.array([1.0, 4.0], np.float32)


def ring(first, envs, slots):
    """Steps whose reward is their number, the last of each environment terminated."""
    numbers = first + np.arange(envs * slots, dtype=np.float32).reshape(envs, slots)
    wide, ended = numbers[..., None], np.arange(slots) == slots - 1
    rows = Transitions(
        wide, wide, numbers, wide + 1, np.broadcast_to(ended, numbers.shape), np.zeros_like(numbers, bool)
    )
    return replay.Replay(jax.tree.map(jnp.asarray, rows), ())


def test_the_experts_action_is_taken_where_the_flag_is_set():
    law = exploration.squashed(LOW, HIGH)
    helped = exploration.intervened(law, 2)
    stored = exploration.to_stored(LOW, HIGH, before_squash=True)
    wanted = jnp.array([[0.5, 3.0], [-0.5, -1.0]])
    np.testing.assert_allclose(law.to_env(stored(wanted)), wanted, atol=1e-5)
    assert exploration.to_stored(LOW, HIGH, before_squash=False)(wanted) is wanted
    own = jax.random.normal(jax.random.key(0), (2, law.num_outputs))
    outputs = jnp.concatenate([own, stored(wanted), jnp.array([[1.0], [0.0]])], axis=1)
    assert helped.num_outputs == outputs.shape[1]
    noise = helped.noise(jax.random.key(1), (2,))
    for taken, policys in (
        (helped.sample(outputs, noise), law.sample(own, noise)),
        (helped.mode(outputs), law.mode(own)),
    ):
        np.testing.assert_allclose(helped.to_env(taken)[0], wanted[0], atol=1e-5)
        np.testing.assert_array_equal(taken[1], policys[1])


def test_demonstrations_and_the_experts_steps_are_drawn_equally_often_and_no_others():
    shown, own = ring(0, 2, 3), ring(100, 2, 8)
    taken = np.zeros((2, 8), np.float32)
    taken[0, 2], taken[1, 7] = 1, 1
    draw = jax.jit(functools.partial(interventions.draw_shown, discount=0.9), static_argnums=4)
    batch = draw(shown, own, taken, jax.random.key(0), 8000)
    numbers, counts = np.unique(np.asarray(batch.steps.rewards), return_counts=True)
    np.testing.assert_array_equal(numbers, [0, 1, 2, 3, 4, 5, 102, 115])
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)
    np.testing.assert_array_equal(batch.steps.observations[:, 0], batch.steps.rewards)
    np.testing.assert_array_equal(batch.steps.next_observations[:, 0], batch.steps.rewards + 1)
    ended = np.isin(batch.steps.rewards, [2, 5, 115])
    np.testing.assert_allclose(batch.discounts, np.where(ended, 0.0, 0.9), rtol=1e-6)
    nobody = draw(shown, own, np.zeros_like(taken), jax.random.key(1), 8000)
    assert set(np.asarray(nobody.steps.rewards)) == {0, 1, 2, 3, 4, 5}


def test_flags_lie_in_the_slots_of_their_steps():
    held, taken = replay.empty(ring(0, 2, 2).rows, 4, replay.UNIFORM), jnp.zeros((2, 4))
    for update in range(3):
        rows = ring(10 * update, 2, 2).rows
        held = replay.add(held, jnp.int32(2 * update), rows)
        taken = interventions.write(taken, jnp.int32(2 * update), rows.rewards >= 21)
    np.testing.assert_array_equal(taken > 0, held.rows.rewards >= 21)


def test_somebody_takes_over_where_the_point_moves_away():
    observations = jnp.array(
        [[1.0, 0.0, 0.1, 0.0], [1.0, 0.0, -0.1, 0.0], [0.0, 0.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 0.0]]
    )
    actions, flags = docking.guide(observations)
    np.testing.assert_array_equal(flags, [True, False, False, True])
    np.testing.assert_allclose(actions[:3], [[-1.0, 0.0], [-1.0, 0.0], [-1.0, -1.0]])
    env = docking.environment(radius=0.5)
    state, _ = env.reset(jax.random.key(0))
    for place, paid in (((0.3, 0.0), 1.0), ((0.6, 0.0), 0.0)):
        _, now = env.step(jax.random.key(0), state._replace(state=jnp.array([*place, 0.0, 0.0])), jnp.zeros(2))
        assert (float(now.reward), bool(now.terminated)) == (paid, paid == 1.0)


@pytest.mark.parametrize(
    "change",
    [{"replay.kept": 0}, {"algorithm.n_step": 3}, {"env.name": "probes/aim"}],
    ids=["no demonstrations", "several steps", "another environment"],
)
def test_what_does_not_go_together_is_refused(change):
    config = configs.get_config("hil_serl,smoke")
    if "env.name" in change:
        del config.env.radius
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match="algorithm.intervention"):
        replay_runs.make_replay_run(config)


@pytest.mark.slow
def test_with_a_guide_the_goal_is_found_and_the_guide_is_needed_less_and_less(monkeypatch):
    """A reward at the goal only; SAC alone is at .1 to .3 of the episodes in two of three seeds after twice as many."""
    quick = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", quick)
    config = configs.get_config("hil_serl")
    config.num_seeds, config.group, config.network.members, config.eval.num_episodes = 3, 3, 2, 16
    config.network.hidden = (16, 16)
    config.train.total_steps, config.log_every, config.checkpoint.every = 200 * 16, 100, 200
    program = control_runs.make_program(config, replay_runs.make_replay_run)
    assert control_setup.num_updates(config) == 200
    state, early = program.advance(program.init())
    early = jax.device_get(early)
    late = jax.device_get(program.advance(state)[1])
    assert (late["eval/return"] > 0.9).all(), late["eval/return"]
    early, late = early["intervention/share"], late["intervention/share"]
    assert (early > 0.1).all() and (late < 0.6 * early).all(), (early, late)
