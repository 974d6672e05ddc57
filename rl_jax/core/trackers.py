"""Estimators with memory: pairs of pure functions on a small state that is checkpointed and passes through jit.

A tracker is Tracker(init, update): init() -> state, update(state, ...) -> state. A step reads what it uses (state.coef,
state.value, ...) from the state at its start, which has not seen the step's own samples; only running_moments, as
published, has seen the rewards that it scales. States are NamedTuples of float32 arrays.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Tracker(NamedTuple):
    """Two pure functions."""

    init: Callable
    """() -> state."""
    update: Callable
    """(state, <what this step has measured>) -> state."""


class Coefficient(NamedTuple):
    """The weight of the controlled term."""

    coef: chex.Array
    """float32 []."""


def adaptive_kl(
    *, initial: float = 0.001, target: float = 0.1, horizon: float = 10_000.0, max_error: float = 0.2
) -> Tracker:
    """A KL coefficient that steers the KL: coef <- coef (1 + e n / horizon), e = clip(KL / target - 1, -.2, .2).

    update: (state, kl, samples) -> state; kl: float [], measured on `samples`, n: float or int []. The defaults are
    verl's, whose KL is the mean over completions of their means over tokens.
    Source: arXiv 1909.08593; verl's and OpenRLHF's AdaptiveKLController.

    Args:
      initial: coef at the start.
      target: in nats, of the same kind as `kl` (per token or per completion).
      horizon: in samples.
      max_error: bound of |e|.
    """

    def update(state: Coefficient, kl: chex.Array, samples: chex.Array) -> Coefficient:
        chex.assert_rank([kl, samples], 0)
        error = jnp.clip(kl / target - 1.0, -max_error, max_error)
        return Coefficient(state.coef * (1.0 + error * samples / horizon))

    return Tracker(lambda: Coefficient(jnp.float32(initial)), update)


class AnnealedCoefficient(NamedTuple):
    """The weight of the next update's term."""

    coef: chex.Array
    """float32 []. K / (K - k + 1) in update k of K."""
    updates: chex.Array
    """float32 []. Updates so far, k - 1."""


def annealed_kl(*, updates: int) -> Tracker:
    """MDPO's weight of the KL: 1 / t_k with t_k = 1 - (k - 1) / K in update k of K.

    update: (state, kl, samples) -> state; neither is read. Of max E[r A] - KL(pi || old) / t_k the maximum is
    pi = old exp(t_k A) / Z: the policy moves less and less. Source: arXiv 2005.09814 and its code.

    Args:
      updates: K. After the last one the weight stays K.
    """
    if updates < 1:
        raise ValueError(f"annealed_kl: updates must be 1 or more, got {updates}")

    def update(state: AnnealedCoefficient, kl: chex.Array, samples: chex.Array) -> AnnealedCoefficient:
        chex.assert_rank([kl, samples], 0)
        done = state.updates + 1.0
        return AnnealedCoefficient(updates / jnp.maximum(updates - done, 1.0), done)

    return Tracker(lambda: AnnealedCoefficient(jnp.float32(1.0), jnp.float32(0.0)), update)


class EntropyCoefficient(NamedTuple):
    """The entropy bonus of the next step."""

    coef: chex.Array
    """float32 []. What the controller moves."""
    applied: chex.Array
    """float32 []. The bonus to use: coef if the entropy was last at or below its target, 0 if it was above."""


def adaptive_entropy(
    *, initial: float = 0.0, target: float = 0.2, step: float = 0.005, low: float = 0.0, high: float = 1.0
) -> Tracker:
    """An entropy bonus if it is needed: coef + step if H <= target, coef - step above it, within [low, high].

    update: (state, entropy) -> state; entropy: float [] in nats, the mean over the tokens of the step. No bonus is
    applied above the target, or before the first measurement. The defaults are TRL's.
    Source: Skywork-OR1, arXiv 2505.22312; TRL's use_adaptive_entropy.

    Args:
      initial: coef at the start.
      target: in nats.
      step: change of coef per update.
      low: smallest coef.
      high: largest coef.
    """

    def update(state: EntropyCoefficient, entropy: chex.Array) -> EntropyCoefficient:
        chex.assert_rank(entropy, 0)
        below = entropy <= target
        coef = jnp.clip(state.coef + jnp.where(below, step, -step), low, high)
        return EntropyCoefficient(coef, jnp.where(below, coef, 0.0))

    return Tracker(lambda: EntropyCoefficient(jnp.float32(initial), jnp.float32(0.0)), update)


