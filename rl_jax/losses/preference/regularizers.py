"""Slot 8: terms added to a prompt's loss: (log_probs [N, K, C], mask [N, K, C]) -> float [N].

log_probs are 0 outside the mask. The first response of a prompt is the chosen one. A term on other text than the pair
(a target, a fresh sample) marks further responses of the prompt, and is combined with compare.first_pair.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.preference.degrees import degree_log_probs


def chosen_nll(log_probs: chex.Array, mask: chex.Array, *, reduce: str = "sum") -> chex.Array:
    """-sum_t logp_t of the chosen response, or its mean over the tokens. float, bool [N, K, C] -> float [N].

    The mean over all tokens of the batch is chosen_token_nll.

    Args:
      log_probs: float [N, K, C].
      mask: bool [N, K, C].
      reduce: "sum" (RPO, arXiv 2405.16436; SLiC), or "mean" over this response's tokens (RPO's second form, ORPO's
        paper).

    Raises:
      ValueError: if reduce is neither of the two.
    """
    chex.assert_rank(log_probs, 3)
    chex.assert_equal_shape([log_probs, mask])
    total = -jnp.sum(log_probs[:, 0], axis=-1)
    if reduce == "sum":
        return total
    if reduce == "mean":
        return total / jnp.maximum(jnp.sum(mask[:, 0], axis=-1), 1)
    raise ValueError(
        f"chosen_nll: reduce={reduce!r} is none of sum, mean; for the mean over all tokens use chosen_token_nll"
    )


def chosen_token_nll(log_probs: chex.Array, mask: chex.Array, *, mean_tokens: chex.Array) -> chex.Array:
    """-sum_t logp_t of the chosen response / mean_tokens: its mean over prompts is the mean over all chosen tokens.

    As in the code of CPO and CPO-SimPO and TRL's "sft" and rpo_alpha (arXiv 2401.08417, 2405.14734, 2404.19733).

    Args:
      log_probs: float [N, K, C].
      mask: bool [N, K, C].
      mean_tokens: float [N], chosen tokens per prompt over the whole update, the same on each row, because a
        micro-batch cannot compute it.

    Returns:
      float [N].
    """
    chex.assert_rank([log_probs, mean_tokens], [3, 1])
    chex.assert_equal_shape([log_probs, mask])
    return -jnp.sum(log_probs[:, 0], axis=-1) / jnp.maximum(jax.lax.stop_gradient(mean_tokens), 1e-6)


def target_nll(log_probs: chex.Array, mask: chex.Array, *, targets: chex.Array) -> chex.Array:
    """SLiC-HF: -sum_t logp_t of the marked responses. float, bool [N, K, C], targets bool [N, K] -> float [N].

    targets marks the reference text of supervised fine-tuning, given as a further response. Source: arXiv 2305.10425.
    """
    chex.assert_rank([log_probs, targets], [3, 2])
    chex.assert_equal_shape([log_probs, mask])
    return -jnp.sum(zero_masked(jnp.sum(log_probs, axis=-1), targets), axis=-1)


def online_kl(log_probs: chex.Array, mask: chex.Array, *, log_ratios: chex.Array, sampled: chex.Array) -> chex.Array:
    """HyPO: mean over the sampled responses of sg(sum_t (logp_t - ref_t)) sum_t logp_t.

    Over y ~ pi its expected gradient is that of KL(pi || ref); its value is not the KL. Source: arXiv 2406.01462.

    Args:
      log_probs: float [N, K, C].
      mask: bool [N, K, C].
      log_ratios: float [N, K, C].
      sampled: bool [N, K], the responses sampled from the policy at this step.

    Returns:
      float [N].
    """
    chex.assert_rank([log_probs, sampled], [3, 2])
    chex.assert_equal_shape([log_probs, log_ratios, mask])
    ratios = jax.lax.stop_gradient(jnp.sum(zero_masked(log_ratios, mask), axis=-1))
    terms = zero_masked(ratios * jnp.sum(log_probs, axis=-1), sampled)
    return jnp.sum(terms, axis=-1) / jnp.maximum(jnp.sum(sampled, axis=-1), 1)


def optimism(log_probs: chex.Array, mask: chex.Array, *, from_reference: chex.Array) -> chex.Array:
    """XPO: + sum_t logp_t of the response that the reference sampled, whether chosen or rejected.

    Source: arXiv 2405.21046.

    Args:
      log_probs: float [N, K, C].
      mask: bool [N, K, C].
      from_reference: bool [N, K].

    Returns:
      float [N].
    """
    chex.assert_rank([log_probs, from_reference], [3, 2])
    chex.assert_equal_shape([log_probs, mask])
    return jnp.sum(zero_masked(jnp.sum(log_probs, axis=-1), from_reference), axis=-1)


def token_rewards(
    log_probs: chex.Array,
    mask: chex.Array,
    *,
    token_rewards: chex.Array,
    sequence_scores: chex.Array,
    beta: float,
) -> chex.Array:
    """T-REG: -sg(sigma(rho_l - rho_w)) beta sum_k sum_t r_kt logp_kt, rho = beta u of the pair.

    Source: arXiv 2412.02685.

    Args:
      log_probs: float [N, 2, C].
      mask: bool [N, 2, C].
      token_rewards: float [N, 2, C], r in [-1/2, 1/2], from contrastive prompts.
      sequence_scores: float [N, 2], u.
      beta: of the objective.

    Returns:
      float [N].
    """
    chex.assert_rank(log_probs, 3)
    chex.assert_axis_dimension(log_probs, 1, 2)
    chex.assert_equal_shape([log_probs, mask, token_rewards])
    margins = jax.lax.stop_gradient(beta * (sequence_scores[:, 0] - sequence_scores[:, 1]))
    credited = jax.lax.stop_gradient(zero_masked(token_rewards, mask)) * log_probs
    return -jax.nn.sigmoid(-margins) * beta * jnp.sum(credited, axis=(1, 2))


def behaviour_cloning(log_probs: chex.Array, mask: chex.Array, *, present: chex.Array) -> chex.Array:
    """CPL: mean of -logp_t over the tokens of each response, then over all responses, including the worse ones.

    The published code's segments all have one length. chosen_nll clones the chosen responses only.
    Source: arXiv 2310.13639.

    Args:
      log_probs: float [N, K, C].
      mask: bool [N, K, C].
      present: bool [N, K].

    Returns:
      float [N].
    """
    chex.assert_rank([log_probs, present], [3, 2])
    chex.assert_equal_shape([log_probs, mask])
    means = -jnp.sum(log_probs, axis=-1) / jnp.maximum(jnp.sum(mask, axis=-1), 1)
    return jnp.sum(zero_masked(means, present), axis=-1) / jnp.maximum(jnp.sum(present, axis=-1), 1)


def degree_nll(log_probs: chex.Array, mask: chex.Array, *, present: chex.Array) -> chex.Array:
    """-mean_k logp(degree of y_k) over the responses after the pair: how much of its key content a copy has lost.

    A copy's degree is its last token before the EOS (preferences.degraded), and only that token counts: the head of
    the language model is the classifier. With compare.first_pair it is SPO's preference-degree loss beside DPO's;
    coefficient 0 is DPO. Source: arXiv 2409.17791, whose classifier is a head of its own: `degree_head_nll`.

    Args:
      log_probs: float [N, K, C], differentiated.
      mask: bool [N, K, C]. A copy without two tokens is left out.
      present: bool [N, K].

    Returns:
      float [N], 0 for a prompt without a copy.
    """
    chex.assert_rank([log_probs, present], [3, 2])
    chex.assert_equal_shape([log_probs, mask])
    lengths = jnp.sum(mask, axis=2)
    copies = present & (jnp.arange(mask.shape[1])[None] >= 2) & (lengths >= 2)
    place = jnp.maximum(lengths - 2, 0)[:, :, None]
    said = jnp.take_along_axis(log_probs, place, axis=2)[:, :, 0]
    return -jnp.sum(zero_masked(said, copies), axis=1) / jnp.maximum(jnp.sum(copies, axis=1), 1)


def degree_head_nll(
    log_probs: chex.Array,
    mask: chex.Array,
    *,
    degree_logits: chex.Array,
    degrees: chex.Array,
    present: chex.Array,
) -> chex.Array:
    """SPO: -mean_k log p(d_k | x, y_k) of all responses, by a head on the hidden state of each one's last token.

    d_k tells how much of its key content y_k has lost, 0 for the pair itself (preferences.degraded). With
    compare.first_pair it is added to DPO's loss of the pair; coefficient 0 is DPO. `degree_nll` needs no head.
    Source: arXiv 2409.17791. Its text could be read in part only: the weight, and what its classifier reads, are
    choices made here.

    Args:
      log_probs: float [N, K, C]; not read.
      mask: bool [N, K, C].
      degree_logits: float [N, K, D], differentiated.
      degrees: float [N, K], whole numbers 0 .. D - 1.
      present: bool [N, K].

    Returns:
      float [N], 0 for a prompt without a response.
    """
    chex.assert_rank([log_probs, present], [3, 2])
    chex.assert_equal_shape([log_probs, mask])
    chex.assert_equal_shape([degrees, present])
    said = zero_masked(degree_log_probs(degree_logits, degrees), present)
    return -jnp.sum(said, axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
