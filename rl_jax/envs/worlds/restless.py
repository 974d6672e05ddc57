"""Coupled restless bandits: two of six arms are pulled at once, and pairs of them are worth more together.

An arm is full or empty. A pulled arm that is full pays `single` and is empty afterwards; both arms of a pair, full and
pulled together, pay `pair` on top. Empty arms that are not pulled fill with probability `refill`. Pulling what pays now
spoils the pairs of later, so the policy that looks one step ahead is not the best one. 64 states and 15 actions: the
best policy is known by value iteration. A small member of the family of arXiv 2503.01919 (SEQUOIA, coRMAB).
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

ARMS, BUDGET = 6, 2
NO = np.bool_(False)


def action_vectors() -> np.ndarray:
    """Which arms each action pulls, float32 [15, 6], in lexicographic order."""
    found = np.zeros((15, ARMS), np.float32)
    for row, chosen in enumerate(itertools.combinations(range(ARMS), BUDGET)):
        found[row, list(chosen)] = 1.0
    return found


def reward_of(full: chex.Array, pulled: chex.Array, single: float, pair: float) -> chex.Array:
    """The reward of pulling arms: full, pulled: float [..., 6] of 0 and 1 -> float [...]."""
    earned = full * pulled
    return single * earned.sum(-1) + pair * (earned[..., 0::2] * earned[..., 1::2]).sum(-1)


def environment(*, single: float = 0.2, pair: float = 1.0, refill: float = 0.3, periods: int = 40) -> Environment:
    """The arms as an Environment: observations are the six arms, 1 if full; actions are pairs of arms.

    Args:
      single: reward of a full arm.
      pair: reward of arms 0 and 1, 2 and 3, or 4 and 5, both full.
      refill: probability that an empty arm that is not pulled fills.
      periods: steps after which an episode is truncated.
    """
    vectors = action_vectors()

    def reset(key: chex.PRNGKey):
        full = jax.random.bernoulli(key, 0.5, (ARMS,)).astype(jnp.float32)
        return full, full

    def step(key: chex.PRNGKey, full: chex.Array, action: chex.Array):
        pulled = jnp.asarray(vectors)[action]
        filled = jax.random.bernoulli(key, refill, (ARMS,)).astype(jnp.float32)
        after = (1.0 - pulled) * jnp.maximum(full, filled)
        return after, Step(after, reward_of(full, pulled, single, pair), NO, NO)

    space = Box(np.zeros(ARMS, np.float32), np.ones(ARMS, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(len(vectors))), periods)


def values_of(
    policy: str, *, discount: float, single: float = 0.2, pair: float = 1.0, refill: float = 0.3
) -> tuple[np.ndarray, np.ndarray]:
    """(discounted values [64], actions [64]) of a policy, by dynamic programming on all states.

    Args:
      policy: "best", "myopic" (the largest reward now) or "random" (its actions are those of the myopic one).
      discount: gamma.
      single: as in `environment`.
      pair: as in `environment`.
      refill: as in `environment`.
    """
    states = np.asarray(list(itertools.product((0.0, 1.0), repeat=ARMS)))
    vectors = action_vectors()
    rewards = reward_of(states[:, None, :], vectors[None], single, pair)
    # The chance of each arm to be full afterwards: its product over arms is that of the state.
    chance = (1 - vectors[None]) * np.where(states[:, None, :] > 0, 1.0, refill)
    probs = np.prod(np.where(states[None, None] > 0, chance[:, :, None], 1 - chance[:, :, None]), axis=-1)
    values = np.zeros(len(states))
    for _ in range(int(np.ceil(np.log(1e-6) / np.log(discount)))):
        q = rewards + discount * probs @ values
        if policy == "random":
            values = q.mean(1)
        else:
            actions = (q if policy == "best" else rewards).argmax(1)
            values = q[np.arange(len(states)), actions]
    return values, (q if policy == "best" else rewards).argmax(1)
