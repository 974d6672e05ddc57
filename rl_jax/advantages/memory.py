"""Statistics of the rewards of earlier steps that an advantage asks for by name: trackers for the place `baseline`.

Named in a config by their import path, "rl_jax.advantages.memory:prompt_moments". Their states have
named(prompts) -> {name: array}, which experiments.parts.trackers hands to the advantage.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.divergences import f_prime
from rl_jax.advantages.remembered import bundle_scores, pooled
from rl_jax.core.trackers import Tracker


class PromptMoments(NamedTuple):
    """Rewards of each prompt over its visits. A visit is a step that had samples of the prompt."""

    visits: chex.Array
    """float32 [N]."""
    means: chex.Array
    """float32 [N]."""
    stds: chex.Array
    """float32 [N]."""

    def values(self, prompts: chex.Array) -> chex.Array:
        """The mean reward of these prompts so far, 0 before the first visit. int [B] -> float32 [B]."""
        return self.means[prompts]

    def named(self, prompts: chex.Array) -> dict[str, chex.Array]:
        """prompt_moments float32 [B, 3]: visits, mean and std of each row's prompt before this step. int [B]."""
        return {"prompt_moments": jnp.stack([self.visits[prompts], self.means[prompts], self.stds[prompts]], axis=1)}


def prompt_moments(*, num_prompts: int) -> Tracker:
    """DCPO's mean and std of each prompt's rewards over all its visits (rl_jax.advantages.remembered.pooled).

    update: (state, prompts, rewards, divergence) -> state; prompts: int [B], rewards: float [B], divergence: unused.
    All rows of a prompt in a step are one visit; a prompt with a single row has the std 0.
    Source: arXiv 2509.02333; get_mean_std of lime-RL/DCPO.

    Args:
      num_prompts: N.
    """

    def update(state: PromptMoments, prompts: chex.Array, rewards: chex.Array, divergence: chex.Array) -> PromptMoments:
        chex.assert_rank([prompts, rewards], 1)

        def of_prompts(x: chex.Array) -> chex.Array:
            return jax.ops.segment_sum(x.astype(jnp.float32), prompts, num_segments=num_prompts)

        count = of_prompts(jnp.ones_like(rewards))
        mean = of_prompts(rewards) / jnp.maximum(count, 1.0)
        std = jnp.sqrt(of_prompts(jnp.square(rewards - mean[prompts])) / jnp.maximum(count - 1.0, 1.0))
        visits = state.visits + 1.0
        means, stds = pooled(visits, mean, std, state.means, state.stds)
        seen = count > 0
        return PromptMoments(
            jnp.where(seen, visits, state.visits),
            jnp.where(seen, means, state.means),
            jnp.where(seen, stds, state.stds),
        )

    return Tracker(lambda: PromptMoments(*(jnp.zeros(num_prompts) for _ in PromptMoments._fields)), update)


class Quantiles(NamedTuple):
    """Two quantiles of the scores of bundles."""

    low: chex.Array
    """float32 []."""
    high: chex.Array
    """float32 []."""
    updates: chex.Array
    """float32 []. Number of steps seen; 0: the quantiles are not known yet."""

    def named(self, prompts: chex.Array | None = None) -> dict[str, chex.Array]:
        """score_quantiles float32 [3]: low, high, and the number of updates. prompts: unused."""
        return {"score_quantiles": jnp.stack([self.low, self.high, self.updates])}


