"""A* over the turns of a group: f on a small tree by hand, what it opens and closes, and its answer."""

import itertools
import random

import numpy as np
import pytest

from rl_jax.experience import a_star
from rl_jax.experience.a_star import by_a_star, common, estimates, plan_of
from rl_jax.experience.trajectory import Span, Trajectory, Turn

ALONE = dict(memory=(), imagined={})  # only the group's own episodes


def episode(sample, said, reward=0.0, parent=-1, shared=0, status="done"):
    spans = [Span("prompt", np.array([0], np.int32))]
    for word in said:
        ids, none = np.atleast_1d(np.array(word, np.int32)), np.zeros(np.size(word), np.float32)
        spans.append(Span("sampled", ids, none, none, ids * 0))
    turns = tuple(Turn(reward if place == len(said) - 1 else 0.0) for place in range(len(said)))
    return Trajectory("p", 0, sample, (tuple(spans),), turns, status, "", parent, shared)


def plan(*said):
    return tuple(np.atleast_1d(np.array(word, np.int32)).tobytes() for word in said)


def lcs(one, other):
    """By enumeration of all subsequences."""
    kept = ([set(itertools.combinations(x, k)) for x in (one, other)] for k in range(len(one) + 1))
    return max(k for k, (ours, theirs) in enumerate(kept) if ours & theirs)


def by_hand(said, agreed, memory, whole, alpha=0.3, beta=0.6):
    """The paper's sum: said and memory as tuples of words, `agreed` a share a turn, `whole` the length of n_T."""
    g = 0.0
    for turn, share in enumerate(agreed, 1):
        best = max(lcs(said[:turn], other) / min(turn, len(other)) for other in memory)
        g += (1 - best) ** alpha * (1 - share) ** (1 - alpha)
    places = [(other.index(said[-1]) + 1) / len(other) for other in memory if said[-1] in other]
    return g + (1 - (np.mean(places) if places else 0.0)) ** beta * (1 - len(said) / whole) ** (1 - beta)


def test_f_is_the_papers_sum_by_hand():
    found = [episode(0, [1, 2, 3], 1.0), episode(1, [1, 3]), episode(2, [1, 2, 4, 4]), episode(3, [5])]
    found.append(episode(4, [1, 6], parent=0, shared=1))  # that 1 was said is the parent's draw
    plans = [plan_of(one) for one in found]
    cases = {(1,): ([3 / 4], 2), (1, 2): ([3 / 4, 2 / 4], 3), (1, 2, 4): ([3 / 4, 2 / 4, 1 / 2], 4)}
    cases |= {(5,): ([1 / 4], 1), (1, 3): ([3 / 4, 1 / 4], 2), (1, 2, 4, 4): ([3 / 4, 2 / 4, 1 / 2, 1], 4)}
    cases |= {(1, 6): ([3 / 4, 1 / 4], 2)}
    costs = estimates(found, plans, **ALONE, above=0.5, alpha=0.3, beta=0.6)
    for said, (agreed, shortest) in cases.items():
        assert costs[plan(*said)] == pytest.approx(by_hand(said, agreed, [(1, 2, 3)], shortest)), said
    assert costs[()] == 1 and common(plan(1, 2, 3, 1), plan(2, 1, 1)) == 2
    # With other tasks' plans, one of them the group's own again, and rests that were imagined.
    others, imagined = [(4, 1), (1, 2, 3)], {plan(1): 5, plan(1, 2): 2, plan(1, 2, 4): 9}
    options = dict(memory=[plan(*other) for other in others], imagined=imagined, above=0.5, alpha=0.3, beta=0.6)
    costs = estimates(found, plans, **options)
    whole = {(1,): 5, (1, 2): 2, (1, 2, 4): 9}  # the second was imagined to end at once: nothing is left
    for said, (agreed, shortest) in cases.items():
        expected = by_hand(said, agreed, others, whole.get(said, shortest))
        assert costs[plan(*said)] == pytest.approx(expected), said


