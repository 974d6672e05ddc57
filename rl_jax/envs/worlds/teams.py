"""Environments of several agents, by name: "agents/kitchen" and so on (rl_jax.envs.registry).

    kitchen     two cooks and a counter: the most soups by dynamic programming    envs.worlds.kitchen
    stage       a game of one step by its table, common or zero-sum               envs.worlds.matrix_games
    two_step    QMIX's game, 8 at best                                            envs.worlds.matrix_games
    robots      a task in hierarchical temporal logic, whose shortest plan is known    envs.worlds.robots
    recommender two levels and a user's wish for the new: a recursion             envs.worlds.recommender

envs.agents makes of them rows, or one agent, for updaters that know of one.
"""

from collections.abc import Mapping

from rl_jax.envs.protocol import Environment
from rl_jax.envs.worlds import kitchen as kitchens
from rl_jax.envs.worlds import matrix_games
from rl_jax.envs.worlds import recommender as recommenders
from rl_jax.envs.worlds import robots as teams_of_robots


def kitchen(
    *, lane: int = 3, onions: int = 1, cook: int = 3, limit: int = 30, shaping: float = 0.0
) -> Environment:
    """envs.worlds.kitchen.environment, with the same arguments."""
    return kitchens.environment(lane=lane, onions=onions, cook=cook, limit=limit, shaping=shaping)


def stage(*, payoffs: tuple = matrix_games.CLIMBING, common: bool = True) -> Environment:
    """envs.worlds.matrix_games.stage, with the same arguments."""
    return matrix_games.stage(payoffs, common=common)


def two_step(*, tables: tuple = matrix_games.QMIX_TABLES) -> Environment:
    """envs.worlds.matrix_games.two_step, with the same arguments."""
    return matrix_games.two_step(tables)


def recommender(
    *, topics: int = 5, length: int = 4, sessions: int = 3, novelty: float = 0.1, diversity: float = 0.3
) -> Environment:
    """envs.worlds.recommender.environment, with the same arguments."""
    sizes = dict(topics=topics, length=length, sessions=sessions)
    return recommenders.environment(**sizes, novelty=novelty, diversity=diversity)


def robots(
    *,
    task: str,
    parts: Mapping[str, str],
    owners: Mapping[str, int],
    places: Mapping[str, int],
    starts: tuple[int, ...],
    length: int = 7,
    progress: float = 0.1,
    limit: int = 0,
) -> Environment:
    """envs.worlds.robots.environment, with the same arguments."""
    told = dict(task=task, parts=parts, owners=owners, places=places, starts=tuple(starts))
    return teams_of_robots.environment(**told, length=length, progress=progress, limit=limit)
