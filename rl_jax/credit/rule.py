"""From rewards to what a policy loss trains on: shaping -> KL in the reward -> advantages -> token weights.

    R'   = shape(R)                                                             rl_jax.credit.shaping
    r_t  = own_t - reward_kl_coef * k(old_logp, ref_logp), and + R' on the last token            token_rewards
    A    = advantage(sum_t r_t, ...)                                            rl_jax.advantages
    w    = behavior_weight * token_weight                                       rl_jax.token_weights, weigh

`assign` is the three in order; PPO (rl_jax.ppo.assign) puts its critic between the first and the last. own_t are the
rollout's own token rewards (process rewards, rewards of turns), 0 without any.

All of it is computed on the global batch, once, before its updates: what is coupled across rows (a mean, a quantile, a
top-k) never sees a micro-batch. Each choice is an argument and may ask for arrays by name, as required keywords
(rl_jax.core.names lists them).
"""

from collections.abc import Callable, Mapping
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
    """The choices. Bind keywords with functools.partial, or by name with rl_jax.core.binding.bind."""

    shape: Callable = shaping.unchanged
    """(rewards [B], lengths [B], truncated [B], key) -> [B]. Greedy rewards are shaped by it, too."""
    reward_kl: Callable = kl_estimators.k1
    """(log_probs, ref_log_probs, mask) -> float [B, C], the penalty in the reward."""
    advantage: Callable = group_relative
    """(rewards [B], *, ...) -> [B] or [B, C]."""
    behavior_weight: Callable = token_weights.none
    """(mask, *, ...) -> float [B, C]. The policy term is multiplied by this and `token_weight`."""
    token_weight: Callable = token_weights.none
    """(mask, *, ...) -> float [B, C]."""
    selection: Callable | None = None
    """(mask, *, ...) -> bool [B, C], for a surrogate that asks for `selected`; or None."""
    entropy_weight: Callable | None = None
    """(mask, *, ...) -> float [B, C], the weight of the entropy bonus on each token; or None: the objective's."""
    mask_truncated: bool = False
    """No loss on rows that were cut off (DAPO's overlong filtering)."""

    def needs_scores(self) -> bool:
        """Whether a choice reads the policy's own log-probs or entropies, which cost a forward pass."""
        chosen = (self.advantage, self.behavior_weight, self.token_weight, self.selection, self.entropy_weight)
        asked = set().union(*(needs(fn) for fn in chosen if fn is not None))
        return bool(asked & {"log_probs", "entropy", "token_rewards", "sum_pi_squared", "implicit_rewards"})

    def loss_mask(self, rollout: Rollout) -> chex.Array:
        """bool [B, C]. The tokens that the loss sees."""
        mask = rollout.completion_mask
        return mask & ~rollout.truncated[:, None] if self.mask_truncated else mask


class Earned(NamedTuple):
    """What the rows of a batch have earned: rewards after shaping and the KL penalty."""

    rows: chex.Array
    """float [B]. Sum over each row; the shaped reward itself, to the bit, if nothing is added to it."""
    tokens: chex.Array
    """float [B, C]. The same on the tokens, 0 outside the completion."""
    named: dict[str, chex.Array]
    """What an advantage may ask for by name: token_rewards; greedy_rewards, shaped; step_rewards and step_ends."""


