"""Environments whose rewards are vectors, by name: "objectives/treasure" and so on (rl_jax.envs.registry).

    treasure    deep sea treasure: (treasure, -1 a step), its front by shortest paths
    two_aims    a bandit of Fonseca and Fleming: its front by a formula, and not concave
    arms        a bandit by its table of rewards

envs.worlds.treasure has them and their fronts. envs.objectives makes of each one reward, or shows weights to the agent.
"""

from rl_jax.envs.protocol import Environment
from rl_jax.envs.worlds import treasure as worlds


def treasure(*, sea: str = "convex", columns: int = 10, limit: int = 100) -> Environment:
    """envs.worlds.treasure.environment. sea: the map, "convex" or "concave"; columns: those with a treasure."""
    return worlds.environment(name=sea, columns=columns, limit=limit)


def two_aims(*, size: int = 2, span: float = 1.0) -> Environment:
    """envs.worlds.treasure.two_aims, with the same arguments."""
    return worlds.two_aims(size=size, span=span)


def arms(*, rewards: tuple = ((1.0, 0.0), (0.6, 0.55), (0.0, 1.0))) -> Environment:
    """envs.worlds.treasure.arms. rewards: [arms][K]."""
    return worlds.arms(rewards=rewards)
