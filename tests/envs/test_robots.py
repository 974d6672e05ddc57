"""Several robots, one task in hierarchical LTL (worlds.robots): traces, plans by brute force, playing."""

import itertools

import jax
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.core import ltl
from rl_jax.envs.worlds import robots, teams

PLACES = dict(a=0, b=2, c=4)
PARTS = dict(left="F (a & F b)", right="F c")
TASK = "left & right"


def holds(task, parts, owners, trace) -> bool:
    """Whether joint places fulfil a task, by recursion; the name of a part is the formula of its robot."""

    def true(f, i, robot) -> bool:  # f at step i; robot: whose places count, or None for anybody's
        rest = range(i, len(trace))
        match f:
            case ("true",):
                return True
            case ("false",):
                return False
            case ("name", name) if name in parts:
                return true(ltl.parse(parts[name]), i, owners.get(name))
            case ("name", name):
                where = trace[i] if robot is None else [trace[i][robot]]
                return PLACES[name] in where
            case ("!", g):
                return not true(g, i, robot)
            case ("&", inside):
                return all(true(g, i, robot) for g in inside)
            case ("|", inside):
                return any(true(g, i, robot) for g in inside)
            case ("X", g):
                return i + 1 < len(trace) and true(g, i + 1, robot)
            case ("F", g):
                return any(true(g, k, robot) for k in rest)
            case ("U", g, h):
                return any(true(h, k, robot) and all(true(g, n, robot) for n in range(i, k)) for k in rest)
        raise AssertionError(f)

    return true(ltl.parse(task), 0, None)


def every_trace(starts, length, steps):
    """All joint paths of `steps` steps, without the start."""
    for moves in itertools.product(itertools.product((-1, 0, 1), repeat=len(starts)), repeat=steps):
        where, trace = list(starts), []
        for move in moves:
            where = [min(max(place + m, 0), length - 1) for place, m in zip(where, move, strict=True)]
            trace.append(tuple(where))
        yield trace


CASES = [
    (TASK, PARTS, dict(left=0, right=1)),
    (TASK, PARTS, dict(left=0, right=0)),
    ("!right U left", dict(left="a", right="c"), dict(left=1, right=0)),
    ("F (left & X F c)", dict(left="a"), dict(left=0)),  # the place that the task names itself is anybody's
    ("both", dict(left="F a", both="left & F c"), dict(left=0)),  # and so is one that a part of parts names
]


@pytest.mark.parametrize(("task", "parts", "owners"), CASES)
def test_the_automaton_accepts_what_the_formula_says(task, parts, owners):
    found, seen = robots.team(task, parts, owners, PLACES, 2), set()
    for trace in itertools.islice(every_trace((1, 3), 5, 4), 0, None, 7):
        state = 0
        for where in trace:
            state = found.moves[state, robots.letter_of(found, where)]
        wanted = holds(task, parts, owners, trace)
        assert bool(found.accepting[state]) == wanted, trace
        seen.add(wanted)
    assert seen == {True, False} or (task, owners) == (TASK, dict(left=0, right=0))  # one robot is too slow for it


def test_plans_are_the_shortest_of_all():
    starts, length = (1, 3), 5
    for task, parts, owners in CASES[:1] + CASES[2:]:
        found = robots.plan(robots.team(task, parts, owners, PLACES, 2), starts, length)
        for steps in range(1, 5):
            good = [t for t in every_trace(starts, length, steps) if holds(task, parts, owners, t)]
            if good:
                break
        went = [sum(np.abs(np.diff([starts, *t], axis=0)).ravel()) for t in good]
        assert (found.steps, found.moved) == (steps, min(went))
        assert holds(task, parts, owners, [tuple(x) for x in found.paths[1:].tolist()])
        assert found.paths[0].tolist() == list(starts) and len(found.paths) == steps + 1


