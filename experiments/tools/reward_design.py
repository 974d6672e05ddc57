"""Teachers that design rewards of a finite MDP: how many steps a student needs with each, and without.

    python -m experiments.tools.reward_design rooms --size=5 --seeds=5
    python -m experiments.tools.reward_design chain --teachers=given,explicable,adaptive,explore

Worlds: `chain` and `rooms` (rl_jax.envs.worlds.tabular). Teachers: `given` (none), `potential` (the best values as a
potential), `explicable` (ExpRD, few states), `adaptive` (ExpAdaRD, designed anew for the student's policy), `explore`
(ExploRS, which knows no target). The student is REINFORCE with a table, judged by the given rewards. Source: arXiv
2503.21949; the equations are in rl_jax/control/reward_design.py and students.py. --out=FILE keeps the rewards that were
designed.
"""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import reward_design, students
from rl_jax.envs.worlds import tabular

WORLDS = {"chain": lambda size: tabular.chain(length=size), "rooms": lambda size: tabular.rooms(size=size)}
SIZES = {"chain": 8, "rooms": 7}
TEACHERS = ("given", "potential", "explicable", "adaptive", "explore")


class Lesson(NamedTuple):
    """What a student is taught with.

    Attributes:
      updates: batches of each student.
      every: batches between two designs of the adaptive teacher.
      count: episodes per batch.
      discount: gamma.
      rate: of the student.
      budget: states that the explicable teacher may pay in, beside those paid now.
      size_cost: of designed rewards, of the explicable teacher; see reward_design.Teacher.explicable.
      largest: bound of designed rewards.
      bonus: lambda of ExploRS, and the largest bonus.
      phi_rate: of its rewards.
      value_rate: of its critic; .01 in the published code, whose runs are longer.
    """

    updates: int = 400
    every: int = 10
    count: int = 4
    discount: float = 0.95
    rate: float = 5.0
    budget: int = 3
    size_cost: float = 1e-5
    largest: float = 1.0
    bonus: float = 0.1
    phi_rate: float = 0.05
    value_rate: float = 1.0


class Course(NamedTuple):
    """What N students reached.

    Attributes:
      steps: int [N, updates], steps taken after each update.
      values: float [N, updates], J after each update, of the given rewards.
      best: the largest J.
      designs: the designed rewards, float [S, A] each, the last ones of the first student.
      states: that may be paid in; () for all.
    """

    steps: np.ndarray
    values: np.ndarray
    best: float
    designs: np.ndarray
    states: tuple[int, ...]


def steps_to(course: Course, share: float = 0.8) -> np.ndarray:
    """Steps until J stays at or above `share` of the best, float [N]; infinite if it never does."""
    below = course.values < share * course.best
    last = np.where(below.any(axis=1), course.values.shape[1] - np.argmax(below[:, ::-1], axis=1), 0)
    found = np.take_along_axis(course.steps, np.minimum(last, course.steps.shape[1] - 1)[:, None], axis=1)[:, 0]
    return np.where(last == course.values.shape[1], np.inf, found)


def make_rounds(table: tabular.Table, lesson: Lesson, options: dict | None = None) -> dict[str, Callable]:
    """{"table": a round of `every` updates of students paid by a table, "self": by ExploRS}, compiled when called.

    Args:
      table: the MDP with the given rewards.
      lesson: see Lesson.
      options: of the compiler.
    """
    tables = students.Tables(*map(jnp.asarray, (table.rewards, table.transition_probs, table.start_probs)))
    explore = dict(rate=lesson.phi_rate, value_rate=lesson.value_rate, bonus=lesson.bonus, largest=lesson.bonus or 1.0)
    pays = {
        "table": students.table_teacher(),
        "self": students.self_teacher(tables, discount=lesson.discount, **explore),
    }
    sizes = dict(updates=lesson.every, count=lesson.count, length=table.limit)
    rates = dict(discount=lesson.discount, rate=lesson.rate)
    made = {name: students.make_lesson(tables, pay, **sizes, **rates) for name, pay in pays.items()}
    return {name: jax.jit(jax.vmap(one), compiler_options=options) for name, one in made.items()}


