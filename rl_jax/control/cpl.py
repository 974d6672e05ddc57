"""CPL, contrastive preference learning: a policy from preferences between segments, without a reward in between.

    loss = -log sigma( alpha sum_t gamma^t log pi(a_t | s_t) |_w - lambda |_l ) + c BC             policy_loss
    BC   = -mean_t log pi(a_t | s_t) of both segments; on its own for the first updates            cloning_loss

It is a choice of rl_jax.dpo, with a step in the place of a token. If labels follow the regret, A* = alpha log pi* makes
the optimal policy its minimum. Source: arXiv 2310.13639, jhejna/cpl.
"""

import functools

import chex
import jax.numpy as jnp
import optax

from rl_jax import dpo
from rl_jax.control.segments import SegmentPairs, make_fit, over_leading
from rl_jax.core.masked import Mean, zero_masked
from rl_jax.core.types import Metrics, Params, PreferenceBatch, Score, StepInputs, TokenScores
from rl_jax.losses.preference import regularizers, score_maps
from rl_jax.training.step import init_state

# The published configs for MetaWorld's states; lambda = bias, and no additional cloning loss.
CPL = dpo.Objective(
    reference={},
    beta=0.1,
    token_weight=functools.partial(score_maps.discounted, discount=1.0),
    score_map=functools.partial(score_maps.biased, bias=0.5),
    regularizer=regularizers.behaviour_cloning,
)


def make_objective(
    *,
    alpha: float = 0.1,
    bias: float = 0.5,
    discount: float = 1.0,
    length_power: float = 0.0,
    cloning_coef: float = 0.0,
) -> dpo.Objective:
    """CPL with other numbers; the defaults are the published ones.

    Args:
      alpha: temperature of the policy.
      bias: lambda, the factor of the rejected segment.
      discount: gamma.
      length_power: sums are divided by length^power; 1 takes means, for segments that end with their episode.
      cloning_coef: c.
    """
    return CPL._replace(
        beta=alpha,
        length_power=length_power,
        token_weight=functools.partial(score_maps.discounted, discount=discount),
        score_map=functools.partial(score_maps.biased, bias=bias),
        regularizer_coef=cloning_coef,
    )


def segment_log_probs(score: Score, params: Params, steps: StepInputs) -> chex.Array:
    """log pi(a_t | s_t) of every step.

    Args:
      score: of an agent that reads single steps (models.agents.scoring.make_score).
      params: differentiated.
      steps: [n, 2, K].

    Returns:
      float32 [n, 2, K].
    """

    def of_steps(observations: chex.Array, actions: chex.Array) -> chex.Array:
        return score(params, StepInputs(observations, actions)).log_probs[:, 0]

    return over_leading(of_steps, 3, steps.observations, steps.actions)


def policy_loss(
    log_probs: chex.Array, batch: PreferenceBatch, objective: dpo.Objective = CPL
) -> tuple[Mean, Metrics]:
    """CPL: -log sigma(alpha (sum_t gamma^t log pi_t |_w - lambda |_l)) + c BC, and other choices of rl_jax.dpo.

    Source: arXiv 2310.13639, jhejna/cpl.

    Args:
      log_probs: float [n, 2, K], differentiated.
      batch: of `pair_batch`.
      objective: for CPL beta = alpha, score_maps.discounted, score_maps.biased (lambda) and
        regularizers.behaviour_cloning (c = regularizer_coef).

    Returns:
      (loss, metrics), undivided.
    """
    chex.assert_equal_shape([log_probs, batch.completion_mask])
    flat = log_probs.reshape(-1, log_probs.shape[-1])
    return dpo.loss(TokenScores(flat, jnp.zeros_like(flat)), batch, objective)


def cloning_loss(log_probs: chex.Array, batch: PreferenceBatch) -> tuple[Mean, Metrics]:
    """Behaviour cloning of both segments, for the start of CPL: -log pi_t, the mean over pairs of the mean over steps.

    log_probs: float [n, 2, K], differentiated. Source: the first bc_steps of jhejna/cpl.
    """
    mask = batch.completion_mask
    chex.assert_equal_shape([log_probs, mask])
    losses = regularizers.behaviour_cloning(zero_masked(log_probs, mask), mask, present=batch.present)
    return Mean(jnp.sum(losses), jnp.float32(len(losses))), {}


def clone(
    score: Score,
    params: Params,
    key: chex.PRNGKey,
    data: SegmentPairs,
    optimizer: optax.GradientTransformation,
    *,
    updates: int,
    batch_size: int,
    max_grad_norm: float | None = None,
) -> Params:
    """Behaviour cloning of all segments, the start of CPL.

    Args:
      score: as in `segment_log_probs`.
      params: to start from.
      key: for the minibatches.
      data: StepInputs [N, K] and their pairs.
      optimizer: any optax transformation.
      updates: number of minibatches.
      batch_size: pairs per update.
      max_grad_norm: gradient clipping.

    Returns:
      The params after the updates.
    """

    def loss_fn(params: Params, batch: PreferenceBatch):
        return cloning_loss(segment_log_probs(score, params, batch.batch), batch)

    fit = make_fit(loss_fn, optimizer, batch_size=batch_size, max_grad_norm=max_grad_norm)
    return fit(init_state(params, optimizer, key), data, updates)[0].params
