"""What a preference loss compares the policy with, and when that changes: pure functions on params.

A schedule is a function (references, policy, step) -> (references, policy), called after each step of the loop (one
set of samples and all updates on it). "prev", the policy that drew a step's samples, needs no schedule: its log-probs
are taken before the step's updates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_jax.core.types import Params


class References(NamedTuple):
    """ref: the params that an objective knows as "ref". trained: the policy that the last iteration ended with, before
    it was extrapolated; () where no schedule asks for it."""

    ref: Params
    trained: Params = ()


def fixed(references: References, policy: Params, step: int) -> tuple[References, Params]:
    """ref stays what training started from (DPO, arXiv 2305.18290)."""
    return references, policy


def per_iteration(references: References, policy: Params, step: int, *, every: int = 1) -> tuple[References, Params]:
    """ref = pi_t: the policy, after each `every` steps (SPIN, SPPO, iterative DPO; TR-DPO's hard update)."""
    return (references._replace(ref=_copy(policy)) if step % every == 0 else references), policy


def moving_average(
    references: References, policy: Params, step: int, *, rate: float = 0.6, every: int = 1
) -> tuple[References, Params]:
    """ref <- (1 - rate) ref + rate pi after each `every` steps: TR-DPO's soft update (arXiv 2404.09656)."""
    if step % every:
        return references, policy
    return references._replace(ref=soup([references.ref, policy], [1.0 - rate, rate])), policy


def extrapolated(
    references: References, policy: Params, step: int, *, rate: float = 0.3, every: int = 1
) -> tuple[References, Params]:
    """pi <- hat_t + rate (hat_t - hat_{t-1}) and ref <- pi, hat being what training ended an iteration of `every` steps
    with: accelerated preference optimization (arXiv 2410.06293); for logits linear in the params it is
    pi ~ hat_t (hat_t / hat_{t-1})^rate. rate=0 is per_iteration."""
    if step % every:
        return references, policy
    moved = soup([policy, references.trained], [1.0 + rate, -rate])
    return References(ref=moved, trained=_copy(policy)), _copy(moved)


def start(schedule: Callable, params: Params, ref: Params | None = None) -> References:
    """The references before the first step. schedule: one of the above, its keywords bound or not. params: what is
    trained. ref: the first reference, where it is another one."""
    named = getattr(schedule, "func", schedule)
    return References(_copy(params if ref is None else ref), _copy(params) if named is extrapolated else ())


def soup(parts: list[Params], weights: list[float]) -> Params:
    """sum_i weight_i params_i, leaf by leaf; of two fine-tuned models it is SALSA's reference (arXiv 2411.01798).

    parts: equal trees. Raises ValueError where the weights are not as many, or do not sum to 1.
    """
    if len(parts) != len(weights) or abs(sum(weights) - 1.0) > 1e-6:
        raise ValueError(f"{len(parts)} sets of params need as many weights with sum 1, got {weights}")
    return jax.tree.map(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)).astype(xs[0].dtype), *parts)


def _copy(params: Params) -> Params:
    """Buffers of its own: the train step gives those of its state away."""
    return jax.tree.map(jnp.copy, params)
