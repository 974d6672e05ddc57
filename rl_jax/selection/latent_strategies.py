"""Latent strategies (LSPO): free text as clusters of its embeddings, and the game on the clusters solved by CFR.

    z(text) = argmin_k |e(text) - c_k|                       the latent strategy of a text: k-means per role
    M[k, a] = share of the texts of cluster k that do a      what it does in the game
    v(I, k) = sum_a M[k, a] v(I, a)
    R_t(I, k) = R_{t-1}(I, k) + pi_{-i}(I) (v(I, k) - sum_j sigma_t(I, j) v(I, j)),   sigma_{t+1} ~ max(R_t, 0)

R(I, k) is the regret of not having said k at the information set I: of a prompt's texts the one of the largest R is
preferred to the one of the smallest, and DPO trains on such pairs. With a cluster for each action, and nothing else in
it, this is counterfactual regret minimisation of the game itself. In numpy, on the host, without models.

A game has two sides and may have more seats than sides, each of which knows its own; pi_{-i} is of all other seats.

Source: arXiv 2502.04686, whose equations could only be read second-hand (its game is Werewolf, and networks stand for
the tables of R: rl_jax.selection.deep_cfr). A summary has the text of the lower regret preferred; with R as above it is
the larger one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Chance(NamedTuple):
    """A node where chance moves. probs: of the children. children: nodes; a number is an end, what side 0 gets."""

    probs: Sequence[float]
    children: Sequence[Any]


class Decision(NamedTuple):
    """A node where a player acts.

    Attributes:
      player: the seat, 0, 1, ....
      infoset: the name of all that the player knows; nodes of one name have the same player, side and actions.
      children: nodes by action.
      side: 0 or 1; what one gets the other loses. None: two players, each its own side.
    """

    player: int
    infoset: str
    children: Sequence[Any]
    side: int | None = None

    @property
    def sign(self) -> int:
        """1 for side 0, -1 for side 1: what the player gets of an end."""
        return 1 if (self.player if self.side is None else self.side) == 0 else -1


class Solution(NamedTuple):
    """What CFR finds. K is the number of latent strategies at an information set.

    Attributes:
      regrets: infoset -> float64 [K], R / rounds.
      policy: infoset -> float64 [K], the average strategy, which comes to an equilibrium.
    """

    regrets: dict[str, np.ndarray]
    policy: dict[str, np.ndarray]


def clustered(points: np.ndarray, clusters: int, *, rounds: int = 50) -> np.ndarray:
    """k-means from the points that are farthest from those before them, the first the one farthest from the mean.

    Args:
      points: float [N, D].
      clusters: most clusters; there are fewer where fewer points differ.
      rounds: of Lloyd's steps.

    Returns:
      int [N], 0 .. K - 1, every number used.

    Raises:
      ValueError: if there is no point or no cluster.
    """
    if points.ndim != 2 or not len(points) or clusters < 1:
        raise ValueError(f"k-means needs points [N, D] and a cluster or more, not {points.shape} and {clusters}")
    centres = points[[int(np.argmax(_distances(points, points.mean(0)[None])[:, 0]))]].astype(float)
    while len(centres) < clusters:
        far = _distances(points, centres).min(1)
        if far.max() <= 1e-12:
            break
        centres = np.concatenate([centres, points[[int(np.argmax(far))]]])
    for _ in range(rounds):
        nearest = np.argmin(_distances(points, centres), axis=1)
        moved = np.stack([points[nearest == k].mean(0) if (nearest == k).any() else c for k, c in enumerate(centres)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    return np.unique(np.argmin(_distances(points, centres), axis=1), return_inverse=True)[1]


def _distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared, [N, K]."""
    return ((points[:, None] - centres[None]) ** 2).sum(-1)