class RunningMean(NamedTuple):
    """A mean over batches."""

    value: chex.Array
    """float32 []. The mean so far."""
    updates: chex.Array
    """float32 []. Number of batches in it."""


def ema_mean(*, decay: float = 0.9, initial: float = 0.0, replace_initial: bool = True) -> Tracker:
    """The baseline of REINFORCE: b <- decay b + (1 - decay) mean(R).

    update: (state, rewards) -> state; rewards: float [B], shaped if the advantage sees shaped ones. Use state.value
    from before the update: a baseline that has seen the rewards it is subtracted from is biased.
    Source: REINFORCE with a baseline (Williams, 1992).

    Args:
      decay: weight of the old value.
      initial: b of the first batch.
      replace_initial: if True, the first update sets b to the mean itself; if False, `initial` decays by a factor
        `decay` per batch.
    """

    def update(state: RunningMean, rewards: chex.Array) -> RunningMean:
        chex.assert_rank(rewards, 1)
        mean = jnp.mean(rewards)
        kept = jnp.where((state.updates == 0) & replace_initial, 0.0, decay)
        return RunningMean(kept * state.value + (1.0 - kept) * mean, state.updates + 1.0)

    return Tracker(lambda: RunningMean(jnp.float32(initial), jnp.float32(0.0)), update)


class Moments(NamedTuple):
    """Mean and spread of everything seen so far."""

    count: chex.Array
    """float32 []. Number of values; exact up to 2^24."""
    mean: chex.Array
    """float32 []."""
    squares: chex.Array
    """float32 []. sum (x - mean)^2."""

    def std(self, *, ddof: int = 1) -> chex.Array:
        """sqrt(squares / (count - ddof)), float []; 1 as long as there is no spread to divide by."""
        known = (self.count > ddof) & (self.squares > 0)
        return jnp.where(known, jnp.sqrt(self.squares / jnp.where(known, self.count - ddof, 1.0)), 1.0)


def running_moments() -> Tracker:
    """Mean and variance of all rewards so far, as of one batch (for shaping.scaled).

    With n_a values seen, n_b new ones and d = mean_b - mean_a,

        mean = mean_a + d n_b / (n_a + n_b),   squares = squares_a + squares_b + d^2 n_a n_b / (n_a + n_b).

    update: (state, rewards) -> state; rewards: float [B]. PPO-max updates first and scales with the new state.
    Source: Chan, Golub and LeVeque (1979); arXiv 2307.04964 and its code.
    """

    def update(state: Moments, rewards: chex.Array) -> Moments:
        chex.assert_rank(rewards, 1)
        # Relative to the first one, so that equal rewards have no spread.
        shifted = rewards - rewards[0]
        mean = jnp.mean(shifted)
        squares = jnp.sum(jnp.square(shifted - mean))
        total = state.count + rewards.size
        gap = rewards[0] + mean - state.mean
        share = rewards.size / total
        return Moments(total, state.mean + gap * share, state.squares + squares + jnp.square(gap) * state.count * share)

    return Tracker(lambda: Moments(*(jnp.float32(0.0) for _ in Moments._fields)), update)


def feature_moments(*, shape: tuple[int, ...], axis_name: str | None = None) -> Tracker:
    """Mean and variance of each feature of everything seen so far, by the formulas of `running_moments`.

    update: (state, x) -> state; x: float [B, T, *shape], B T samples. The mean and squares of Moments have `shape`.

    Args:
      shape: of one sample.
      axis_name: a mapped axis that splits the samples; every part's state sees all of them.
    """

    def total(x: chex.Array) -> chex.Array:
        return x if axis_name is None else jax.lax.psum(x, axis_name)

    def update(state: Moments, x: chex.Array) -> Moments:
        chex.assert_shape(x, (None, None, *shape))
        x = x.reshape(-1, *shape)
        count = total(jnp.float32(len(x)))
        mean = total(jnp.sum(x, axis=0)) / count
        squares = total(jnp.sum(jnp.square(x - jnp.broadcast_to(mean, x.shape)), axis=0))
        gap, seen = mean - state.mean, state.count + count
        spread = jnp.square(gap) * (state.count * count / seen)
        return Moments(seen, state.mean + gap * (count / seen), state.squares + squares + spread)

    return Tracker(lambda: Moments(jnp.float32(0.0), jnp.zeros(shape), jnp.zeros(shape)), update)


