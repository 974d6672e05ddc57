"""algorithm.mirror_step: mirror descent policy optimization, a full KL to the policy of the step's start in the loss.

    --config.algorithm.mirror_step=1.0 --config.train.epochs=10

    L = L_policy + (1 / t) KL(pi || pi_old),   t = mirror_step, which config.schedules can move

pi_old is the policy before the step's updates, whose params are kept until their end. The KL is over the whole
vocabulary, aggregated as the policy's terms are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.parts import schedules
from experiments.parts.setup import Setup
from rl_jax import grpo
from rl_jax.core.binding import supply
from rl_jax.core.masked import Mean, masked_mean, zero_masked
from rl_jax.core.types import Metrics, Params, PolicyBatch
from rl_jax.training.full_kl import make_full_kl


def is_on(config) -> bool:
    """Whether the loss has the KL to the step's start."""
    return config.algorithm.mirror_step > 0


def beside(config, params: Params) -> tuple:
    """What the train step takes beside state and batch: a copy of the params before the updates, if it needs them."""
    return (jax.tree.map(jnp.copy, params),) if is_on(config) else ()


def make_term(setup: Setup) -> Callable:
    """Makes add(params, batch, old params, objective, loss, metrics) -> (loss with the KL, metrics with kl/mirror)."""
    config = setup.config
    kl = make_full_kl(
        setup.model,
        completion_length=config.rollout.completion_length,
        chunk=config.score.chunk,
        temperature=config.rollout.temperature,
    )

    def add(
        params: Params, batch: PolicyBatch, old_params: Params, objective: grpo.Objective, loss: Mean, metrics: Metrics
    ) -> tuple[Mean, Metrics]:
        step_size = schedules.in_loss(config, batch.extras).algorithm.mirror_step
        per_token = zero_masked(kl(params, old_params, batch.batch), batch.completion_mask)
        term = supply(objective.aggregate, batch.extras)(per_token, batch.completion_mask)
        measured = masked_mean(jax.lax.stop_gradient(per_token), batch.completion_mask)
        return Mean(loss.total + term.total / step_size, loss.count), metrics | {"kl/mirror": measured}

    return add


def with_term(setup: Setup, loss_fn: Callable, make_objective: Callable[[Any], grpo.Objective]) -> Callable:
    """loss_fn(params, batch) as (params, batch, old params) with the KL; itself if it is off."""
    if not is_on(setup.config):
        return loss_fn
    add, config = make_term(setup), setup.config

    def with_kl(params, batch, old_params):
        objective = make_objective(schedules.in_loss(config, batch.extras))
        return add(params, batch, old_params, objective, *loss_fn(params, batch))

    return with_kl
