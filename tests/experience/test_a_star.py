"""A* over the turns of a group: f on a small tree by hand, what it opens and closes, and a search against chance."""

import itertools
import random

import numpy as np
import pytest

from rl_jax.experience.a_star import by_a_star, common, estimates, plan_of
from rl_jax.experience.trajectory import Span, Trajectory, Turn


def episode(sample, said, reward=0.0, parent=-1, shared=0, status="done"):
    spans = [Span("prompt", np.array([0], np.int32))]
    for word in said:
        ids, none = np.array([word], np.int32), np.zeros(1, np.float32)
        spans.append(Span("sampled", ids, none, none, ids * 0))
    turns = tuple(Turn(reward if place == len(said) - 1 else 0.0) for place in range(len(said)))
    return Trajectory("p", 0, sample, (tuple(spans),), turns, status, "", parent, shared)


def plan(*said):
    return tuple(np.array([word], np.int32).tobytes() for word in said)


def test_f_is_the_papers_sum_by_hand():
    found = [episode(0, [1, 2, 3], 1.0), episode(1, [1, 3]), episode(2, [1, 2, 4, 4]), episode(3, [5])]
    found.append(episode(4, [1, 6], parent=0, shared=1))  # that 1 was said is the parent's draw
    costs = estimates(found, [plan_of(one) for one in found], above=0.5, alpha=0.3, beta=0.6)
    memory = plan(1, 2, 3)

    def by_hand(said, agreed, shortest):
        g = 0.0
        for turn, share in enumerate(agreed, 1):
            begun = plan(*said[:turn])
            parts = ([set(itertools.combinations(one, k)) for one in (begun, memory)] for k in range(turn + 1))
            best = max(k for k, (ours, theirs) in enumerate(parts) if ours & theirs)
            g += (1 - best / min(turn, 3)) ** 0.3 * (1 - share) ** 0.7
        placed = (memory.index(plan(said[-1])[0]) + 1) / 3 if plan(said[-1])[0] in memory else 0.0
        return g + (1 - placed) ** 0.6 * (1 - len(said) / shortest) ** 0.4

    expected = {(1,): ([3 / 4], 2), (1, 2): ([3 / 4, 2 / 4], 3), (1, 2, 4): ([3 / 4, 2 / 4, 1 / 2], 4)}
    expected |= {(5,): ([1 / 4], 1), (1, 3): ([3 / 4, 1 / 4], 2), (1, 2, 4, 4): ([3 / 4, 2 / 4, 1 / 2, 1], 4)}
    expected |= {(1, 6): ([3 / 4, 1 / 4], 2)}
    for said, (agreed, shortest) in expected.items():
        assert costs[plan(*said)] == pytest.approx(by_hand(said, agreed, shortest)), said
    assert costs[()] == 1 and common(plan(1, 2, 3, 1), plan(2, 1, 1)) == 2


def test_the_least_open_plan_is_expanded():
    """Ended plans are no beginnings; one with `width` turns after it is closed; shared turns are the parent's draws."""
    found = [episode(0, [1, 2]), episode(1, [1, 3]), episode(2, [4, 4])]
    assert by_a_star(found, 2, random.Random(0), width=3) == [(0, 1)] * 2  # two of three have said 1
    closed = [*found, episode(3, [1, 5], parent=0, shared=1)]
    assert by_a_star(closed, 1, random.Random(0), width=3) == [(2, 1)]
    assert by_a_star(closed, 1, random.Random(0), width=9) == [None]  # nothing was paid for the prompt
    assert by_a_star([episode(0, [1]), episode(1, [2])], 1, random.Random(0)) == [None]  # only the prompt is open
    assert by_a_star([episode(0, [], status="error")], 1, random.Random(0)) == [None]
    with pytest.raises(ValueError, match="width=0"):
        by_a_star(found, 1, random.Random(0), width=0)


def test_memory_leads_beside_what_was_agreed_on():
    """With a plan that worked, a rarer beginning that is like it costs less than the one that most have taken."""
    found = [episode(n, [1, 3, 3]) for n in range(3)] + [episode(3, [5, 2, 4], 1.0), episode(4, [6, 5, 1])]
    options = dict(width=4, alpha=1.0, beta=1.0)
    assert by_a_star(found, 1, random.Random(0), **options) == [(3, 2)]  # g = 0, h = 1 - 2 / 3
    assert by_a_star(found, 1, random.Random(0), above=9.0, width=4, alpha=0.0, beta=0.0) == [(0, 2)]  # no memory
