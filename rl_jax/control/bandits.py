"""Bandits of the textbook (1904.07272) as pure functions: what each rule pulls, and the regret of a whole game.

ucb1       argmax_i mean_i + sqrt(2 ln t / n_i)         regret <= 8 sum ln T / Delta_i + (1 + pi^2 / 3) sum Delta_i
thompson   argmax_i of a sample from Beta(1 + wins_i, 1 + losses_i)
exp3       p_i = (1 - gamma) w_i / sum w + gamma / K,   w_i <- w_i exp(gamma x_i / (K p_i))
uniform    any arm: regret T mean Delta_i
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Pulls(NamedTuple):
    """What a rule has seen.

    Attributes:
      counts: float32 [K]. Pulls of each arm.
      wins: float32 [K]. Sum of its rewards.
      logits: float32 [K]. log w of exp3; 0 for the others.
      time: float32 []. Pulls so far.
    """

    counts: chex.Array
    wins: chex.Array
    logits: chex.Array
    time: chex.Array


def ucb1_index(counts: chex.Array, wins: chex.Array, time: chex.Array) -> chex.Array:
    """mean_i + sqrt(2 ln t / n_i), float [K]; inf for an arm without a pull.

    Args:
      counts: n_i, float [K].
      wins: sums of rewards in [0, 1], float [K].
      time: t, float []: pulls so far.
    """
    chex.assert_equal_shape([counts, wins])
    pulled = jnp.maximum(counts, 1.0)
    index = wins / pulled + jnp.sqrt(2.0 * jnp.log(jnp.maximum(time, 1.0)) / pulled)
    return jnp.where(counts > 0, index, jnp.inf)


def exp3_probs(logits: chex.Array, gamma: float | chex.Array) -> chex.Array:
    """(1 - gamma) softmax(logits) + gamma / K, float [K]."""
    return (1.0 - gamma) * jax.nn.softmax(logits) + gamma / logits.shape[0]


def ucb1(*, steps: int) -> tuple[Callable, Callable]:
    """(choose, learn) of UCB1. steps: of the game, unused."""
    return lambda state, key: jnp.argmax(ucb1_index(state.counts, state.wins, state.time)), _counted


def thompson(*, steps: int) -> tuple[Callable, Callable]:
    """(choose, learn) of Thompson sampling with a uniform prior. steps: of the game, unused."""

    def choose(state: Pulls, key: chex.PRNGKey) -> chex.Array:
        return jnp.argmax(jax.random.beta(key, 1.0 + state.wins, 1.0 + state.counts - state.wins))

    return choose, _counted


def exp3(*, steps: int) -> tuple[Callable, Callable]:
    """(choose, learn) of Exp3 with the gamma of its bound. steps: T of the game."""

    def gamma_of(arms: int) -> chex.Array:
        return jnp.minimum(1.0, jnp.sqrt(arms * jnp.log(float(arms)) / ((jnp.e - 1.0) * steps)))

    def choose(state: Pulls, key: chex.PRNGKey) -> chex.Array:
        probs = exp3_probs(state.logits, gamma_of(len(state.logits)))
        return jax.random.categorical(key, jnp.log(probs))

    def learn(state: Pulls, arm: chex.Array, reward: chex.Array) -> Pulls:
        arms = len(state.logits)
        gamma = gamma_of(arms)
        share = gamma * reward / (arms * exp3_probs(state.logits, gamma)[arm])
        moved = _counted(state, arm, reward)
        return moved._replace(logits=state.logits.at[arm].add(share))

    return choose, learn


def uniform(*, steps: int) -> tuple[Callable, Callable]:
    """(choose, learn) of pulling any arm. steps: of the game, unused."""
    return lambda state, key: jax.random.randint(key, (), 0, len(state.counts)), _counted


RULES = {"uniform": uniform, "ucb1": ucb1, "exp3": exp3, "thompson": thompson}


def _counted(state: Pulls, arm: chex.Array, reward: chex.Array) -> Pulls:
    return state._replace(
        counts=state.counts.at[arm].add(1.0), wins=state.wins.at[arm].add(reward), time=state.time + 1.0
    )


def play(rule: tuple[Callable, Callable], means: chex.Array, key: chex.PRNGKey, *, steps: int) -> chex.Array:
    """The pseudo-regret sum_t (max mean - mean of the arm) of a game with Bernoulli rewards: float [T], so far.

    Args:
      rule: (choose, learn).
      means: float [K].
      key: typed PRNG key.
      steps: T.
    """
    choose, learn = rule
    zeros = jnp.zeros(means.shape[0])

    def step(state: Pulls, key: chex.PRNGKey):
        arm_key, reward_key = jax.random.split(key)
        arm = choose(state, arm_key)
        reward = jax.random.bernoulli(reward_key, means[arm]).astype(jnp.float32)
        return learn(state, arm, reward), jnp.max(means) - means[arm]

    start = Pulls(zeros, zeros, zeros, jnp.float32(0.0))
    return jnp.cumsum(jax.lax.scan(step, start, jax.random.split(key, steps))[1])


def ucb1_bound(gaps: chex.Array, steps: int) -> chex.Array:
    """8 sum_{Delta > 0} ln T / Delta + (1 + pi^2 / 3) sum Delta, float []. gaps: Delta_i, float [K]."""
    inverse = jnp.where(gaps > 0, 1.0 / jnp.where(gaps > 0, gaps, 1.0), 0.0)
    return 8.0 * jnp.log(steps) * jnp.sum(inverse) + (1.0 + jnp.pi**2 / 3.0) * jnp.sum(gaps)


def exp3_bound(arms: int, steps: int) -> float:
    """2 sqrt(e - 1) sqrt(T K ln K) of Exp3's expected regret. Source: Auer et al., 2002, corollary 3.2."""
    return float(2.0 * jnp.sqrt(jnp.e - 1.0) * jnp.sqrt(steps * arms * jnp.log(float(arms))))
