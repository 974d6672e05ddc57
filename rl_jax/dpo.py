"""DPO (arXiv 2305.18290) and its family, top to bottom: sequence scores -> margin -> link -> mean over prompts.

    u_k  = sum_t c_t (logp_t - sum_j kappa_j ref_j_t) / |y_k|^nu      token_weight, reference, length_power
    s_k  = beta phi(u_k) + o_k                                        score_map, beta, offset
    l    = -log sigma(s_chosen - s_rejected)                          compare, link
    loss = 1/N sum_n (omega_n l_n + c R_n)                            weight, regularizer, regularizer_coef

Each right-hand side is a slot of Objective: another method is another choice, from a config or from a notebook, and a
choice may ask for more arrays by name (rl_jax.core.binding.supply). DPO itself has c_t = 1, kappa = {ref: 1}, nu = 0,
phi(u) = u, o = 0, omega = 1 and no R.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import needs, supply
from rl_jax.core.masked import Mean, masked_mean, sum_dtype, zero_masked
from rl_jax.core.types import Metrics, PreferenceBatch, TokenScores
from rl_jax.losses.preference import compare as comparators
from rl_jax.losses.preference import links, offsets, prompt_weights, regularizers, scales, score_maps

# Slot -> the module in which a config's name for it is looked up (rl_jax.core.binding.bind).
SLOTS = {
    "token_weight": score_maps,
    "score_map": score_maps,
    "scale": scales,
    "offset": offsets,
    "compare": comparators,
    "link": links,
    "weight": prompt_weights,
    "regularizer": regularizers,
}


class Objective(NamedTuple):
    """The choices that make the loss. Bind keywords with functools.partial, or by name with rl_jax.core.binding.bind.

    Attributes:
      token_weight: (mask [N, K, C]) -> float [N, K, C].
      reference: name -> its share kappa; "ref" is batch.ref_log_probs, "prev" batch.prev_log_probs. {} for no
        reference.
      length_power: nu; 0 sums the tokens, 1 takes their mean.
      score_map: (u [N, K]) -> float [N, K], before beta.
      beta: multiplies the mapped score.
      scale: (beta) -> float [] or [N], for methods that adapt beta.
      offset: (present [N, K]) -> float [N, K], added to the score after beta.
      compare: (s [N, K], present [N, K], link) -> float [N].
      link: (x [N]) -> float [N].
      weight: (losses [N]) -> float [N], without gradient.
      regularizer: (log_probs [N, K, C], mask [N, K, C]) -> float [N].
      regularizer_coef: weight of the regularizer; 0 leaves it out.
    """

    token_weight: Callable = score_maps.uniform
    reference: Mapping[str, float] = {"ref": 1.0}
    length_power: float = 0.0
    score_map: Callable = score_maps.identity
    beta: float = 0.1
    scale: Callable = scales.constant
    offset: Callable = offsets.none
    compare: Callable = comparators.pairs
    link: Callable = links.logistic
    weight: Callable = prompt_weights.uniform
    regularizer: Callable = regularizers.chosen_nll
    regularizer_coef: float = 0.0

    def needs(self) -> set[str]:
        """The names that the slots ask for, beyond the arguments that every slot gets."""
        slots = [self.token_weight, self.score_map, self.scale, self.offset, self.compare, self.link, self.weight]
        slots += [self.regularizer] if self.regularizer_coef else []
        return {name for fn in slots for name in needs(fn)}

    def reads_labels(self) -> bool:
        """Whether the rewards of responses by themselves (K = 1) are labels, 1 desirable and 0 not.

        A comparator of this kind says so by an attribute of that name.
        """
        return getattr(getattr(self.compare, "func", self.compare), "reads_labels", False)


def loss(
    scores: TokenScores, batch: PreferenceBatch, objective: Objective, more: Mapping[str, Any] = {}
) -> tuple[Mean, Metrics]:
    """The loss of N prompts as a Mean over them, and its metrics.

    Args:
      scores: log_probs and entropy of the policy, float [N * K, C], prompt by prompt.
      batch: N prompts with K responses each.
      objective: the slots.
      more: name -> array with N first, for slots that ask: quantities only available in this forward pass (sums over
        the vocabulary). They are differentiated; rewards, references and batch.extras are not.

    Raises:
      ValueError: if a reference, or an array that a slot asks for, is missing.
    """
    mask, present = batch.completion_mask, batch.present
    chex.assert_rank([mask, present, batch.rewards], [3, 2, 2])
    chex.assert_type([mask, present], bool)
    chex.assert_equal_shape([present, batch.rewards])
    mask = mask & jnp.broadcast_to(present[:, :, None], mask.shape)
    log_probs = zero_masked(scores.log_probs.reshape(mask.shape), mask)
    ratios = log_probs - reference_log_probs(batch, objective.reference, mask)
    lengths = jnp.sum(mask, axis=-1, dtype=sum_dtype(log_probs))
    available = {
        "rewards": jax.lax.stop_gradient(zero_masked(batch.rewards, present)),
        "present": present,
        "lengths": lengths,
        "mask": mask,
        "log_probs": log_probs,
        "log_ratios": ratios,
        "beta": objective.beta,
    }
    # The arrays computed here take precedence: `present` or `lengths` among the extras are not yet masked.
    available = {**jax.lax.stop_gradient(batch.extras), **more, **available}
    token_weights = supply(objective.token_weight, available)(mask)
    u = sequence_scores(ratios, mask, token_weights, objective.length_power)
    available["sequence_scores"] = u
    scale = supply(objective.scale, available)(objective.beta)
    mapped = supply(objective.score_map, available)(u)
    implicit = jnp.reshape(scale, (-1, 1)) * mapped
    # An absent response may have an offset of nan, which would make the gradient of the other one nan.
    s = implicit + zero_masked(supply(objective.offset, available)(present), present)
    compared = supply(objective.compare, available)(s, present, supply(objective.link, available))
    weight = jax.lax.stop_gradient(supply(objective.weight, available)(compared))
    per_prompt = weight * compared
    if objective.regularizer_coef:
        regularizer = supply(objective.regularizer, available)(log_probs, mask)
        per_prompt = per_prompt + objective.regularizer_coef * regularizer
    live = jnp.any(mask, axis=(1, 2))
    metrics = _metrics(jax.lax.stop_gradient((implicit, log_probs, ratios)), scores.entropy, batch, mask)
    return masked_mean(per_prompt, live), metrics | {"compare": masked_mean(jax.lax.stop_gradient(compared), live)}


def reference_log_probs(batch: PreferenceBatch, reference: Mapping[str, float], mask: chex.Array) -> chex.Array:
    """sum_j kappa_j ref_j, float [N, K, C], without gradient; 0 if `reference` is empty.

    Raises:
      ValueError: if a name is neither "ref" nor "prev", or the batch does not have it.
    """
    available = {"ref": batch.ref_log_probs, "prev": batch.prev_log_probs}
    total = jnp.zeros(mask.shape)
    for name, share in reference.items():
        if available.get(name) is None:
            names = ", ".join(sorted(n for n, x in available.items() if x is not None)) or "none"
            raise ValueError(f"objective.reference names {name!r}, which the batch lacks; it has: {names}")
        total += share * jax.lax.stop_gradient(zero_masked(available[name], mask))
    return total


def sequence_scores(
    log_ratios: chex.Array, mask: chex.Array, token_weights: chex.Array, length_power: float
) -> chex.Array:
    """u = sum_t c_t x_t / |y|^nu, 0 for a response without tokens.

    Args:
      log_ratios: float [N, K, C], x.
      mask: bool [N, K, C].
      token_weights: float [N, K, C], c.
      length_power: nu.

    Returns:
      float [N, K].
    """
    chex.assert_equal_shape([log_ratios, mask, token_weights])
    weighted = zero_masked(log_ratios * token_weights, mask)
    total = jnp.sum(weighted, axis=-1, dtype=sum_dtype(weighted))
    if not length_power:
        return total
    lengths = jnp.maximum(jnp.sum(mask, axis=-1, dtype=total.dtype), 1.0)
    return total / lengths**length_power


def _metrics(scored: tuple, entropy: chex.Array, batch: PreferenceBatch, mask: chex.Array) -> Metrics:
    """Metrics of training: the implicit rewards beta phi(u) of both sides, without offsets, as in TRL.

    A response is good by its position, or by its label if K = 1. Of several responses after the first, those of lower
    reward are bad.
    """
    rewards, log_probs, ratios = scored
    present, place = batch.present, jnp.arange(rewards.shape[1])[None]
    several = rewards.shape[1] > 1
    good = present & (jnp.broadcast_to(place == 0, rewards.shape) if several else batch.rewards > 0.5)
    bad = present & ~good
    if rewards.shape[1] > 2:  # in a pair, position is enough
        bad &= batch.rewards[:, :1] > batch.rewards
    sums = jnp.sum(log_probs, axis=-1, dtype=sum_dtype(log_probs))
    metrics = {
        "rewards/chosen": masked_mean(rewards, good),
        "rewards/rejected": masked_mean(rewards, bad),
        "log_probs/chosen": masked_mean(sums, good),
        "log_probs/rejected": masked_mean(sums, bad),
        "entropy": masked_mean(jax.lax.stop_gradient(entropy.reshape(mask.shape)), mask),
        "log_ratio": masked_mean(ratios, mask),
    }
    if several:
        margins = rewards[:, :1] - rewards[:, 1:]
        metrics["rewards/margin"] = masked_mean(margins, bad[:, 1:])
        metrics["rewards/accuracy"] = masked_mean((margins > 0).astype(jnp.float32), bad[:, 1:])
    return metrics
