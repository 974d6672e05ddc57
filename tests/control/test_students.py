"""control/students.py and its tool: gradients by autodiff, loops, and students that learn sooner with a teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools import reward_design as tool
from rl_jax.control import students
from rl_jax.envs.worlds import tabular

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAMMA = 0.9
CHAIN = tabular.chain(length=3)
TABLES = students.Tables(*map(jnp.asarray, (CHAIN.rewards, CHAIN.transition_probs, CHAIN.start_probs)))
EPISODES = students.Episodes(
    states=np.int32([[0, 1, 2, 2], [0, 0, 1, 0]]),
    actions=np.int32([[1, 1, 1, 0], [0, 1, 0, 1]]),
    following=np.int32([[1, 2, 4, 1], [0, 1, 0, 1]]),
    mask=np.array([[True, True, True, False], [True] * 4]),
)
LOGITS = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)


def test_a_student_climbs_its_own_log_probs_times_returns():
    rewards = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    gains = np.zeros((2, 4), np.float32)
    for row in range(2):
        for t in reversed(range(4)):
            if EPISODES.mask[row, t]:
                later = gains[row, t + 1] if t < 3 else 0.0
                gains[row, t] = rewards[row, t] + GAMMA * later
    np.testing.assert_allclose(students.returns_of(rewards, EPISODES.mask, discount=GAMMA), gains, rtol=1e-5)

    def objective(logits):
        chosen = jax.nn.log_softmax(logits)[EPISODES.states, EPISODES.actions]
        return jnp.sum(jnp.where(EPISODES.mask, gains * chosen, 0.0)) / 7

    after = students.reinforce(LOGITS, EPISODES, rewards, discount=GAMMA, rate=0.5)
    np.testing.assert_allclose(after, LOGITS + 0.5 * jax.grad(objective)(LOGITS), rtol=1e-4, atol=1e-5)


def test_episodes_are_of_the_world_and_the_policy():
    """Right three times out of four in a chain of 3: the mean J of discounted rewards is start_value."""
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.25, 0.75])), (4, 2))
    sample = jax.jit(
        lambda key: students.sample_episodes(key, logits, TABLES, count=2000, length=60), compiler_options=QUICK
    )
    found = jax.tree.map(np.asarray, sample(jax.random.key(0)))
    assert found.mask[:, 0].all() and not found.mask[:, -1].any()
    moved = np.where(found.actions == 1, found.states + 1, np.maximum(found.states - 1, 0))
    moved = np.where(moved == 3, 4, moved)  # the goal is the end
    np.testing.assert_array_equal(found.following[found.mask], moved[found.mask])
    np.testing.assert_array_equal(found.mask[:, 1:], found.mask[:, :-1] & (found.following[:, :-1] < 4))
    assert found.actions[found.mask].mean() == pytest.approx(0.75, abs=0.02)
    paid = np.asarray(CHAIN.rewards)[found.states, found.actions]
    mean = np.mean(np.sum(paid * found.mask * GAMMA ** np.arange(60), axis=1))
    assert float(students.start_value(logits, TABLES, discount=GAMMA)) == pytest.approx(mean, abs=0.01)


def test_explors_by_loops():
    """phi climbs pi (G - V) of the given rewards; the bonus falls with visits and is not paid for the end."""
    teacher = students.self_teacher(TABLES, discount=GAMMA, rate=0.3, value_rate=0.2, bonus=0.5, largest=2.0)
    rng = np.random.default_rng(2)
    before = students.SelfShaping(
        *(jnp.asarray(x, jnp.float32) for x in (rng.normal(size=(4, 2)), rng.normal(size=4), np.arange(4)))
    )
    phi, moved, visits = (np.array(x, np.float64) for x in (before.phi, np.zeros(4), before.visits))
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    pay = np.zeros((2, 4))
    for row in range(2):
        gain = 0.0
        for t in reversed(range(4)):
            if not EPISODES.mask[row, t]:
                continue
            s, a, after = (int(x[row, t]) for x in (EPISODES.states, EPISODES.actions, EPISODES.following))
            gain = CHAIN.rewards[s, a] + GAMMA * gain
            bonus = 0.5 / np.sqrt((0.5 / 2.0) ** 2 + before.visits[after]) if after < 4 else 0.0
            pay[row, t] = CHAIN.rewards[s, a] + before.phi[s, a] + bonus
            phi[s] += 0.3 * probs[s, a] * (gain - before.values[s]) * (np.eye(2)[a] - probs[s])
            moved[s] += gain - before.values[s]
            visits[s] += 1
    np.testing.assert_allclose(np.where(EPISODES.mask, teacher.pay(before, EPISODES), 0.0), pay, rtol=1e-4, atol=1e-5)
    after = teacher.learn(before, EPISODES, LOGITS)
    np.testing.assert_allclose(after.phi, phi, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.values, before.values + 0.2 * moved / 7, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(after.visits, visits)
    plain = students.self_teacher(TABLES, discount=GAMMA, bonus=0.0).pay(students.blank_shaping(4, 2), EPISODES)
    np.testing.assert_array_equal(plain, CHAIN.rewards[EPISODES.states, EPISODES.actions])
    with pytest.raises(ValueError, match="largest=0.0"):
        students.self_teacher(TABLES, discount=GAMMA, largest=0.0)


def test_a_student_learns_in_fewer_steps_with_each_teacher():
    """Steps to .8 of the best J in a chain of 10, median of 5 students, against those without a teacher."""
    table, lesson = tabular.chain(length=10), tool.Lesson(updates=100)
    rounds = tool.make_rounds(table, lesson, QUICK)
    median = {}
    for name in ("given", "explicable", "adaptive", "explore"):
        course = tool.teach(table, name, 5, lesson, rounds)
        median[name] = np.median(tool.steps_to(course))
        assert course.best == pytest.approx(0.95**9)
        assert np.all(np.isfinite(course.designs)) and len(course.states) == (4 if name == "explicable" else 0)
    assert max(median["explicable"], median["explore"]) < 0.75 * median["given"] < np.inf
    assert median["adaptive"] < 0.4 * median["given"]
    with pytest.raises(ValueError, match="teacher 'nobody'"):
        tool.teach(table, "nobody", 1, lesson, rounds)
    with pytest.raises(ValueError, match="every=10"):
        tool.teach(table, "given", 1, lesson._replace(updates=15), rounds)


def test_steps_count_from_where_a_student_stays_good():
    values = np.array([[0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.1]])
    course = tool.Course(np.tile([10, 20, 30, 40], (3, 1)), values, 1.0, np.zeros((1, 1)), ())
    np.testing.assert_array_equal(tool.steps_to(course), [30, 10, np.inf])
    assert "| median | 1 of 3 |" not in tool.line("given", course) and "1 of 3" in tool.line("given", course)


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(
        tool, "make_rounds", lambda table, lesson: {"table": lambda keys, x, s: (x, s, x[:, :2, 0] + 7, x[:, :2, 0])}
    )
    common = ["reward_design", "chain", "--size=3", "--updates=2", "--every=2", "--seeds=2", "--budget=1"]
    monkeypatch.setattr("sys.argv", [*common, "--teachers=given,explicable", f"--out={tmp_path / 'designs.json'}"])
    tool.main()
    rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 4 and rows[2].startswith("| given | never | 2 of 2 |") and (tmp_path / "designs.json").exists()
    monkeypatch.setattr("sys.argv", [*common, "--budget=9"])
    with pytest.raises(SystemExit):
        tool.main()
    assert "budget=10 must be from 1" in capsys.readouterr().err