def test_memory_compares_tools_and_what_is_alike():
    """`named` tokens of a turn; an action that memory does not have is the one that shares most of its tokens."""
    assert a_star.called(plan([7, 1, 2], [8, 1]), 1) == plan(7, 8) and a_star.called(plan([7, 1]), 0) == plan([7, 1])
    memory = [plan([7, 1, 2], [8, 3]), plan([9, 9], [8, 3], [7, 4], [5])]
    assert a_star.placed(plan([8, 3])[0], memory) == pytest.approx((2 / 2 + 2 / 4) / 2)
    assert a_star.nearest(plan([7, 2, 4, 6])[0], memory) == plan([7, 4])[0]  # 2 of 2, where [7, 1, 2] has 2 of 3
    assert a_star.placed(plan([7, 2, 4, 6])[0], memory) == pytest.approx(3 / 4)
    assert a_star.placed(plan([6])[0], memory) == 0.0 == a_star.placed(plan([6])[0], [])
    found = [episode(0, [[7, 9], [8, 8]]), episode(1, [[5, 1], [5, 2]])]  # other words, of the tools 7, 8 and 5
    options = dict(memory=memory[:1], imagined={}, width=4, above=9.0, alpha=1.0, beta=1.0)
    assert by_a_star(found, 1, random.Random(0), named=1, **options) == [(0, 1)]
    agreed = [*found, episode(2, [[5, 1], [6]])]  # two of three have said [5, 1]
    assert by_a_star(agreed, 1, random.Random(0), **(options | dict(alpha=0.0))) == [(1, 1)]


def test_the_least_open_plan_is_expanded():
    """Ended plans are no beginnings; one with `width` turns after it is closed; shared turns are the parent's draws."""
    found = [episode(0, [1, 2]), episode(1, [1, 3]), episode(2, [4, 4])]
    assert by_a_star(found, 2, random.Random(0), **ALONE, width=3) == [(0, 1)] * 2  # two of three have said 1
    closed = [*found, episode(3, [1, 5], parent=0, shared=1)]
    assert by_a_star(closed, 1, random.Random(0), **ALONE, width=3) == [(2, 1)]
    assert by_a_star(closed, 1, random.Random(0), **ALONE, width=9) == [None]  # nothing was paid for the prompt
    assert by_a_star([episode(0, [1]), episode(1, [2])], 1, random.Random(0), **ALONE) == [None]  # only the prompt
    assert by_a_star([episode(0, [], status="error")], 1, random.Random(0), **ALONE) == [None]
    imagined = {plan(1): 9, plan(4): 1}  # a long way after the one that most have said
    assert by_a_star(found, 1, random.Random(0), memory=(), imagined=imagined, width=3, alpha=1.0) == [(2, 1)]
    for wrong in (dict(width=0), dict(alpha=1.5), dict(beta=-1.0), dict(named=-1), dict(demonstrations=-1)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
            by_a_star(found, 1, random.Random(0), **ALONE, **wrong)


def test_memory_leads_beside_what_was_agreed_on():
    """With a plan that worked, a rarer beginning that is like it costs less than the one that most have taken."""
    found = [episode(n, [1, 3, 3]) for n in range(3)] + [episode(3, [5, 2, 4], 1.0), episode(4, [6, 5, 1])]
    options = dict(width=4, alpha=1.0, beta=1.0) | ALONE
    assert by_a_star(found, 1, random.Random(0), **options) == [(3, 2)]  # g = 0, h = 1 - 2 / 3
    options = dict(above=9.0, width=4, alpha=0.0, beta=0.0) | ALONE
    assert by_a_star(found, 1, random.Random(0), **options) == [(0, 2)]  # no memory


def test_the_answer_is_the_ended_plan_of_the_least_cost():
    """By agreement without a memory, by likeness with one; what the episodes have earned is not read."""
    found = [episode(0, [1, 2]), episode(1, [1, 2]), episode(2, [5, 6], 1.0), episode(3, [], status="error")]
    assert a_star.answer(found, memory=[]) == 0
    assert a_star.answer(found, memory=[plan(5, 6)]) == 2
    assert a_star.answer(found[3:], memory=[plan(5, 6)]) == -1