def token_rewards(
    rule: CreditRule,
    rollout: Rollout,
    rewards: chex.Array,
    *,
    group_size: int,
    key: chex.PRNGKey,
    ref_log_probs: chex.Array | None = None,
    log_probs: chex.Array | None = None,
    reward_kl_coef: float | chex.Array = 0.0,
    token_rewards: chex.Array | None = None,
    **available,
) -> Earned:
    """Token rewards: r_t = own_t - reward_kl_coef k_t, and + shape(R) on the last token of the row.

    Args:
      rule: its shape and reward_kl are used.
      rollout: B rows.
      rewards: float [B], unshaped.
      group_size: G, rows per prompt.
      key: for the shaping.
      ref_log_probs: float [B, C] of the reference policy; needed for a KL in the reward.
      log_probs: float [B, C] of the policy before the updates; needed for a KL in the reward.
      reward_kl_coef: float or float [].
      token_rewards: float [B, C], own_t; the default is the rollout's own, if it has any.
      **available: arrays that `shape` may ask for by name. greedy_rewards, float [B], are shaped as well, which needs
        greedy_lengths, int [B], and greedy_truncated, bool [B], unless the shape is `unchanged`. step_ends, bool
        [B, C], says where the steps of own_t end; the default is the rollout's, or else where own_t is not 0.

    Raises:
      ValueError: if the KL has no log-probs, or the shape asks for an array that is not there.
    """
    mask = rollout.completion_mask
    chex.assert_rank([rewards, mask], [1, 2])
    shape = supply(rule.shape, {**available, "group_size": group_size, "foreign": rollout.foreign})
    shaped = shape(rewards, jnp.sum(mask, axis=1), rollout.truncated, key)
    rows, penalty = shaped, jnp.zeros(mask.shape, shaped.dtype)
    if not (isinstance(reward_kl_coef, int | float) and reward_kl_coef == 0):
        if ref_log_probs is None or log_probs is None:
            raise ValueError(f"a KL in the reward (reward_kl_coef={reward_kl_coef}) needs ref_log_probs and log_probs")
        penalty = supply(rule.reward_kl, {"old_log_probs": log_probs})(log_probs, ref_log_probs, mask)
        rows = shaped - reward_kl_coef * masked_sum(penalty, mask, axis=1)
    tokens = assemble(shaped, penalty, mask, kl_coef=reward_kl_coef)
    named = {}
    own = rollout.token_rewards if token_rewards is None else token_rewards
    if own is not None:
        chex.assert_equal_shape([own, mask])
        own = zero_masked(own, mask)
        rows, tokens = rows + jnp.sum(own, axis=1), tokens + own
        ends = own != 0 if rollout.step_ends is None else rollout.step_ends & mask
        named |= {"step_rewards": own, "step_ends": ends}
    if available.get("greedy_rewards") is not None:
        named["greedy_rewards"] = _shaped_greedy(rule, shape, key, **available)
    return Earned(rows, tokens, named | {"token_rewards": tokens})


def _shaped_greedy(
    rule: CreditRule,
    shape: Callable,
    key: chex.PRNGKey,
    *,
    greedy_rewards: chex.Array,
    greedy_lengths: chex.Array | None = None,
    greedy_truncated: chex.Array | None = None,
    **_,
) -> chex.Array | None:
    """shape(R) of the greedy completions, float [B]: a baseline on the scale of the rewards that it is subtracted from.

    None if it cannot be computed and the rule's advantage does not ask for it.
    """
    if rule.shape is shaping.unchanged:
        return greedy_rewards
    if greedy_lengths is not None and greedy_truncated is not None:
        return shape(greedy_rewards, greedy_lengths, greedy_truncated, key)
    if "greedy_rewards" in needs(rule.advantage):
        raise ValueError(
            "greedy_rewards also need greedy_lengths and greedy_truncated: they are shaped like the rewards"
        )
    return None


def token_advantages(
    rewards: chex.Array, completion_mask: chex.Array, *, advantage: Callable = group_relative, **available
) -> chex.Array:
    """Advantages on the tokens of the global batch.

    Args:
      rewards: float [B].
      completion_mask: bool [B, C].
      advantage: (rewards, *, ...) -> [B] or [B, C].
      **available: what `advantage` may ask for by name (group_size, lengths, greedy_rewards, ...); None counts as
        missing.

    Returns:
      float [B, C], 0 outside the mask.

    Raises:
      ValueError: if `advantage` asks for an array that is not there.
    """
    chex.assert_rank([rewards, completion_mask], [1, 2])
    result = supply(advantage, available | {"completion_mask": completion_mask})(rewards)
    if result.ndim == 1:
        return to_tokens(result, completion_mask)
    return zero_masked(result, completion_mask)


