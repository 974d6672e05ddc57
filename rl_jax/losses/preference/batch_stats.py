"""What a preference loss needs from the whole batch: anchors, sorted partners, the filter and beta of a batch.

Each function returns BatchStatistics(init, update): init() -> state; update(state, before, key) -> (state, extras).
`before` is the whole update's batch, measured before the update. The extras are arrays with N first, for
PreferenceBatch.extras, and are split over micro-batches with the rows, so neither the number of micro-batches nor of
devices changes a loss.
States are NamedTuples of float32 arrays and are checkpointed. Everything here is on the scale of the sequence score u,
before beta.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.masked import masked_mean, masked_var, zero_masked


class GlobalBatch(NamedTuple):
    """The global batch before the update, without gradient. Fields that a function does not use may be None.

    Attributes:
      sequence_scores: float32 [N, K]. u of rl_jax.dpo: usually logp - ref_logp, summed.
      present: bool [N, K].
      rewards: float32 [N, K]. As in the batch; the label if K = 1.
      lengths: float32 [N, K]. Tokens of each response.
      ref_sequence_scores: float32 [N, K]. The reference policy's sequence scores (already subtracted in u).
      mismatched_log_ratios: float32 [N]. KTO: logp - ref_logp, summed, of each prompt with another prompt's completion.
      mismatched_present: bool [N]. Whether there is such a completion.
    """

    sequence_scores: chex.Array
    present: chex.Array
    rewards: chex.Array | None = None
    lengths: chex.Array | None = None
    ref_sequence_scores: chex.Array | None = None
    mismatched_log_ratios: chex.Array | None = None
    mismatched_present: chex.Array | None = None


class BatchStatistics(NamedTuple):
    """Batch statistics as pure functions.

    Attributes:
      init: () -> state.
      update: (state, GlobalBatch, key or None) -> (state, {name: array with N first}). key: a typed PRNG key for this
        update only, needed if it samples (beta_statistics). A state that is not finite is not taken: the train step
        skips its batch, and the next ones must not suffer.
      reads_batch: False if update needs no GlobalBatch, and returns nothing.
      reads_mismatched: whether GlobalBatch needs the log-ratios of mismatched pairs.
      held_out: (state, GlobalBatch) -> the extras of a held-out batch, which does not enter them. None: update's.
    """

    init: Callable[[], Any]
    update: Callable
    reads_batch: bool = True
    reads_mismatched: bool = False
    held_out: Callable | None = None


def none() -> BatchStatistics:
    """No batch statistics: for a loss that sees one prompt at a time."""
    return BatchStatistics(lambda: (), lambda state, before, key=None: (state, {}), reads_batch=False)


def kto_anchor() -> BatchStatistics:
    """KTO: an estimate of the KL from mismatched pairs.

        anchor [N] = max(0, mean_n (logp - ref_logp)(y'_n | q_n))

    The comparator `anchored` multiplies it by beta. The mean is over the prompts that mismatched_present has, and 0 of
    none. Over devices it is one mean (HALOs), which equals TRL's mean of means for equal shares. Source: arXiv
    2402.01306.
    """

    def update(state, before: GlobalBatch, key=None):
        if before.mismatched_log_ratios is None or before.mismatched_present is None:
            raise ValueError("kto_anchor needs mismatched_log_ratios and mismatched_present, of the mismatched pairs")
        mean = masked_mean(before.mismatched_log_ratios, before.mismatched_present).value()
        return state, {"anchor": _every_row(jnp.maximum(mean, 0.0), before)}

    return BatchStatistics(lambda: (), update, reads_mismatched=True)


class RunningMean(NamedTuple):
    """Running mean of everything seen so far.

    Attributes:
      mean: float32 [].
      count: float32 [].
    """

    mean: chex.Array
    count: chex.Array


def bco_anchor(*, observations: str = "responses") -> BatchStatistics:
    """BCO: anchor [N] = the running mean of u over all responses of all batches so far, including this one.

        mean <- mean + (batch mean - mean) n / (count + n), count from 1e-24

    Times beta it is BCO's delta, the running mean of beta u, as long as beta is constant. A held-out batch is compared
    with the mean of the training batches (BCOTrainer; bco_pair adds the held-out ones). Source: arXiv 2404.04656.

    Args:
      observations: "responses": n is their number (TRL's BCOTrainer). "batches": n is 1 for any batch size (bco_pair of
        TRL up to 0.28).

    Raises:
      ValueError: if observations is neither of the two.
    """
    if observations not in ("responses", "batches"):
        raise ValueError(f"bco_anchor: observations={observations!r} is none of responses, batches")

    def update(state: RunningMean, before: GlobalBatch, key=None):
        batch = masked_mean(before.sequence_scores, before.present)
        count = batch.count if observations == "responses" else jnp.minimum(batch.count, 1.0)
        total = state.count + count
        mean = state.mean + (batch.value() - state.mean) * count / total
        return _finite(RunningMean(mean, total), state), {"anchor": _every_row(mean, before)}

    def held_out(state: RunningMean, before: GlobalBatch):
        return {"anchor": _every_row(state.mean, before)}

    return BatchStatistics(lambda: RunningMean(jnp.float32(0.0), jnp.float32(1e-24)), update, held_out=held_out)


def aot_partners(*, paired: bool = True) -> BatchStatistics:
    """AOT: partners [N, 2], what a row's scores are compared with after sorting the whole batch.

    Rows without both responses are ranked after all others, among themselves. Source: arXiv 2406.05882.

    Args:
      paired: True, for the comparator sorted_pairs: the reference's log-probs of the row whose reference margin has the
        rank of this row's policy margin, minus the row's own, which are already in u (reference {ref: 1}, summed
        log-probs). False, for sorted_unpaired: the rejected u with the rank of this row's chosen u, and the chosen u
        with the rank of its rejected u.
    """

    def update(state, before: GlobalBatch, key=None):
        chex.assert_axis_dimension(before.sequence_scores, 1, 2)
        live = jnp.all(before.present, axis=1)
        u = before.sequence_scores
        if paired:
            ref = before.ref_sequence_scores
            if ref is None:
                raise ValueError(
                    "aot_partners compares margins with the reference's: set the objective's reference to {ref: 1}"
                )
            policy = u + ref
            source = _same_rank(policy[:, 0] - policy[:, 1], ref[:, 0] - ref[:, 1], live)
            return state, {"partners": zero_masked(ref[source] - ref, before.present)}
        partners = [u[_same_rank(u[:, 0], u[:, 1], live), 1], u[_same_rank(u[:, 1], u[:, 0], live), 0]]
        return state, {"partners": zero_masked(jnp.stack(partners, axis=1), before.present)}

    return BatchStatistics(lambda: (), update)


class GapStatistics(NamedTuple):
    """Moving averages over batches of the margins u_w - u_l.

    Attributes:
      mean: float32 []. Of the batch mean.
      std: float32 []. Of the batch standard deviation.
    """

    mean: chex.Array
    std: chex.Array


def beta_statistics(
    *, beta: float, adaptation: float = 0.6, dropped: float = 0.2, momentum: float = 0.9, min_beta: float = 1e-3
) -> BatchStatistics:
    """beta-DPO: a beta per batch, and a filter of pairs.

        batch_beta [N] = max(min_beta, beta (1 + a (mean of the kept margins - mu))), and kept [N]

    mu and sd are moving averages from 0, updated before use, of the batch's mean and standard deviation (ddof 1). The
    filter keeps int((1 - dropped) n) of the n pairs, sampled by `key` without replacement with weights exp(-((g - mu) /
    sd)^2 / 2); the update raises ValueError without a key. kept is n / (number kept) for kept pairs and 0 for the
    others, so that a mean over all pairs is a mean over the kept ones. Source: arXiv 2407.08639; the official code.

    Args:
      beta: the objective's.
      adaptation: a. 0 with dropped 0 is DPO. Published: 0.6 in the README, 0.046 in the config.
      dropped: share of the pairs that the filter drops.
      momentum: of the moving averages.
      min_beta: lower bound of batch_beta.
    """

    def update(state: GapStatistics, before: GlobalBatch, key=None):
        if key is None:
            raise ValueError("beta_statistics samples the pairs that are kept: pass a key to its update")
        chex.assert_axis_dimension(before.sequence_scores, 1, 2)
        live = jnp.all(before.present, axis=1)
        gaps = zero_masked(before.sequence_scores[:, 0] - before.sequence_scores[:, 1], live)
        measured = masked_mean(gaps, live).value(), jnp.sqrt(masked_var(gaps, live, ddof=1))
        mean, std = (momentum * old + (1.0 - momentum) * new for old, new in zip(state, measured, strict=True))
        log_weights = -0.5 * jnp.square((gaps - mean) / jnp.maximum(std, 1e-12))
        # The top-k of log w + Gumbel noise is a sample without replacement with weights w.
        lots = jnp.where(live, log_weights + jax.random.gumbel(key, gaps.shape), -jnp.inf)
        ranks = jnp.argsort(jnp.argsort(lots, descending=True))
        # Python's int() of a product, as published, for every possible n: float32 rounds some of them differently.
        counts = jnp.asarray(np.array([int(n * (1.0 - dropped)) for n in range(gaps.shape[0] + 1)]))
        number = jnp.maximum(counts[jnp.sum(live)], 1)
        kept = live & (ranks < number)
        batch_beta = beta * (1.0 + adaptation * (masked_mean(gaps, kept).value() - mean))
        share = jnp.sum(live) / number
        extras = {"batch_beta": _every_row(jnp.maximum(batch_beta, min_beta), before)}
        return _finite(GapStatistics(mean, std), state), extras | {"kept": jnp.where(kept, share, 0.0)}

    return BatchStatistics(lambda: GapStatistics(jnp.float32(0.0), jnp.float32(0.0)), update)


def _finite(new: Any, old: Any) -> Any:
    """The state `new`, or `old` if an array of `new` is not finite."""
    good = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(new)]))
    return jax.tree.map(lambda x, before: jnp.where(good, x, before), new, old)


def _every_row(x: chex.Array, before: GlobalBatch) -> chex.Array:
    return jnp.full(before.present.shape[:1], x, jnp.float32)


def _same_rank(x: chex.Array, others: chex.Array, live: chex.Array) -> chex.Array:
    """For each row, the row of `others` that has its rank: int32 [N]. Rows that are not live come last in both."""
    order, other_order = (jnp.argsort(jnp.where(live, values, jnp.inf)) for values in (x, others))
    return jnp.zeros_like(order).at[order].set(other_order)
