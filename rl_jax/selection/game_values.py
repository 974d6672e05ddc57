"""What policies are worth in a game tree, by enumeration: their value, and what each player alone could gain.

    u(pi) = sum over ends z of pi(z) u(z)                    of side 0
    gain_i = max over pi_i' of u_i(pi_i', pi_-i) - u_i(pi)   0 for all players in a Nash equilibrium
    gap = sum_i gain_i                                       NashConv

Trees are those of rl_jax.selection.latent_strategies; a policy is infoset -> probabilities of the actions, float [A].
Each player must remember what it has known and done (perfect recall). Exact, for games small enough to walk.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_jax.selection.latent_strategies import Chance, Decision

Policy = Mapping[str, np.ndarray]


def value(node: Any, policy: Policy) -> float:
    """What side 0 gets from a node on if all play `policy`."""
    if isinstance(node, int | float):
        return float(node)
    return sum(p * value(child, policy) for p, child in zip(_probs(node, policy), node.children, strict=True) if p)


def _probs(node: Chance | Decision, policy: Policy) -> Any:
    return node.probs if isinstance(node, Chance) else policy[node.infoset]


def gain(root: Any, policy: Policy, player: int) -> float:
    """What a player would get more by its best policy, the others' staying as they are; never below 0.

    Args:
      root: of the game.
      policy: of all players.
      player: who deviates.
    """
    nodes: dict[str, list[tuple[Decision, float]]] = {}  # of the player, with the reach of all others
    chosen: dict[str, int] = {}

    def reached(node: Any, reach: float) -> None:
        if isinstance(node, int | float) or not reach:
            return
        own = isinstance(node, Decision) and node.player == player
        if own:
            nodes.setdefault(node.infoset, []).append((node, reach))
        shares = [1.0] * len(node.children) if own else _probs(node, policy)
        for share, child in zip(shares, node.children, strict=True):
            reached(child, reach * share)

    def best(node: Any) -> float:
        """What side 0 gets from a node on if the player deviates there and later."""
        if isinstance(node, int | float):
            return float(node)
        if isinstance(node, Decision) and node.player == player:
            return best(node.children[choice(node)])
        return sum(p * best(child) for p, child in zip(_probs(node, policy), node.children, strict=True) if p)

    def choice(node: Decision) -> int:
        if node.infoset not in chosen:
            here = nodes.get(node.infoset, [])
            worth = [sum(w * best(one.children[a]) for one, w in here) for a in range(len(node.children))]
            chosen[node.infoset] = int(np.argmax(node.sign * np.asarray(worth)))
        return chosen[node.infoset]

    def more(node: Any, reach: float) -> float:
        """The gain at the player's first decisions below a node."""
        if isinstance(node, int | float) or not reach:
            return 0.0
        if isinstance(node, Decision) and node.player == player:
            return reach * node.sign * (best(node) - value(node, policy))
        return sum(more(child, reach * p) for p, child in zip(_probs(node, policy), node.children, strict=True))

    reached(root, 1.0)
    return more(root, 1.0)


def gap(root: Any, policy: Policy) -> float:
    """The sum of the players' gains: how far the policies are from a Nash equilibrium, 0 in one."""
    players: set[int] = set()

    def seen(node: Any) -> None:
        if isinstance(node, int | float):
            return
        if isinstance(node, Decision):
            players.add(node.player)
        for child in node.children:
            seen(child)

    seen(root)
    return sum(gain(root, policy, player) for player in sorted(players))
