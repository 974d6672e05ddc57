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


def action_vectors(arms: int = ARMS, budget: int = BUDGET) -> np.ndarray:
    """Which arms each action pulls, in lexicographic order: float32 [A, arms], A = 15 for two of six."""
    chosen = list(itertools.combinations(range(arms), budget))
    found = np.zeros((len(chosen), arms), np.float32)
    np.put_along_axis(found, np.array(chosen), 1.0, axis=1)
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


def vector_environment(
    *,
    arms: int = ARMS,
    budget: int = BUDGET,
    single: float = 0.2,
    pair: float = 1.0,
    refill: float = 0.3,
    periods: int = 40,
) -> Environment:
    """The same arms whose actions are vectors, for more arms than their combinations can be listed.

    Actions are real numbers in [0, 1]^arms; the `budget` largest are pulled (`pulled_by`), whatever they are.

    Args:
      arms: an even number.
      budget: arms that are pulled at once.
      single: as in `environment`.
      pair: as in `environment`, for all neighbours.
      refill: as in `environment`.
      periods: as in `environment`.

    Raises:
      ValueError: if arms is odd or budget is not between 1 and arms.
    """
    if arms % 2 or not 1 <= budget <= arms:
        raise ValueError(f"restless arms: arms={arms} must be even and budget={budget} between 1 and arms")

    def reset(key: chex.PRNGKey):
        full = jax.random.bernoulli(key, 0.5, (arms,)).astype(jnp.float32)
        return full, full

    def step(key: chex.PRNGKey, full: chex.Array, action: chex.Array):
        pulled = pulled_by(action, budget)
        filled = jax.random.bernoulli(key, refill, (arms,)).astype(jnp.float32)
        after = (1.0 - pulled) * jnp.maximum(full, filled)
        return after, Step(after, reward_of(full, pulled, single, pair), NO, NO)

    unit = Box(np.zeros(arms, np.float32), np.ones(arms, np.float32))
    return time_limit(Environment(reset, step, unit, unit), periods)


def pulled_by(actions: chex.Array, budget: int) -> chex.Array:
    """1 for the `budget` largest numbers of each action, else 0: float [..., n] -> float32 [..., n]; ties by index."""
    chosen = jax.lax.top_k(actions, budget)[1]
    return jnp.sum(jax.nn.one_hot(chosen, actions.shape[-1]), axis=-2)


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
