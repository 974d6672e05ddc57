"""Somebody who speaks to a robot in docking's and driving's worlds: commands in words, and who says which when.

docking   nine commands, a push along each axis or none; `guided` says a better one where the robot's leads away
driving   four commands for the pedals, found in recorded accelerations by thresholds (`pedal_command`)
"""

import itertools
from collections.abc import Sequence

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.worlds import docking, driving

WORDS = (("left", "", "right"), ("down", "", "up"))
PUSHES = tuple(itertools.product((-1, 0, 1), repeat=2))
PUSH_TEXTS = tuple(f"push {WORDS[0][x + 1]} {WORDS[1][y + 1]}".strip() if x or y else "wait" for x, y in PUSHES)
PEDAL_TEXTS = ("brake hard", "brake", "keep speed", "speed up")
PEDALS = (-1.5, -0.3, 0.3)  # m/s^2, between the commands


def embed(texts: Sequence[str]) -> np.ndarray:
    """How often each word that occurs is in each text, float32 [C, E], words in alphabetic order.

    In place of a language model's embeddings (DistilBERT in arXiv 2403.12910): texts that share words are near.
    """
    words = sorted({word for text in texts for word in text.split()})
    return np.asarray([[text.split().count(word) for word in words] for text in texts], np.float32)


def pushed(commands: chex.Array) -> chex.Array:
    """The action of a command, int [N] -> float [N, 2]: .8 along each axis that it names."""
    return 0.8 * jnp.asarray(PUSHES, jnp.float32)[commands]


def push_command(actions: chex.Array) -> chex.Array:
    """The command whose push is nearest to the actions: float [N, 2] -> int32 [N]."""
    gaps = jnp.square(actions[:, None] - pushed(jnp.arange(len(PUSHES)))[None]).sum(-1)
    return jnp.argmin(gaps, axis=1).astype(jnp.int32)


def guided(observation: chex.Array, own: chex.Array, *, radius: float = 0.15) -> tuple[chex.Array, chex.Array]:
    """(what the guide would say int [], whether they do, bool []): where the robot's command does not lead back.

    They say the command nearest to docking.guide's action, if it is another one, the point is outside of the radius
    and the robot's push has no part towards the origin.

    Args:
      observation: float [4].
      own: int [], the robot's command.
      radius: where nobody complains.
    """
    wanted = push_command(docking.guide(observation[None])[0])[0]
    place = observation[:2]
    back = jnp.sum(pushed(own[None])[0] * place) < 0.0
    return wanted, (wanted != own) & ~back & (jnp.linalg.norm(place) > radius)


def pedal_command(accelerations: chex.Array) -> chex.Array:
    """The command of an acceleration, float [N] in m/s^2 -> int32 [N], by thresholds.

    As AD-H finds its mid-level commands in recorded driving signals by rules; its rules were not read.
    """
    return jnp.searchsorted(jnp.asarray(PEDALS), accelerations).astype(jnp.int32)


def driver(observations: chex.Array, cruise: chex.Array) -> chex.Array:
    """A driver who keeps to a cruising speed, and behind the car in front: float [N, 5], float [N] -> [N] in m/s^2.

    a = clip(min(cruise - v, v_lead + .15 (gap - 10 m) - v), -2, 2), gap to the back of the car in front

    Args:
      observations: of driving.road.
      cruise: m/s, what the instruction asks for.
    """
    speed, gap = driving.LIMIT * observations[:, 0], 50.0 * observations[:, 1] - driving.CAR
    lead = driving.LIMIT * observations[:, 2]
    behind = lead + 0.15 * (gap - 10.0) - speed
    return jnp.clip(jnp.minimum(cruise - speed, behind), -driving.HARSH, driving.HARSH)
