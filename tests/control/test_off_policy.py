"""control/off_policy.py: whole updates in probe worlds whose values are known, and what an update counts and copies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import envs
from rl_jax.control import off_policy, replay_methods, replay_types
from rl_jax.envs.worlds import probes
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, value_networks

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def q_learning(env, **settings):
    """(method, functions of an update, of DQN on 4 copies of a probe, 4 steps each)."""
    critic = value_networks.make_action_values((1,), env.action_space.n, 1, hidden=(8,), activation="tanh")
    method = replay_methods.dqn(replay_methods.ReplayParts(critic, None, value_heads.scalar()))
    law = exploration.greedy(env.action_space.n)
    law = exploration.exploring(law, exploration.uniform_actions(law, None, None))
    numbers = dict(slots=16, warmup=8, batch_size=16, discount=0.8, tau=0.1, gradient_steps=4) | settings
    numbers = replay_types.ReplaySettings(**numbers)
    adam = {"critic": optax.adam(optax.linear_schedule(0.03, 0.001, 600))}
    vector = envs.vectorize(env, 4)
    return method, off_policy.make_replay_update(method, law, vector, numbers, adam, num_steps=4)


def values_after(updates, env, observations, **settings):
    """Values [seeds, N, A] of observations after so many updates, from 3 seeds."""
    method, (init, update, _) = q_learning(env, **settings)
    unravel = replay_types.unravelers(method)["critic"]

    def whole(key):
        state = jax.lax.scan(lambda state, _: (update(state)[0], None), init(key), None, updates)[0]
        return method.policy({"critic": unravel(state.train.params["critic"])}, jnp.asarray(observations))

    return np.asarray(jax.jit(jax.vmap(whole), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 3)))


def test_a_cut_is_not_the_end():
    """Reward 1 for ever, cut every 5 steps: 1 / (1 - .8)."""
    np.testing.assert_allclose(values_after(150, probes.endless(limit=5), [[0.0]])[:, :, 0], 5.0, atol=0.3)


def test_what_an_update_counts_and_copies():
    method, (init, update, policy_of) = q_learning(
        probes.matching(), tau=1.0, target_every=3, random_share=lambda updates: 1.0 - 0.5 * updates
    )

    def run(key):
        first = init(key)
        second, metrics = update(first)
        third, _ = update(second)
        return first, second, third, metrics, policy_of(third)(third.worlds)[0]

    first, second, third, metrics, outputs = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    assert (first.written, second.written, third.written) == (8, 12, 16)
    assert (first.updates, third.updates) == (0, 2) and (first.train.step, third.train.step) == (0, 8)
    assert metrics["explore/share"].value() == 1 and outputs.shape == (4, 3) and not outputs[:, -1].any()
    assert metrics["loss"].value() > 0 and metrics["nonfinite/skipped"].value() == 0
    rows = third.replay.rows
    assert (np.abs(rows.observations) == 1).all() and set(np.unique(rows.actions)) == {0, 1}
    # The reward of every kept step is that of its own observation and action.
    np.testing.assert_array_equal(rows.rewards, rows.observations[..., 0] * (2 * rows.actions - 1))
    assert rows.terminated.all() and not rows.truncated.any()
    np.testing.assert_array_equal(first.replay.rows.rewards[:, :8], rows.rewards[:, :8])
    # Copied at gradient steps 3 and 6, of 8.
    slow = [np.asarray(state.train.trackers["slow"]["critic"]) for state in (first, second, third)]
    assert (slow[0] == first.train.params["critic"]).all() and (slow[0] != slow[1]).any() and (slow[1] != slow[2]).any()
    assert (slow[2] != np.asarray(third.train.params["critic"])).any()


def test_a_gradient_that_is_not_finite_changes_nothing():
    method, (init, update, _) = q_learning(probes.matching())

    def run(key):
        state = init(key)
        rows = state.replay.rows
        broken = rows._replace(rewards=jnp.full_like(rows.rewards, jnp.nan))
        after, metrics = update(state._replace(replay=state.replay._replace(rows=broken)))
        return state, after, metrics["nonfinite/skipped"].value()

    state, after, skipped = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    np.testing.assert_array_equal(after.train.params["critic"], state.train.params["critic"])
    assert skipped == after.train.skipped_in_a_row == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(slots=18), "18 slots and 8 warm-up steps of each environment must be multiples of the 4"),
        (dict(warmup=20), "20 warm-up steps of each environment must be at least n_step=1, and fit into its 16"),
        (dict(warmup=4, steps=5), "must be at least n_step=5"),
    ],
)
def test_refusals(settings, said):
    with pytest.raises(ValueError, match=said):
        q_learning(probes.matching(), **settings)


def test_the_actors_steps_divide_those_of_the_critics():
    method = q_learning(probes.matching())[0]._replace(actor_loss=lambda *_: None)
    numbers = replay_types.ReplaySettings(16, 8, 4, gradient_steps=4, actor_every=3)
    with pytest.raises(ValueError, match="gradient_steps=4 and train.actor_every=3: one must be a multiple"):
        off_policy.make_replay_update(method, None, None, numbers, {}, num_steps=4)
