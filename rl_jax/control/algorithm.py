"""The choices that make an update, and what they make of the steps: the batch of PPO's losses, and the loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import ppo
from rl_jax.advantages import steps as step_advantages
from rl_jax.binding import supply
from rl_jax.grpo import Objective as PolicyObjective
from rl_jax.losses import aggregate, value
from rl_jax.masked import Max, Mean, masked_mean
from rl_jax.rollout.steps import Transitions
from rl_jax.trackers import Tracker
from rl_jax.types import PolicyBatch, Scores

# What is measured of ppo.loss's metrics.
METRICS = ("entropy", "clip/low", "clip/high", "ratio/max_dev", "value/loss", "kl/k1", "kl/k3")


class Algorithm(NamedTuple):
    """The choices that make the update. Numbers may be traced: float or float [].

    advantage: one of advantages.steps; may ask for log_probs and behavior_log_probs, float [B, T].
    objective: ppo.Objective; its surrogate, KL, aggregate, value loss and support. Of its coefficients only
        value_coef is read, the others stand here.
    entropy_coef, kl_coef: weights of the regularisers; the KL is from the policy that the update starts with.
    kl_control: a trackers.Tracker that moves the weight of the KL (trackers.adaptive_kl), or None.
    whiten: A to mean 0 and standard deviation 1 over the batch.
    epochs, minibatches: passes over the batch, and updates a pass.
    max_grad_norm: of the clip of the gradient.
    actor_lag: updates for which the acting policy stays as it is; 1 acts with the newest.
    normalize_observations, normalize_rewards: by running statistics; rewards by the spread of discounted returns.
    discount: gamma of those returns; the advantage has its own.
    """

    advantage: Callable = step_advantages.gae
    objective: ppo.Objective = ppo.Objective(
        policy=PolicyObjective(kl_coef=0.0, aggregate=aggregate.token_mean), value_loss=value.clipped, value_coef=0.5
    )
    entropy_coef: Any = 0.01
    kl_coef: Any = 0.0
    kl_control: Tracker | None = None
    whiten: bool = True
    epochs: int = 4
    minibatches: int = 4
    max_grad_norm: float | None = 0.5
    actor_lag: int = 1
    normalize_observations: bool = False
    normalize_rewards: bool = False
    discount: Any = 0.99


class Steps(NamedTuple):
    """What stands in PolicyBatch.batch here. observations: float32 [N, *shape], normalised. actions: [N, ...]."""

    observations: chex.Array
    actions: chex.Array


def assign(
    agent, params: Any, rows: Transitions, normalize: Callable, algorithm: Algorithm, axis_name=None
) -> tuple[ppo.PPOBatch, dict[str, Mean]]:
    """The batch of single steps [B T, 1] that the learner sees, and metrics of the critic, undivided.

    params: the learner's, before this batch. rows: [B, T]. normalize: observations -> observations.
    """
    shape = rows.rewards.shape
    observations, following = (_flat(normalize(x)) for x in (rows.observations, rows.next_observations))
    actions = _flat(rows.actions)
    log_prob = agent.distribution.log_prob
    behavior = log_prob(_flat(rows.outputs), actions)
    log_probs = behavior if algorithm.actor_lag == 1 else log_prob(agent.policy(params, observations), actions)
    values = algorithm.objective.values(agent.value(params, observations))
    # Also where no episode was cut off: a state's V' is then V of the next column, and is computed twice.
    next_values = algorithm.objective.values(agent.value(params, following)).reshape(shape)
    known = {"log_probs": log_probs.reshape(shape), "behavior_log_probs": behavior.reshape(shape)}
    estimate = supply(algorithm.advantage, known)
    advantages, returns = estimate(rows.rewards, values.reshape(shape), next_values, rows.terminated, rows.truncated)
    mask = jnp.ones(shape, bool)
    metrics = {
        "value/explained_variance": ppo.explained_variance(values.reshape(shape), returns, mask),
        "value/mean": masked_mean(values.reshape(shape), mask),
    }
    if algorithm.whiten:
        advantages = whitened(advantages, axis_name)

    def column(x: chex.Array) -> chex.Array:
        return jax.lax.stop_gradient(x.reshape(-1, 1))

    old = column(log_probs)
    policy = PolicyBatch(
        batch=Steps(observations, actions),
        completion_mask=mask.reshape(-1, 1),
        advantages=column(advantages),
        old_log_probs=old,
        behavior_log_probs=column(behavior),
        ref_log_probs=old if uses_kl(algorithm) else None,
    )
    return ppo.PPOBatch(policy, column(values), column(returns)), metrics


def minibatch_loss(agent, params: Any, batch: ppo.PPOBatch, algorithm: Algorithm) -> tuple[Mean, dict[str, Mean | Max]]:
    """ppo.loss of n single steps, and those of its metrics that METRICS names.

    params: differentiated. batch: [n, 1] of `assign`; its kl_coefs win over the algorithm's.
    """
    steps, rows = batch.policy.batch, len(batch.returns)
    outputs = agent.policy(params, steps.observations)
    distribution = agent.distribution
    scores = Scores(distribution.log_prob(outputs, steps.actions)[:, None], distribution.entropy(outputs)[:, None])
    policy = batch.policy
    # As arrays, so that a traced weight (one of many that are trained side by side) is as good as a number.
    if _in_use(algorithm.entropy_coef):
        policy = policy._replace(entropy_coefs=jnp.full(rows, algorithm.entropy_coef))
    if policy.kl_coefs is None and _in_use(algorithm.kl_coef):
        policy = policy._replace(kl_coefs=jnp.full(rows, algorithm.kl_coef))
    plain = algorithm.objective.policy._replace(kl_coef=0.0, entropy_coef=0.0)
    values = agent.value(params, steps.observations)[:, None, :]
    objective = algorithm.objective._replace(policy=plain)
    loss, metrics = ppo.loss(scores, values, batch._replace(policy=policy), objective)
    return loss, {name: metrics[name] for name in METRICS if name in metrics}


def whitened(x: chex.Array, axis_name=None, *, eps: float = 1e-8) -> chex.Array:
    """(x - mean) / sqrt(var + eps) over all entries, those on the other parts of axis_name included. float [B, T]."""
    count = _total(jnp.float32(x.size), axis_name)
    centred = x - _total(jnp.sum(x), axis_name) / count
    return centred * jax.lax.rsqrt(_total(jnp.sum(jnp.square(centred)), axis_name) / count + eps)


def _total(x: chex.Array, axis_name) -> chex.Array:
    return x if axis_name is None else jax.lax.psum(x, axis_name)


def _flat(x: chex.Array) -> chex.Array:
    """[B, T, ...] -> [B T, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _in_use(coef: Any) -> bool:
    return not (isinstance(coef, int | float) and coef == 0)


def uses_kl(algorithm: Algorithm) -> bool:
    """Whether the loss has a KL term, or its weight is controlled."""
    return algorithm.kl_control is not None or _in_use(algorithm.kl_coef)
