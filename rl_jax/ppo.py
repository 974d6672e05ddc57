"""PPO with a critic (arXiv 1707.06347, for language models 1909.08593), top to bottom.

    r_t  = -reward_kl_coef * k1(old_logp, ref_logp), and + R on the last token          credit.assign
    A, G = GAE(r, V_old), A whitened over the batch                                     advantages.tokens.gae
    pi:    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) (+ regularisers)          grpo.loss
    V:     max((V - G)^2, (clip(V, V_old - value_clip, V_old + value_clip) - G)^2) / 2  losses.value.clipped

Each right-hand side is an argument. A separate critic is trained by `value_loss` and the policy by grpo.loss, each by
its own optimizer; where they share a trunk, `loss` is the sum of both.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import grpo
from rl_jax.advantages.tokens import gae
from rl_jax.core.binding import needs, supply
from rl_jax.core.masked import Mean, masked_mean, masked_sum, masked_var, masked_whiten, zero_masked
from rl_jax.core.types import Metrics, PolicyBatch, Rollout, TokenScores
from rl_jax.credit.rule import CreditRule
from rl_jax.credit.rule import assign as assign_rewards
from rl_jax.losses import aggregate as aggregation
from rl_jax.losses import value


class PPOBatch(NamedTuple):
    """What PPO trains on.

    policy: PolicyBatch, its advantages from the critic.
    values: float32 [B, C]. The critic's before this batch's updates.
    returns: float32 [B, C]. What the critic is to predict.
    """

    policy: PolicyBatch
    values: chex.Array
    returns: chex.Array

    @property
    def completion_mask(self) -> chex.Array:
        """bool [B, C]. The tokens that the losses see."""
        return self.policy.completion_mask


class Estimator(NamedTuple):
    """From token rewards and values to advantages and returns.

    advantage: (token_rewards, values, mask, *, bootstrap_values, ...) -> (advantages, returns), float [B, C], 0 behind
        the mask; one of advantages.tokens: gae, length_adaptive_gae, vtrace.
    whiten: (A - mean) / sqrt(var + 1e-8) over the batch, var with n - 1 as in verl. Not the returns.
    bootstrap_truncated: a row that was cut off goes on with the critic's value of where it stopped. As it is, its
        value there is 0, as in verl: being cut off is the row's own end.
    """

    advantage: Callable = gae
    whiten: bool = True
    bootstrap_truncated: bool = False


class Objective(NamedTuple):
    """The choices that make the losses.

    policy: grpo.Objective. Its aggregate is that of the value loss, too.
    value_loss: (predictions, returns, mask, *, ...) -> value.ValueLoss.
    support: the bins of a categorical critic; None where it predicts values.
    value_coef: weight of the value loss where policy and critic share a trunk.
    """

    policy: grpo.Objective = grpo.Objective(kl_coef=0.0, aggregate=aggregation.token_mean)
    value_loss: Callable = value.clipped
    support: value.Support | None = None
    value_coef: float = 0.1

    def check(self) -> None:
        """Raises ValueError where the value loss and the critic's outputs do not belong together."""
        categorical = "support" in needs(self.value_loss)
        if categorical and self.support is None:
            raise ValueError("a categorical value loss needs the support of its bins, there is none")
        if not categorical and self.support is not None:
            raise ValueError("a value loss of scalars has no use for a support: leave it None")

    def num_outputs(self) -> int:
        """What the value head has to give for each state."""
        return 1 if self.support is None else self.support.num_bins

    def values(self, outputs: chex.Array) -> chex.Array:
        """The values that the head's outputs stand for. float [..., num_outputs] -> float [...]."""
        return outputs[..., 0] if self.support is None else self.support.mean(outputs)


