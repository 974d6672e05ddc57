"""PPO with a critic (arXiv 1707.06347, for language models 1909.08593), top to bottom.

    r_t  = -reward_kl_coef * k1(old_logp, ref_logp), and + R on the last token          credit.token_rewards
    A, G = GAE(r, V_old), A whitened over the batch                                     advantages.tokens.gae
    pi:    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) (+ regularisers)          grpo.loss
    V:     max((V - G)^2, (clip(V, V_old - value_clip, V_old + value_clip) - G)^2) / 2  losses.value.clipped

Each right-hand side is an argument. A separate critic is trained by `value_loss` and the policy by grpo.loss, each with
its own optimizer; if they share a trunk, `loss` is the sum of both.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import credit, grpo
from rl_jax.advantages import turn_critics
from rl_jax.advantages.tokens import gae
from rl_jax.core.binding import needs, supply
from rl_jax.core.masked import Mean, masked_mean, masked_sum, masked_var, masked_whiten, zero_masked
from rl_jax.core.types import Metrics, PolicyBatch, Rollout, TokenScores
from rl_jax.credit.rule import completion_tokens
from rl_jax.losses import aggregate as aggregation
from rl_jax.losses import value


class PPOBatch(NamedTuple):
    """What PPO trains on."""

    policy: PolicyBatch
    """Its advantages are the critic's."""
    values: chex.Array
    """float32 [B, C]. The critic's, before this batch's updates; of pairs of critics [B, C, 2 K]."""
    returns: chex.Array
    """float32 [B, C]. The critic's targets; of pairs of critics [B, C, 2 K]."""
    learned: chex.Array | None = None
    """bool [B, C]. The tokens that the critic learns from; None: those of the policy."""

    @property
    def completion_mask(self) -> chex.Array:
        """bool [B, C]. The tokens that the losses see."""
        return self.policy.completion_mask

    @property
    def value_mask(self) -> chex.Array:
        """bool [B, C]. The tokens that the value loss sees."""
        return self.completion_mask if self.learned is None else self.learned


class Estimator(NamedTuple):
    """From token rewards and values to advantages and returns."""

    advantage: Callable = gae
    """(token_rewards, values, mask, *, bootstrap_values, ...) -> (advantages, returns), float [B, C], 0 outside the
    mask; one of advantages.tokens: gae, length_adaptive_gae, vtrace; of advantages.turn_critics for episodes."""
    whiten: bool = True
    """(A - mean) / sqrt(var + 1e-8) over the batch, var with n - 1 as in verl. Returns are not whitened."""
    bootstrap_truncated: bool = False
    """If True, bootstrap truncated rows with the critic's value; if False (verl), truncation is termination."""
    windowed: bool = False
    """Answers are sampled over several steps (T-PPO): the policy learns from the tokens of the newest version, the
    critic from all tokens of the answers that are over."""


class Objective(NamedTuple):
    """The choices that make the losses."""

    policy: grpo.Objective = grpo.Objective(kl_coef=0.0, aggregate=aggregation.token_mean)
    """Its aggregate is that of the value loss, too."""
    value_loss: Callable = value.clipped
    """(predictions, returns, mask, *, ...) -> value.ValueLoss."""
    support: value.Support | None = None
    """Bins of a categorical critic; None if the critic predicts values."""
    value_coef: float = 0.1
    """Weight of the value loss if policy and critic share a trunk."""
    pairs: int = 0
    """K pairs of critics of whole turns, Q_k and V_k (ArCHer has 2); 0: values of states."""

    def check(self) -> None:
        """Raises ValueError if the value loss and the critic's outputs do not match."""
        categorical = "support" in needs(self.value_loss)
        if categorical and self.support is None:
            raise ValueError("a categorical value loss needs the support of its bins")
        if not categorical and self.support is not None:
            raise ValueError("a value loss of scalars takes no support: leave it None")
        if self.pairs and categorical:
            raise ValueError(f"pairs={self.pairs} critics of turns regress: their value loss takes no support")

    def num_outputs(self) -> int:
        """Outputs of the value head per state."""
        return 2 * self.pairs or (1 if self.support is None else self.support.num_bins)

    def values(self, outputs: chex.Array) -> chex.Array:
        """Values from the head's outputs. float [..., num_outputs] -> float [...]; of pairs they are the values."""
        if self.pairs:
            return outputs
        return outputs[..., 0] if self.support is None else self.support.mean(outputs)

    def read(self, outputs: chex.Array, batch: PPOBatch) -> chex.Array:
        """What `value_loss` takes, from the head's outputs. float [B, C + 1, num_outputs] -> [B, C, num_outputs].

        Pairs of critics are read at the turns of the batch's extras.
        """
        if not self.pairs:
            return outputs[:, :-1]
        return turn_critics.at_turns(outputs, batch.policy.extras["turns"], batch.completion_mask)


