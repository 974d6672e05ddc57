"""Kuhn poker in words of one's own: a game of free text for latent strategies (LSPO), with a known value.

    "Qpb:" -> "b.b", "bbp", "b", ...       any word; more "b" than "p" bets or calls, all else passes or folds

The prompt is what the player knows, its card and the moves so far; 3^1 + .. + 3^3 words of "b", "p" and "." mean two
moves. A stand-in for Werewolf (arXiv 2502.04686): hidden cards for hidden roles, bluffs, and text whose meaning is not
its form. The embedding, in place of a model of texts, is the shares of "b" and of "p". The value of the game is -1/18
for the first player (rl_jax.envs.text.kuhn).
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.envs.text import kuhn
from rl_jax.selection.latent_strategies import Chance, Decision
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "JQK:bp."
LETTERS, LONGEST = "bp.", 3


class TextGame(NamedTuple):
    """A game of two players whose moves are texts.

    Attributes:
      root: of the game, as rl_jax.selection.latent_strategies takes it.
      role_of: infoset -> the role whose texts are clustered together.
      embed: texts -> float [N, D].
      action_of: text -> the action that it is, 0 .. A - 1.
      gap: infoset -> probabilities of the actions [A] -> what the players could still gain in sum, 0 at an equilibrium.
      features: infoset -> what the player knows, float [F], for networks.
      spoken: infoset -> whether its action is a text; others choose among their actions.
    """

    root: Any
    role_of: Callable[[str], str]
    embed: Callable[[Sequence[str]], np.ndarray]
    action_of: Callable[[str], int]
    gap: Callable[[Mapping[str, np.ndarray]], float]
    features: Callable[[str], np.ndarray]
    spoken: Callable[[str], bool] = lambda infoset: True


def bets(text: str) -> int:
    """1 if a text bets or calls: it has more "b" than "p"."""
    return int(text.count("b") > text.count("p"))


def embed(texts: Sequence[str]) -> np.ndarray:
    """The shares of "b" and of "p" in each text, float64 [N, 2]; 0 for an empty one."""
    return np.asarray([[text.count(letter) / max(len(text), 1) for letter in "bp"] for text in texts])


def tree() -> Chance:
    """The game: a deal, then the moves. Actions are 0 to pass or fold and 1 to bet or call."""

    def node(deal: tuple[str, str], history: str) -> Any:
        if history in kuhn.ENDS:
            return kuhn.payoff(deal, history)
        seat = len(history) % 2
        return Decision(seat, deal[seat] + history, tuple(node(deal, history + move) for move in "pb"))

    return Chance([1 / len(kuhn.DEALS)] * len(kuhn.DEALS), [node(deal, "") for deal in kuhn.DEALS])


def gap(policy: Mapping[str, np.ndarray]) -> float:
    """The sum of what a best response earns against either seat: 0 at an equilibrium, 11/12 if all moves are even."""
    chances = {name: float(probs[1]) for name, probs in policy.items()}
    return kuhn.best_response(chances, 0) + kuhn.best_response(chances, 1)


def features(infoset: str) -> np.ndarray:
    """The card and the moves so far, one-hot, float64 [7]."""
    moves = [letter == move for place in range(2) for letter in "pb" for move in infoset[1 + place : 2 + place] or "-"]
    return np.asarray([infoset[0] == card for card in kuhn.CARDS] + moves, float)


def game() -> TextGame:
    """Kuhn poker in words; a role is a card."""
    return TextGame(tree(), lambda infoset: infoset[0], embed, bets, gap, features)


def word(rng: random.Random, letters: str = LETTERS) -> str:
    """A word of one to three letters."""
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, LONGEST)))


def load(*, num_words: int = 3_000, seed: int = 0, data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The task: a prompt for each information set, and random words for a warm start. It has no reward of its own.

    Args:
      num_words: demonstrations, words that say anything.
      seed: of the words.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if num_words is below 1.
    """
    names, code = list(kuhn.equilibrium()), [__file__, kuhn.__file__]
    return words_task("kuhn_talk", names, LETTERS, ALPHABET, code, num_words=num_words, seed=seed, data_dir=data_dir)


def words_task(
    name: str,
    infosets: Sequence[str],
    letters: str,
    alphabet: str,
    code: Sequence[str],
    *,
    num_words: int,
    seed: int,
    data_dir: str,
) -> base.Task:
    """The task of a game of words: a prompt "INFOSET:" for each of `infosets`, and random words for a warm start.

    Args:
      name: of the task.
      infosets: whose actions are words.
      letters: of the words.
      alphabet: of prompts and words.
      code: files that make it.
      num_words: as in `load`.
      seed: as in `load`.
      data_dir: as in `load`.

    Raises:
      ValueError: if num_words is below 1.
    """
    if num_words < 1:
        raise ValueError(f"num_words={num_words} must be 1 or more")

    def record(infoset: str, completion: str = "") -> dict[str, str]:
        return {"prompt": f"{infoset}:", "completion": completion, "info": json.dumps({"infoset": infoset})}

    def make():
        rng, names = random.Random(seed), list(infosets)
        prompts = [record(infoset) for infoset in names]
        said = [record(rng.choice(names), word(rng, letters)) for _ in range(num_words)]
        return {"train": prompts, "test": prompts, "sft_train": said}, {}

    arguments = {"num_words": int(num_words), "seed": int(seed)}
    stored = base.record_splits(name, make, arguments=arguments, code=code, data_dir=data_dir)
    return base.Task(name, CharTokenizer(alphabet), stored, None)
