"""Monte Carlo tree search over the turns of a group's episodes: where the next ones leave it. No jax.

Named in a config by its import path, agent.branching "rl_jax.experience.tree_search:by_uct".
"""

import math
import random
from collections.abc import Sequence

from rl_jax.experience.branching import Point
from rl_jax.experience.trajectory import Trajectory

ROOT = (-1, -1)
Node = tuple[int, int]  # (index in found of the episode that spoke a turn first, the turn); ROOT: before any


def by_uct(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    *,
    explore: float = 1.0,
    widen: float = 1.0,
    power: float = 0.5,
) -> list[Point]:
    """Each new episode begins where UCT leads from the prompt.

        at a node with N episodes below it and k children:
        a new child, if k < max(widen N^power, 1), or if all children have ended (progressive widening)
        else on to the child with the largest  Q + explore sqrt(log N / n),   Q its mean return, n its episodes

    A node is a turn, a child a turn that follows it; an episode that begins there samples a new one, plays to its end
    (the simulation), and is in all means on its way (the backup) from the next round on. The choices of one round count
    each other as visits without a return, so that they spread. iTool (arXiv 2501.09766) searches with MCTS over steps
    of a response, with values from the outcome and the model's own confidence; here a step is a turn, the value the
    mean return. Pairs of its children are `rl_jax.preferences.episodes`' pairs of turns.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin.
      dice: breaks ties.
      explore: c.
      widen: children of a node with one episode.
      power: how children grow with episodes, 0 to 1.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range.
    """
    if explore < 0 or widen <= 0 or not 0 <= power <= 1:
        raise ValueError(f"explore={explore} must not be below 0, widen={widen} above 0, and power={power} from 0 to 1")
    ways = paths(found)
    visits: dict[Node, float] = {ROOT: 0}
    returns: dict[Node, list[float]] = {}
    children: dict[Node, list[Node]] = {ROOT: []}
    ended = {way[-1] for i, way in enumerate(ways) if way and found[i].status != "error"}
    for one, way in zip(found, ways, strict=True):
        if one.status == "error":
            continue
        for before, node in zip((ROOT, *way), way, strict=False):
            if node not in children.setdefault(before, []):
                children[before].append(node)
        for node in (ROOT, *way):
            visits[node] = visits.get(node, 0) + 1
            returns.setdefault(node, []).append(one.reward)
    chosen: list[Point] = []
    for _ in range(count):
        node, way = ROOT, [ROOT]
        while True:
            open_ones = [child for child in children.get(node, []) if child not in ended]
            if len(children.get(node, [])) < max(widen * visits[node] ** power, 1) or not open_ones:
                break
            total = math.log(max(visits[node], 1))
            worth = {
                child: sum(returns[child]) / len(returns[child]) + explore * math.sqrt(total / visits[child])
                for child in open_ones
            }
            best = max(worth.values())
            node = dice.choice([child for child in open_ones if worth[child] == best])
            way.append(node)
        for visited in way:
            visits[visited] += 1
        chosen.append(None if node == ROOT else (node[0], node[1] + 1))
    return chosen


def paths(found: Sequence[Trajectory]) -> list[list[Node]]:
    """The nodes of each episode, in order; what it shares with its parent are the parent's."""
    place = {one.sample: index for index, one in enumerate(found)}
    result: list[list[Node]] = []
    for index, one in enumerate(found):
        shared = result[place[one.parent]][: one.shared] if one.parent >= 0 else []
        result.append([*shared, *((index, turn) for turn in range(len(shared), len(one.turns)))])
    return result
