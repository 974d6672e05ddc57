"""Robots on a line with one task in hierarchical temporal logic: who does which part, the shortest plan, the world.

A part whose formula names places alone is for one robot; what contains parts says in which order they are done, whoever
does them. `allocate` tries every way to give the parts to the robots, with the shortest joint plan of each, by search
over (places of the robots, state of the task's automaton). `environment` is the same task for agents that learn it.

Source: Nl2Hltl2Plan, arXiv 2408.08188, whose tree of tasks is translated to a formula for each and given to a planner
that is there already (allocation and planning at once). Departs: a line for a floor; all robots can do all parts; the
search is exhaustive, for a few robots and parts.
"""

import heapq
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core import ltl
from rl_jax.envs.protocol import Agents, Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
STEPS = (-1, 0, 1)  # of the actions: left, stay, right
RESERVED = ("F", "G", "X", "U", "true", "false")  # of core.ltl
MOST = 4096  # ways to give the parts to the robots


class Team(NamedTuple):
    """A task's automaton for robots on a line; it begins in state 0.

    Attributes:
      moves: int [U, L], L letters: where each robot stands, see `letter_of`.
      accepting: bool [U].
      failed: bool [U].
      places: int [P], the named places in the order of their names.
    """

    moves: np.ndarray
    accepting: np.ndarray
    failed: np.ndarray
    places: np.ndarray


class Plan(NamedTuple):
    """A joint plan.

    Attributes:
      steps: until the task is done.
      moved: places that the robots went in all.
      paths: int [steps + 1, A], the places of the robots.
    """

    steps: int
    moved: int
    paths: np.ndarray


def robots_parts(parts: Mapping[str, str], places: Mapping[str, int]) -> list[str]:
    """The parts that one robot does: those whose formulas name places alone, in the order of their names."""
    named = {name: set(re.findall(r"[A-Za-z_]\w*", text)) for name, text in parts.items()}
    return sorted(name for name, found in named.items() if not found & set(parts) and found & set(places))


def team(
    task: str, parts: Mapping[str, str], owners: Mapping[str, int], places: Mapping[str, int], robots: int
) -> Team:
    """The automaton of a task whose parts are given to robots.

    A place in a part of robot r holds while r stands there; one that the task, or a part of parts, names itself holds
    while any robot does.

    Args:
      task: of core.ltl.
      parts: name -> formula, put in the place of the name.
      owners: for each of `robots_parts` a robot, from 0.
      places: name -> place.
      robots: number of robots.

    Raises:
      ValueError: if owners are not those parts, a robot does not exist, two names have one place, or core.ltl refuses.
    """
    mine = robots_parts(parts, places)
    if sorted(owners) != mine:
        raise ValueError(f"owners are of {', '.join(sorted(owners))}: give a robot to each of {', '.join(mine)}")
    if not all(0 <= owner < robots for owner in owners.values()):
        raise ValueError(f"owners={dict(owners)}: robots are 0 to {robots - 1}")
    if len(set(places.values())) < len(places):
        raise ValueError(f"places={dict(places)}: two names have one place")
    names = sorted(places)
    said = {word for text in (task, *parts.values()) for word in re.findall(r"[A-Za-z_]\w*", text)}
    if unknown := sorted(said - {*places, *parts, *RESERVED}):
        raise ValueError(
            f"{', '.join(unknown)}: neither places {', '.join(names)} nor parts {', '.join(sorted(parts))}"
        )
    if double := sorted(set(places) & {*parts, *RESERVED} | set(parts) & set(RESERVED)):
        raise ValueError(f"{', '.join(double)}: places and parts need names of their own, and no operator's")

    def told(text: str, which: Sequence[int]) -> str:
        for name in names:
            said = " | ".join(f"{name}__{robot}" for robot in which)
            text = re.sub(rf"\b{name}\b", f"({said})", text)
        return text

    everyone = range(robots)
    whole = {name: told(text, [owners[name]] if name in owners else everyone) for name, text in parts.items()}
    letters = [
        frozenset(f"{names[at]}__{robot}" for robot, at in enumerate(where) if at < len(names))
        for where in itertools.product(range(len(names) + 1), repeat=robots)
    ]
    found = ltl.automaton(ltl.parse(told(task, everyone), whole), letters)
    return Team(*found, np.array([places[name] for name in names]))


def letter_of(found: Team, where: Sequence[int]) -> int:
    """The letter of robots that stand at `where`, int [A]: the index of each's named place as a digit."""
    letter, places = 0, found.places.tolist()
    for place in where:
        letter = letter * (len(places) + 1) + (places.index(place) if place in places else len(places))
    return letter


