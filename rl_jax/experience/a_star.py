"""A* over the turns of a group's episodes, as ToolChain* searches plans of tool calls: where to go on. No jax.

Named in a config by its import path, agent.branching "rl_jax.experience.a_star:by_a_star".
"""

import random
from collections.abc import Sequence

from rl_jax.experience.branching import Point
from rl_jax.experience.trajectory import Trajectory

Plan = tuple[bytes, ...]  # what was said in each turn, as token ids


def by_a_star(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    *,
    width: int = 4,
    above: float = 0.5,
    alpha: float = 0.5,
    beta: float = 0.5,
) -> list[Point]:
    """All new episodes begin at the open plan n of the least f(n) = g(n) + h(n).

        g(n) = sum over the turns i of n of  (1 - similar(i))^alpha (1 - agreed(i))^(1 - alpha)
        h(n) = (1 - placed(n))^beta (1 - imagined(n))^(1 - beta)

    A plan is what was said from the prompt on; plans of the same words are one. It is open until `width` turns were
    sampled after it, and closed if it has ended. similar: the longest common subsequence with a plan in memory over the
    shorter one's length, the best of them. agreed: the share of turns sampled at that place that say the same (self-
    consistency); the turns that a branch shares with its parent are the parent's draws. placed: where the last turn is
    in a plan in memory, from 0 to 1, the mean over those that have it. imagined: the plan's length over that of the
    shortest episode that went through it to its end. Memory are the group's own episodes that earned more than `above`;
    without any, similar and placed are 0.
    Source: arXiv 2310.13227 (ToolChain*; the terms from memory). There the memory is of other, solved tasks, words that
    are not the same are compared, and a language model is asked to imagine the rest, which an episode's rest is here.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin: the children that an expansion samples.
      dice: breaks ties.
      width: turns sampled after a plan until it is closed.
      above: the reward of an episode that is remembered.
      alpha: weight of the memory in g, from 0 to 1.
      beta: weight of the memory in h, from 0 to 1.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range.
    """
    if width < 1 or not 0 <= alpha <= 1 or not 0 <= beta <= 1:
        raise ValueError(f"width={width} must be at least 1, and alpha={alpha} and beta={beta} from 0 to 1")
    plans = [plan_of(one) if one.status != "error" else () for one in found]
    costs = estimates(found, plans, above=above, alpha=alpha, beta=beta)
    sampled: dict[Plan, int] = {}
    first: dict[Plan, Point] = {(): None}
    for index, (one, plan) in enumerate(zip(found, plans, strict=True)):
        for turn in range(len(plan)):
            sampled[plan[:turn]] = sampled.get(plan[:turn], 0) + (turn >= begun(one))
            first.setdefault(plan[:turn], (index, turn))
    still_open = [plan for plan in first if sampled.get(plan, 0) < width] or [()]
    least = min(costs[plan] for plan in still_open)
    return [first[dice.choice([plan for plan in still_open if costs[plan] == least])]] * count


def plan_of(one: Trajectory) -> Plan:
    """What an episode said, turn by turn."""
    return tuple(span.ids.tobytes() for span in one.sampled()[: len(one.turns)])


def begun(one: Trajectory) -> int:
    """The first turn that was an episode's own draw; those before were its parent's."""
    return one.shared if one.parent >= 0 else 0


def estimates(
    found: Sequence[Trajectory], plans: Sequence[Plan], *, above: float, alpha: float, beta: float
) -> dict[Plan, float]:
    """f of every beginning of the plans, the empty one among them, whose f is 1: nothing is known of it."""
    memory = [plan for one, plan in zip(found, plans, strict=True) if plan and one.reward > above]
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
        similar = max((common(plan, other) / min(len(plan), len(other)) for other in memory), default=0.0)
        agreed = drawn[plan] / tried[plan[:-1]]
        spent[plan] = spent[plan[:-1]] + (1 - similar) ** alpha * (1 - agreed) ** (1 - alpha)
        places = [(other.index(plan[-1]) + 1) / len(other) for other in memory if plan[-1] in other]
        placed = sum(places) / len(places) if places else 0.0
        imagined = len(plan) / min(through[plan])
        result[plan] = spent[plan] + (1 - placed) ** beta * (1 - imagined) ** (1 - beta)
    return result


def common(one: Plan, other: Plan) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = row
        row = [0]
        for place, like in enumerate(other):
            row.append(before[place] + 1 if word == like else max(row[place], before[place + 1]))
    return row[-1]
