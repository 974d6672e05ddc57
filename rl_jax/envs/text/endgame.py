"""A chess endgame in text, king and rook against a king on a small board: the endgames of LMRL-Gym (arXiv 2311.18232).

    "Ka1Rb2kd4:" -> "Rb3" -> "c4" (the lone king's move) -> ...   until mate

The model has king K and rook R and moves first; the lone king k moves as long as it can hold out, by a table of all
positions, in the place of Stockfish. Mate pays 1, a stalemate or a lost rook 0 and the end; what is no legal move costs
1, and the position stays, as in LMRL-Gym. The state key is the position. No file and no library of chess is read.
"""

import functools
import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import BAD, World

Square = tuple[int, int]  # (file, rank) from 0
Position = tuple[Square, Square, Square]  # K, R, k
FILES = "abcdefgh"
AROUND = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))


def name(square: Square) -> str:
    """(0, 0) as "a1"."""
    return f"{FILES[square[0]]}{square[1] + 1}"


def touches(one: Square, other: Square) -> bool:
    """Whether two squares are the same, or next to each other."""
    return max(abs(one[0] - other[0]), abs(one[1] - other[1])) <= 1


def neighbours(square: Square, size: int) -> list[Square]:
    """The squares of the board around one."""
    found = ((square[0] + x, square[1] + y) for x, y in AROUND)
    return [(x, y) for x, y in found if 0 <= x < size and 0 <= y < size]


def lines(rook: Square, blocked: tuple[Square, ...], size: int) -> list[Square]:
    """The squares that a rook sees, those that stop it included."""
    found = []
    for x, y in STRAIGHT:
        square = (rook[0] + x, rook[1] + y)
        while 0 <= square[0] < size and 0 <= square[1] < size:
            found.append(square)
            if square in blocked:
                break
            square = (square[0] + x, square[1] + y)
    return found


def own_moves(position: Position, size: int) -> dict[str, Position]:
    """The legal moves of king and rook, "Kb2": the position after them, sorted."""
    king, rook, lone = position
    found = {f"K{name(s)}": (s, rook, lone) for s in neighbours(king, size) if s != rook and not touches(s, lone)}
    found |= {f"R{name(s)}": (king, s, lone) for s in lines(rook, (king, lone), size) if s not in (king, lone)}
    return dict(sorted(found.items()))


def in_check(position: Position, size: int) -> bool:
    """Whether the rook attacks the lone king."""
    king, rook, lone = position
    return lone in lines(rook, (king, lone), size)


def replies(position: Position, size: int) -> list[Square]:
    """Where the lone king may go; the rook's square if it takes it."""
    king, rook, lone = position
    free = [square for square in neighbours(lone, size) if not touches(square, king)]
    # The king itself hides no square behind it; a rook that is taken attacks nothing.
    return [s for s in free if s == rook or s not in lines(rook, (king,), size)]


@functools.cache
def table(size: int) -> dict[Position, int]:
    """The moves to mate of each position that can be won, the model to move: both sides play the best.

    By the number of moves: a position has n if a move leads to mate (n = 1), or to where every reply has n - 1 or less.
    """
    squares = [(x, y) for x in range(size) for y in range(size)]
    after: dict[Position, list[Position]] = {}  # with the lone king to move -> the model to move; [] for mate
    moves: dict[Position, list[Position]] = {}
    for king in squares:
        for rook in squares:
            for lone in squares:
                if rook in (king, lone) or touches(king, lone):
                    continue
                here = (king, rook, lone)
                legal = replies(here, size)
                if rook not in legal and (legal or in_check(here, size)):
                    after[here] = [(king, rook, square) for square in legal]
                if not in_check(here, size):  # else the lone king would have had to move
                    moves[here] = list(own_moves(here, size).values())
    found: dict[Position, int] = {}
    for number in range(1, len(moves)):
        lost = {one for one, then in after.items() if all(position in found for position in then)}
        new = [one for one, then in moves.items() if one not in found and any(position in lost for position in then)]
        if not new:
            return found
        found |= dict.fromkeys(new, number)
    return found


class Endgame(World):
    """One episode at a time. numbers: correct, malformed, moves. The best return is `win`.

    Args:
      size: squares in each direction, 3 to 8; the table of 8 takes a minute to make, that of 4 a moment.
      most: moves, illegal ones included.
      price: of each move that does not mate.
      win: for mate.
      invalid: of what is no legal move, beside the price.
      depth: of the positions at the start, at most; 0: any that can be won in `most` moves.
    """

    ALPHABET = FILES + "12345678KRk:?\n"
    NUMBERS = ("moves",)

    def __init__(
        self,
        *,
        size: int = 4,
        most: int = 10,
        price: float = 0.0,
        win: float = 1.0,
        invalid: float = 1.0,
        depth: int = 0,
    ):
        super().__init__(price=price, most=most, win=win)
        if not 3 <= size <= 8 or invalid < 0 or depth < 0:
            raise ValueError(f"size={size} must be from 3 to 8, invalid={invalid} and depth={depth} not below 0")
        self.size, self._invalid, self._depth = size, invalid, depth

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Positions that can be won."""
        limit = min(self._depth or self.most, self.most)
        known = sorted(position for position, number in table(self.size).items() if number <= limit)
        while True:
            position = rng.choice(known)
            yield f"{_text(position)}:", {"position": position}

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the given position."""
        king, rook, lone = (tuple(square) for square in info["position"])
        self.position = (king, rook, lone)

    def state_key(self) -> str:
        """The position."""
        return _text(self.position)

    def step(self, said: str) -> Step:
        """The lone king's move."""
        legal = own_moves(self.position, self.size)
        if said not in legal:
            return self.answer(BAD, reward=-self._invalid, malformed=1.0)
        king, rook, lone = self.position = legal[said]
        free = replies(self.position, self.size)
        if not free:
            return self.won(moves=1.0) if in_check(self.position, self.size) else self.lost(-self.price, moves=1.0)
        if rook in free:
            return self.lost(-self.price, moves=1.0)
        far = table(self.size)
        lone = max(sorted(free), key=lambda square: far.get((king, rook, square), len(far)))
        self.position = (king, rook, lone)
        return self.answer(f"{name(lone)}\n", moves=1.0)

    def expert(self, rng: random.Random) -> str:
        """A move that mates soonest, whatever the lone king does."""
        far, legal = table(self.size), own_moves(self.position, self.size)

        def moves_left(position: Position) -> int:
            king, rook, _ = position
            free = replies(position, self.size)
            if not free:
                return 0 if in_check(position, self.size) else len(far)
            return len(far) if rook in free else max(far.get((king, rook, square), len(far)) for square in free)

        worth = {move: moves_left(position) for move, position in legal.items()}
        return rng.choice([move for move in worth if worth[move] == min(worth.values())])

    def novice(self, rng: random.Random) -> str:
        """Any legal move."""
        return rng.choice(list(own_moves(self.position, self.size)))


def _text(position: Position) -> str:
    return "".join(f"{piece}{name(square)}" for piece, square in zip("KRk", position, strict=True))
