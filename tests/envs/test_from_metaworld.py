"""Meta-World's tasks: what the library's own steps give, its scripted experts solve them, and success is counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.host_worlds import load_host_env
from rl_jax.rollout.envs import steps
from tests.envs.libraries import adapter, foreign
from tests.rollout.test_env_steps import Plain

QUICK = {"xla_backend_optimization_level": 0}
TASKS = ("reach-v3", "handle-press-v3")
LIMIT = 60  # the experts solve the goals of these tests in 45 steps or less


@pytest.fixture(scope="module")
def metaworld():
    """rl_jax.envs.adapters.from_metaworld."""
    return adapter("metaworld")


def solved_by_expert(task, policy, seed=0):
    """(observations, actions, the step of the first success or None) of an episode that the expert plays."""
    seen, done, shown, first = [], [], task.reset(seed), None
    for time in range(LIMIT):
        seen.append(shown)
        done.append(np.clip(policy.get_action(shown[:39]), -1.0, 1.0).astype(np.float32))
        shown, _, terminated, truncated = task.step(done[-1])
        first = time if task.solved and first is None else first
        assert not terminated and truncated == (time == LIMIT - 1)
        assert task.solved == (first is not None)  # once solved, solved to the end
    return np.stack(seen), np.stack(done), first


@pytest.fixture(scope="module")
def expert(metaworld):
    """float32 [2, LIMIT, 4]: actions that solve the only goal of each of TASKS."""
    from metaworld.policies import ENV_POLICY_MAP

    with foreign():
        _, made = metaworld.make_tasks("+".join(TASKS), 2, num_goals=1, max_steps=LIMIT)
        played = [solved_by_expert(task, ENV_POLICY_MAP[name]()) for task, name in zip(made, TASKS, strict=True)]
    assert all(10 < first < LIMIT - 5 for _, _, first in played)
    return np.stack([actions for _, actions, _ in played])


def test_an_episode_is_the_librarys(metaworld):
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    with foreign():
        _, (ours, also) = metaworld.make_tasks("reach-v3", 2, num_goals=3)
        goals = metaworld.goals_of("reach-v3", hidden=False, split="train", num_goals=3, seed=0)
        starts = {ours.reset(seed)[36:39].tobytes() for seed in range(12)}
        theirs = ALL_V3_ENVIRONMENTS["reach-v3"]()
        theirs.set_task(goals[np.random.default_rng(7).integers(3)])
        first, shown = theirs.reset()[0], also.reset(7)
        assert (shown == first.astype(np.float32)).all() and len(starts) == 3 and shown[36:].any()
        assert (ours.reset(7) == shown).all()  # after twelve other episodes
        for action in np.random.default_rng(0).uniform(-1, 1, (20, 4)):
            expected, reward, _, _, info = theirs.step(action.astype(np.float32))
            for task in (ours, also):
                shown, paid, terminated, truncated = task.step(action)
                assert (shown == expected.astype(np.float32)).all() and paid == reward
                assert (terminated, truncated, task.solved) == (False, False, bool(info["success"]))


def test_the_program_counts_the_successes_of_each_task(metaworld, expert):
    """Environments 0 and 1 are played by the experts, 2 and 3 stand still: half of each task's episodes are solved."""
    with foreign():
        env = envs.load_vector("metaworld/" + "+".join(TASKS), 4, num_goals=1, max_steps=LIMIT)
        assert (env.tasks, env.pure, env.observation_space.shape) == (TASKS, False, (41,))
        still = np.zeros_like(expert)
        table = jnp.asarray(np.concatenate([expert, still]).swapaxes(0, 1))

        def policy(worlds):
            return table[worlds.episode_length, jnp.arange(4)], ()

        def whole(key):
            worlds = steps.start(env, key)
            first = worlds.observation
            _, rows, metrics = steps.collect(policy, Plain(), env, worlds, key, num_steps=LIMIT)
            return first, rows, metrics, steps.evaluate(policy, Plain(), env, key, max_steps=LIMIT)

        first, rows, metrics, outcome = jax.device_get(jax.jit(whole, compiler_options=QUICK)(jax.random.key(0)))
    np.testing.assert_array_equal(first[:, 39:], [[1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(rows.observations[:, -1, 39:], first[:, 39:])
    np.testing.assert_array_equal(rows.truncated, np.broadcast_to(np.arange(LIMIT) == LIMIT - 1, (4, LIMIT)))
    assert not rows.terminated.any()
    assert tuple(metrics["episode/success"]) == (2.0, 4.0)
    assert [tuple(metrics[f"episode/success/{name}"]) for name in TASKS] == [(1.0, 2.0)] * 2
    np.testing.assert_array_equal(outcome.solved, [True, True, False, False])
    np.testing.assert_allclose(outcome.returns, rows.rewards.sum(1), rtol=1e-5)


def test_hidden_goals_and_the_benchmarks_own_tasks(metaworld):
    with foreign():
        _, made = metaworld.make_tasks("+".join(TASKS), 2, num_goals=1, hidden=True)
        assert all(shown.shape == (39,) and not shown[36:].any() for shown in (task.reset(3) for task in made))
        kept, others = (
            metaworld.goals_of("reach-v3", hidden=True, split=split, num_goals=1, seed=0) for split in ("train", "test")
        )
        assert load_host_env("metaworld/reach-v3", num_goals=1).reset(0)[36:].any()
    assert kept[0].data != others[0].data
    assert len(metaworld.tasks_of("MT10", "train")) == len(metaworld.tasks_of("ML10", "train")) == 10
    assert len(metaworld.tasks_of("MT50", "train")) == 50 and len(metaworld.tasks_of("ML45", "test")) == 5
    assert not set(metaworld.tasks_of("ML10", "train")) & set(metaworld.tasks_of("ML10", "test"))


@pytest.mark.parametrize(
    ("name", "keywords", "said"),
    [
        ("lift-v3", {}, "'lift-v3' is none of MT10, MT25"),
        ("reach-v3", dict(split="dev"), "split='dev' is not train"),
        ("MT10", dict(split="test"), "split='test' is not train"),
        ("reach-v3", dict(split="test"), "split='test' is of hidden goals"),
        ("reach-v3", dict(reward="v3"), "reward='v3' is neither"),
        ("reach-v3", dict(max_steps=501), "max_steps=501 must be 1 to 500"),
        ("reach-v3", dict(num_goals=0), "num_goals=0 1 or more"),
    ],
)
def test_refusals(metaworld, name, keywords, said):
    with pytest.raises(ValueError, match=said):
        metaworld.make_tasks(name, 1, **keywords)


def test_actors_step_one_task(metaworld):
    with foreign(), pytest.raises(ValueError, match="are 2 tasks, and actors step one"):
        metaworld.make_task("+".join(TASKS), num_goals=1)
