"""Tree search whose values are the policy's own judgement of whole episodes, and pairs of turns by them. No jax.

Who plays the episodes writes the judgement into the numbers of each episode's last turn (config.agent.own_judgement),
the environment a first guess into those of every turn:

    own_value    sum over grades g of w_g p(g | the judging prompt) / 4,   w = 1, .1, -1, -2 for A, B, C, D
    guess        before any episode has gone through: how much of the turn is in the known answer

Source: arXiv 2501.09766 (iTool), its code (zeng-yirong/iTool, mcts/mcts_vllm.py: get_reward, Node.best_child,
get_perference_data; mcts/utils.py: EVAL_PROMPT_with_GT). Of the paper its abstracts were read, not its method.
"""

import random
from collections.abc import Sequence

import numpy as np

from rl_jax.experience.branching import Point
from rl_jax.experience.trajectory import Trajectory
from rl_jax.experience.tree_search import ROOT, Node, by_confident_value, paths

OWN_VALUE, GUESS = "own_value", "guess"  # of a turn's numbers
WEIGHTS = (1.0, 0.1, -1.0, -2.0)  # of the grades excellent, acceptable, fair, poor


def graded_value(probs: np.ndarray) -> np.ndarray:
    """The value of a judgement, sum_g w_g p_g / 4, from -.5 to .25.

    Args:
      probs: float [..., 4], of the grades from the best to the worst; what other answers have is missing in the sum.

    Returns:
      float32 [...].

    Raises:
      ValueError: if the last axis is not that of the grades.
    """
    if probs.shape[-1:] != (len(WEIGHTS),):
        raise ValueError(f"probs of shape {probs.shape} must end with an axis of {len(WEIGHTS)} grades")
    return (np.asarray(probs, np.float64) @ np.array(WEIGHTS) / len(WEIGHTS)).astype(np.float32)


def by_judgement(
    found: Sequence[Trajectory], count: int, dice: random.Random, *, explore: float = 1.0, actions: int = 2
) -> list[Point]:
    """As tree_search.by_confidence, with the policy's own judgement in the place of the reward, and a first guess.

        at a node with N episodes below it and k children:
        a new child, if k <= actions, or if all children have ended
        else on to the child with the largest  V / (n + 1) + explore p sqrt(log N / (n + 1))
        V: guess + the sum of own_value of its n episodes;   p = exp(mean log pi of its turn's tokens)

    There a step is a part of one response, here a turn; a simulation goes down the best known children first and is
    judged where it stops, here an episode is played to its end.

    Args:
      found: the group's episodes so far; a parent stands before its branches.
      count: how many to begin.
      dice: breaks ties.
      explore: weight of the exploration.
      actions: turns sampled at a node before it is passed, less one.

    Returns:
      As branching.at_random.

    Raises:
      ValueError: if a setting is out of its range, or an episode has no judgement.
    """
    values = node_values(found)
    return by_confident_value(found, count, dice, lambda tree, node: values[node], explore, actions)


def node_values(found: Sequence[Trajectory]) -> dict[Node, float]:
    """V of each turn of a group's episodes: its guess, and the sum of own_value of those that went through it.

    Raises:
      ValueError: if an episode has no judgement.
    """
    values: dict[Node, float] = {}
    for one, way in zip(found, paths(found), strict=True):
        if one.status == "error":
            continue
        if not one.turns or OWN_VALUE not in one.turns[-1].numbers:
            raise ValueError(f"sample {one.sample} of prompt {one.prompt_id!r} has no judgement: agent.own_judgement")
        for node, turn in zip(way, one.turns, strict=True):
            values[node] = values.get(node, turn.numbers.get(GUESS, 0.0)) + one.turns[-1].numbers[OWN_VALUE]
    return values


def judged_pairs(
    group: Sequence[Trajectory], *, gap: float = 0.1, least: float = -0.3
) -> list[tuple[tuple[int, ...], list[tuple[int, ...]], list[float]]]:
    """After each history the turn of the largest V against that of the smallest.

        (context, [ids of the best, of the worst], [their V])   if V_best - V_worst >= gap and V_best >= least

    Equal turns are no pair. (The code leaves out pairs that have 95 % of their words in common; there a turn is many
    words, here a few letters.)

    Args:
      group: its episodes; a parent stands before its branches.
      gap: value_threshold there.
      least: accept_value there.

    Raises:
      ValueError: if an episode has no judgement.
    """
    group = [one for one in group if one.status != "error"]
    values, said, children = node_values(group), {}, {ROOT: []}
    for one, way in zip(group, paths(group), strict=True):
        for before, node, place in zip((ROOT, *way), way, _read(one), strict=False):
            said[node] = place
            if node not in children.setdefault(before, []):
                children[before].append(node)
    result = []
    for nodes in children.values():
        if len(nodes) < 2:
            continue
        best, worst = max(nodes, key=values.__getitem__), min(nodes, key=values.__getitem__)
        (context, good), (_, bad) = said[best], said[worst]
        if good != bad and good and bad and values[best] - values[worst] >= gap and values[best] >= least:
            result.append((context, [good, bad], [values[best], values[worst]]))
    return result


def _read(one: Trajectory) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(what was read in its segment, what was said) of each turn, as ids."""
    found = []
    for spans in one.segments:
        context: tuple[int, ...] = ()
        for span in spans:
            ids = tuple(span.ids.tolist())
            if span.kind == "sampled":
                found.append((context, ids))
            context += ids
    return found
