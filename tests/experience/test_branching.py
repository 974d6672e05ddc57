"""rl_jax.experience.branching: what a branch shares with its parent, which rows share what, and where one branches."""

import functools
import random
import threading

import numpy as np
import pytest

from rl_jax.experience import branching
from rl_jax.experience import trajectory as t
from rl_jax.experience.branching import Moments
from rl_jax.experience.episode import Ask
from rl_jax.experience.episodes import Environments, play
from rl_jax.tokenizers.dialogue import dialogue_of
from tests.experience.test_episodes import LIMITS, TOKENIZER, Asker, Failing, Parrot, asks, texts


def tree(make=Asker, points=((0, 1), (0, 2))):
    """Two roots of one prompt, then an episode after each of the points; (trajectories, what was sampled)."""
    saved, sampler, envs = Moments(), Parrot(), Environments(make)
    options = dict(envs=envs, dialogues=dialogue_of(TOKENIZER), sampler=sampler, limits=LIMITS, saved=saved)
    roots = asks(groups=1)
    found = play(roots, **options)
    sampler.seen.clear()
    more = [Ask(2 + n, roots[0].record, 0, 2 + n, 5, after) for n, after in enumerate(points)]
    return found + play(more, **options), sampler.seen


def test_a_branch_has_its_parents_first_turns_and_goes_on_by_itself():
    (parent, _, first, second), drawn = tree()
    assert [(x.parent, x.shared, len(x.turns), x.status) for x in (parent, first, second)] == [
        (-1, 0, 3, "done"), (0, 1, 3, "done"), (0, 2, 3, "done")
    ]  # fmt: skip
    assert [draw.number for draw in drawn] == [2, 3, 2]  # nothing of what is shared is sampled again
    for child in (first, second):
        shared = 2 * child.shared + 1  # the prompt, and each turn with its answer
        for span, like in zip(child.segments[0][:shared], parent.segments[0][:shared], strict=True):
            np.testing.assert_array_equal(span.ids, like.ids)
            np.testing.assert_array_equal(span.log_probs, like.log_probs)
        assert (
            texts(child)[shared] != texts(parent)[shared]
            and child.turns[: child.shared] == parent.turns[: child.shared]
        )
        assert child.reward == 3.0
    assert texts(parent) == texts(play_alone())  # its own environment was not moved by the copies


def play_alone():
    return play(asks(groups=1), Environments(Asker), dialogue_of(TOKENIZER), Parrot(), LIMITS)[0]


def test_a_branch_of_a_branch_and_the_record_of_both():
    found, _ = tree(points=((0, 1),))
    again = t.from_table(t.to_table(found))
    assert [(x.parent, x.shared) for x in again] == [(-1, 0), (-1, 0), (0, 1)]
    older = t.to_table(found).drop_columns(["parent", "shared"])
    assert [(x.parent, x.shared) for x in t.from_table(older)] == [(-1, 0)] * 3


def test_an_environment_that_fails_in_a_branch_begins_there_again():
    Failing.count, Failing.opened = 0, []
    expected, _ = tree(points=((0, 1),))

    class Late(Asker):
        left = 1

        def step(self, said):
            if self.turn == 2 and said.startswith("d") and type(self).left:  # of the branch
                type(self).left -= 1
                raise OSError("no server")
            return super().step(said)

    for letter in "abcdefgh":
        Late.left, Late.letter = 1, letter
    found, _ = tree(Late, points=((0, 1),))
    assert [texts(x) for x in found] == [texts(x) for x in expected]


def test_what_cannot_be_copied_says_so():
    class Locked(Asker):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(ValueError, match="Locked cannot be copied .*give it a method copy"):
        tree(Locked)

    class Own(Locked):
        def copy(self):
            other = Own()
            other.turn = self.turn
            return other

    assert tree(Own)[0][2].shared == 1
    with pytest.raises(KeyError, match="no moment before turn 3 of episode 0"):
        Moments().take(0, 3)


def test_rows_have_a_branch_in_common_if_and_only_if_they_share_it():
    shape = [(-1, 0), (-1, 0), (0, 1), (2, 2), (2, 1), (1, 2)]
    rows = [t.Trajectory("p", 0, n, (), parent=parent, shared=shared) for n, (parent, shared) in enumerate(shape)]
    turns = np.tile(np.array([[0, 0, -1, 1, -1, 2, 2]], np.int32), (6, 1))
    numbers = branching.branches(rows, turns)
    assert (numbers[turns < 0] == -1).all()
    of_turn = numbers[:, [0, 3, 5]]
    same = [{(a, b) for a in range(6) for b in range(a) if of_turn[a, k] == of_turn[b, k]} for k in range(3)]
    first, second = {0, 2, 3, 4}, {1, 5}
    assert same[0] == {(a, b) for group in (first, second) for a in group for b in group if b < a}
    assert same[1] == {(3, 2), (5, 1)} and same[2] == set()
    np.testing.assert_array_equal(numbers[:, 0], numbers[:, 1])


