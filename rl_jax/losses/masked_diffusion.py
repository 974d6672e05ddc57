"""Objectives of masked-diffusion language models: the forward process, the ELBO, BGPO's bound of the ELBO's ratio.

An answer y of C tokens is corrupted by putting a mask token at some positions S, and the model gives log p(y_i | rest)
at all of them in one forward. With S drawn as below and its weight w, the ELBO of log p(y) is

    B(y) = E_S[ b_S ],     b_S = w_S sum_{i in S} log p(y_i | y outside S)

the mean over all orders of unmasking of the chain rule's sum. Source: LLaDA, arXiv 2502.09992, eq. 12 and 14, and
ML-GSAI/LLaDA get_log_likelihood.py. An objective of B needs one estimate of it from M draws of S, and the old policy's
from the same draws.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import Mean, masked_mean, masked_sum
from rl_jax.losses.policy.clipped import finite_exp

MASKINGS = ("count", "uniform", "all")
LEAST = 1e-3  # smallest share of masked positions of "uniform": its weight is 1 / share


def draw_masks(keys: chex.Array, num_samples: int, length: int, *, how: str = "count") -> tuple[chex.Array, chex.Array]:
    """M draws of the masked positions of each row, and their weights: (bool [N, M, C], float32 [N, M]).

        count    n of the C positions, n uniform on 1..C, w = C / n. The M draws of a row take n at equal distances from
                 one uniform draw (as LLaDA's code does), which leaves each one's distribution as it is.
        uniform  each position with probability t, t uniform on [1e-3, 1], w = 1 / t: the weight is bounded
        all      every position, w = 1: the mean-field estimate of d1 (arXiv 2504.12216), no bound

    count and uniform have the same expectation for each set of positions (but for t < 1e-3); count has less variance.
    Row i depends on key i only.

    Args:
      keys: typed keys [N].
      num_samples: M.
      length: C.
      how: a name in MASKINGS.

    Raises:
      ValueError: for another name, or several samples of "all", which are equal.
    """
    if how not in MASKINGS:
        raise ValueError(f"masking={how!r} is none of {', '.join(MASKINGS)}")
    if how == "all" and num_samples != 1:
        raise ValueError(f"masking='all' has one draw, not num_samples={num_samples}: all of them would be equal")

    def draw(key):
        level_key, place_key = jax.random.split(key)
        places = jax.random.uniform(place_key, (num_samples, length))
        if how == "count":
            first = jax.random.randint(level_key, (), 0, length)
            counts = (first + (jnp.arange(num_samples) * length) // num_samples) % length + 1
            rank = jnp.argsort(jnp.argsort(places, axis=1), axis=1)
            return rank < counts[:, None], length / counts.astype(jnp.float32)
        share = LEAST + (1.0 - LEAST) * (1.0 - jax.random.uniform(level_key, (num_samples,)))
        return places < share[:, None], 1.0 / share

    if how == "all":
        rows = keys.shape[0]
        return jnp.ones((rows, 1, length), bool), jnp.ones((rows, 1), jnp.float32)
    return jax.vmap(draw)(keys)


def elbo_terms(
    log_probs: chex.Array, counted: chex.Array, weights: chex.Array, *, per_token: bool = True
) -> chex.Array:
    """b_S = w sum_{i counted} log p(y_i | y outside S), over C if per_token: float [..., M].

    The mean over M estimates the ELBO of log p(y), as in equation 4 of BGPO (arXiv 2510.11683 version 3), or with
    per_token of log p(y) / C, as in DARE's code: its ratios are then those of a geometric mean over tokens, as in GSPO.

    Args:
      log_probs: float [..., M, C], each draw's forward.
      counted: bool [..., M, C]. The masked positions; fewer if some are not trained on.
      weights: float [..., M].
      per_token: whether to divide by C.
    """
    chex.assert_equal_shape([log_probs, counted])
    chex.assert_equal_shape([log_probs[..., 0], weights])
    totals = weights * masked_sum(log_probs, counted, axis=-1)
    return totals / log_probs.shape[-1] if per_token else totals


def _gaps(terms: chex.Array, old_terms: chex.Array, advantages: chex.Array):
    """(float [N, M] of terms - old terms, float [N, 1] advantages); only the terms have a gradient."""
    chex.assert_rank([terms, old_terms, advantages], [2, 2, 1])
    chex.assert_equal_shape([terms, old_terms])
    chex.assert_equal_shape_prefix([terms, advantages], 1)
    return terms - jax.lax.stop_gradient(old_terms), jax.lax.stop_gradient(advantages)[:, None]


def elbo_ratio(
    terms: chex.Array, old_terms: chex.Array, advantages: chex.Array, *, clip_low: float, clip_high: float
) -> tuple[Mean, dict[str, Mean]]:
    """The ELBO-based objective: PPO's clip of r = exp(mean_j d_j), d_j = b_j - b_j of the old policy.

        -1/N sum_n min(A r, A clip(r, 1 - clip_low, 1 + clip_high))

    r is not linear in the draws, so that its gradient needs the forwards of all M of them at once. Clips of inf are
    BGPO's objective before its bound. Source: arXiv 2510.11683 section 2.

    Args:
      terms: float [N, M], from elbo_terms, differentiated.
      old_terms: float [N, M], of the same draws.
      advantages: float [N].
      clip_low: distance of the lower bound from 1.
      clip_high: distance of the upper bound from 1.

    Returns:
      (loss, metrics), N rows.
    """
    gaps, advantages = _gaps(terms, old_terms, advantages)
    ratio = finite_exp(jnp.mean(gaps, axis=1, keepdims=True), advantages >= 0)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    losses = jnp.maximum(-advantages * ratio, -advantages * clipped)
    rows = jnp.ones_like(losses, bool)
    metrics = {"ratio/mean": masked_mean(ratio, rows), "ratio/clipped": masked_mean((clipped != ratio) * 1.0, rows)}
    return masked_mean(losses, rows), jax.lax.stop_gradient(metrics)


def linear_bound(terms: chex.Array, old_terms: chex.Array, advantages: chex.Array) -> tuple[Mean, dict[str, Mean]]:
    """BGPO: a lower bound of the (unclipped) ELBO-based objective that is a sum over the draws.

        A exp(mean_j d_j)  >=  A mean_j (1 + d_j)      if A >= 0: the tangent of exp
        A exp(mean_j d_j)  >=  A mean_j exp(d_j)       if A < 0: Jensen

    The loss is minus that. At d = 0, on-policy, value and gradient are those of `elbo_ratio`. Each draw is an entry of
    the Mean, so that draws may be rows of a batch, in micro-batches of any size: memory is that of one forward.

    Source: BGPO, arXiv 2510.11683 version 3: equations 9, 12 and 13 are the two inequalities and their terms, 10 is d,
    and 19, with the advantages of 18, the loss. Its equation 4 has no 1 / C in d: that is per_token=False of
    `elbo_terms`. The framework yjyddq/DARE, whose verl/workers/actor/llada_dp_actor_bgpo.py is BGPO, divides by the
    columns of the answers, and clips (`clipped_bound`). THU-KEG/BGPO itself could not be read.

    Args:
      terms: float [N, M], from elbo_terms, differentiated.
      old_terms: float [N, M], of the same draws.
      advantages: float [N].

    Returns:
      (loss, metrics), N x M entries.
    """
    gaps, advantages = _gaps(terms, old_terms, advantages)
    # Where A >= 0 the exponential is not used, and a large one must not give 0 * inf as its gradient.
    bound = jnp.where(advantages >= 0, 1.0 + gaps, jnp.exp(jnp.where(advantages >= 0, 0.0, gaps)))
    entries = jnp.ones_like(gaps, bool)
    metrics = {"ratio/mean": masked_mean(bound, entries), "gap/size": masked_mean(jnp.abs(gaps), entries)}
    return masked_mean(-advantages * bound, entries), jax.lax.stop_gradient(metrics)


def clipped_bound(
    terms: chex.Array,
    old_terms: chex.Array,
    advantages: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> tuple[Mean, dict[str, Mean]]:
    """BGPO as a framework has it: PPO's two clips on each draw's term of `linear_bound`, a sum over the draws too.

        r = 1 + d if A > 0, exp(d) otherwise,    l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))
        l = min(l, -A dual_clip) if A < 0        the loss is the mean of l over rows and draws

    At d = 0 value and gradient are those of `linear_bound`; off-policy a draw that has gone far has no gradient.

    Source: compute_policy_loss_bgpo of yjyddq/DARE, verl/trainer/ppo/dllm_core_algos.py: clips of .2, dual clip 3. It
    writes 1 + d as exp(log(1 + d)), nan where d <= -1; not so here. The paper, arXiv 2510.11683, has no clip.

    Args:
      terms: float [N, M], from elbo_terms, differentiated.
      old_terms: float [N, M], of the same draws.
      advantages: float [N].
      clip_low: distance of the lower bound from 1.
      clip_high: distance of the upper bound from 1.
      dual_clip: most that r counts where A < 0; inf: no bound.

    Returns:
      (loss, metrics), N x M entries.
    """
    gaps, advantages = _gaps(terms, old_terms, advantages)
    good = advantages > 0
    bounded = jnp.broadcast_to((advantages >= 0) | (dual_clip < jnp.inf), gaps.shape)
    ratio = jnp.where(good, 1.0 + gaps, finite_exp(gaps, bounded))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    losses = jnp.maximum(-advantages * ratio, -advantages * clipped)
    far = (advantages < 0) & (ratio > dual_clip)
    losses = jnp.where(far, -advantages * dual_clip, losses)
    entries = jnp.ones_like(gaps, bool)
    held = far | (losses > -advantages * ratio)
    metrics = {"ratio/mean": masked_mean(ratio, entries), "ratio/clipped": masked_mean(held * 1.0, entries)}
    return masked_mean(losses, entries), jax.lax.stop_gradient(metrics)


def keep_uncertain(entropy: chex.Array, hinted: chex.Array, share: float) -> chex.Array:
    """IGPO's filter: of each draw's hinted positions the `share` with the highest entropy, at least one. bool [..., C].

    A hint that the model would not have written is a large step off its policy; where it is undecided, a smaller one.
    Source: arXiv 2509.10396; facebookresearch/igpo, trainer_igpo.py: max(1, int(share x number)), share 0.2.

    Args:
      entropy: float [..., C], of the old policy at each position.
      hinted: bool [..., C]. Positions that were inpainted and are masked in this draw.
      share: from 0 to 1.
    """
    chex.assert_equal_shape([entropy, hinted])
    number = jnp.sum(hinted, axis=-1, keepdims=True)
    # A share such as 0.2 of 5 is 1, though float32 has it a little below.
    kept = jnp.maximum(1, jnp.floor(share * number + 1e-4).astype(jnp.int32))
    order = jnp.argsort(jnp.where(hinted, -entropy, jnp.inf), axis=-1)
    return hinted & (jnp.argsort(order, axis=-1) < kept)