def bundle_quantiles(
    *, group_size: int, bundle_size: int = 5, low: float = 0.2, high: float = 0.8, step_size: float = 0.1
) -> Tracker:
    """RiskPO's quantiles of the bundles' scores: q_a <- q_a + step_size (a - mean 1[S < q_a]).

    The first update takes the quantiles of its own scores. update: (state, rewards) -> state; rewards: float [B].
    Source: arXiv 2510.00911; RTkenny/RiskPO (SGD with lr_q = .1).

    Args:
      group_size: G.
      bundle_size: as in rl_jax.advantages.remembered.bundled_risk.
      low: level a of the lower quantile.
      high: level of the upper one.
      step_size: in the units of the scores.
    """

    def update(state: Quantiles, rewards: chex.Array) -> Quantiles:
        scores = bundle_scores(rewards, group_size=group_size, bundle_size=bundle_size).reshape(-1)

        def moved(level: float, value: chex.Array) -> chex.Array:
            step = step_size * (level - jnp.mean((scores < value).astype(jnp.float32)))
            return jnp.where(state.updates == 0, jnp.quantile(scores, level), value + step).astype(jnp.float32)

        return Quantiles(moved(low, state.low), moved(high, state.high), state.updates + 1.0)

    return Tracker(lambda: Quantiles(*(jnp.float32(0.0) for _ in Quantiles._fields)), update)


class Partition(NamedTuple):
    """What f-DPG has seen: the partition function of each prompt's target, and the last pseudo-rewards."""

    log_partition: chex.Array
    """float32 [N]. log Z, 0 before the first visit."""
    samples: chex.Array
    """float32 [N]. Samples of the prompt so far."""
    pseudo_rewards: chex.Array
    """float32 [W]. -f'(t) of the last samples, the newest ones last."""
    seen: chex.Array
    """float32 []. How many of them there are."""

    def baseline(self) -> chex.Array:
        """Mean of the pseudo-rewards that there are, 0 if none. -> float32 []."""
        return jnp.sum(self.pseudo_rewards) / jnp.maximum(self.seen, 1.0)

    def values(self, prompts: chex.Array) -> chex.Array:
        """log Z of these prompts. int [B] -> float32 [B]."""
        return self.log_partition[prompts]

    def named(self, prompts: chex.Array) -> dict[str, chex.Array]:
        """partition float32 [B, 3]: log Z and samples of each row's prompt, and the baseline. int [B]."""
        columns = self.log_partition[prompts], self.samples[prompts], jnp.broadcast_to(self.baseline(), prompts.shape)
        return {"partition": jnp.stack(columns, axis=1)}


def partitions(*, num_prompts: int, reward_kl_coef: float, f: str = "js", window: int = 1024) -> Tracker:
    """f-DPG's estimate of each prompt's Z, and its moving baseline: a tracker for the place `baseline`.

    update: (state, prompts, rewards, divergence) -> state; prompts: int [B]; rewards: float [B], as the advantage sees
    them; divergence: unused. Source: arXiv 2302.08215, naver/disco.

    Args:
      num_prompts: N.
      reward_kl_coef: beta of rl_jax.advantages.divergences.f_dpg, as the config has it: it may not move.
      f: as in `f_dpg`.
      window: W, pseudo-rewards that the baseline is the mean of.
    """

    def update(state: Partition, prompts: chex.Array, rewards: chex.Array, divergence: chex.Array) -> Partition:
        chex.assert_rank([prompts, rewards], 1)
        log_weights = rewards.astype(jnp.float32) / reward_kl_coef
        highest = jax.ops.segment_max(log_weights, prompts, num_segments=num_prompts)  # -inf without a row
        total = jax.ops.segment_sum(jnp.exp(log_weights - highest[prompts]), prompts, num_segments=num_prompts)
        count = jax.ops.segment_sum(jnp.ones_like(log_weights), prompts, num_segments=num_prompts)
        samples = state.samples + count
        log_sum = jnp.logaddexp(state.log_partition + jnp.log(state.samples), highest + jnp.log(total))
        log_z = jnp.where(count > 0, log_sum - jnp.log(jnp.maximum(samples, 1.0)), state.log_partition)
        newest = -f_prime(log_z[prompts] - log_weights, f=f)
        kept = jnp.concatenate([state.pseudo_rewards, newest])[-window:]
        return Partition(log_z, samples, kept, jnp.minimum(state.seen + len(newest), float(window)))

    return Tracker(
        lambda: Partition(jnp.zeros(num_prompts), jnp.zeros(num_prompts), jnp.zeros(window), jnp.float32(0.0)), update
    )
