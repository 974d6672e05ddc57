"""envs/text/endgame.py: the rules of chess against a plain attack map, the table against a search, and what is paid."""

import itertools
import json
import random

import pytest

from rl_jax.envs.text import endgame

SIZE = 4
BOARD = list(itertools.product(range(SIZE), range(SIZE)))


def attacked(square, king, rook, pieces):
    """Whether the king or the rook (None: taken) attacks a square, by walking from the square; pieces stop a rook."""
    x, y = square
    if max(abs(x - king[0]), abs(y - king[1])) == 1:
        return True
    if rook is None or rook == square or (x != rook[0] and y != rook[1]):
        return False
    between = [(x, r) for r in range(min(y, rook[1]) + 1, max(y, rook[1]))] if x == rook[0] else []
    between += [(f, y) for f in range(min(x, rook[0]) + 1, max(x, rook[0]))] if y == rook[1] else []
    return not set(between) & set(pieces)


def positions():
    for king, rook, lone in itertools.permutations(BOARD, 3):
        if not endgame.touches(king, lone):
            yield king, rook, lone


def search(position, number):
    """Whether the model mates in `number` moves, whatever the lone king does."""
    for king, rook, lone in endgame.own_moves(position, SIZE).values():
        free = endgame.replies((king, rook, lone), SIZE)
        if not free and endgame.in_check((king, rook, lone), SIZE):
            return True
        if free and rook not in free and number > 1 and all(search((king, rook, s), number - 1) for s in free):
            return True
    return False


def begun(position, **settings):
    env = endgame.Endgame(size=SIZE, **settings)
    env.reset({"prompt": "", "info": json.dumps({"position": position})}, 0)
    return env


def square(text):
    return ("abcdefgh".index(text[0]), int(text[1]) - 1)


def test_the_lone_king_goes_where_nothing_attacks_it():
    for king, rook, lone in positions():
        wanted = set()
        for s in BOARD:
            if s != lone and s != king and endgame.touches(s, lone):
                left = None if s == rook else rook
                if not attacked(s, king, left, (king,)):
                    wanted.add(s)
        assert set(endgame.replies((king, rook, lone), SIZE)) == wanted
        assert endgame.in_check((king, rook, lone), SIZE) == attacked(lone, king, rook, (king,))


def test_own_moves_by_hand():
    moves = endgame.own_moves((square("a1"), square("a3"), square("c2")), SIZE)
    assert list(moves) == ["Ka2", "Ra2", "Ra4", "Rb3", "Rc3", "Rd3"]  # b1 and b2 touch the lone king, a1 stops the rook


def test_the_table_is_what_a_search_finds():
    known, rng = endgame.table(SIZE), random.Random(0)
    open_ones = [one for one in positions() if not endgame.in_check(one, SIZE)]
    chosen = [one for one in rng.sample(open_ones, 150) if known.get(one, 9) <= 3 or one not in known]
    assert len(chosen) > 40
    for one in chosen:
        number = known.get(one, 4)
        assert not search(one, number - 1) if number > 1 else True
        assert number == 4 or search(one, number)


def test_the_expert_mates_as_soon_as_the_table_says_from_everywhere():
    rng = random.Random(0)
    for position, number in list(endgame.table(SIZE).items())[::7]:
        env = begun(position)
        for left in range(number, 0, -1):
            step = env.step(env.expert(rng))
            assert step.done == (left == 1)
        assert step.reward == 1.0 and step.numbers["correct"] == 1.0


@pytest.mark.parametrize(
    ("start", "said", "reward", "done"),
    [
        ("a2d1a4", "Rd4", 1.0, True),  # mate: a3 and b3 touch the king, b4 is the rook's
        ("a2d1a4", "Rd2", 0.0, False),  # b4 is free
        ("a2d1a4", "Rd1", -1.0, False),  # no move
        ("a2d1a4", "", -1.0, False),
        ("c3d2a1", "Rb2", 0.0, True),  # stalemate
        ("d4b2a1", "Kd3", 0.0, True),  # the rook is lost
    ],
)
def test_what_a_move_pays(start, said, reward, done):
    env = begun([square(start[i : i + 2]) for i in (0, 2, 4)])
    step = env.step(said)
    assert (step.reward, step.done) == (reward, done)
