"""A* over the turns of a group's episodes, as ToolChain* searches plans of tool calls: where to go on. No jax.

Named in a config by its import path, agent.branching "rl_jax.experience.a_star:by_a_star".
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax.experience.branching import Point
from rl_jax.experience.trajectory import Trajectory

Plan = tuple[bytes, ...]  # what was said in each turn, as token ids


def by_a_star(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    *,
    memory: Sequence[Plan],
    imagined: Mapping[Plan, int],
    width: int = 4,
    above: float = 0.5,
    alpha: float = 0.5,
    beta: float = 0.5,
    named: int = 0,
    demonstrations: int = 8,
) -> list[Point]:
    """All new episodes begin at the open plan n of the least f(n) = g(n) + h(n).

        g(n) = sum over the turns i of n of  (1 - g_1(i))^alpha (1 - g_2(i))^(1 - alpha)
        g_1(i) = max over m in memory of  |LCS(n up to i, m)| / min(i, |m|)       g_2(i): share of the draws that said i
        h(n) = (1 - h_1(n))^beta (1 - h_2(n))^(1 - beta)
        h_1(n) = mean over m in memory with n's last action a of  place of a in m / |m|       h_2(n) = |n| / |n_T|

    An action that no plan in memory has is taken for the one of memory that it is most like (the longest common
    subsequence of their tokens over the shorter one; 0 if nothing is alike). n_T: the plan of n's last turn that the
    model itself has continued to its end. Plans that have ended are no beginnings; one is open until `width` turns were
    sampled after it. The group's own episodes that earned more than `above` are in memory, too.
    Source: arXiv 2310.13227 (ToolChain*). Its text and code could not be read: the four terms are as a reader's public
    notes and the project's memory have them, which agree; exponents, the weighting of the terms and the likeness of
    unknown actions are from memory alone. There the model imagines what tools answer; here it goes on in a copy of the
    world, which answers, and the imagined episode is dropped.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin: the children that an expansion samples.
      dice: breaks ties.
      memory: plans that solved their tasks; who plays the episodes gives it: demonstrations, and what the run solved.
      imagined: plan -> length of the whole plan that the model imagines from it on; given likewise. One that is missing
        is the shortest of the group's episodes that went through it.
      width: turns sampled after a plan until it is closed.
      above: the reward of an episode that is remembered.
      alpha: weight of the memory in g, from 0 to 1.
      beta: weight of the memory in h, from 0 to 1.
      named: tokens at the head of a turn that name its tool, by which memory is compared; 0: the whole turn.
      demonstrations: solved ones of the task's that memory begins with; read by who gives `memory`.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range.
    """
    if width < 1 or not 0 <= alpha <= 1 or not 0 <= beta <= 1:
        raise ValueError(f"width={width} must be at least 1, and alpha={alpha} and beta={beta} from 0 to 1")
    if named < 0 or demonstrations < 0:
        raise ValueError(f"named={named} and demonstrations={demonstrations} must be 0 or more")
    plans = [plan_of(one) if one.status != "error" else () for one in found]
    terms = dict(memory=memory, imagined=imagined, above=above, alpha=alpha, beta=beta, named=named)
    costs, first = estimates(found, plans, **terms), beginnings(found)
    sampled: dict[Plan, int] = {}
    for one, plan in zip(found, plans, strict=True):
        for turn in range(len(plan)):
            sampled[plan[:turn]] = sampled.get(plan[:turn], 0) + (turn >= begun(one))
    still_open = [plan for plan in first if sampled.get(plan, 0) < width] or [()]
    least = min(costs[plan] for plan in still_open)
    return [first[dice.choice([plan for plan in still_open if costs[plan] == least])]] * count


def answer(
    found: Sequence[Trajectory],
    *,
    memory: Sequence[Plan],
    alpha: float = 0.5,
    beta: float = 0.5,
    named: int = 0,
) -> int:
    """Which episode is the search's answer: the plan of the least f that has ended, whose h is 0. -1 if there is none.

    No reward is read here: what the group's own episodes have earned is not in memory. Where by_a_star had it in its
    memory (above < inf), the draws that f counts are those of a search that saw it. Arguments as in by_a_star.
    """
    plans = [plan_of(one) if one.status != "error" else () for one in found]
    terms = dict(memory=memory, above=float("inf"), alpha=alpha, beta=beta, named=named)
    costs = estimates(found, plans, imagined={plan: len(plan) for plan in plans}, **terms)
    ended = [index for index, plan in enumerate(plans) if plan]
    return min(ended, key=lambda index: costs[plans[index]], default=-1)


def beginnings(found: Sequence[Trajectory]) -> dict[Plan, Point]:
    """Where an episode can begin: plan -> the first place (index in found, turn) that goes on from it; () -> None."""
    first: dict[Plan, Point] = {(): None}
    for index, one in enumerate(found):
        plan = plan_of(one) if one.status != "error" else ()
        for turn in range(len(plan)):
            first.setdefault(plan[:turn], (index, turn))
    return first


def plan_of(one: Trajectory) -> Plan:
    """What an episode said, turn by turn."""
    return tuple(span.ids.tobytes() for span in one.sampled()[: len(one.turns)])


def begun(one: Trajectory) -> int:
    """The first turn that was an episode's own draw; those before were its parent's."""
    return one.shared if one.parent >= 0 else 0


def estimates(
    found: Sequence[Trajectory],
    plans: Sequence[Plan],
    *,
    memory: Sequence[Plan],
    imagined: Mapping[Plan, int],
    above: float,
    alpha: float,
    beta: float,
    named: int = 0,
) -> dict[Plan, float]:
    """f of every beginning of the plans, the empty one among them, whose f is 1: nothing is known of it."""
    solved = [plan for one, plan in zip(found, plans, strict=True) if plan and one.reward > above]
    known = list(dict.fromkeys(called(plan, named) for plan in [*memory, *solved]))
    through: dict[Plan, list[int]] = {}  # plan -> lengths of the episodes that went through it
    drawn: dict[Plan, int] = {}  # plan -> how often its last turn was drawn
    tried: dict[Plan, int] = {}  # plan -> draws after it
    for one, plan in zip(found, plans, strict=True):
        for turn in range(1, len(plan) + 1):
            own, before = turn - 1 >= begun(one), plan[: turn - 1]
            through.setdefault(plan[:turn], []).append(len(plan))
            drawn[plan[:turn]] = drawn.get(plan[:turn], 0) + own
            tried[before] = tried.get(before, 0) + own
    result, spent = {(): 1.0}, {(): 0.0}
    for plan in sorted(through, key=len):
        short = called(plan, named)
        similar = max((common(short, other) / min(len(short), len(other)) for other in known), default=0.0)
        agreed = drawn[plan] / tried[plan[:-1]]
        spent[plan] = spent[plan[:-1]] + (1 - similar) ** alpha * (1 - agreed) ** (1 - alpha)
        rest = len(plan) / max(imagined.get(plan, min(through[plan])), len(plan))
        result[plan] = spent[plan] + (1 - placed(short[-1], known)) ** beta * (1 - rest) ** (1 - beta)
    return result


def called(plan: Plan, named: int) -> Plan:
    """A plan of the first `named` tokens of each turn; 0: of all."""
    size = named * np.dtype(np.int32).itemsize
    return tuple(action[:size] for action in plan) if named else plan


def placed(action: bytes, memory: Sequence[Plan]) -> float:
    """Where an action is in the plans that have it, from 0 to 1, their mean; that of the most alike one if none has."""
    if not any(action in plan for plan in memory):
        action = nearest(action, memory)
    places = [(plan.index(action) + 1) / len(plan) for plan in memory if action in plan]
    return sum(places) / len(places) if places else 0.0


def nearest(action: bytes, memory: Sequence[Plan]) -> bytes:
    """The action of memory that shares most of its tokens with this one, in order; b"" if none shares any."""
    own, best, like = np.frombuffer(action, np.int32).tolist(), b"", 0.0
    for other in sorted({other for plan in memory for other in plan}):
        tokens = np.frombuffer(other, np.int32).tolist()
        found = common(own, tokens) / max(min(len(own), len(tokens)), 1)
        best, like = (other, found) if found > like else (best, like)
    return best


def common(one: Sequence, other: Sequence) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = row
        row = [0]
        for place, like in enumerate(other):
            row.append(before[place] + 1 if word == like else max(row[place], before[place + 1]))
    return row[-1]