def effects_of(labels: np.ndarray, actions: np.ndarray, count: int) -> np.ndarray:
    """M: what the texts of each cluster do.

    Args:
      labels: int [N], 0 .. K - 1, of `clustered`.
      actions: int [N], what each text does.
      count: A.

    Returns:
      float64 [K, A], rows of sum 1.
    """
    if labels.shape != actions.shape or labels.ndim != 1:
        raise ValueError(f"labels {labels.shape} and actions {actions.shape} must be of the same texts, [N]")
    table = np.zeros((int(labels.max()) + 1, count))
    np.add.at(table, (labels, actions), 1.0)
    return table / table.sum(1, keepdims=True)


def infosets(root: Any) -> dict[str, tuple[int, int]]:
    """infoset -> (player, number of actions), of all nodes of a game."""
    if isinstance(root, int | float):
        return {}
    found = {root.infoset: (root.player, len(root.children))} if isinstance(root, Decision) else {}
    for child in root.children:
        found |= infosets(child)
    return found


def solve(root: Any, effects: Mapping[str, np.ndarray], *, rounds: int = 300) -> Solution:
    """CFR over latent strategies; regrets fall as 1 / sqrt(rounds).

    Args:
      root: of the game, a Chance or a Decision.
      effects: infoset -> M, float [K, A], for every information set.
      rounds: T; all players' strategies change after each.

    Raises:
      ValueError: if an information set has no M, or one of another number of actions.
    """
    for name, (_, count) in infosets(root).items():
        if name not in effects or effects[name].shape[1] != count:
            raise ValueError(f"the information set {name!r} needs effects of its {count} actions")
    tables = {name: effects[name].tolist() for name in infosets(root)}
    seats = 1 + max((player for player, _ in infosets(root).values()), default=0)
    regrets = {name: [0.0] * len(table) for name, table in tables.items()}
    played = {name: [0.0] * len(table) for name, table in tables.items()}
    strategy: dict[str, list[float]] = {}

    def walk(node: Any, reach: tuple[float, ...], chance: float) -> float:
        """What side 0 gets. reach: of each player's own choices."""
        if isinstance(node, int | float):
            return node
        if isinstance(node, Chance):
            pairs = zip(node.probs, node.children, strict=True)
            return sum(p * walk(child, reach, chance * p) for p, child in pairs)
        own, table, said = node.player, tables[node.infoset], strategy[node.infoset]
        acts = [sum(s * row[a] for s, row in zip(said, table, strict=True)) for a in range(len(node.children))]
        values = []
        for act, child in zip(acts, node.children, strict=True):
            values.append(walk(child, (*reach[:own], reach[own] * act, *reach[own + 1 :]), chance))
        mean = sum(act * value for act, value in zip(acts, values, strict=True))
        weight = chance * math.prod((*reach[:own], *reach[own + 1 :])) * node.sign
        for k, row in enumerate(table):
            regrets[node.infoset][k] += weight * (sum(m * v for m, v in zip(row, values, strict=True)) - mean)
            played[node.infoset][k] += chance * reach[own] * said[k]
        return mean

    for _ in range(rounds):
        strategy.update({name: _matched(values) for name, values in regrets.items()})
        walk(root, (1.0,) * seats, 1.0)
    policy = {name: _shares(values) for name, values in played.items()}
    return Solution({name: np.asarray(values) / rounds for name, values in regrets.items()}, policy)


def _matched(regrets: list[float]) -> list[float]:
    """Regret matching: in proportion to what is above 0, else uniform."""
    up = [max(value, 0.0) for value in regrets]
    total = sum(up)
    return [value / total for value in up] if total else [1 / len(up)] * len(up)


def _shares(weights: list[float]) -> np.ndarray:
    """Weights of sum 1; uniform for an information set that was never reached."""
    total = sum(weights)
    return np.asarray(weights) / total if total else np.full(len(weights), 1 / len(weights))


def acted(policy: Mapping[str, np.ndarray], effects: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """infoset -> probabilities of the actions, float64 [A]: sum_k sigma(I, k) M[k, a]."""
    return {name: policy[name] @ effects[name] for name in policy}