def test_parts_are_given_to_the_robots_that_are_near():
    owners, found = robots.allocate(TASK, PARTS, PLACES, (1, 3), 5)
    assert owners == dict(left=0, right=1) and (found.steps, found.moved) == (3, 4)
    swapped, _ = robots.allocate(TASK, PARTS, PLACES, (3, 1), 5)
    assert swapped == dict(left=1, right=0)
    _, alone = robots.allocate(TASK, PARTS, PLACES, (1,), 5)
    assert (alone.steps, alone.moved) == (5, 5)  # a, b, c
    assert robots.robots_parts(PARTS | dict(all="left & right"), PLACES) == ["left", "right"]
    assert robots.robots_parts(dict(left="F a", both="left & F c"), PLACES) == ["left"]
    with pytest.raises(ValueError, match="no plan does 'left & !left'"):
        robots.allocate("left & !left", dict(left="a"), PLACES, (1, 3), 5)
    with pytest.raises(ValueError, match="give a robot to each of left, right"):
        robots.team(TASK, PARTS, dict(left=0), PLACES, 2)
    with pytest.raises(ValueError, match="robots are 0 to 1"):
        robots.team(TASK, PARTS, dict(left=0, right=2), PLACES, 2)
    with pytest.raises(ValueError, match="two names have one place"):
        robots.team(TASK, PARTS, dict(left=0, right=1), dict(a=0, b=0, c=4), 2)
    with pytest.raises(ValueError, match="more than 4096 ways"):
        robots.allocate("true", {f"t{i}": "a" for i in range(13)}, PLACES, (1, 3), 5)


def test_the_world_pays_both_for_the_plan_and_shows_each_its_own_place():
    told = dict(task=TASK, parts=PARTS, owners=dict(left=0, right=1), places=PLACES, starts=(1, 3), length=5)
    env, found = teams.robots(**told), robots.team(TASK, PARTS, told["owners"], PLACES, 2)
    path = robots.plan(found, (1, 3), 5).paths
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    state, seen = reset(jax.random.key(0))
    own = 5 + len(found.moves)
    assert env.agents == (2, own, True) and seen.shape == (2, own + len(found.moves) + 10)
    assert seen[:, :5].argmax(axis=1).tolist() == [1, 3] and seen[0, own:].tolist() == seen[1, own:].tolist()
    rewards, state_of_task = [], 0
    for before, after in itertools.pairwise(path.tolist()):
        state, out = step(jax.random.key(1), state, np.array(after) - before + 1)
        state_of_task = found.moves[state_of_task, robots.letter_of(found, after)]
        assert out.observation[:, :5].argmax(axis=1).tolist() == after
        assert int(out.observation[0, 5:own].argmax()) == state_of_task
        rewards.append(out.reward.tolist())
    assert out.terminated and rewards[-1] == [1.0, 1.0] and rewards[0] == [np.float32(0.1)] * 2
    avoid = dict(told, task="!right U left", parts=dict(left="a", right="c"))
    state, _ = teams.robots(**avoid).reset(jax.random.key(0))
    out = teams.robots(**avoid).step(jax.random.key(1), state, np.array([1, 2]))[1]  # c before a
    assert out.terminated and out.reward.tolist() == [-1.0, -1.0]
    with pytest.raises(ValueError, match="must be from 0 to 3"):
        teams.robots(**dict(told, length=4))
    assert envs.load_vector("agents/robots", 2, **told).num_envs == 2


def test_progress_is_paid_once_for_a_state():
    """To and fro: F (a & X b) goes to another state with each step on a, and back with the next."""
    circle = dict(task="left", parts=dict(left="F (a & X b)"), owners=dict(left=0), places=dict(a=1, b=4), starts=(0,))
    env = teams.robots(**circle, length=5)
    state, step, rewards = env.reset(jax.random.key(0))[0], jax.jit(env.step), []
    for move in (2, 0, 2, 0, 2, 0):
        state, out = step(jax.random.key(1), state, np.array([move]))
        rewards.append(float(out.reward[0]))
    assert rewards == [np.float32(0.1), 0, 0, 0, 0, 0] and not out.terminated


@pytest.mark.parametrize(
    "task, parts, places, complaint",
    [
        ("left & rigth", dict(left="a"), dict(a=0), "rigth: neither places a nor parts left"),
        ("a", dict(a="F b"), dict(a=0, b=1), "a: places and parts need names of their own"),
        ("F X", dict(), dict(X=0), "X: places and parts need names of their own, and no operator's"),
    ],
)
def test_names_that_mean_nothing_or_two_things_are_refused(task, parts, places, complaint):
    owners = dict.fromkeys(robots.robots_parts(parts, places), 0)
    with pytest.raises(ValueError, match=complaint):
        robots.team(task, parts, owners, places, 1)
