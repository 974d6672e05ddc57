"""Episodes that branch: saved moments of other episodes, and at which of their turns to go on otherwise. numpy, no jax.

    saved = Moments()
    found = play(roots, envs, dialogues, sampler, limits, saved=saved)
    points = at_random(found, count=2, dice=random.Random(0))           # [(index in found, turn), ...]
    play([Ask(..., after=(number, turn))], envs, dialogues, sampler, limits, saved=saved)

An episode that begins after turn j of another one has that one's first j turns, token by token, and goes on with random
numbers of its own. The environment is copied as it was: by its method copy() if it has one, else by copy.deepcopy.
"""

import copy
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.experience.trajectory import Trajectory

Point = tuple[int, int] | None  # (which episode, before which of its turns); None: from the prompt


class Moment(NamedTuple):
    """An episode before one of its turns.

    Attributes:
      env: a copy of its environment.
      talk: its dialogue.
      episode: a copy of it (rl_jax.experience.episode.Episode).
    """

    env: Any
    talk: Any
    episode: Any


class Moments:
    """The moments of many episodes, by (number of the episode, turn)."""

    def __init__(self):
        self._kept: dict[tuple[int, int], Moment] = {}

    def keep(self, number: int, env: Any, talk: Any, episode: Any) -> None:
        """Keeps the moment before the episode's next turn."""
        self._kept[number, len(episode.turns)] = Moment(copy_of(env), talk, episode.copy())

    def forget(self, number: int) -> None:
        """Forgets the moments of an episode that begins anew."""
        self._kept = {place: moment for place, moment in self._kept.items() if place[0] != number}

    def take(self, number: int, turn: int) -> Moment:
        """A moment, whose environment and episode the caller may change.

        Raises:
          KeyError: if it was not kept; names it.
        """
        if (number, turn) not in self._kept:
            raise KeyError(f"no moment before turn {turn} of episode {number} was kept")
        env, talk, episode = self._kept[number, turn]
        return Moment(copy_of(env), talk, episode.copy())


def copy_of(env: Any) -> Any:
    """A copy of an environment in its state.

    Raises:
      ValueError: if it has no copy() and cannot be copied.
    """
    if hasattr(env, "copy"):
        return env.copy()
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ValueError(
            f"the environment {type(env).__name__} cannot be copied ({type(error).__name__}: {error}), which episodes "
            "that branch need: give it a method copy() that returns another one in the same state"
        ) from error


def branches(trajectories: Sequence[Trajectory], turns: np.ndarray) -> np.ndarray:
    """Which rows share which tokens: the number of the branch on each token of a turn.

    Args:
      trajectories: B; the parent of one (Trajectory.parent) comes before it in its group.
      turns: int32 [B, C], number of the turn on its tokens; -1 elsewhere.

    Returns:
      int32 [B, C]. Two rows of a group have the same number on a turn if and only if they share it; -1 elsewhere.
    """
    owners: dict[tuple[int, int], list[int]] = {}
    result, most = np.full(turns.shape, -1, np.int32), int(turns.max(initial=0)) + 1
    for row, trajectory in enumerate(trajectories):
        own = [row * most + turn for turn in range(most)]
        if trajectory.parent >= 0:
            own[: trajectory.shared] = owners[trajectory.group, trajectory.parent][: trajectory.shared]
        owners[trajectory.group, trajectory.sample] = own
        here = turns[row] >= 0
        result[row, here] = np.asarray(own, np.int32)[turns[row, here]]
    return result


def _own_turns(trajectory: Trajectory) -> range:
    """The turns, after the first, that it does not share with its parent: places where others may leave it."""
    if trajectory.status == "error":
        return range(0)
    return range(trajectory.shared + 1, len(trajectory.turns))


def at_random(found: Sequence[Trajectory], count: int, dice: random.Random) -> list[Point]:
    """Tree-GRPO: nodes of the trees, each tree as often as the others; every later turn of a tree is as likely.

    A tree is what grew from one prompt's first turn. One whose episodes all ended with their first turn has no node;
    without any, new trees begin. Source: arXiv 2509.21240 section 3.2 (M trees, N nodes each, L rounds; "random"). Its
    code takes the prompt as a node of each tree, too: such an episode shares no token and counts as the tree's.

    Args:
      found: the group's episodes so far.
      count: how many to begin.
      dice: of the choice.

    Returns:
      count places (index in found, turn), or None for an episode from the prompt.
    """
    root, samples = {}, {trajectory.sample: i for i, trajectory in enumerate(found)}
    for i, trajectory in enumerate(found):
        root[i] = i if trajectory.parent < 0 else root[samples[trajectory.parent]]
    trees: dict[int, list[tuple[int, int]]] = {}
    for i, trajectory in enumerate(found):
        for turn in _own_turns(trajectory):
            trees.setdefault(root[i], []).append((i, turn))
    order = [trees[name] for name in sorted(trees)]
    first = dice.randrange(len(order)) if order else 0
    return [dice.choice(order[(first + n) % len(order)]) if order else None for n in range(count)]