class ReturnScale(NamedTuple):
    """The discounted returns of B environments."""

    returns: chex.Array
    """float32 [B]. Of each environment's current episode, up to now."""
    moments: Moments
    """Of all of them so far."""


def reward_scale(num_envs: int, *, discount: float | chex.Array, axis_name: str | None = None) -> Tracker:
    """The spread of the discounted return so far, g <- gamma g + r from the start of each episode.

    update: (state, rewards [B, T], done [B, T]) -> ReturnScale. Source: gymnasium's NormalizeReward.
    """
    moments = feature_moments(shape=(), axis_name=axis_name)

    def update(state: ReturnScale, rewards: chex.Array, done: chex.Array) -> ReturnScale:
        chex.assert_rank([rewards, done], 2)

        def step(returns: chex.Array, now):
            reward, over = now
            returns = discount * returns + reward
            return jnp.where(over, 0.0, returns), returns

        last, returns = jax.lax.scan(step, state.returns, (rewards.T, done.T))
        return ReturnScale(last, moments.update(state.moments, returns))

    return Tracker(lambda: ReturnScale(jnp.zeros(num_envs), moments.init()), update)


class BetaValues(NamedTuple):
    """A Beta distribution of each prompt's pass rate."""

    successes: chex.Array
    """float32 [N]. alpha."""
    failures: chex.Array
    """float32 [N]. beta."""

    def values(self, prompts: chex.Array) -> chex.Array:
        """alpha / (alpha + beta) of these prompts, for use as their baseline. int [B] -> float32 [B]."""
        successes, failures = self.successes[prompts], self.failures[prompts]
        return successes / (successes + failures)


def beta_values(
    *, num_prompts: int, half_life: float = 0.06, low: float = 0.875, high: float = 0.96, prior: float = 0.5
) -> Tracker:
    """SPO's value of each prompt: alpha <- rho alpha + R, beta <- rho beta + 1 - R, value alpha / (alpha + beta).

    rho = clip(2^(-D / half_life), low, high) forgets faster the more the policy has moved since the prompt was last
    seen: D is the mean |change of log-prob| over the tokens of its last completion, 0 on the first visit.

    init: (offline_successes=None, offline_samples=0) -> state; without offline samples alpha = beta = prior. With S
    successes, float [N], in n samples per prompt, alpha = (S + prior) / ((n + 2 prior) (1 - low)), beta likewise, so
    that alpha + beta starts at its fixed point for rho = low.

    update: (state, prompts, rewards, divergence) -> state; prompts: int [B], rewards: float [B] in [0, 1],
    divergence: float [B], D. Several rows of one prompt are summed and forget once, by their mean D.

    Source: arXiv 2509.13232 and its code in verl-recipe.

    Args:
      num_prompts: N.
      half_life: in nats.
      low: smallest rho.
      high: largest rho.
      prior: of alpha and beta.
    """

    def init(offline_successes: chex.Array | None = None, offline_samples: int = 0) -> BetaValues:
        if offline_successes is None:
            # Two arrays: one that stands for both could not be donated.
            return BetaValues(*(jnp.full(num_prompts, prior, jnp.float32) for _ in BetaValues._fields))
        successes = jnp.asarray(offline_successes, jnp.float32)
        chex.assert_shape(successes, (num_prompts,))
        scale = 1.0 / ((offline_samples + 2.0 * prior) * (1.0 - low))
        return BetaValues((successes + prior) * scale, (offline_samples - successes + prior) * scale)

    def update(state: BetaValues, prompts: chex.Array, rewards: chex.Array, divergence: chex.Array) -> BetaValues:
        chex.assert_rank([prompts, rewards, divergence], 1)
        chex.assert_equal_shape([prompts, rewards, divergence])

        def of_prompts(x: chex.Array) -> chex.Array:
            return jax.ops.segment_sum(x.astype(jnp.float32), prompts, num_segments=num_prompts)

        visits = of_prompts(jnp.ones_like(rewards))
        mean_divergence = of_prompts(divergence) / jnp.maximum(visits, 1.0)
        rho = jnp.where(visits > 0, jnp.clip(jnp.exp2(-mean_divergence / half_life), low, high), 1.0)
        passed = of_prompts(rewards)
        return BetaValues(rho * state.successes + passed, rho * state.failures + visits - passed)

    return Tracker(init, update)