def assign(
    rule: credit.CreditRule,
    estimator: Estimator,
    rollout: Rollout,
    rewards: chex.Array,
    values: chex.Array,
    **available,
) -> tuple[PPOBatch, Metrics]:
    """The PPOBatch of a batch of rollouts, with old_log_probs left None, and its metrics, undivided.

    Args:
      rule: its shape, reward_kl, weights, selection and mask_truncated are used; the advantage is the estimator's.
      estimator: the advantage.
      rollout: B rows.
      rewards: float [B], unshaped.
      values: float [B, C + 1] of the critic; column C is the state after the last column. Of pairs of critics
        [B, C + 1, 2 K]; they need `turns` and `target_values`, the same of their slow copy.
      **available: what credit.token_rewards and credit.weigh take (group_size, key, log_probs, ref_log_probs,
        reward_kl_coef, ...).
    """
    chex.assert_rank([rewards, values], [1, {2, 3}])
    chex.assert_axis_dimension(values, 1, rollout.completion_mask.shape[1] + 1)
    values, mask = jax.lax.stop_gradient(values), rule.loss_mask(rollout)
    earned = credit.token_rewards(rule, rollout, rewards, **available)
    token_rewards = zero_masked(earned.tokens, mask)
    known = {name: available.get(name) for name in ("log_probs", "turns")}
    learned, pairs = None, values.ndim == 3
    if pairs:
        turns, target = available["turns"], jax.lax.stop_gradient(available["target_values"])
        values, learned = turn_critics.at_turns(values, turns, mask), turn_critics.turn_ends(turns, mask)
        after, known["target_values"] = None, turn_critics.at_turns(target, turns, mask)
    else:
        after = jnp.where(rollout.truncated & estimator.bootstrap_truncated, at_the_end(values, rollout), 0.0)
        values = zero_masked(values[:, :-1], mask)
    known |= {"behavior_log_probs": rollout.sampled_log_probs}
    known |= {"bootstrap_values": after, "unfinished": ~(rollout.finished | rollout.truncated)}
    known |= {"tokens": completion_tokens(rollout)}
    advantages, returns = supply(estimator.advantage, known)(token_rewards, values, mask)
    reached = mask if learned is None else learned
    if estimator.windowed:
        learned = reached = mask & (rollout.finished | rollout.truncated)[:, None]
        rollout = of_newest(rollout)
        mask = rule.loss_mask(rollout)
    first = (values[..., 0], returns[..., 0]) if pairs else (values, returns)  # Q_1 and its target
    metrics = {
        "reward/optimized": Mean(masked_sum(token_rewards, mask), jnp.float32(len(rewards))),  # the KL penalty included
        "returns/mean": masked_mean(first[1], reached),
        "value/mean": masked_mean(first[0], reached),
        "value/explained_variance": explained_variance(*first, reached),
    }
    if estimator.whiten:
        advantages = masked_whiten(advantages, mask, ddof=1, eps=1e-8)
    advantages = zero_masked(advantages, mask)
    return PPOBatch(credit.weigh(rule, rollout, advantages, **available), values, returns, learned), metrics


