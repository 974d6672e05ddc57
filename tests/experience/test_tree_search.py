"""UCT over the turns of a group: what it selects on trees of known values, and that a search finds the best way."""

import random

import pytest

from rl_jax.experience.trajectory import Trajectory, Turn
from rl_jax.experience.tree_search import by_uct, paths


def episode(sample, rewards, parent=-1, shared=0, status="done"):
    return Trajectory("p", 0, sample, (), tuple(Turn(r) for r in rewards), status, "", parent, shared)


def test_branches_share_their_parents_nodes():
    found = [episode(0, [0, 0, 1]), episode(1, [0, 0, 0], 0, 2), episode(2, [0, 1], 1, 1)]
    assert paths(found) == [[(0, 0), (0, 1), (0, 2)], [(0, 0), (0, 1), (1, 2)], [(0, 0), (2, 1)]]


def test_the_better_child_is_followed_and_the_rarer_one_explored():
    found = [episode(0, [0, 0, 1]), episode(1, [0, 0, 0]), episode(2, [0, 0, 0], 1, 1), episode(3, [0, 0, 0], 1, 1)]
    point = by_uct(found, 1, random.Random(0), explore=0.0)
    assert point == [(0, 2)] or point == [(0, 1)]  # below the first answer of episode 0
    assert point[0][0] == 0
    assert by_uct(found, 1, random.Random(0), explore=0.0, power=0.0) == [(0, 2)]  # one child each: to the last turn
    assert by_uct(found, 1, random.Random(0), widen=9.0) == [None]  # the prompt wants more children
    ended = [episode(0, [1.0]), episode(1, [0.0])]
    assert by_uct(ended, 2, random.Random(0), power=0.0) == [None, None]  # nothing to go on from
    assert by_uct([episode(0, [], status="error")], 1, random.Random(0)) == [None]


def test_choices_of_one_round_spread():
    found = [episode(n, [0, 0, 0, 0]) for n in range(4)]
    points = by_uct(found, 4, random.Random(0), power=0.0)
    assert len({point[0] for point in points}) == 4


def test_a_search_finds_the_best_leaf_more_often_than_chance():
    """Three answers of four kinds each; 2, 3, 1 earns 1, its beginnings .3 each; otherwise the player guesses."""

    def play(dice, begun):
        said = [*begun, *(dice.randrange(4) for _ in range(3 - len(begun)))]
        right = [said[: n + 1] == [2, 3, 1][: n + 1] for n in range(3)]
        return said, [0.3 * right[0], 0.3 * right[1], 0.4 * right[2]]

    solved = {"search": 0, "chance": 0}
    for seed in range(40):
        dice = random.Random(seed)
        for name in solved:
            told, found = [], []
            for number in range(24):
                point = by_uct(found, 1, dice, explore=0.5, widen=1.5)[0] if name == "search" and found else None
                begun = told[point[0]][: point[1]] if point else []
                said, rewards = play(dice, begun)
                told.append(said)
                found.append(episode(number, rewards, point[0] if point else -1, len(begun)))
            solved[name] += any(one.reward == 1 for one in found)
    assert solved["search"] > 1.5 * solved["chance"], solved


def test_settings():
    with pytest.raises(ValueError, match="explore=-1 must not be below 0"):
        by_uct([], 1, random.Random(0), explore=-1)
