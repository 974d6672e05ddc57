"""The choices that make an update, the batch they make of the collected steps, and the loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import ppo
from rl_jax.advantages import steps as step_advantages
from rl_jax.core.binding import supply
from rl_jax.core.masked import Max, Mean, masked_mean
from rl_jax.core.trackers import Tracker
from rl_jax.core.types import PolicyBatch, SequenceInputs, StepInputs, TokenScores
from rl_jax.grpo import Objective as PolicyObjective
from rl_jax.losses import aggregate, value
from rl_jax.rollout.envs.steps import Transitions

# The metrics of ppo.loss to report.
METRICS = ("entropy", "clip/low", "clip/high", "ratio/max_dev", "value/loss", "kl/k1", "kl/k3")


class Relabel(NamedTuple):
    """Replacement rewards for collected steps, as two pure functions.

    All B T steps are relabelled at once, after the loop that collected them. The update only sees the new rewards, so
    every update works with every relabelling. Episode metrics still report the environment's own rewards.

    Attributes:
      init: () -> state, a pytree of arrays; (key) -> state if `seeded`.
      apply: (state, Transitions [B, T]) -> (state, the same transitions with new rewards).
      seeded: whether `init` takes a key: a trained state differs from seed to seed.
      measure: state -> {name: float []}, metrics of every update.
      discount: state -> gamma float [], the advantage's; None leaves the config's.
    """

    init: Callable
    apply: Callable
    seeded: bool = False
    measure: Callable | None = None
    discount: Callable | None = None

    def begin(self, key: chex.PRNGKey) -> Any:
        """The state at the start of a run."""
        return self.init(key) if self.seeded else self.init()


class Algorithm(NamedTuple):
    """The choices that make the update. Numbers may be traced: float or float [].

    Attributes:
      advantage: one of advantages.steps; may ask for log_probs and behavior_log_probs, float [B, T].
      objective: ppo.Objective: surrogate, KL, aggregate, value loss and support. Of its coefficients only value_coef is
        used; the others are fields here.
      entropy_coef: weight of the entropy.
      kl_coef: weight of the KL from the policy at the start of the update.
      kl_control: a trackers.Tracker that adapts the weight of the KL (trackers.adaptive_kl), or None.
      whiten: whether to scale A to mean 0 and standard deviation 1 over the batch.
      epochs: passes over the batch.
      minibatches: updates per pass.
      max_grad_norm: gradient clipping.
      actor_lag: number of updates for which the acting policy is kept; 1 always acts with the newest.
      normalize_observations: by running statistics.
      normalize_rewards: by the running spread of discounted returns.
      relabel: replaces the rewards of collected steps (control.relabelling, reward_learning.by_reward,
        self_play.by_self_play), before they are scaled. None keeps them.
      auxiliary: a further loss, (the agent's params, PPOBatch) -> (float [], its weight); the batch has
        extras["next_observations"] and extras["step_rewards"] for it (control.auxiliary).
      auxiliary_extras: (observations [B T, ...] as the loss reads them, next_observations, Transitions [B, T]) ->
        further extras for it, {name: [B T, ...]}; None: no others.
      anchors: what the further loss keeps from minibatch to minibatch (control.anchors.Anchored), or None.
      discount: gamma of the returns in normalize_rewards; the advantage has its own.
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
    relabel: Relabel | None = None
    auxiliary: Callable | None = None
    auxiliary_extras: Callable | None = None
    anchors: Any = None
    discount: Any = 0.99


def assign(
    agent, params: Any, rows: Transitions, normalize: Callable, algorithm: Algorithm, axis_name=None
) -> tuple[ppo.PPOBatch, dict[str, Mean]]:
    """Assigns credit to single steps.

    Args:
      agent: models.agents.actor_critic.Agent.
      params: the learner's, before this batch.
      rows: [B, T].
      normalize: observations -> observations.
      algorithm: see Algorithm.
      axis_name: mapped axis over which the environments are spread.

    Returns:
      (the batch [B T, 1] of StepInputs that the learner trains on, metrics of the critic, undivided).
    """
    observations, following = (_flat(normalize(x)) for x in (rows.observations, rows.next_observations))
    inputs = StepInputs(observations, _flat(rows.actions))
    return credited(agent, params, inputs, following, rows, algorithm, axis_name, shape=(-1, 1))


def credited(
    agent,
    params: Any,
    inputs: StepInputs | SequenceInputs,
    next_observations: chex.Array,
    rows: Transitions,
    algorithm: Algorithm,
    axis_name,
    *,
    shape: tuple[int, ...],
) -> tuple[ppo.PPOBatch, dict[str, Mean]]:
    """The batch of `inputs`, with the advantages and returns of rows [B, T].

    Args:
      agent: its predict_ahead is used, and the log-probs of what the actor did.
      params: the learner's, before this batch.
      inputs: those rows as the loss reads them.
      next_observations: of the states the steps led to, in the form of inputs.observations.
      rows: [B, T].
      algorithm: see Algorithm.
      axis_name: mapped axis over which the environments are spread.
      shape: of the batch's arrays, (-1, 1) or (B, T).

    Returns:
      (the batch, metrics of the critic, undivided).
    """
    scores, *outputs = agent.predict_ahead(params, inputs, next_observations)
    values, next_values = (algorithm.objective.values(x).reshape(rows.rewards.shape) for x in outputs)
    behavior = agent.distribution.log_prob(rows.outputs, rows.actions)
    log_probs = behavior if algorithm.actor_lag == 1 else scores.log_probs.reshape(behavior.shape)
    estimate = supply(algorithm.advantage, {"log_probs": log_probs, "behavior_log_probs": behavior})
    advantages, returns = estimate(rows.rewards, values, next_values, rows.terminated, rows.truncated)
    mask = jnp.ones(values.shape, bool)
    metrics = {
        "value/explained_variance": ppo.explained_variance(values, returns, mask),
        "value/mean": masked_mean(values, mask),
    }
    if algorithm.whiten:
        advantages = whitened(advantages, axis_name)
    advantages, returns, values, log_probs, behavior = (
        jax.lax.stop_gradient(x.reshape(shape)) for x in (advantages, returns, values, log_probs, behavior)
    )
    extras = {}
    if algorithm.auxiliary is not None:
        extras = {"next_observations": next_observations, "step_rewards": rows.rewards.reshape(shape)}
    if algorithm.auxiliary_extras is not None:
        extras |= algorithm.auxiliary_extras(inputs.observations, next_observations, rows)
    policy = PolicyBatch(
        batch=inputs,
        completion_mask=mask.reshape(shape),
        advantages=advantages,
        old_log_probs=log_probs,
        behavior_log_probs=behavior,
        ref_log_probs=log_probs if uses_kl(algorithm) else None,
        extras=extras,
    )
    return ppo.PPOBatch(policy, values, returns), metrics


def loss(
    scores: TokenScores, values: chex.Array, batch: ppo.PPOBatch, algorithm: Algorithm
) -> tuple[Mean, dict[str, Mean | Max]]:
    """ppo.loss of n rows of T steps; T = 1 for single steps.

    Args:
      scores: [n, T] of the agent's predict, differentiated.
      values: float32 [n, T, K], outputs of its value head, differentiated.
      batch: [n, T]. Its kl_coefs override the algorithm's.
      algorithm: see Algorithm.

    Returns:
      (loss, the metrics named in METRICS), undivided.
    """
    rows, extras = len(batch.returns), dict(batch.policy.extras)
    # As arrays, so that a traced weight (one of many trained in parallel) works like a number.
    if _in_use(algorithm.entropy_coef):
        extras["entropy_coefs"] = jnp.full(rows, algorithm.entropy_coef)
    if "kl_coefs" not in extras and _in_use(algorithm.kl_coef):
        extras["kl_coefs"] = jnp.full(rows, algorithm.kl_coef)
    plain = algorithm.objective.policy._replace(kl_coef=0.0, entropy_coef=0.0)
    objective = algorithm.objective._replace(policy=plain)
    total, metrics = ppo.loss(scores, values, batch._replace(policy=batch.policy._replace(extras=extras)), objective)
    return total, {name: metrics[name] for name in METRICS if name in metrics}


def whitened(x: chex.Array, axis_name=None, *, eps: float = 1e-8) -> chex.Array:
    """(x - mean) / sqrt(var + eps) over all entries, including the other parts of axis_name. float [B, T]."""
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


def check_unread(algorithm: Algorithm, who: str, **fields: Any) -> None:
    """Checks that what an update does not read is off, so that nothing is set in vain.

    Args:
      algorithm: of the update.
      who: subject of the message, in the plural.
      **fields: fields of Algorithm that it does not read, and the value that each has if it is off.

    Raises:
      ValueError: if one has another value, or is traced (swept).
    """
    for name, off in fields.items():
        found = getattr(algorithm, name)
        if isinstance(found, jax.Array) or found != off:
            shown, wanted = ("", "leave it away") if off is None else (f"={found}", f"set it to {off}")
            raise ValueError(f"{who} know no {name}{shown}: {wanted}")
