"""UCT over the turns of a group: what it selects on trees of known values, and that a search finds the best way."""

import random

import numpy as np
import pytest

from rl_jax.experience.trajectory import Trajectory, Turn, prompt, sampled
from rl_jax.experience.tree_search import by_confidence, by_uct, grown, paths


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


def spoken(sample, rewards, log_probs, parent=-1, shared=0):
    """An episode whose turns have these log-probs of their tokens."""
    spans = [sampled(np.arange(len(row)), np.zeros(len(row)), np.float32(row), 0) for row in log_probs]
    return episode(sample, rewards, parent, shared)._replace(segments=((prompt([1]), *spans),))


def test_the_models_confidence_weighs_the_exploration():
    """Three answers to the prompt, as many as actions = 2 wants; then V / (n + 1) + c p sqrt(log N / (n + 1))."""
    logs, rewards = [[-0.1, -0.3], [-2.0], [-1.0]], [0, 1, 0.2]
    found = [spoken(n, [0, rewards[n]], [logs[n], [-1.0]]) for n in range(3)]
    tree = grown(found)
    assert [tree.confidence[n, 0] for n in range(3)] == pytest.approx(np.exp([-0.2, -2.0, -1.0]))
    for explore in (0.0, 1.0, 5.0):
        scores = np.array([0, 1, 0.2]) / 2 + explore * np.exp([-0.2, -2.0, -1.0]) * np.sqrt(np.log(3) / 2)
        assert by_confidence(found, 1, random.Random(0), explore=explore) == [(int(np.argmax(scores)), 1)]
    assert by_confidence(found, 1, random.Random(0), actions=3) == [None]  # the prompt wants a fourth answer
    two = by_confidence(found, 2, random.Random(0), explore=0.0)
    assert two == [(1, 1), (1, 1)]  # 1 / 3 after the first choice is still more than .2 / 2
    assert len(set(by_confidence(found, 12, random.Random(0), explore=5.0))) > 1  # choices spread
    with pytest.raises(ValueError, match="actions=-1 must not be below 0"):
        by_confidence(found, 1, random.Random(0), actions=-1)


def test_settings():
    with pytest.raises(ValueError, match="explore=-1 must not be below 0"):
        by_uct([], 1, random.Random(0), explore=-1)
