"""Contrasts: scores h_ij of anchor i and candidate j, of which h_ii is the right one.

info_nce   -log exp(h_ii) / sum_j exp(h_ij);  scores that say nothing give log B         1807.03748; TACO 2306.13229
two_sided  info_nce of two views, each against both views of others       SupCon 2004.11362; CLAM 2401.00132
matching   -mean_{j right} log softmax_j h_ij, where equal captions are all right           CLIP 2103.00020
robust     min_{tau >= tau_0} tau log mean_{j != i} exp((h_ij - h_ii) / tau) + tau rho        iSogCLR 2305.11965
anchored   the same in small steps: a moving average of the mean and a tau for each anchor    iSogCLR 2305.11965
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


def info_nce(scores: chex.Array, valid: chex.Array | None = None) -> chex.Array:
    """-log softmax of the right candidate, float [B].

    Args:
      scores: float [B, B], row i: anchor i against every candidate.
      valid: bool [B]. False: no anchor, whose loss is 0, and no candidate either. None: all are.
    """
    chex.assert_rank(scores, 2)
    if valid is not None:
        chex.assert_shape(valid, scores.shape[:1])
        own = jnp.where(valid, jnp.diagonal(scores), 0.0)
        ahead = jax.nn.logsumexp(jnp.where(valid[None, :], scores, -1e30), axis=1)
        return jnp.where(valid, ahead, 0.0) - own
    return jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores)


def matching(scores: chex.Array, right: chex.Array) -> chex.Array:
    """-mean_{j: right_ij} log softmax_j h_ij, float [B]: `info_nce` if several candidates may be right.

    CLIP's loss is the mean of it over the scores and their transpose; with a caption of its own for each image, `right`
    is the identity (arXiv 2103.00020, figure 3). That equal captions are all right is a choice made here.

    Args:
      scores: float [B, B], differentiated; row i: anchor i against every candidate.
      right: bool [B, B], true on the diagonal.
    """
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, right])
    chex.assert_type(right, bool)
    log_probs = jax.nn.log_softmax(scores, axis=1)
    return -jnp.sum(jnp.where(right, log_probs, 0.0), axis=1) / jnp.sum(right, axis=1)


def two_sided(left: chex.Array, right: chex.Array, apart: chex.Array, *, temperature: float) -> chex.Array:
    """-log exp(x_i.x_p / tau) / sum_j exp(x_i.x_j / tau) of both views, float [2B]; p is the other view of i.

    j is p and both views of the rows that are apart from i: SimCLR's loss, and SupCon's without labels (arXiv
    2004.11362), where all rows are apart.

    Args:
      left: float [B, D], differentiated.
      right: float [B, D], the other views, differentiated.
      apart: bool [B, B]. Whether j is a wrong answer for i; of a row with itself it is not read.
      temperature: tau.
    """
    chex.assert_equal_shape([left, right])
    chex.assert_shape(apart, (len(left), len(left)))
    codes, own = jnp.concatenate([left, right]), jnp.eye(len(left), dtype=bool)
    scores = codes @ codes.T / temperature
    wrong = apart & ~own
    wrong = jnp.block([[wrong, wrong | own], [wrong | own, wrong]])
    right_scores = jnp.sum(left * right, axis=1) / temperature
    return jax.nn.logsumexp(jnp.where(wrong, scores, -1e30), axis=1) - jnp.concatenate([right_scores, right_scores])


def robust_value(gaps: chex.Array, tau: chex.Array, rho: float) -> chex.Array:
    """tau log mean_j exp(h_j / tau) + tau rho, float []: the dual of a KL ball of radius rho, convex in tau.

    Args:
      gaps: h_ij - h_ii over j != i, float [M].
      tau: float [].
      rho: radius.
    """
    return tau * (jax.nn.logsumexp(gaps / tau) - jnp.log(len(gaps))) + tau * rho


def temperature(gaps: chex.Array, *, rho: float, floor: float, ceiling: float = 10.0, halvings: int = 40) -> chex.Array:
    """The tau in [floor, ceiling] of the least robust_value, float []; equal gaps give the floor.

    Args:
      gaps: float [M].
      rho: radius.
      floor: tau_0.
      ceiling: largest tau.
      halvings: of the interval in which the slope changes its sign.
    """
    slope = jax.grad(robust_value, argnums=1)

    def halve(ends, _):
        low, high = ends
        middle = 0.5 * (low + high)
        falls = slope(gaps, middle, rho) < 0
        return (jnp.where(falls, middle, low), jnp.where(falls, high, middle)), None

    (low, _), _ = jax.lax.scan(halve, (jnp.float32(floor), jnp.float32(ceiling)), None, halvings)
    return low


def robust(scores: chex.Array, *, rho: float = 0.3, floor: float = 0.05) -> tuple[chex.Array, chex.Array]:
    """A loss per anchor with a temperature of its own: (loss float [B], tau float [B]).

    tau is a constant for the gradient, which at the minimum is exact. Source: arXiv 2305.11965. Departs: the minimum
    over tau is solved in each batch, in place of a moving average per anchor of a data set.

    Args:
      scores: float [B, B], as in `info_nce`; similarities, not divided by a temperature.
      rho: radius of the ball of distributions over the other candidates.
      floor: tau_0.
    """
    size = len(scores)
    gaps = scores - jnp.broadcast_to(jnp.diagonal(scores)[:, None], scores.shape)
    # The other candidates: row i without entry i.
    others = gaps.reshape(-1)[1:].reshape(size - 1, size + 1)[:, :-1].reshape(size, size - 1)
    taus = jax.lax.stop_gradient(jax.vmap(lambda g: temperature(g, rho=rho, floor=floor))(others))
    return jax.vmap(lambda g, t: robust_value(g, t, rho))(others, taus), taus


class Anchors(NamedTuple):
    """What is kept of N anchors from batch to batch.

    Attributes:
      average: s, moving averages of mean_j exp(h_ij / tau_i), float32 [N].
      slope: u, moving averages of the gradient of tau_i, float32 [N].
      tau: float32 [N].
      seen: whether there is an average yet, bool [N].
    """

    average: chex.Array
    slope: chex.Array
    tau: chex.Array
    seen: chex.Array


def new_anchors(size: int, *, tau: float = 0.07) -> Anchors:
    """N anchors that nothing is known of, at temperature tau."""
    zeros = jnp.zeros(size)
    return Anchors(zeros, zeros, jnp.full(size, tau), jnp.zeros(size, bool))


def _weights(scores, negatives, tau, average) -> chex.Array:
    """exp(h_ij / tau_i) / (s_i M_i) over the M_i negatives, float [R, M]; they sum to 1 where s_i is their mean.

    A row without negatives has weights 0.
    """
    number = jnp.sum(negatives, axis=1, keepdims=True)
    below = jnp.where(number > 0, average[:, None] * number, 1.0)
    return jnp.where(negatives, jnp.exp(scores / tau[:, None]), 0.0) / below


def anchored(scores, positives, negatives, tau, average) -> chex.Array:
    """sum_j p_ij h_ij - h_ii, p_ij = sg exp(h_ij / tau_i) / (s_i M_i): its gradient is that of tau log s - h_ii.

    A row without negatives has -h_ii.
    Source: arXiv 2305.11965; zhqiu/contrastive-learning-iSogCLR unimodal_exps/losses.py SogCLR_DRO_Loss.

    Args:
      scores: h, float [R, M].
      positives: h_ii, float [R].
      negatives: which candidates are wrong ones, bool [R, M].
      tau: float [R].
      average: s, float [R], of `follow`.
    """
    weights = jax.lax.stop_gradient(_weights(scores, negatives, tau, average))
    return jnp.sum(weights * scores, axis=1) - positives


def follow(
    anchors: Anchors,
    slots: chex.Array,
    scores: chex.Array,
    negatives: chex.Array,
    *,
    rho: float,
    rate: float = 0.8,
    momentum: float = 0.9,
    step_size: float = 1e-3,
    limits: tuple[float, float] = (0.05, 1.0),
    clip: float = 3.0,
    axis_name=None,
) -> tuple[Anchors, chex.Array, chex.Array]:
    """One step of the averages and temperatures: (Anchors after it, the rows' tau before it, their s after it, [R]).

    s <- (1 - rate) s + rate g, g_i = mean_j exp(h_ij / tau_i), the first time s <- g;
    u <- (1 - momentum) u + momentum clip(log s + rho - sum_j p_ij h_ij / tau);  tau <- clip(tau - step_size u).

    Source: as `anchored`, whose numbers are the defaults. Departs: rows of one anchor move it by their mean; there,
    an anchor has one row for each of its two views, and a batch never has it twice. A row without negatives, as of
    observations that are all the same, moves nothing.

    Args:
      anchors: of N anchors.
      slots: the anchor of each row, int [R].
      scores: h, float [R, M].
      negatives: bool [R, M].
      rho: radius of the ball of distributions over the negatives.
      rate: gamma, weight of the new mean.
      momentum: beta_u, weight of the new slope.
      step_size: eta of tau.
      limits: of tau.
      clip: of the slope.
      axis_name: mapped axis over which the rows are spread.
    """
    tau, size = anchors.tau[slots], len(anchors.tau)
    has = jnp.any(negatives, axis=1)
    found = jnp.sum(_weights(scores, negatives, tau, jnp.ones(len(scores))), axis=1)
    before = anchors.average[slots]
    moved = jnp.where(anchors.seen[slots], (1.0 - rate) * before + rate * found, found)
    average = jnp.where(has, moved, before)
    weights = _weights(scores, negatives, tau, average)
    slope = jnp.log(jnp.where(has, average, 1.0)) + rho
    slope -= jnp.sum(weights * jnp.where(negatives, scores, 0.0), axis=1) / tau
    told = jnp.stack([jnp.ones(len(scores)), average, jnp.clip(slope, -clip, clip)])
    sums = jnp.zeros((3, size)).at[:, slots].add(jnp.where(has, told, 0.0))
    rows, averages, slopes = sums if axis_name is None else jax.lax.psum(sums, axis_name)
    here, rows = rows > 0, jnp.maximum(rows, 1.0)
    slopes = jnp.where(here, (1.0 - momentum) * anchors.slope + momentum * slopes / rows, anchors.slope)
    after = Anchors(
        average=jnp.where(here, averages / rows, anchors.average),
        slope=slopes,
        tau=jnp.where(here, jnp.clip(anchors.tau - step_size * slopes, *limits), anchors.tau),
        seen=anchors.seen | here,
    )
    return after, tau, average
