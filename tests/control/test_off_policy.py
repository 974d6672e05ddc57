"""control/off_policy.py: whole updates in probe worlds whose values are known, and what an update counts and copies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import envs
from rl_jax.control import off_policy, replay_learning, replay_methods, replay_types
from rl_jax.control.replay import Replay, ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds import probes
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, value_networks
from rl_jax.training.step import TrainState

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


@functools.cache
def copied_by_three():
    """(init, update, policy_of) of matching, compiled once; the slow copy is replaced every 3 gradient steps."""
    _, (init, update, policy_of) = q_learning(
        probes.matching(), tau=1.0, target_every=3, random_share=lambda updates: 1.0 - 0.5 * updates
    )
    return *(jax.jit(fn, compiler_options=QUICK) for fn in (init, update)), policy_of


def test_what_an_update_counts_and_copies():
    init, update, policy_of = copied_by_three()
    first = init(jax.random.key(0))
    second, metrics = update(first)
    third, _ = update(second)
    outputs = policy_of(third)(third.worlds)[0]
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


def test_half_of_a_batch_is_of_the_steps_that_are_kept():
    """Of a policy that always takes action 1, while the replay's own are random."""
    method, _ = q_learning(probes.matching())
    seen = []

    def critic_loss(params, slow, batch, key):
        seen.append(batch.steps.actions)
        return method.critic_loss(params, slow, batch, key)

    always = method._replace(policy=lambda params, x: jnp.zeros((len(x), 2)).at[:, 1].set(1.0), critic_loss=critic_loss)
    settings = replay_types.ReplaySettings(16, 8, 32, kept=12, random_share=lambda updates: 1.0)
    law = exploration.greedy(2)
    law = exploration.exploring(law, exploration.uniform_actions(law, None, None))
    adam, env = {"critic": optax.adam(1e-3)}, envs.vectorize(probes.matching(), 4)
    init, update, _ = off_policy.make_replay_update(always, law, env, settings, adam, num_steps=4)

    def run(key):
        state = init(key)
        before = state.train.trackers["kept"]
        after = update(state)[0].train.trackers["kept"]
        return before, after, seen[-1]

    before, after, actions = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert before.rows.actions.shape == (4, 12) and (before.rows.actions == 1).all()
    assert (np.asarray(actions)[16:] == 1).all() and (np.asarray(actions)[:16] == 0).any()
    with pytest.raises(ValueError, match="12 kept steps of each environment need an even batch_size=15"):
        off_policy.make_replay_update(always, law, env, settings._replace(batch_size=15), adam, num_steps=4)


def test_a_gradient_that_is_not_finite_changes_nothing():
    init, update, _ = copied_by_three()
    state = init(jax.random.key(0))
    rows = state.replay.rows
    broken = rows._replace(rewards=jnp.full_like(rows.rewards, jnp.nan))
    after, metrics = update(state._replace(replay=state.replay._replace(rows=broken)))
    np.testing.assert_array_equal(after.train.params["critic"], state.train.params["critic"])
    assert metrics["nonfinite/skipped"].value() == after.train.skipped_in_a_row == 4


def learning(method, optimizers, settings, batch):
    """(learn, the state before) of gradient steps on one batch, without worlds."""
    learn = replay_learning.make_learner(method, settings, optimizers, learn_from=lambda state, key: batch)
    zero, key = jnp.int32(0), jax.random.key(0)
    params = {name: jax.flatten_util.ravel_pytree(x)[0] for name, x in method.init(key).items()}
    moments = {name: optimizers[name].init(x) for name, x in params.items()}
    trackers = {"slow": {name: params[name] for name in method.slow}, "in_a_row": {name: zero for name in params}}
    train = TrainState(zero, params, moments, key, zero, zero, trackers)
    return learn, replay_types.ReplayState(train, None, Replay(None, ()), zero, zero)


# State 0 leads to state 1, the end pays 1 after it: values gamma and 1. What is seen of the two is nearly parallel.
SEEN = np.float32([[1.0, 0.0], [2.0, 2.0**0.5]])
CHAIN = ReplayBatch(
    Transitions(
        SEEN, np.zeros(2, np.int32), np.float32([0.0, 1.0]), SEEN[::-1], np.array([False, True]), np.array([False] * 2)
    ),
    np.float32([0.95, 0.0]),
    np.float32([20 / 11, 2 / 11]),
    np.zeros((2, 2), np.int32),
)


@pytest.mark.parametrize("double", [True, False])
def test_values_are_learned_with_a_slow_copy_and_grow_without_bound_without_one(double):
    """State 0 is seen ten times as often: a step on it moves the value of state 1 twice as far as its own."""
    critic = value_networks.Critic(
        lambda key: jnp.zeros((1, 2)), lambda params, x: (x @ params[0])[None, :, None, None], 1
    )
    method = replay_methods.dqn(replay_methods.ReplayParts(critic, None, value_heads.scalar()), double=double)

    def found(tau):
        settings = replay_types.ReplaySettings(2, 2, 2, gradient_steps=600, tau=tau)
        learn, state = learning(method, {"critic": optax.sgd(0.5)}, settings, CHAIN)
        return SEEN @ learn(state, jax.random.key(0))[0].train.params["critic"]

    slow, none = jax.jit(jax.vmap(found), compiler_options=QUICK)(jnp.float32([0.05, 1.0]))
    np.testing.assert_allclose(slow, [0.95, 1.0], atol=1e-3)
    assert (np.abs(none) > 1e6).all()


@pytest.mark.parametrize("bad", ["critic", "actor"])
def test_a_good_step_of_one_group_does_not_end_a_row_of_bad_ones_of_the_other(bad):
    def loss(name, params):
        return params[name] * (jnp.nan if name == bad else 1.0) * jnp.ones(2)

    method = replay_types.OffPolicy(
        init=lambda key: {"critic": jnp.ones(1), "actor": jnp.ones(1)},
        policy=None,
        critic_loss=lambda params, slow, batch, key: (loss("critic", params), jnp.zeros(2), {}),
        actor_loss=lambda params, slow, batch, key: (loss("actor", params), {}),
        slow=("critic",),
    )
    settings, sgd = replay_types.ReplaySettings(2, 2, 2, gradient_steps=3), optax.sgd(0.5)
    learn, state = learning(method, {"critic": sgd, "actor": sgd}, settings, CHAIN)
    train = jax.jit(learn, compiler_options=QUICK)(state, jax.random.key(0))[0].train
    good = {"critic": "actor", "actor": "critic"}[bad]
    assert train.skipped == train.skipped_in_a_row == 3 and train.params[bad] == 1
    assert train.trackers["in_a_row"] == {bad: 3, good: 0}
    np.testing.assert_allclose(train.params[good], 1 - 3 * 0.5)


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
