"""control/self_play.py: against loops in numpy; self-play where no reward says who wins."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control.preferences import CYCLE
from rl_jax import control, envs, ppo
from rl_jax.control import duels, reward_learning, self_play
from rl_jax.envs.worlds import probes
from rl_jax.grpo import Objective as PolicyObjective
from rl_jax.losses import aggregate, policy, value
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs.steps import Transitions

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def rows_of(rng, rows=3, length=7):
    """Transitions of which only the rewards and the ends matter."""
    rewards = rng.integers(0, 4, size=(rows, length)).astype(np.float32)
    ended, cut = rng.random((2, rows, length)) < 0.2
    blank = jnp.zeros((rows, length, 1))
    return Transitions(blank, blank, blank, blank, *map(jnp.asarray, (rewards, ended, cut & ~ended)))


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [None, 5.0])
def test_self_play_pays_the_share_of_wins(horizon):
    """Three rollouts that episodes run through, and a queue that overflows, against a loop."""
    rng, size = np.random.default_rng(0), 5
    contest = self_play.by_self_play(3, preference=duels.greater, queue_size=size, horizon=horizon)
    state, under_way, queue = contest.init(), np.zeros(3), []
    for _ in range(3):
        rows = rows_of(rng)
        state, found = contest.apply(state, rows)
        done, outcomes = np.asarray(rows.terminated | rows.truncated), {}
        for step in range(7):
            for row in range(3):
                under_way[row] += rows.rewards[row, step]
                if done[row, step]:
                    outcomes[row, step] = under_way[row]
                    queue.append(under_way[row])
                    under_way[row] = 0.0
        queue = queue[-size:]
        expected = np.zeros((3, 7))
        for (row, step), outcome in outcomes.items():
            rate = np.mean([0.5 + 0.5 * np.sign(outcome - other) for other in queue])
            first = step if horizon is None else 1 + max([s for r, s in outcomes if r == row and s < step], default=-1)
            expected[row, first : step + 1] = rate if horizon is None else rate / horizon
        np.testing.assert_allclose(found.rewards, expected, rtol=1e-5)
        np.testing.assert_allclose(state.returns, under_way)
        np.testing.assert_allclose(state.queue[size - len(queue) :], queue)
        assert state.size == len(queue)
        # What an episode is worth has been paid when it is over: no value follows, also where it was cut off.
        assert (np.asarray(found.terminated) == done).all() and not found.truncated.any()


@pytest.mark.slow
def test_a_total_order_pays_the_rank():
    """Without ties R = (rank - 1) / (G - 1), the lowest rank 1, but for the half win against itself."""
    outcomes = jnp.array([[3.0], [0.5], [7.0], [4.0]])
    rows = rows_of(np.random.default_rng(0), 4, 1)._replace(rewards=outcomes, terminated=jnp.ones((4, 1), bool))
    contest = self_play.by_self_play(4, preference=duels.greater, queue_size=4)
    _, found = contest.apply(contest.init(), rows)
    without_itself = (found.rewards * 4 - 0.5) / 3
    np.testing.assert_allclose(without_itself[:, 0], [1 / 3, 0.0, 1.0, 2 / 3], atol=1e-6)


@pytest.mark.slow
def test_the_queue_of_several_parts_is_that_of_all():
    rows = rows_of(np.random.default_rng(1), 4)
    whole = self_play.by_self_play(4, preference=duels.greater, queue_size=8)
    part = self_play.by_self_play(2, preference=duels.greater, queue_size=8, axis_name="envs")

    def halves(x):
        return x.reshape(2, 2, *x.shape[1:])

    state, found = whole.apply(whole.init(), rows)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), part.init())
    states, parts = jax.vmap(part.apply, axis_name="envs")(states, jax.tree.map(halves, rows))
    np.testing.assert_allclose(parts.rewards.reshape(4, -1), found.rewards, rtol=1e-6)
    np.testing.assert_allclose(states.queue, jnp.stack([state.queue] * 2))


def game(relabelling, *, updates=2000, learning_rate=0.4):
    """The policies [seeds, updates, 3] along a policy-gradient training on `behaviours`, by 128 episodes an update."""
    objective = ppo.Objective(
        policy=PolicyObjective(surrogate=policy.clipped_surrogate, kl_coef=0.0, aggregate=aggregate.token_mean),
        value_loss=value.mse,
        value_coef=0.5,
    )
    algorithm = control.Algorithm(
        objective=objective, entropy_coef=0.0, whiten=False, epochs=1, minibatches=1, relabel=relabelling
    )
    agent = make_agent((1,), categorical(3), hidden=(4,))
    env = envs.vectorize(probes.behaviours(), 64)
    init, update, _ = control.make_update(agent, env, algorithm, optax.sgd(learning_rate), num_steps=2)

    def turn(state, _):
        state, _ = update(state)
        params = control.unraveler(agent)(state.train.params)
        return state, jax.nn.softmax(agent.policy(params, jnp.zeros((1, 1))))[0]

    def whole(key):
        return jax.lax.scan(turn, init(key), None, updates)[1]

    return np.asarray(jax.jit(jax.vmap(whole), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 3)))


WINNER = np.array([0.4, 0.2, 0.8]) / 1.4  # of CYCLE: the odds of the pair without it, 2 P - 1, in proportion


@pytest.mark.slow
def test_self_play_finds_the_minimax_winner_where_a_reward_collapses():
    """CYCLE has no best behaviour: its winner is a mixture. A reward ranks them, and PPO plays the first alone."""
    table = functools.partial(duels.table, probs=CYCLE)
    policies = game(self_play.by_self_play(64, preference=table, queue_size=128))
    np.testing.assert_allclose(policies.mean(1), np.broadcast_to(WINNER, (3, 3)), atol=0.08)
    assert ((np.array(CYCLE).T @ policies.mean(1).T).max(0) < 0.53).all()  # what beats the mixture, barely does
    # Bradley-Terry on all pairs: r is the fixed point of the mean of the labels.
    rewards = np.zeros(3)
    for _ in range(500):
        rewards += np.sum(np.array(CYCLE) - 1 / (1 + np.exp(rewards[None] - rewards[:, None])), axis=1)
    assert rewards.argmax() == 0
    learned = reward_learning.by_reward(
        lambda params, observations, actions: params[actions][:, None],
        lambda actions: actions,
        lambda: reward_learning.LearnedReward(jnp.asarray(rewards, jnp.float32), jnp.zeros(1), jnp.ones(1)),
    )
    policies = game(learned, updates=500)
    assert (policies[:, -1, 0] > 0.9).all() and ((policies[:, -1] @ np.array(CYCLE).T)[:, 2] > 0.57).all()
