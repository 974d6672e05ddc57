"""What a preference loss must know of the whole batch: anchors, sorted partners, the filter and beta of a batch.

A coupler is Coupler(init, update): init() -> state; update(state, before, key) -> (state, extras). `before` is of the
whole update's batch, measured before it; the extras are arrays with N first, for PreferenceBatch.extras, and are split
over micro-batches with the rows: neither their number nor the number of devices changes a loss. States are NamedTuples
of float32 arrays and are checkpointed. Everything here is on the scale of the sequence score u, before beta.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.masked import masked_mean, masked_var, zero_masked


class Before(NamedTuple):
    """The global batch before the update, without gradient. What a coupler does not read may be None.

    sequence_scores: float32 [N, K]. u of rl_jax.dpo: mostly logp - ref_logp, summed.
    present: bool [N, K].
    rewards: float32 [N, K]. As in the batch; with K = 1 the label.
    lengths: float32 [N, K]. Tokens of each response.
    ref_sequence_scores: float32 [N, K]. The reference's own sums, those that u is less by.
    mismatched_log_ratios: float32 [N]. KTO: logp - ref_logp, summed, of each prompt with another one's completion.
    mismatched_present: bool [N]. Whether that other prompt has a completion.
    """

    sequence_scores: chex.Array
    present: chex.Array
    rewards: chex.Array | None = None
    lengths: chex.Array | None = None
    ref_sequence_scores: chex.Array | None = None
    mismatched_log_ratios: chex.Array | None = None
    mismatched_present: chex.Array | None = None


class Coupler(NamedTuple):
    """init: () -> state. update: (state, Before, key or None) -> (state, {name: array with N first}); both pure.

    key: a typed PRNG key, of this update alone; needed where something is drawn (beta_statistics).
    """

    init: Callable[[], Any]
    update: Callable
    reads_batch: bool = True  # False: update needs no Before, and gives nothing
    reads_mismatched: bool = False  # whether Before needs the log-ratios of mismatched pairs


def none() -> Coupler:
    """Nothing of the batch is needed: a loss that sees one prompt at a time."""
    return Coupler(lambda: (), lambda state, before, key=None: (state, {}), reads_batch=False)


def kto_anchor() -> Coupler:
    """KTO: anchor [N] = max(0, mean_n (logp - ref_logp)(y'_n | q_n)) over mismatched pairs: an estimate of the KL.

    The comparator `anchored` multiplies it with beta. The mean is over the prompts whose neighbour has a completion
    y', whether or not they have one themselves; over devices it is one mean (HALOs), which for equal shares is TRL's
    mean of means. Source: arXiv 2402.01306.
    """

    def update(state, before: Before, key=None):
        if before.mismatched_log_ratios is None or before.mismatched_present is None:
            raise ValueError("kto_anchor needs the log-ratios of mismatched pairs, and which of them are there")
        mean = masked_mean(before.mismatched_log_ratios, before.mismatched_present).value()
        return state, {"anchor": _every_row(jnp.maximum(mean, 0.0), before)}

    return Coupler(lambda: (), update, reads_mismatched=True)


class RunningMean(NamedTuple):
    """mean, count: float32 []. Of everything seen so far."""

    mean: chex.Array
    count: chex.Array


def bco_anchor(*, observations: str = "responses") -> Coupler:
    """BCO: anchor [N] = the running mean of u over all responses of all batches so far, this one included.

    mean <- mean + (batch mean - mean) n / (count + n), count from 1e-24. times beta it is BCO's delta, the running mean
    of beta u, as long as beta is constant.
    observations: responses, n is their number (TRL's BCOTrainer); batches, n is 1 whatever the size of the batch
    (bco_pair of TRL up to 0.28). ValueError for another word. Source: arXiv 2404.04656.
    """
    if observations not in ("responses", "batches"):
        raise ValueError(f"bco_anchor: observations is 'responses' or 'batches', got {observations!r}")

    def update(state: RunningMean, before: Before, key=None):
        batch = masked_mean(before.sequence_scores, before.present)
        count = batch.count if observations == "responses" else jnp.minimum(batch.count, 1.0)
        total = state.count + count
        mean = state.mean + (batch.value() - state.mean) * count / total
        return RunningMean(mean, total), {"anchor": _every_row(mean, before)}

    return Coupler(lambda: RunningMean(jnp.float32(0.0), jnp.float32(1e-24)), update)


def aot_partners(*, paired: bool = True) -> Coupler:
    """AOT: partners [N, 2], what a row's scores are compared with after a sort of the whole batch.

    paired: the reference's log-probs of the row whose reference margin has the rank of this row's policy margin, less
    the row's own, which are in u already (reference {ref: 1}, summed log-probs). For the comparator sorted_pairs.
    not paired: the rejected u with the rank of this row's chosen u, and the chosen u with the rank of its rejected u.
    For sorted_unpaired.
    Rows without both responses are ranked behind all others, among themselves. Source: arXiv 2406.05882.
    """

    def update(state, before: Before, key=None):
        chex.assert_axis_dimension(before.sequence_scores, 1, 2)
        live = jnp.all(before.present, axis=1)
        u = before.sequence_scores
        if paired:
            ref = before.ref_sequence_scores
            if ref is None:
                raise ValueError("aot_partners compares margins with the reference's: the objective needs {ref: 1}")
            policy = u + ref
            source = _same_rank(policy[:, 0] - policy[:, 1], ref[:, 0] - ref[:, 1], live)
            return state, {"partners": zero_masked(ref[source] - ref, before.present)}
        partners = [u[_same_rank(u[:, 0], u[:, 1], live), 1], u[_same_rank(u[:, 1], u[:, 0], live), 0]]
        return state, {"partners": zero_masked(jnp.stack(partners, axis=1), before.present)}

    return Coupler(lambda: (), update)


class GapStatistics(NamedTuple):
    """mean, std: float32 []. Moving averages of a batch's mean and standard deviation of the margins u_w - u_l."""

    mean: chex.Array
    std: chex.Array


def beta_statistics(
    *, beta: float, adaptation: float = 0.6, dropped: float = 0.2, momentum: float = 0.9, min_beta: float = 1e-3
) -> Coupler:
    """beta-DPO: batch_beta [N] = max(min_beta, beta (1 + a (mean of the kept margins - mu))), and kept [N].

    mu and sd are moving averages from 0, updated before use, of the batch's mean and standard deviation (ddof 1). The
    filter keeps int((1 - dropped) n) of the n pairs, drawn without replacement with weights exp(-((g - mu) / sd)^2 / 2)
    by `key`; ValueError without one. kept is n / (number kept) where kept and 0 elsewhere, so that a mean over all
    pairs is one over those.
    beta: the objective's. adaptation: a; 0 with dropped 0 is DPO. Published: 0.6 in the README, 0.046 in the config.
    Source: arXiv 2407.08639; the official code.
    """

    def update(state: GapStatistics, before: Before, key=None):
        if key is None:
            raise ValueError("beta_statistics draws which pairs are kept: give its update a key")
        chex.assert_axis_dimension(before.sequence_scores, 1, 2)
        live = jnp.all(before.present, axis=1)
        gaps = zero_masked(before.sequence_scores[:, 0] - before.sequence_scores[:, 1], live)
        measured = masked_mean(gaps, live).value(), jnp.sqrt(masked_var(gaps, live, ddof=1))
        mean, std = (momentum * old + (1.0 - momentum) * new for old, new in zip(state, measured, strict=True))
        log_weights = -0.5 * jnp.square((gaps - mean) / jnp.maximum(std, 1e-12))
        # The highest of log w + Gumbel noise are a draw without replacement with weights w.
        lots = jnp.where(live, log_weights + jax.random.gumbel(key, gaps.shape), -jnp.inf)
        ranks = jnp.argsort(jnp.argsort(lots, descending=True))
        # By Python's int() of a product, as published, for every n that can be: float32 rounds some of them elsewhere.
        counts = jnp.asarray(np.array([int(n * (1.0 - dropped)) for n in range(gaps.shape[0] + 1)]))
        number = jnp.maximum(counts[jnp.sum(live)], 1)
        kept = live & (ranks < number)
        batch_beta = beta * (1.0 + adaptation * (masked_mean(gaps, kept).value() - mean))
        share = jnp.sum(live) / number
        extras = {"batch_beta": _every_row(jnp.maximum(batch_beta, min_beta), before)}
        return GapStatistics(mean, std), extras | {"kept": jnp.where(kept, share, 0.0)}

    return Coupler(lambda: GapStatistics(jnp.float32(0.0), jnp.float32(0.0)), update)


def _every_row(x: chex.Array, before: Before) -> chex.Array:
    return jnp.full(before.present.shape[:1], x, jnp.float32)


def _same_rank(x: chex.Array, others: chex.Array, live: chex.Array) -> chex.Array:
    """For each row the row of `others` that has its rank: int32 [N]. Rows that are not live come last on both sides."""
    order, other_order = (jnp.argsort(jnp.where(live, values, jnp.inf)) for values in (x, others))
    return jnp.zeros_like(order).at[order].set(other_order)
