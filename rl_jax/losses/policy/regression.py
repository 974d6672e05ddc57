"""Surrogates that fit the policy to its advantages by least squares instead of pushing it along them.

Named in a config by their import path, "rl_jax.losses.policy.regression:direct_advantage".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, log_ratio


def direct_advantage(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    selected: chex.Array,
    beta: float = 0.1,
) -> Surrogate:
    """Direct advantage regression: the log ratio of each step is to be its advantage over beta.

        l_k = 1/2 (A_k / beta - sum over the step's tokens of (logp - old_logp))^2     on the step's last token

    The minimum is pi ~ pi_old exp(A / beta), step by step; there is no clip. Source: arXiv 2412.18279; the square is
    confirmed by its abstracts, the 1/2 and a weight of the steps are not.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], of the policy that the samples and the advantages are of.
      advantages: float [B, T], the same on all tokens of a step (advantages.stepwise.direct).
      mask: bool [B, T].
      selected: bool [B, T]. Last tokens of the steps (core.steps.step_ends).
      beta: strength of the pull to the old policy.

    Raises:
      ValueError: if beta is not above 0.
    """
    if beta <= 0:
        raise ValueError(f"beta={beta} must be above 0")
    ratios = log_ratio(log_probs, old_log_probs, mask)
    ends = selected & mask
    step = jnp.cumsum(ends, axis=1) - ends
    sums = jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, num_segments=mask.shape[1] + 1))(ratios, step)
    of_step = jnp.take_along_axis(sums, step, axis=1)
    target = jax.lax.stop_gradient(zero_masked(advantages, mask)) / beta
    loss = jnp.where(ends, 0.5 * jnp.square(target - of_step), 0.0)
    return Surrogate(loss, jax.lax.stop_gradient(jnp.exp(ratios)), mask & False, mask & False)


def offline_direct_advantage(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    selected: chex.Array,
    behavior_log_probs: chex.Array,
    beta: float = 0.1,
) -> Surrogate:
    """`direct_advantage` of the policy that sampled, which stays while this one moves: the paper's, on given answers.

        l_k = 1/2 (A_k / beta - sum over the step's tokens of (logp - behavior_logp))^2

    The minimum is pi ~ behavior exp(A / beta) after any number of steps. Source: arXiv 2412.18279, as there.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused.
      advantages: float [B, T], the same on all tokens of a step.
      mask: bool [B, T].
      selected: bool [B, T]. Last tokens of the steps.
      behavior_log_probs: float [B, T], of the policy that the samples and the critic are of.
      beta: strength of the pull to that policy.

    Raises:
      ValueError: if beta is not above 0.
    """
    chex.assert_equal_shape([log_probs, old_log_probs, behavior_log_probs])
    return direct_advantage(log_probs, behavior_log_probs, advantages, mask, selected=selected, beta=beta)


def toward_advantage(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ref_log_probs: chex.Array,
    beta: float = 1.0,
) -> Surrogate:
    """WebRL: l = (beta sum_t (logp - ref_logp) - A)^2 of each row, on its last token; the minimum is ref exp(A / beta).

    The reference is the policy of the phase before. Source: arXiv 2411.02337. The released code (THUDM/WebRL,
    webrl/algorithms/webrl/trainer.py) divides the sum by the batch's tokens, takes the sign of A (1, or -.6, whose rows
    it leaves out), a smooth L1 and a beta of 1 or 5.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused: the samples may be of any policy.
      advantages: float [B, T], the same on all tokens of a row.
      mask: bool [B, T].
      ref_log_probs: float [B, T], of the policy of the phase before.
      beta: strength of the pull to it.

    Raises:
      ValueError: if beta is not above 0.
    """
    last = mask & (jnp.cumsum(mask[:, ::-1], axis=1)[:, ::-1] == 1)
    return _toward(log_probs, old_log_probs, advantages, mask, ref_log_probs=ref_log_probs, ends=last, beta=beta)


def toward_turn_advantage(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ref_log_probs: chex.Array,
    turns: chex.Array,
    beta: float = 1.0,
) -> Surrogate:
    """WebRL on episodes of several turns: `toward_advantage` of each turn, whose tokens are one action.

        l_j = (beta sum_{t in turn j} (logp - ref_logp) - A_j)^2     on the turn's last token

    The minimum is ref exp(A / beta), turn by turn; one turn in the row: `toward_advantage`. Source: arXiv 2411.02337;
    what the released code does otherwise is said there.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused: the samples may be of any policy.
      advantages: float [B, T], the same on all tokens of a turn.
      mask: bool [B, T].
      ref_log_probs: float [B, T], of the policy of the phase before.
      turns: int32 [B, T], number of the turn on its tokens, -1 elsewhere.
      beta: strength of the pull to it.

    Raises:
      ValueError: if beta is not above 0.
    """
    chex.assert_equal_shape([turns, mask])
    mask = mask & (turns >= 0)
    columns, none = jnp.arange(mask.shape[1]), mask.shape[1]
    numbers = jnp.where(mask, jnp.minimum(turns, none - 1), none)
    last = jax.vmap(lambda row: jax.ops.segment_max(columns, row, none + 1)[row])(numbers)
    ends = mask & (last == columns[None, :])
    return _toward(log_probs, old_log_probs, advantages, mask, ref_log_probs=ref_log_probs, ends=ends, beta=beta)


def _toward(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ref_log_probs: chex.Array,
    ends: chex.Array,
    beta: float,
) -> Surrogate:
    """(beta sum of a step's log ratios - A)^2 on each of `ends`, bool [B, T]; the ratio is that to the old policy."""
    found = direct_advantage(log_probs, ref_log_probs, advantages, mask, selected=ends, beta=beta)
    ratio = jax.lax.stop_gradient(jnp.exp(log_ratio(log_probs, old_log_probs, mask)))
    return found._replace(loss=2.0 * beta**2 * found.loss, ratio=ratio)