def episode(sample, surprises, parent=-1, shared=0, status="done"):
    """Turns of one token each, with these -log p."""
    spans = [t.prompt([1])]
    for value in surprises:
        spans += [t.sampled([5], [-value]), t.given("observation", [6])]
    return t.Trajectory("p", 0, sample, (tuple(spans),), (t.Turn(),) * len(surprises), status, "", parent, shared)


def test_trees_take_turns_and_their_nodes_are_as_likely():
    found = [
        episode(0, [1, 1, 1]),
        episode(1, [1, 1]),
        episode(2, [1, 1, 1], 0, 1),
        episode(3, [1]),
        episode(4, [1, 1], status="error"),
    ]
    points = branching.at_random(found, 600, random.Random(0))
    assert set(points) == {(0, 1), (0, 2), (2, 2), (1, 1)}
    assert sum(point == (1, 1) for point in points) == 300  # the second tree has one node, and half of the branches
    assert all(80 <= sum(point == node for point in points) <= 120 for node in ((0, 1), (0, 2), (2, 2)))
    assert branching.at_random([episode(0, [1])], 2, random.Random(0)) == [None, None]


class Fixed:
    """Dice that show these numbers."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def test_arpos_code_draws_each_branch_after_the_turn_that_was_surprising():
    """P = .5 + .2 (H_j - H_0) / log 2, H of the turn before the branch: .5 after the first, then .93."""
    found = [episode(0, [0.5, 2.0, 0.1]), episode(1, [1.0, 1.0])]
    draw = functools.partial(branching.drawn_by_entropy, found, vocab=2)
    assert draw(3, dice=Fixed(0.49, 0.51, 0.92)) == [(0, 1), (0, 2), None]
    assert draw(3, dice=Fixed(0.51, 0.49, 0.94)) == [(1, 1), None, None]
    assert draw(1, dice=Fixed(0.49)) == [(0, 1)]  # the budget is used: no further draw
    longer = episode(0, [1.0, 1.0, 1.0])
    failed = episode(1, [9.0, 9.0], status="error")
    assert branching.drawn_by_entropy([longer, failed], 2, Fixed(0.0, 0.0)) == [(0, 1), (0, 2)]
    assert branching.drawn_by_entropy([longer], 3, Fixed(0.5, 0.6)) == [(0, 1), None, None]
    assert branching.drawn_by_entropy([], 1, Fixed()) == [None]


def test_branches_begin_where_the_model_became_less_sure():
    found = [episode(0, [0.5, 0.6, 2.0]), episode(1, [1.0, 1.5]), episode(2, [1.0, 0.2])]
    assert branching.by_entropy(found, 3, None) == [(0, 2), (1, 1), (0, 1)]
    assert branching.by_entropy(found, 2, None, threshold=0.6) == [(0, 2), (1, 1)]
    spans = (t.prompt([1]), t.sampled([], []), t.sampled([5], [-0.1]), t.sampled([5], [-9.0]))  # a turn without tokens
    silent = t.Trajectory("p", 0, 0, (spans,), (t.Turn(),) * 3, "done")
    assert branching.by_entropy([silent], 2, None) == [(0, 2), (0, 1)]
    assert branching.by_entropy(found, 3, None, threshold=0.9) == [(0, 2), None, None]  # .5 + .2 * 1.5 / log 2 = .93


def test_the_entropy_of_tokens_in_place_of_their_surprise():
    """The same places as of -log p if the numbers are the same, others if they are not; turns are cut at k tokens."""
    found = [episode(0, [0.5, 0.6, 2.0]), episode(1, [1.0, 1.5])]
    numbers = [[np.array([-x]) for x in one] for one in ([-0.5, -0.6, -2.0], [-1.0, -1.5])]
    for rule, dice in ((branching.by_entropy, None), (branching.drawn_by_entropy, Fixed(*[0.4] * 3))):
        again = None if dice is None else Fixed(*[0.4] * 3)
        assert rule(found, 2, dice, measure="entropy", entropies=numbers) == rule(found, 2, again)
    turned = [[np.array([2.0]), np.array([0.1]), np.array([0.2])], [np.array([0.1, 9.0]), np.array([0.3, 0.3])]]
    chosen = branching.by_entropy(found, 1, None, measure="entropy", entropies=turned, tokens=1)
    assert chosen == [(1, 1)]
    assert branching.by_entropy(found, 1, None, measure="entropy", entropies=turned) == [None]
    with pytest.raises(ValueError, match="needs the entropies of the episodes"):
        branching.by_entropy(found, 1, None, measure="entropy")
    with pytest.raises(ValueError, match="measure='guess' must be"):
        branching.by_entropy(found, 1, None, measure="guess")
