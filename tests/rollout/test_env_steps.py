"""rollout/envs/steps.py: what a rollout and an evaluation report of episodes, against a loop over two counters."""

import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.protocol import Step, Vector
from rl_jax.rollout.envs import steps
from rl_jax.rollout.envs.episode import record_episode

ENDS = np.array([2, 3])  # steps of an episode: the first counter terminates, the second is cut off
START = np.array([10.0, 20.0], np.float32)


class Plain(NamedTuple):
    """A distribution without chance: the action is the policy's output, or its negative at the mode."""

    noise: object = staticmethod(lambda key, shape: jnp.zeros(shape))
    sample: object = staticmethod(lambda outputs, noise: outputs + noise)
    mode: object = staticmethod(lambda outputs: -outputs)
    to_env: object = staticmethod(lambda actions: actions)


def _step(count, actions, ahead):
    done = count + 1 >= ENDS
    seen = (START + count + 1.0)[:, None]
    first = jnp.where(done[:, None], START[:, None], seen)
    now = Step(seen, actions + count, done & jnp.array([True, False]), done & jnp.array([False, True]))
    return jnp.where(done, 0, count + 1), first, now


COUNTERS = Vector(
    reset=lambda key: (jnp.zeros(2, jnp.int32), jnp.asarray(START)[:, None]),
    ahead=lambda key, number: jnp.zeros((number, 2)),
    step=_step,
    num_envs=2,
    observation_space=None,
    action_space=None,
)
POLICY = steps.memoryless(lambda observations: 2.0 * observations[:, 0])


def by_hand(env, number, count=0, total=0.0):
    """(rewards, the ended episodes' returns and lengths, the open one's return and length) of `number` steps."""
    rewards, ended = [], []
    for _ in range(number):
        rewards.append(2.0 * (START[env] + count) + count)
        total, count = total + rewards[-1], count + 1
        if count == ENDS[env]:
            ended.append((total, count))
            total, count = 0.0, 0
    return rewards, ended, total, count


def test_a_rollout_counts_the_episodes_that_ended():
    """Five steps after one: episodes that began before the rollout count whole, those still open do not."""
    collect = jax.jit(lambda worlds, key: steps.collect(POLICY, Plain(), COUNTERS, worlds, key, num_steps=5))
    worlds = steps.Worlds(
        jnp.array([1, 1]),
        jnp.asarray(START + 1)[:, None],
        jnp.array([by_hand(env, 1)[2] for env in range(2)]),
        jnp.ones(2, jnp.int32),
    )
    worlds, rows, metrics = collect(worlds, jax.random.key(0))
    hands = [by_hand(env, 6) for env in range(2)]
    ended = [episode for hand in hands for episode in hand[1]]
    assert len(ended) == 5
    np.testing.assert_allclose(rows.rewards, [hand[0][1:] for hand in hands])
    np.testing.assert_allclose(worlds.episode_return, [hand[2] for hand in hands])
    np.testing.assert_array_equal(worlds.episode_length, [hand[3] for hand in hands])
    np.testing.assert_array_equal(rows.terminated, [[True, False, True, False, True], [False] * 5])
    np.testing.assert_array_equal(rows.truncated, [[False] * 5, [False, True, False, False, True]])
    np.testing.assert_array_equal(rows.observations[0, :, 0], [11, 10, 11, 10, 11])
    np.testing.assert_array_equal(rows.next_observations[0, :, 0], [12, 11, 12, 11, 12])
    expected = {"return": sum(e[0] for e in ended), "length": sum(e[1] for e in ended), "truncated": 2.0}
    for name, total in expected.items():
        np.testing.assert_allclose(tuple(metrics[f"episode/{name}"]), (total, 5.0), err_msg=name)


def test_an_evaluation_is_one_episode_or_its_limit():
    for limit, greedy in ((2, False), (9, True)):
        found = steps.evaluate(POLICY, Plain(), COUNTERS, jax.random.key(0), max_steps=limit, greedy=greedy)
        number = np.minimum(ENDS, limit)
        sign = -1 if greedy else 1
        expected = [sum(sign * 2 * (START[i] + n) + n for n in range(number[i])) for i in range(2)]
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_array_equal(found[1], number)


def test_success_is_counted_per_task_at_the_end_of_an_episode():
    """Solved at step 2 of the second counter's 3: once an episode. Three environments of two tasks by hand."""

    def solving(count, actions, ahead):
        state, first, now = _step(count, actions, ahead)
        return state, first, now._replace(solved=jnp.array([False, True]) & (count + 1 >= 2))

    env = COUNTERS._replace(step=solving, tasks=("left", "right"))
    worlds = steps.start(env, jax.random.key(0))
    metrics = steps.collect(POLICY, Plain(), env, worlds, jax.random.key(0), num_steps=6)[2]
    assert tuple(metrics["episode/success"]) == (2.0, 5.0)
    assert tuple(metrics["episode/success/left"]) == (0.0, 3.0) and tuple(metrics["episode/success/right"]) == (
        2.0,
        2.0,
    )
    assert "episode/success" not in steps.collect(POLICY, Plain(), COUNTERS, worlds, jax.random.key(0), num_steps=2)[2]
    for limit, expected in ((1, [False, False]), (9, [False, True])):
        found = steps.evaluate(POLICY, Plain(), env, jax.random.key(0), max_steps=limit)
        np.testing.assert_array_equal(found.solved, expected)
    flags = np.array([[True, False, True], [False, True, True]]), np.array([[True, True, False], [True, True, True]])
    rates = {name: tuple(rate) for name, rate in steps.success_rates(("a", "b"), *flags).items()}
    assert rates == {"success": (3.0, 5.0), "success/a": (2.0, 3.0), "success/b": (1.0, 2.0)}
    assert list(steps.success_rates(("a",), *flags)) == ["success"]


def test_of_several_agents_as_rows_the_first_is_recorded():
    for agents, refused in ((2, False), (3, True), (None, True)):
        env = COUNTERS._replace(agents=agents and types.SimpleNamespace(count=agents))
        if refused:
            with pytest.raises(ValueError, match="load it with num_envs=1, not 2"):
                record_episode(POLICY, Plain(), env, jax.random.key(0), max_steps=3)
            continue
        episode = record_episode(POLICY, Plain(), env, jax.random.key(0), max_steps=3)
        assert (episode.length, episode.terminated, episode.truncated) == (2, True, False)
        np.testing.assert_allclose(episode.rewards[:2], by_hand(0, 2)[0])
        assert episode.last.tolist() == [12.0] and episode.observations[:2, 0].tolist() == [10.0, 11.0]