def at_the_end(values: chex.Array, rollout: Rollout) -> chex.Array:
    """The value of the state in which each row stopped. float [B, C + 1] -> float [B].

    A single answer is cut off at the last column; an episode, which other limits end, after its last sampled token.
    """
    if rollout.turns is None:
        return values[:, -1]
    columns = jnp.arange(1, values.shape[1])
    stop = jnp.max(jnp.where(rollout.completion_mask, columns, 0), axis=1, keepdims=True)
    return jnp.take_along_axis(values, stop, axis=1)[:, 0]


def of_newest(rollout: Rollout) -> Rollout:
    """The rollout with only those tokens in its mask that the newest version sampled.

    Raises:
      ValueError: if it has no versions.
    """
    if rollout.versions is None:
        raise ValueError("an Estimator with windowed=True needs rollout.versions: rollout.window sets them")
    newest = jnp.max(jnp.where(rollout.completion_mask, rollout.versions, -1))
    return rollout._replace(completion_mask=rollout.completion_mask & (rollout.versions == newest))


def explained_variance(values: chex.Array, returns: chex.Array, mask: chex.Array) -> Mean:
    """1 - Var(G - V) / Var(G): 1 for a perfect critic, 0 for one that knows only the mean, negative for a worse one.

    Args:
      values: float [B, T].
      returns: float [B, T].
      mask: bool [B, T].

    Returns:
      Mean(Var(G) - Var(G - V), Var(G)), undivided, of the whole batch: those of its parts do not add up.
    """
    total = masked_var(returns, mask, ddof=0)
    return Mean(total - masked_var(returns - values, mask, ddof=0), total)


def value_loss(outputs: chex.Array, batch: PPOBatch, objective: Objective) -> tuple[Mean, Metrics]:
    """The critic's loss and its metrics, all undivided.

    Args:
      outputs: float [B, C, num_outputs] of the value head, differentiated.
      batch: the same rows; data, without gradient.
      objective: its value_loss, support and aggregate are used.

    Raises:
      ValueError: if the loss and the head do not match.
    """
    objective.check()
    mask = batch.value_mask
    chex.assert_shape(outputs, (*mask.shape, objective.num_outputs()))
    predictions = outputs[..., 0] if objective.num_outputs() == 1 else outputs
    available = {**batch.policy.extras, "old_values": batch.values, "support": objective.support}
    per_token = supply(objective.value_loss, available)(predictions, batch.returns, mask)
    result = supply(objective.policy.aggregate, batch.policy.extras)(per_token.loss, mask)
    return result, {
        "value/loss": result,
        "value/clipped": masked_mean(per_token.clipped.astype(jnp.float32), mask),
        **_outside(batch, objective),
    }


def _outside(batch: PPOBatch, objective: Objective) -> Metrics:
    """The share of returns outside a categorical critic's range."""
    if objective.support is None:
        return {}
    outside = (batch.returns < objective.support.low) | (batch.returns > objective.support.high)
    return {"value/outside_support": masked_mean(outside.astype(jnp.float32), batch.value_mask)}


def loss(scores: TokenScores, outputs: chex.Array, batch: PPOBatch, objective: Objective) -> tuple[Mean, Metrics]:
    """The policy's loss + value_coef * the critic's, for a trunk that both share; all undivided.

    Args:
      scores: the policy's log_probs and entropy, float [B, C].
      outputs: float [B, C, num_outputs] of the value head.
      batch: the same rows. One aggregate over one mask divides both terms by one count.
      objective: the choices.
    """
    policy, metrics = grpo.loss(scores, batch.policy, objective.policy)
    critic, value_metrics = value_loss(outputs, batch, objective)
    return Mean(policy.total + objective.value_coef * critic.total, policy.count), metrics | value_metrics
