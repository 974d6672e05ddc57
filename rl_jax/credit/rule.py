"""From rewards to what a policy loss trains on: shaping -> KL in the reward -> advantages -> token weights.

    R'   = shape(R)                                                             rl_jax.credit.shaping
    r_t  = -reward_kl_coef * k(old_logp, ref_logp), and + R' on the last token  losses.kl, advantages.assemble
    A    = advantage(sum_t r_t, ...)                                            rl_jax.advantages
    w    = behavior_weight * token_weight                                       rl_jax.token_weights

All of it is computed on the global batch, once, before its updates: what is coupled across rows (a mean, a quantile, a
top-k) never sees a micro-batch. Each choice is an argument, and may ask for arrays by name
(rl_jax.core.binding.supply).
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import token_weights
from rl_jax.advantages import group_relative
from rl_jax.advantages.groups import to_tokens
from rl_jax.advantages.tokens import assemble
from rl_jax.core.binding import needs, supply
from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.core.types import PolicyBatch, Rollout
from rl_jax.credit import shaping
from rl_jax.losses import kl as kl_estimators


class CreditRule(NamedTuple):
    """The choices. Bind keywords with functools.partial, or by name with rl_jax.core.binding.bind.

    shape: (rewards [B], lengths [B], truncated [B], key) -> [B].
    reward_kl: (log_probs, ref_log_probs, mask) -> float [B, T], the penalty in the reward.
    advantage: (rewards [B], *, ...) -> [B] or [B, T].
    behavior_weight, token_weight: (mask, *, ...) -> float [B, T]; their product multiplies the policy term.
    selection: (mask, *, ...) -> bool [B, T] for a surrogate that asks for `selected`, or None.
    mask_truncated: no loss on rows that were cut off (DAPO's overlong filtering).
    """

    shape: Callable = shaping.unchanged
    reward_kl: Callable = kl_estimators.k1
    advantage: Callable = group_relative
    behavior_weight: Callable = token_weights.none
    token_weight: Callable = token_weights.none
    selection: Callable | None = None
    mask_truncated: bool = False

    def needs_scores(self) -> bool:
        """Whether one of the choices looks at the policy's own log-probs or entropies, which cost a forward pass."""
        chosen = (self.advantage, self.behavior_weight, self.token_weight, self.selection)
        asked = set().union(*(needs(fn) for fn in chosen if fn is not None))
        return bool(asked & {"log_probs", "entropy", "token_rewards"})


def token_advantages(
    rewards: chex.Array, completion_mask: chex.Array, *, advantage: Callable = group_relative, **available
) -> chex.Array:
    """Advantages on the tokens of the global batch. float [B], bool [B, T] -> float [B, T], 0 behind the mask.

    available: what `advantage` may ask for by name (group_size, lengths, greedy_rewards, ...); None is not available.
    Raises ValueError where it asks for more.
    """
    chex.assert_rank([rewards, completion_mask], [1, 2])
    available |= {"completion_mask": completion_mask}
    result = supply(advantage, available)(rewards)
    if result.ndim == 1:
        return to_tokens(result, completion_mask)
    return zero_masked(result, completion_mask)


def assign(
    credit: CreditRule,
    rollout: Rollout,
    rewards: chex.Array,
    *,
    group_size: int,
    key: chex.PRNGKey,
    ref_log_probs: chex.Array | None = None,
    log_probs: chex.Array | None = None,
    entropy: chex.Array | None = None,
    reward_kl_coef: float | chex.Array = 0.0,
    **available,
) -> PolicyBatch:
    """The PolicyBatch of a batch of rollouts, with old_log_probs left None.

    rewards: float [B], unshaped. log_probs, entropy: float [B, T] of the policy before the updates, or None where
        nothing needs them. ref_log_probs: float [B, T], or None where no term compares with a reference.
    reward_kl_coef: float or float []; needs log_probs and ref_log_probs unless 0.
    available: further arrays for the advantage (greedy_rewards, components, baseline, values).
    Raises ValueError where a choice asks for an array that is not there.
    """
    mask = rollout.completion_mask
    chex.assert_rank([rewards, mask], [1, 2])
    if ref_log_probs is None and not (isinstance(reward_kl_coef, (int, float)) and reward_kl_coef == 0):
        raise ValueError(f"a KL in the reward (reward_kl_coef={reward_kl_coef}) needs ref_log_probs")
    lengths = jnp.sum(mask, axis=1)
    shaped = supply(credit.shape, available)(rewards, lengths, rollout.truncated, key)
    loss_mask = mask & ~rollout.truncated[:, None] if credit.mask_truncated else mask
    penalty = jnp.zeros(mask.shape, shaped.dtype)
    if log_probs is not None and ref_log_probs is not None:
        penalty = supply(credit.reward_kl, {"old_log_probs": log_probs})(log_probs, ref_log_probs, mask)
    token_rewards = assemble(shaped, penalty, mask, kl_coef=reward_kl_coef)
    advantages = token_advantages(
        # The sum of the token rewards; where there is no penalty the reward itself, to the bit.
        shaped - reward_kl_coef * masked_sum(penalty, mask, axis=1),
        loss_mask,
        advantage=credit.advantage,
        group_size=group_size,
        lengths=lengths,
        truncated=rollout.truncated,
        token_rewards=token_rewards,
        log_probs=log_probs,
        behavior_log_probs=rollout.sampled_log_probs,
        **available,
    )
    known = {
        "log_probs": log_probs,
        "behavior_log_probs": rollout.sampled_log_probs,
        "advantages": advantages,
        "entropy": entropy,
        "key": jax.random.fold_in(key, 1),  # not the one that shaping has used
    }
    factors = [supply(fn, known)(loss_mask) for fn in (credit.behavior_weight, credit.token_weight)]
    return PolicyBatch(
        batch=rollout.batch,
        completion_mask=loss_mask,
        advantages=advantages,
        old_log_probs=None,
        behavior_log_probs=rollout.sampled_log_probs,
        ref_log_probs=ref_log_probs,
        token_weights=factors[0] * factors[1],
        selected=None if credit.selection is None else supply(credit.selection, known)(loss_mask),
        group_tokens=_group_tokens(loss_mask, group_size),
    )


def _group_tokens(mask: chex.Array, group_size: int) -> chex.Array:
    """float [B]: the tokens of each row's whole group, which may be dealt out to several micro-batches."""
    per_group = jnp.sum(mask.reshape(-1, group_size * mask.shape[1]), axis=1, dtype=jnp.float32)
    return jnp.repeat(per_group, group_size)