def assign(
    credit: CreditRule,
    estimator: Estimator,
    rollout: Rollout,
    rewards: chex.Array,
    values: chex.Array,
    **available,
) -> tuple[PPOBatch, Metrics]:
    """The PPOBatch of a batch of rollouts, with old_log_probs left None, and metrics of it, undivided.

    credit: its shape, reward_kl, weights and mask_truncated; the advantage is the estimator's.
    rewards: float [B], unshaped. values: float [B, C + 1] of the critic; column C is the state after the last column.
    available: what credit.assign takes (group_size, key, log_probs, ref_log_probs, reward_kl_coef, ...).
    """
    chex.assert_rank([rewards, values], [1, 2])
    chex.assert_axis_dimension(values, 1, rollout.completion_mask.shape[1] + 1)
    values = jax.lax.stop_gradient(values)
    first = CreditRule(credit.shape, credit.reward_kl, _token_rewards, mask_truncated=credit.mask_truncated)
    first = assign_rewards(first, rollout, rewards, **available)
    token_rewards, mask = first.advantages, first.completion_mask
    after = jnp.where(rollout.truncated & estimator.bootstrap_truncated, values[:, -1], 0.0)
    values = zero_masked(values[:, :-1], mask)
    known = {"log_probs": available.get("log_probs"), "behavior_log_probs": rollout.sampled_log_probs}
    estimate = supply(estimator.advantage, known | {"bootstrap_values": after})
    advantages, returns = estimate(token_rewards, values, mask, bootstrap_values=after)
    metrics = {
        "reward/optimized": Mean(masked_sum(token_rewards, mask), jnp.float32(len(rewards))),  # the KL penalty included
        "returns/mean": masked_mean(returns, mask),
        "value/mean": masked_mean(values, mask),
        "value/explained_variance": explained_variance(values, returns, mask),
    }
    if estimator.whiten:
        advantages = masked_whiten(advantages, mask, ddof=1, eps=1e-8)
    # Weights and selections may look at the advantages, so these go through it once more.
    batch = assign_rewards(credit._replace(advantage=lambda rewards: advantages), rollout, rewards, **available)
    return PPOBatch(batch, values, returns), metrics


def _token_rewards(rewards: chex.Array, *, token_rewards: chex.Array) -> chex.Array:
    """The token rewards themselves in the advantages' place."""
    return token_rewards


def explained_variance(values: chex.Array, returns: chex.Array, mask: chex.Array) -> Mean:
    """1 - Var(G - V) / Var(G): 1 is a perfect critic, 0 one that knows the mean only, and less is worse than that.

    values, returns: float [B, T]. mask: bool [B, T]. Undivided: Mean(Var(G) - Var(G - V), Var(G)); of one whole batch,
    since those of its parts do not add up.
    """
    total = masked_var(returns, mask, ddof=0)
    return Mean(total - masked_var(returns - values, mask, ddof=0), total)


def value_loss(outputs: chex.Array, batch: PPOBatch, objective: Objective) -> tuple[Mean, Metrics]:
    """The critic's loss and its metrics, all undivided.

    outputs: float [B, C, num_outputs] of the value head, differentiated. batch: PPOBatch of the same rows; data.
    Raises ValueError where the loss and the head do not belong together.
    """
    objective.check()
    mask = batch.completion_mask
    chex.assert_shape(outputs, (*mask.shape, objective.num_outputs()))
    predictions = outputs[..., 0] if objective.support is None else outputs
    available = {"old_values": batch.values, "support": objective.support}
    per_token = supply(objective.value_loss, available)(predictions, batch.returns, mask)
    counts = {"group_tokens": batch.policy.group_tokens, "batch_rows": batch.policy.batch_rows}
    aggregate = supply(objective.policy.aggregate, counts)
    result = aggregate(per_token.loss, mask)
    return result, {
        "value/loss": result,
        "value/clipped": masked_mean(per_token.clipped.astype(jnp.float32), mask),
        **_outside(batch, objective),
    }


def _outside(batch: PPOBatch, objective: Objective) -> Metrics:
    """The share of returns that a categorical critic's range does not cover."""
    if objective.support is None:
        return {}
    outside = (batch.returns < objective.support.low) | (batch.returns > objective.support.high)
    return {"value/outside_support": masked_mean(outside.astype(jnp.float32), batch.completion_mask)}


def loss(scores: TokenScores, outputs: chex.Array, batch: PPOBatch, objective: Objective) -> tuple[Mean, Metrics]:
    """The policy's loss + value_coef * the critic's, for a trunk that both share; all undivided.

    scores: the policy's log_probs and entropy, float [B, C]. outputs: float [B, C, num_outputs] of the value head.
    batch: PPOBatch of the same rows. One aggregate of one mask divides both terms by one count.
    """
    policy, metrics = grpo.loss(scores, batch.policy, objective.policy)
    critic, value_metrics = value_loss(outputs, batch, objective)
    return Mean(policy.total + objective.value_coef * critic.total, policy.count), metrics | value_metrics
