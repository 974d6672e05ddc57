"""Monte Carlo tree search over the turns of a group's episodes: where the next ones leave it. No jax.

Named in a config by its import path, agent.branching "rl_jax.experience.tree_search:by_uct".
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    each other as visits without a return, so that they spread. Pairs of its children are
    `rl_jax.preferences.episodes`' pairs of turns.

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
    tree = grown(found)

    def worth(node: Node, before: Node) -> float:
        total = math.log(max(tree.visits[before], 1))
        known = tree.returns[node]
        return sum(known) / len(known) + explore * math.sqrt(total / tree.visits[node])

    return descend(tree, count, dice, lambda node, number: number < max(widen * tree.visits[node] ** power, 1), worth)


def by_confidence(
    found: Sequence[Trajectory], count: int, dice: random.Random, *, explore: float = 1.0, actions: int = 2
) -> list[Point]:
    """As by_uct, with the model's own confidence in a turn as the weight of exploration, and a fixed width.

        at a node with N episodes below it and k children:
        a new child, if k <= actions, or if all children have ended
        else on to the child with the largest  V / (n + 1) + explore p sqrt(log N / (n + 1))
        V: the sum of the returns of its n episodes;   p = exp(mean log pi of its turn's tokens)

    Source: arXiv 2501.09766 (iTool), its code (zeng-yirong/iTool, mcts/mcts_vllm.py: Node.best_child, get_actions and
    mcts; num_actions 2, exploration_weight 1). There a step is a part of one response, V also has a first guess from
    the overlap with the known answer, and rewards are the model's own judgement of the response (A to D, as 1, .1, -1
    and -2 times their probabilities, over 4); here a step is a turn, and a reward the environment's.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin.
      dice: breaks ties.
      explore: weight of the exploration.
      actions: turns sampled at a node before it is passed, less one.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range.
    """
    return by_confident_value(found, count, dice, lambda tree, node: sum(tree.returns[node]), explore, actions)


def by_confident_value(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    value: Callable[["Tree", Node], float],
    explore: float,
    actions: int,
) -> list[Point]:
    """The search of `by_confidence` with any V.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin.
      dice: breaks ties.
      value: (the tree, a node) -> V.
      explore: weight of the exploration.
      actions: turns sampled at a node before it is passed, less one.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range.
    """
    if explore < 0 or actions < 0:
        raise ValueError(f"explore={explore} and actions={actions} must not be below 0")
    tree = grown(found)

    def worth(node: Node, before: Node) -> float:
        visits = tree.visits[node] + 1
        total = math.log(max(tree.visits[before], 1))
        return value(tree, node) / visits + explore * tree.confidence[node] * math.sqrt(total / visits)

    return descend(tree, count, dice, lambda node, number: number <= actions, worth)


class Tree(NamedTuple):
    """The turns of a group's episodes, without those whose environment failed.

    Attributes:
      visits: episodes that went through each node; more after `descend`, which counts its own choices.
      returns: of these episodes.
      children: of each node, in the order in which they were spoken.
      ended: nodes after which an episode has ended.
      confidence: exp(mean log pi) of each node's turn; 1 if it has no tokens.
    """

    visits: dict[Node, float]
    returns: dict[Node, list[float]]
    children: dict[Node, list[Node]]
    ended: set[Node]
    confidence: dict[Node, float]


def grown(found: Sequence[Trajectory]) -> Tree:
    """The tree of a group's episodes."""
    ways = paths(found)
    tree = Tree({ROOT: 0}, {}, {ROOT: []}, set(), {})
    for one, way in zip(found, ways, strict=True):
        if one.status == "error":
            continue
        tree.ended.update(way[-1:])
        spans = one.sampled()
        for turn, (before, node) in enumerate(zip((ROOT, *way), way, strict=False)):
            if node not in tree.children.setdefault(before, []):
                tree.children[before].append(node)
                log_probs = spans[turn].raw_log_probs if turn < len(spans) else ()
                tree.confidence[node] = math.exp(sum(map(float, log_probs)) / max(len(log_probs), 1))
        for node in (ROOT, *way):
            tree.visits[node] = tree.visits.get(node, 0) + 1
            tree.returns.setdefault(node, []).append(one.reward)
    return tree


def descend(
    tree: Tree, count: int, dice: random.Random, is_open: Callable[[Node, int], bool], worth: Callable
) -> list[Point]:
    """Goes `count` times from the prompt to where a new turn is spoken; each way counts as visits for the next.

    Args:
      tree: of the group.
      count: how many.
      dice: breaks ties.
      is_open: (node, number of its children) -> whether a new child is spoken there.
      worth: (child, node) -> the largest is followed.

    Returns:
      As branching.at_random.
    """
    chosen: list[Point] = []
    for _ in range(count):
        node, way = ROOT, [ROOT]
        while True:
            children = tree.children.get(node, [])
            going_on = [child for child in children if child not in tree.ended]
            if is_open(node, len(children)) or not going_on:
                break
            worths = {child: worth(child, node) for child in going_on}
            best = max(worths.values())
            node = dice.choice([child for child in going_on if worths[child] == best])
            way.append(node)
        for visited in way:
            tree.visits[visited] += 1
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
