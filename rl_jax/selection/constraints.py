"""What CGPO makes of rewards that carry constraints (rl_jax.rewards.constraints): its values, its pair, its advantage.

    R = r if all judges pass, r - PENALTY otherwise;   J = 1 or 0

Named in a config by their import path, "rl_jax.selection.constraints:codpo_pair". Source: arXiv 2409.20370, by way of
the authors' equations as written in huggingface/trl pull request 2190; no code of theirs is public.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_sum
from rl_jax.core.violations import PENALTY
from rl_jax.selection.pair_selection import Selection


def split(rewards: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(r float [...], whether all judges pass bool [...]) of rewards with constraints, float [...]."""
    chex.assert_type(rewards, float)
    passes = rewards > -PENALTY / 2
    return jnp.where(passes, rewards, rewards + PENALTY), passes


def calibrated(rewards: chex.Array, opponents: chex.Array) -> chex.Array:
    """J sigma(r - r_0), r_0 the mean over the baseline responses: a value in (0, 1), 0 for a violation.

    A value for algorithm.candidate_value. A baseline response among the candidates has J / 2 if there is one of them.

    Args:
      rewards: float32 [N, G].
      opponents: float32 [N, M], of the baseline responses, M >= 1.

    Returns:
      float32 [N, G].

    Raises:
      ValueError: if there is no baseline response.
    """
    chex.assert_rank([rewards, opponents], 2)
    if not opponents.shape[1]:
        raise ValueError("calibrated needs a baseline response: set sample.opponents.samples=1")
    own, passes = split(rewards)
    baseline = jnp.mean(split(opponents)[0], axis=1, keepdims=True)
    return jnp.where(passes, jax.nn.sigmoid(own - baseline), 0.0)


def codpo_pair(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """CODPO: the best response that passes against the worst one that fails; if all pass, against the worst of them.

    A prompt whose responses all fail has no pair, nor has one whose responses all pass with equal rewards.

    Args:
      rewards: float32 [N, G], G >= 2.
      key: unused.

    Returns:
      One pair per prompt.
    """
    chex.assert_rank(rewards, 2)
    own, passes = split(rewards)
    best = jnp.argmax(jnp.where(passes, own, -jnp.inf), axis=1)
    all_pass = jnp.all(passes, axis=1)
    worst = jnp.argmin(jnp.where(passes & ~all_pass[:, None], jnp.inf, own), axis=1)
    pair = jnp.stack([best, worst], axis=1).astype(jnp.int32)[:, None]
    differ = jnp.any(passes, axis=1) & ~(all_pass & (jnp.ptp(own, axis=1) == 0))
    return Selection(pair, jnp.broadcast_to(differ[:, None, None], pair.shape))


def passing(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """All candidates by decreasing value, those of value 0 marked absent: for values by `calibrated`.

    Args:
      rewards: float32 [N, G], values.
      key: unused.

    Returns:
      One list of K = G per prompt.
    """
    chex.assert_rank(rewards, 2)
    order = jnp.argsort(-rewards, axis=1, stable=True).astype(jnp.int32)
    return Selection(order[:, None], (jnp.take_along_axis(rewards, order, axis=1) > 0)[:, None])


def crpg(
    rewards: chex.Array,
    *,
    reference_rewards: chex.Array,
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    completion_mask: chex.Array,
    kl_max: float = 10.0,
) -> chex.Array:
    """CRPG's advantage: R~ - its mean over the batch, R~ = J sigma(r - r_0) max(1 - KL / KL_max, 0).

    KL = sum_t log(pi / ref) of the row, which may be negative: then the factor is above 1, as in the equation.
    Batch-coupled: pass the global batch.

    Args:
      rewards: float [B], with constraints.
      reference_rewards: float [B, M], of baseline responses: samples of the reference for the row's prompt.
      log_probs: float [B, C] of the policy.
      ref_log_probs: float [B, C] of the reference.
      completion_mask: bool [B, C].
      kl_max: KL_max, in nats per response. Our choice: the paper has one for each task.

    Returns:
      float [B].

    Raises:
      ValueError: if kl_max is not positive.
    """
    chex.assert_rank([rewards, reference_rewards, log_probs], [1, 2, 2])
    if not kl_max > 0:
        raise ValueError(f"crpg: kl_max={kl_max} must be above 0")
    own, passes = split(rewards)
    baseline = jnp.mean(split(reference_rewards)[0], axis=1)
    near = jnp.maximum(1.0 - masked_sum(log_probs - ref_log_probs, completion_mask, axis=1) / kl_max, 0.0)
    regularized = jnp.where(passes, jax.nn.sigmoid(own - baseline) * near, 0.0)
    return regularized - jnp.mean(regularized)