def by_entropy(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    *,
    base: float = 0.5,
    weight: float = 0.2,
    threshold: float = 0.5,
    tokens: int = 20,
    measure: str = "surprise",
    entropies: Sequence[Sequence[np.ndarray]] | None = None,
) -> list[Point]:
    """ARPO: episodes branch where the model is less sure after an answer of the environment than it was at first.

        H_j = the mean of -log p over the first tokens of turn j,   P_j = base + weight (H_j - H_0) / log 2,
        branch at the turns with P_j > threshold, the largest first

    and what is left of the budget begins at the prompt. -log p of sampled tokens has the entropy as its mean and costs
    nothing here; with measure "entropy" H_j is the mean entropy itself, as in the paper, of the whole vocabulary, which
    costs a forward pass over the episodes. The paper draws the branch while the episode runs, and divides by the log of
    the vocabulary. Source: arXiv 2507.19849 section 3.1; RUC-NLPIR/ARPO (k = 20; alpha .5, beta .2).

    Args:
      found: the group's episodes so far.
      count: how many to begin.
      dice: unused; the choice is certain.
      base: alpha.
      weight: beta.
      threshold: tau.
      tokens: k, of a turn.
      measure: "surprise", -log p of the sampled tokens, or "entropy".
      entropies: of each token of each turn of each episode; who plays them gives it where the measure is "entropy".

    Returns:
      As at_random.

    Raises:
      ValueError: if the measure is unknown, or "entropy" without entropies.
    """
    del dice
    places = []
    for i, heads in enumerate(_heads(found, measure, entropies, tokens)):
        surprise, trajectory = [float(np.mean(head)) if len(head) else 0.0 for head in heads], found[i]
        for turn in _own_turns(trajectory):
            rise = (surprise[turn] - surprise[0]) / math.log(2)
            if base + weight * rise > threshold:
                places.append((-rise, i, turn))
    chosen: list[Point] = [(i, turn) for _, i, turn in sorted(places)[:count]]
    return chosen + [None] * (count - len(chosen))


def drawn_by_entropy(
    found: Sequence[Trajectory],
    count: int,
    dice: random.Random,
    *,
    base: float = 0.5,
    weight: float = 0.2,
    tokens: int = 20,
    vocab: int = 151_936,
    measure: str = "surprise",
    entropies: Sequence[Sequence[np.ndarray]] | None = None,
) -> list[Point]:
    """ARPO as its code draws: each episode that goes on branches once after turn j with the chance

        P_j = base + weight (H_j - H_0) / log vocab,    H_j = the sum of -log p over the first tokens of turn j

    turn after turn until the budget is used; the rest begins at the prompt. H_j is of the turn before the branch, where
    the paper and `by_entropy` take the one after it. The code's entropies are of the 10 likeliest tokens, and a branch
    may branch again in the same round. Source: RUC-NLPIR/ARPO vllm_rollout_with_tools.py (beam_size 2) and
    ARPO_7B_Reasoning_1node.sh (.5, .2; 16 episodes, 8 of them roots).

    Args:
      found: the group's episodes so far.
      count: how many to begin.
      dice: of the draws.
      base: branch_probability.
      weight: entropy_weight.
      tokens: of a turn.
      vocab: size of the vocabulary; the default is Qwen2.5's.
      measure: as by_entropy.
      entropies: as by_entropy.

    Returns:
      As at_random.

    Raises:
      ValueError: as by_entropy.
    """
    chosen: list[Point] = []
    surprise = [[float(np.sum(head)) for head in heads] for heads in _heads(found, measure, entropies, tokens)]
    for turn in range(1, max((len(one.turns) for one in found), default=0)):
        for i, one in enumerate(found):
            if len(chosen) == count:
                return chosen
            if turn in _own_turns(one):
                rise = (surprise[i][turn - 1] - surprise[i][0]) / math.log(vocab)
                if dice.random() - weight * rise <= base:
                    chosen.append((i, turn))
    return chosen + [None] * (count - len(chosen))


def _heads(found, measure: str, entropies, tokens: int) -> list[list[np.ndarray]]:
    """How unsure the model was of the first tokens of each turn of each episode, a number a token."""
    if measure == "surprise":
        return [[-span.raw_log_probs[:tokens] for span in one.sampled()] for one in found]
    if measure != "entropy":
        raise ValueError(f"measure={measure!r} must be 'surprise' or 'entropy'")
    if entropies is None:
        raise ValueError(
            "measure='entropy' needs the entropies of the episodes' tokens (experiments.agents gives them)"
        )
    return [[np.asarray(head)[:tokens] for head in of_turns] for of_turns in entropies]
