"""Schedules of the reference policy: what a preference loss compares the policy with. Pure functions on params.

A schedule is a function (references, policy, step) -> (references, policy), called after each step of the loop (one set
of samples and all updates on it). "prev", the policy that sampled a step's responses, needs no schedule: its log-probs
are computed before the step's updates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_jax.core.types import Params


class References(NamedTuple):
    """The params that schedules keep.

    Attributes:
      ref: the params that an objective names "ref".
      trained: the policy at the end of the last iteration, before it was extrapolated; () if no schedule needs it.
    """

    ref: Params
    trained: Params = ()


def fixed(references: References, policy: Params, step: int) -> tuple[References, Params]:
    """ref stays at the initial params (DPO, arXiv 2305.18290)."""
    return references, policy


def per_iteration(references: References, policy: Params, step: int, *, every: int = 1) -> tuple[References, Params]:
    """ref = pi_t: the policy, after every `every` steps (SPIN, SPPO, iterative DPO; TR-DPO's hard update)."""
    return (references._replace(ref=_copy(policy)) if step % every == 0 else references), policy


def moving_average(
    references: References, policy: Params, step: int, *, rate: float = 0.6, every: int = 1
) -> tuple[References, Params]:
    """ref <- (1 - rate) ref + rate pi after every `every` steps: TR-DPO's soft update (arXiv 2404.09656)."""
    if step % every:
        return references, policy
    return references._replace(ref=soup([references.ref, policy], [1.0 - rate, rate])), policy


def extrapolated(
    references: References, policy: Params, step: int, *, rate: float = 0.3, every: int = 1
) -> tuple[References, Params]:
    """Accelerated preference optimization (arXiv 2410.06293): pi <- hat_t + rate (hat_t - hat_{t-1}) and ref <- pi.

    hat is the result of training at the end of an iteration of `every` steps. For logits linear in the params it is pi
    ~ hat_t (hat_t / hat_{t-1})^rate. rate=0 is per_iteration.
    """
    if step % every:
        return references, policy
    moved = soup([policy, references.trained], [1.0 + rate, -rate])
    return References(ref=moved, trained=_copy(policy)), _copy(moved)


def start(schedule: Callable, params: Params, ref: Params | None = None) -> References:
    """The references before the first step.

    Args:
      schedule: one of the functions above, with or without bound keywords.
      params: what is trained.
      ref: the first reference, if it is not params.
    """
    named = getattr(schedule, "func", schedule)
    return References(_copy(params if ref is None else ref), _copy(params) if named is extrapolated else ())


def soup(parts: list[Params], weights: list[float]) -> Params:
    """sum_i weight_i params_i, leaf by leaf. Of two fine-tuned models it is SALSA's reference (arXiv 2411.01798).

    Args:
      parts: trees of equal structure and shapes.
      weights: one per part, with sum 1.

    Raises:
      ValueError: if the number of weights is wrong, or they do not sum to 1.
    """
    if len(parts) != len(weights) or abs(sum(weights) - 1.0) > 1e-6:
        raise ValueError(f"{len(parts)} sets of params need as many weights that sum to 1, got {weights}")
    return jax.tree.map(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)).astype(xs[0].dtype), *parts)


def _copy(params: Params) -> Params:
    """A copy in its own buffers, because the train step donates those of its state."""
    return jax.tree.map(jnp.copy, params)