def teach(table: tabular.Table, teacher: str, seeds: int, lesson: Lesson, rounds: dict[str, Callable]) -> Course:
    """Trains `seeds` students with one teacher.

    Args:
      table: the MDP with the given rewards.
      teacher: of TEACHERS.
      seeds: N.
      lesson: see Lesson.
      rounds: of `make_rounds`.

    Raises:
      ValueError: if the teacher is unknown, updates are no multiple of `every`, or no rewards can be designed.
    """
    if teacher not in TEACHERS:
        raise ValueError(f"teacher {teacher!r} is none of {', '.join(TEACHERS)}")
    if lesson.every < 1 or lesson.updates % lesson.every:
        raise ValueError(f"updates={lesson.updates} must be a multiple of every={lesson.every}, which is 1 or more")
    probs, rewards, start, _ = table
    expert = reward_design.Teacher(rewards, probs, start, discount=lesson.discount, largest=lesson.largest)
    best = np.eye(rewards.shape[1])[expert.target.policy]
    values = reward_design.action_values(rewards, probs, best, discount=lesson.discount).max(axis=1)
    if teacher == "explore":
        state, states = students.blank_shaping(*rewards.shape), ()
    else:
        state, states = _designed(teacher, expert, values, table, lesson)
    logits = jnp.zeros((seeds, *rewards.shape))
    state = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (seeds, *jnp.shape(x))), state)
    taken, reached = [], []
    for i in range(lesson.updates // lesson.every):
        if teacher == "adaptive":
            policies = np.asarray(jax.nn.softmax(logits, axis=-1))
            state = jnp.asarray([expert.adaptive(policy).rewards for policy in policies], jnp.float32)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), seeds)
        logits, state, steps, now = rounds["self" if teacher == "explore" else "table"](keys, logits, state)
        taken.append(steps)
        reached.append(now)
    designs = state.phi[0] if teacher == "explore" else state[0]
    steps = np.cumsum(np.concatenate(taken, axis=1), axis=1)
    return Course(steps, np.concatenate(reached, axis=1), float(start @ values), np.asarray(designs), states)


def _designed(
    teacher: str, expert: reward_design.Teacher, values: np.ndarray, table: tabular.Table, lesson: Lesson
) -> tuple[np.ndarray, tuple[int, ...]]:
    """(rewards float [S, A] of a teacher that designs before the first step, its states)."""
    if teacher == "explicable":
        design = expert.greedy(len(expert.essential) + lesson.budget, size_cost=lesson.size_cost)
        return design.rewards, design.states
    if teacher == "potential":
        return table.rewards + lesson.discount * table.transition_probs @ values - values[:, None], ()
    return table.rewards, ()


def line(teacher: str, course: Course) -> str:
    """A row of the Markdown table."""
    steps = steps_to(course)
    never = int(np.sum(~np.isfinite(steps)))
    median = f"{np.median(steps):.0f}" if np.isfinite(np.median(steps)) else "never"
    states = ", ".join(map(str, course.states)) or "all"
    last = np.mean(course.values[:, -1]) / course.best
    return f"| {teacher} | {median} | {never} of {len(steps)} | {last:.2f} | {states} |"


def main() -> None:
    """Prints the table of one world."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("world", nargs="?", default="rooms", choices=sorted(WORLDS))
    parser.add_argument("--size", type=int, default=0, help="of the world; 0: 8 steps, 7 cells per side")
    parser.add_argument("--teachers", default=",".join(TEACHERS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", default="", help="JSON file for the designed rewards")
    for name, value in Lesson()._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()
    lesson = Lesson(**{name: getattr(options, name) for name in Lesson._fields})
    if options.seeds < 1:
        parser.error(f"--seeds={options.seeds} must be 1 or more")
    try:
        table = WORLDS[options.world](options.size or SIZES[options.world])
        rounds = make_rounds(table, lesson)
        courses = {name: teach(table, name, options.seeds, lesson, rounds) for name in options.teachers.split(",")}
    except ValueError as error:
        parser.error(str(error))
    print(
        "| teacher | steps to .8 of the best J, median | never | J at the end, of the best | pays in states |\n"
        "|---|---|---|---|---|"
    )
    for name, course in courses.items():
        print(line(name, course))
    if options.out:
        designs = {name: course.designs.round(6).tolist() for name, course in courses.items()}
        pathlib.Path(options.out).write_text(json.dumps(designs) + "\n")


if __name__ == "__main__":
    main()
