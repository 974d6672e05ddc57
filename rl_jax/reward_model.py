"""Reward models (arXiv 1706.03741, 2009.01325), top to bottom: outputs of a head -> rewards -> loss -> Mean.

    r_k  = head(hidden state of the response's last token)                      models.heads
    loss = mean( -log sigma(r_w - r_l) + c R )                                  loss, regularizer, regularizer_coef
    r    = combine(r^1, .., r^M)                                                rl_jax.credit.ensembles, after training

Each right-hand side is a slot of Objective. The members of an ensemble share the trunk; each has its own loss, and the
mean over them is trained. `steps_loss` is for the process reward model, whose head reads the last token of each step.
`implicit_loss` has no head: its reward is the log-ratio of a language model to its reference.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import needs, supply
from rl_jax.core.masked import Mean, masked_mean, masked_sum, zero_masked
from rl_jax.core.types import Metrics, Packed, PreferenceBatch, TokenBatch, TokenScores
from rl_jax.losses import reward_model as losses
from rl_jax.losses import value
from rl_jax.losses.reward_model import implicit, rankings
from rl_jax.losses.reward_model.base import Terms


class Objective(NamedTuple):
    """The choices that make the loss. Bind keywords with functools.partial, or by name with rl_jax.core.binding.bind.

    Attributes:
      loss: (rewards [N, K], present [N, K], *, ...) -> Terms. A loss that asks for a `support` or for
        `attribute_targets` gets all outputs of the head, [N, K, H].
      regularizer: (rewards [N, K], present [N, K]) -> float [N].
      regularizer_coef: weight of the regularizer; 0 leaves it out.
      members: heads of an ensemble over one trunk.
      support: the bins of a categorical reward; None if the head outputs rewards.
      attribute_weights: weight of each attribute of a multi-attribute head in the reward; () if there are none.
    """

    loss: Callable = losses.bradley_terry
    regularizer: Callable = rankings.centered
    regularizer_coef: float = 0.0
    members: int = 1
    support: value.Support | None = None
    attribute_weights: tuple[float, ...] = ()

    def check(self) -> None:
        """Raises ValueError if the loss does not match the head's outputs."""
        asked = needs(self.loss)
        if ("support" in asked) != (self.support is not None):
            raise ValueError("a categorical loss needs the support of its bins, and no other loss has a use for one")
        if ("attribute_targets" in asked) != bool(self.attribute_weights):
            raise ValueError("a loss of attributes needs attribute_weights, and no other loss has a use for them")
        if self.members < 1:
            raise ValueError(f"members={self.members}: an ensemble has at least one")

    def width(self) -> int:
        """Outputs of the head per member."""
        return self.support.num_bins if self.support else max(len(self.attribute_weights), 1)

    def is_logit(self) -> bool:
        """Whether a reward is a log-odds, neutral at 0, rather than a grade, neutral at 0.5."""
        loss = self.loss.func if isinstance(self.loss, functools.partial) else self.loss
        return loss not in (losses.mse, losses.attributes, losses.hl_gauss)

    def num_outputs(self) -> int:
        """Outputs of the head per response."""
        return self.members * self.width()

    def rewards(self, outputs: chex.Array) -> chex.Array:
        """The members' rewards from the head's outputs. float [..., num_outputs] -> float [..., members]."""
        chex.assert_axis_dimension(outputs, -1, self.num_outputs())
        split = outputs.reshape(*outputs.shape[:-1], self.members, self.width())
        if self.support is not None:
            return self.support.mean(split)
        if self.attribute_weights:
            weights = jnp.asarray(self.attribute_weights, split.dtype)
            return jnp.sum(split * jnp.broadcast_to(weights, split.shape), axis=-1)
        return split[..., 0]


class StepBatch(NamedTuple):
    """A training batch of a process reward model: N solutions, S steps.

    Attributes:
      batch: TokenBatch of [N, T], or the same rows as a Packed.
      columns: int32 [N, S], the column of each step's last token in its row, of Packed rows its place in
        Packed.columns; -1 is no step.
      labels: float32 [N, S] in [0, 1]: is the solution right so far?
      mask: bool [N, S], the steps that have a label.
    """

    batch: TokenBatch | Packed
    columns: chex.Array
    labels: chex.Array
    mask: chex.Array


def loss(
    outputs: chex.Array, batch: PreferenceBatch, objective: Objective, extra: chex.Array | None = None
) -> tuple[Mean, Metrics]:
    """The loss of N prompts and its metrics, undivided. The mean is over the loss's terms and the members.

    Args:
      outputs: float [N, K, num_outputs] of the head at each response's last token, differentiated.
      batch: N prompts with K responses each.
      objective: the slots.
      extra: float [N], differentiated; a further term per prompt with its weight, added like the regularizer's.

    Raises:
      ValueError: if the loss does not match the head, or an array that a slot asks for is missing.
    """
    objective.check()
    present = batch.present
    chex.assert_shape(outputs, (*present.shape, objective.num_outputs()))
    outputs = zero_masked(outputs, jnp.broadcast_to(present[:, :, None], outputs.shape))
    rewards = objective.rewards(outputs)
    split = outputs.reshape(*present.shape, objective.members, objective.width())
    fn = supply(objective.loss, {"targets": batch.rewards, "support": objective.support, **batch.extras})
    whole = objective.support is not None or bool(objective.attribute_weights)
    parts = [fn(split[:, :, m] if whole else rewards[:, :, m], present) for m in range(objective.members)]
    means = [masked_mean(*part) for part in parts]
    result = Mean(sum(mean.total for mean in means), sum(mean.count for mean in means))
    threshold = 0.0 if objective.is_logit() else 0.5
    metrics = response_metrics(jax.lax.stop_gradient(rewards), batch, threshold) | {"compare": result}
    # One term per prompt, weighted in the mean like the prompt's own terms.
    counts = [_per_prompt(part.live) for part in parts]
    if objective.regularizer_coef:
        per_prompt = [supply(objective.regularizer, batch.extras)(rewards[:, :, m], present) for m in range(len(parts))]
        total = sum(jnp.sum(x * n) for x, n in zip(per_prompt, counts, strict=True))
        metrics["regularizer"] = Mean(jax.lax.stop_gradient(total), result.count)
        result = Mean(result.total + objective.regularizer_coef * total, result.count)
    if extra is not None:
        chex.assert_shape(extra, present.shape[:1])
        result = Mean(result.total + jnp.sum(extra * sum(counts)), result.count)
    return result, metrics


