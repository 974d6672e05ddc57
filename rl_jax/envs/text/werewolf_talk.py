"""Werewolf in words of one's own, as small as it can be: three seats, hidden roles, one round of talk, and a vote.

    "bV.:" -> "l.l"      seat b, a villager, has heard a say nothing, and accuses the seat after its own
    "cSlr.:" -> ".rr"    seat c, the seer, knows that the wolf is the seat after c; a has accused c, two after a

One seat is the werewolf, one the seer, one a villager, all deals alike. In the night the seer learns who the wolf is
(with three seats, whom it looks at does not matter). Then a, b and c speak once each, any word of "l", "r" and ".":
more "l" than "r" accuses the seat after one's own, more "r" the one after that, else one says nothing. Then all vote,
and a seat with two votes is out. The village (side 0) gets 1 if that is the wolf, -1 if it is not, 0 if nobody is out.
Votes are plain actions, not words: seer and wolf stand by what they have said, so only the villager, who knows nothing
before the talk, has a choice. Without that rule talk would be cheap, and to say and believe nothing an equilibrium.

A stand-in for the seven seats of arXiv 2502.04686, with its parts: hidden roles, a claim that a wolf can imitate, talk
whose meaning is not its form, votes. All is exact: rl_jax.selection.game_values walks the tree of 565 nodes.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rl_jax.envs.text.kuhn_talk import TextGame, words_task
from rl_jax.selection import game_values
from rl_jax.selection.latent_strategies import Chance, Decision, infosets
from rl_jax.tasks import base

ALPHABET = "abcWSVlr.:"
LETTERS, SEATS, ROLES, SAID = "lr.", "abc", "WSV", ".lr"
VOTE = "?"  # ends the name of an information set where one votes
DEALS = list(itertools.permutations(ROLES))  # the role of each seat


def accuses(text: str) -> int:
    """Whom a text accuses: 1 the seat after the speaker's, 2 the one after that, 0 nobody."""
    left, right = text.count("l"), text.count("r")
    return 1 if left > right else 2 if right > left else 0


def embed(texts: Sequence[str]) -> np.ndarray:
    """The shares of "l" and of "r" in each text, float64 [N, 2]; 0 for an empty one."""
    return np.asarray([[text.count(letter) / max(len(text), 1) for letter in "lr"] for text in texts])


def knows(deal: Sequence[str], seat: int) -> str:
    """What a seat knows before the talk: its place and role, and a seer also where the wolf is ("l" or "r")."""
    way = (deal.index("W") - seat) % 3
    return SEATS[seat] + deal[seat] + (SAID[way] if deal[seat] == "S" else "")


def outcome(deal: Sequence[str], votes: Sequence[int | None]) -> int:
    """What the village gets. votes: the seat that each seat votes for; None: it abstains."""
    counts = Counter(vote for vote in votes if vote is not None)
    out = [seat for seat, count in counts.items() if count >= 2]
    return (1 if deal[out[0]] == "W" else -1) if out else 0


def tree() -> Chance:
    """The game: a deal, the talk of a, b and c, and the villager's vote (action 0: the next seat, 1: the other)."""

    def voted(deal: tuple[str, ...], talk: str, way: int) -> int:
        said = [(seat + SAID.index(word)) % 3 if word != "." else None for seat, word in enumerate(talk)]
        villager = deal.index("V")
        return outcome(deal, [(seat + way) % 3 if seat == villager else said[seat] for seat in range(3)])

    def node(deal: tuple[str, ...], talk: str) -> Decision:
        if len(talk) == 3:
            villager = deal.index("V")
            ends = tuple(voted(deal, talk, way) for way in (1, 2))
            return Decision(villager, knows(deal, villager) + talk + VOTE, ends, 0)
        seat = len(talk)
        children = tuple(node(deal, talk + said) for said in SAID)
        return Decision(seat, knows(deal, seat) + talk, children, int(deal[seat] == "W"))

    return Chance([1 / len(DEALS)] * len(DEALS), [node(deal, "") for deal in DEALS])


def features(infoset: str) -> np.ndarray:
    """Seat, role, the seer's knowledge, what each seat has said, and whether one votes, one-hot, float64 [18]."""
    own, talk = infoset[:2], infoset[3 if infoset[1] == "S" else 2 :].rstrip(VOTE).ljust(3)
    found = [own[0] == seat for seat in SEATS] + [own[1] == role for role in ROLES]
    found += [own[1] == "S" and infoset[2] == way for way in "lr"]
    return np.asarray([*found, *(said == letter for said in talk for letter in SAID), infoset.endswith(VOTE)], float)


def spoken(infoset: str) -> bool:
    """Whether one speaks there; else one votes."""
    return not infoset.endswith(VOTE)


def game() -> TextGame:
    """Werewolf in words; the texts of a role are clustered together."""
    root = tree()
    return TextGame(
        root, lambda infoset: infoset[1], embed, accuses, lambda p: game_values.gap(root, p), features, spoken
    )


def load(*, num_words: int = 3_000, seed: int = 0, data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The task: a prompt for each of the 52 information sets where one speaks, and random words for a warm start.

    Args:
      num_words: demonstrations, words that say anything.
      seed: of the words.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if num_words is below 1.
    """
    names = [name for name in infosets(tree()) if spoken(name)]
    options = dict(num_words=num_words, seed=seed, data_dir=data_dir)
    return words_task("werewolf_talk", names, LETTERS, ALPHABET, [__file__], **options)