def plan(found: Team, starts: Sequence[int], length: int) -> Plan | None:
    """The fewest steps that do the task, and of those the fewest moves; None if it cannot be done. By Dijkstra.

    Args:
      found: of `team`.
      starts: int [A].
      length: places of the line.
    """
    first = (tuple(starts), 0)
    best, before, heap = {first: (0, 0)}, {}, [((0, 0), first)]
    while heap:
        cost, node = heapq.heappop(heap)
        where, state = node
        if cost > best[node]:
            continue
        if found.accepting[state]:
            paths = [where]
            while node in before:
                node = before[node]
                paths.append(node[0])
            return Plan(*cost, np.array(paths[::-1]))
        for moves in itertools.product(STEPS, repeat=len(where)):
            there = tuple(min(max(place + move, 0), length - 1) for place, move in zip(where, moves, strict=True))
            target = int(found.moves[state, letter_of(found, there)])
            went = sum(abs(b - a) for a, b in zip(where, there, strict=True))
            new = (cost[0] + 1, cost[1] + went)
            if not found.failed[target] and new < best.get((there, target), (np.inf, np.inf)):
                best[there, target], before[there, target] = new, node
                heapq.heappush(heap, (new, (there, target)))
    return None


def allocate(
    task: str, parts: Mapping[str, str], places: Mapping[str, int], starts: Sequence[int], length: int
) -> tuple[dict[str, int], Plan]:
    """(the robot of each part, its plan) with the fewest steps, and of those the fewest moves.

    Raises:
      ValueError: if nobody can do the task, there are too many ways, or as for `team`.
    """
    mine, robots = robots_parts(parts, places), len(starts)
    if robots ** len(mine) > MOST:
        raise ValueError(f"{len(mine)} parts for {robots} robots: more than {MOST} ways")
    found = []
    for given in itertools.product(range(robots), repeat=len(mine)):
        owners = dict(zip(mine, given, strict=True))
        if (best := plan(team(task, parts, owners, places, robots), starts, length)) is not None:
            found.append((best[:2], given, owners, best))
    if not found:
        raise ValueError(f"no plan does {task!r} with the parts {dict(parts)}")
    return min(found, key=lambda entry: entry[:2])[2:]


def environment(
    *,
    task: str,
    parts: Mapping[str, str],
    owners: Mapping[str, int],
    places: Mapping[str, int],
    starts: Sequence[int],
    length: int,
    progress: float = 0.1,
    limit: int = 0,
) -> Environment:
    """The task for agents: 1 for all once it is done, -1 once it cannot be, `progress` for a state's first visit.

    All move at once, left, not, or right. An agent sees its own place and the state of the automaton, the world's state
    is that and every place. Both ends of the task end the episode.

    Args:
      task: of core.ltl.
      parts: name -> formula.
      owners: the robot of each of `robots_parts`.
      places: name -> place.
      starts: int [A], where the robots start.
      length: places of the line.
      progress: reward of a step to a state of the automaton that the episode has not seen and that is neither end:
        of one seen before it would pay for walking in a circle.
      limit: steps after which an episode is truncated; 0 is 4 length.

    Raises:
      ValueError: as for `team`, or if a place is not on the line.
    """
    robots = len(starts)
    if not all(0 <= place < length for place in [*places.values(), *starts]):
        raise ValueError(f"places={dict(places)} and starts={tuple(starts)} must be from 0 to {length - 1}")
    found = team(task, parts, owners, places, robots)
    states = len(found.moves)
    ends = found.accepting.astype(np.float32) - found.failed
    digits = np.full(length, len(found.places))
    digits[found.places] = np.arange(len(found.places))

    def observe(where: chex.Array, state: chex.Array) -> chex.Array:
        of_task = jax.nn.one_hot(state, states)
        shown = jax.nn.one_hot(where, length)
        whole = jnp.concatenate([of_task, shown.ravel()])
        return jnp.stack([jnp.concatenate([shown[robot], of_task, whole]) for robot in range(robots)])

    def reset(key: chex.PRNGKey):
        where, at, seen = jnp.asarray(starts, jnp.int32), jnp.int32(0), jnp.arange(states) == 0
        return (where, at, seen), observe(where, at)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        chex.assert_shape(action, (robots,))
        where, before, seen = state
        where = jnp.clip(where + action - 1, 0, length - 1).astype(jnp.int32)
        letter = jnp.int32(0)
        for robot in range(robots):
            letter = letter * (len(found.places) + 1) + jnp.asarray(digits)[where[robot]]
        after = jnp.asarray(found.moves, jnp.int32)[before, letter]
        end = jnp.asarray(ends)[after]
        reward = jnp.where(end != 0.0, end, jnp.where(seen[after], 0.0, progress))
        result = Step(observe(where, after), jnp.full(robots, reward), end != 0.0, NO)
        return (where, after, seen.at[after].set(True)), result

    own, size = length + states, states + robots * length
    space = Box(np.zeros(own + size, np.float32), np.ones(own + size, np.float32))
    made = Environment(reset, step, space, Discrete(len(STEPS)), agents=Agents(robots, own, True))
    return time_limit(made, limit or 4 * length)