def response_metrics(rewards: chex.Array, batch: PreferenceBatch, threshold: float = 0.0) -> Metrics:
    """Metrics of the members' rewards, undivided: mean and spread, and for K > 1 accuracy and margin of pairs.

    A pair is the first response against each other one; of more than two, against each of a lower grade. `length_gap`
    is the reward of the longer response minus that of the shorter: above 0 the model favours length.

    Args:
      rewards: float [N, K, M].
      batch: N prompts with K responses each.
      threshold: for K = 1, the reward above which a response counts as right.
    """
    present = batch.present
    mean = zero_masked(jnp.mean(rewards, axis=-1), present)
    metrics = {"reward/mean": masked_mean(mean, present), "reward/squared": masked_mean(jnp.square(mean), present)}
    if rewards.shape[-1] > 1:
        metrics["reward/disagreement"] = masked_mean(jnp.std(rewards, axis=-1), present)
    if present.shape[1] > 1:
        pair = present[:, 1:] & present[:, :1]
        if present.shape[1] > 2:  # in a pair, position is enough
            pair &= batch.rewards[:, :1] > batch.rewards[:, 1:]
        gaps = mean[:, :1] - mean[:, 1:]
        lengths = jnp.sum(batch.completion_mask, axis=-1)
        longer = jnp.sign(lengths[:, :1] - lengths[:, 1:]).astype(gaps.dtype)
        metrics["reward/accuracy"] = masked_mean((gaps > 0).astype(jnp.float32), pair)
        metrics["reward/margin"] = masked_mean(gaps, pair)
        metrics["reward/length_gap"] = masked_mean(gaps * longer, pair)
    else:
        right = (mean > threshold) == (batch.rewards > 0.5)
        metrics["reward/accuracy"] = masked_mean(right.astype(jnp.float32), present)
    return metrics


def steps_loss(outputs: chex.Array, batch: StepBatch, fn: Callable = losses.step_cross_entropy) -> tuple[Mean, Metrics]:
    """The loss of the labelled steps of N solutions and its metrics, undivided.

    Args:
      outputs: float [N, S, 2] of the head at each step's last token, differentiated.
      batch: N solutions.
      fn: (logits, mask, *, ...) -> Terms.
    """
    chex.assert_equal_shape([batch.columns, batch.labels, batch.mask])
    terms = supply(fn, {"step_labels": batch.labels})(outputs, batch.mask)
    result = masked_mean(*terms)
    right = (outputs[..., 1] > outputs[..., 0]) == (batch.labels > 0.5)
    return result, {
        "steps/accuracy": masked_mean(right.astype(jnp.float32), batch.mask),
        "steps/labelled_right": masked_mean(batch.labels, batch.mask),
    }


def implicit_loss(
    scores: TokenScores, batch: PreferenceBatch, fn: Callable = losses.implicit_outcome, *, beta: float = 0.05
) -> tuple[Mean, Metrics]:
    """The loss of an implicit reward model on labelled responses and its metrics, undivided.

    Args:
      scores: log-probs of the model that is trained, float [N * K, C].
      batch: with ref_log_probs; its rewards are the labels.
      fn: (log_ratios, mask, present, *, targets, beta) -> Terms.
      beta: multiplies the log-ratio.

    Raises:
      ValueError: if the batch has no ref_log_probs.
    """
    if batch.ref_log_probs is None:
        raise ValueError("an implicit reward is a log-ratio: the batch needs ref_log_probs")
    mask = batch.completion_mask & jnp.broadcast_to(batch.present[:, :, None], batch.completion_mask.shape)
    reference = jax.lax.stop_gradient(zero_masked(batch.ref_log_probs, mask))
    ratios = zero_masked(scores.log_probs.reshape(mask.shape), mask) - reference
    available: Mapping[str, Any] = {"targets": batch.rewards, **batch.extras, "beta": beta}
    terms: Terms = supply(fn, available)(ratios, mask, batch.present)
    rewards = jax.lax.stop_gradient(implicit.implicit_rewards(ratios, mask, beta=beta))[..., None]
    metrics = response_metrics(rewards, batch)
    metrics["log_ratio"] = Mean(masked_sum(jax.lax.stop_gradient(ratios), mask), jnp.sum(mask, dtype=jnp.float32))
    return masked_mean(*terms), metrics


def _per_prompt(live: chex.Array) -> chex.Array:
    """Number of terms per prompt. bool [N, ...] -> float [N]."""
    return jnp.sum(live.reshape(live.shape[0], -1), axis=1, dtype=jnp.float32)