def weigh(
    rule: CreditRule,
    rollout: Rollout,
    advantages: chex.Array,
    *,
    group_size: int,
    key: chex.PRNGKey,
    ref_log_probs: chex.Array | None = None,
    log_probs: chex.Array | None = None,
    entropy: chex.Array | None = None,
    extras: Mapping[str, chex.Array] = {},
    **available,
) -> PolicyBatch:
    """The PolicyBatch of a batch of rollouts, with old_log_probs left None.

    Args:
      rule: its weights, selection and mask_truncated are used.
      rollout: B rows.
      advantages: float [B, C], 0 on tokens that the loss does not see.
      group_size: G, rows per prompt.
      key: for weights and selections that sample.
      ref_log_probs: float [B, C], or None if no term compares with a reference.
      log_probs: float [B, C] of the policy before the updates, or None if nothing needs them.
      entropy: float [B, C] of the same forward, or None.
      extras: name -> array with B first, passed on to the loss, where the objective may ask for them.
      **available: further arrays that the weights and the selection may ask for.

    Raises:
      ValueError: if a choice asks for an array that is not there.
    """
    mask = rule.loss_mask(rollout)
    known = (
        available
        | dict(extras)
        | {
            "log_probs": log_probs,
            "behavior_log_probs": rollout.sampled_log_probs,
            "advantages": advantages,
            "entropy": entropy,
            "versions": rollout.versions,
            "foreign": rollout.foreign,
            "tokens": completion_tokens(rollout),
            "key": jax.random.fold_in(key, 3),  # 0 and 1 are what shaping splits its key into, 2 is of chosen rows
        }
    )
    factors = [supply(fn, known)(mask) for fn in (rule.behavior_weight, rule.token_weight)]
    carried = dict(extras) | {"group_tokens": _group_tokens(mask, group_size)}
    if rollout.versions is not None:
        carried["versions"] = rollout.versions
    if rollout.foreign is not None:
        carried["foreign"] = rollout.foreign
    if rule.selection is not None:
        carried["selected"] = supply(rule.selection, known)(mask)
    if rule.entropy_weight is not None:
        carried["entropy_coefs"] = supply(rule.entropy_weight, known)(mask)
    return PolicyBatch(
        batch=rollout.batch,
        completion_mask=mask,
        advantages=advantages,
        old_log_probs=None,
        behavior_log_probs=rollout.sampled_log_probs,
        ref_log_probs=ref_log_probs,
        token_weights=factors[0] * factors[1],
        extras=carried,
    )


def assign(rule: CreditRule, rollout: Rollout, rewards: chex.Array, *, group_size: int, **available) -> PolicyBatch:
    """The PolicyBatch of a batch of rollouts: token_rewards, the rule's advantage, weigh.

    Args:
      rule: the choices.
      rollout: B rows; the rows of a group are neighbours.
      rewards: float [B], unshaped.
      group_size: G, rows per prompt.
      **available: what `token_rewards` and `weigh` take (key is required; ref_log_probs, log_probs, entropy,
        reward_kl_coef, token_rewards, extras), and arrays that a choice asks for by name (greedy_rewards, components,
        baseline, ...).

    Returns:
      PolicyBatch with old_log_probs left None.

    Raises:
      ValueError: if a choice asks for an array that is not there.
    """
    earned = token_rewards(rule, rollout, rewards, group_size=group_size, **available)
    given = dict(available)
    named = {
        **earned.named,
        **given.pop("extras", {}),
        **given,
        "greedy_rewards": earned.named.get("greedy_rewards"),
        "token_rewards": earned.tokens,
        "lengths": jnp.sum(rollout.completion_mask, axis=1),
        "truncated": rollout.truncated,
        "behavior_log_probs": rollout.sampled_log_probs,
        "versions": rollout.versions,
        "foreign": rollout.foreign,
        "group_size": group_size,
        "tokens": completion_tokens(rollout),
    }
    advantages = token_advantages(earned.rows, rule.loss_mask(rollout), advantage=rule.advantage, **named)
    return weigh(rule, rollout, advantages, group_size=group_size, **available)


def completion_tokens(rollout: Rollout) -> chex.Array | None:
    """int32 [B, C]: the sampled tokens; None for steps in environments."""
    tokens = getattr(rollout.batch, "tokens", None)
    return None if tokens is None else tokens[:, -rollout.completion_mask.shape[1] :]


def _group_tokens(mask: chex.Array, group_size: int) -> chex.Array:
    """float [B]: the tokens of each row's whole group, which may be split over several micro-batches."""
    per_group = jnp.sum(mask.reshape(-1, group_size * mask.shape[1]), axis=1, dtype=jnp.float32)
    return jnp.repeat(per_group, group_size)
