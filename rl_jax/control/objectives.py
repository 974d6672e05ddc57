"""PPO for several objectives: a critic with an output for each, and advantages joined by the slope of a utility.

    A_k      = GAE(r_k, V_k, V'_k)                    for each objective k
    A        = sum_k c_k A_k,   c = grad u(J)         J: the policy's mean episode returns so far
    u(J)     = w . J                                  linear: c = w
               -max_k w_k (z_k - J_k)                 chebyshev: c = w_k for the k that is furthest from the ideal z
               min_k J_k                              maxmin: c = 1 for the worst (arXiv 2402.08925)
               J_i + 1/t sum_{j != i} log(J_j - b_j)  constrained, control.vector.barrier (arXiv 2410.02236)
    loss     = ppo.loss of A, with value_coef sum_k (V_k - G_k)^2 / 2

The gradient of u(J(theta)) is sum_k du/dJ_k grad J_k, so each utility is a choice of weights that are held fixed during
an update. A policy for all preferences reads its weights at the end of its observation (envs.objectives.conditioned).
`pareto_search` trains many policies, for a front.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax import ppo
from rl_jax.control.algorithm import Algorithm, check_unread, loss, uses_kl, whitened
from rl_jax.control.update import (
    TURN_METRICS,
    ControlState,
    LearnRule,
    UpdateParts,
    make_parts,
    over_turns,
    unraveler,
)
from rl_jax.core.binding import supply
from rl_jax.core.masked import Max, Mean, masked_mean
from rl_jax.core.types import PolicyBatch, StepInputs, TokenScores
from rl_jax.rollout.envs.steps import Transitions, memoryless
from rl_jax.stats import pareto
from rl_jax.training.step import TrainState, make_train_step

UTILITIES = ("linear", "chebyshev", "maxmin", "conditioned")


class MeanReturns(NamedTuple):
    """An estimate of J. sums: float32 [K], of the returns of episodes, decayed. weight: float32 [], their number."""

    sums: chex.Array
    weight: chex.Array

    def value(self) -> chex.Array:
        """J, float32 [K]; 0 before the first episode has ended."""
        return self.sums / jnp.maximum(self.weight, 1e-8)[..., None]


def remember(known: MeanReturns, metrics: dict[str, Mean], scales: chex.Array, decay: float) -> MeanReturns:
    """The estimate after the episodes that ended in a rollout.

    Args:
      known: before them.
      metrics: of rollout.envs.steps.collect.
      scales: float32 [K], by which returns are divided.
      decay: of what is known, for each update in which an episode has ended.
    """
    found = [metrics[f"episode/objective_{k}"] for k in range(len(scales))]
    sums, count = jnp.stack([x.total for x in found]) / scales, found[0].count
    kept = jnp.where(count > 0, decay, 1.0)
    return MeanReturns(kept * known.sums + sums, kept * known.weight + count)


def slope(utility: str, returns: chex.Array, weights: chex.Array, ideal: chex.Array) -> chex.Array:
    """grad u(J), float32 [K].

    Args:
      utility: one of UTILITIES but "conditioned".
      returns: J, float32 [K].
      weights: w, float32 [K].
      ideal: z of chebyshev, float32 [K].
    """
    if utility == "linear":
        return weights
    gaps = weights * (ideal - returns) if utility == "chebyshev" else -returns
    furthest = jax.nn.one_hot(jnp.argmax(gaps), len(returns))
    return furthest * weights if utility == "chebyshev" else furthest


def assign_objectives(
    agent, params: Any, rows: Transitions, normalize: Callable, algorithm: Algorithm, coefs: Any, scales: chex.Array
) -> tuple[ppo.PPOBatch, dict[str, Mean]]:
    """Credit of single steps with K rewards.

    Args:
      agent: models.agents.actor_critic.Agent with K values.
      params: the learner's, before this batch.
      rows: [B, T], their rewards [B, T, K].
      normalize: observations -> observations.
      algorithm: its advantage and whiten.
      coefs: c, float32 [K], or None: the last K numbers of each observation.
      scales: float32 [K], by which rewards are divided.

    Returns:
      (the batch [B T, 1] of StepInputs with values and returns [B T, 1, K], metrics of the critic, undivided).
    """
    shape, size = rows.terminated.shape, rows.rewards.shape[-1]
    flat, following = (normalize(x).reshape(-1, *x.shape[2:]) for x in (rows.observations, rows.next_observations))
    inputs = StepInputs(flat, rows.actions.reshape(-1, *rows.actions.shape[2:]))
    scores, *outputs = agent.predict_ahead(params, inputs, following)
    values, next_values = (x.reshape(*shape, size) for x in outputs)
    behavior = agent.distribution.log_prob(rows.outputs, rows.actions)
    estimate = supply(algorithm.advantage, {"log_probs": behavior, "behavior_log_probs": behavior})
    each = jax.vmap(estimate, in_axes=(-1, -1, -1, None, None), out_axes=-1)
    advantages, returns = each(rows.rewards / scales[None, None], values, next_values, rows.terminated, rows.truncated)
    joined = rows.observations[..., -size:] if coefs is None else coefs[None, None]
    advantage = jnp.sum(advantages * joined, axis=-1)
    mask = jnp.ones(shape, bool)
    metrics = {
        f"value/explained_variance_{k}": ppo.explained_variance(values[..., k], returns[..., k], mask)
        for k in range(size)
    }
    metrics["value/mean"] = masked_mean(jnp.mean(values, axis=-1), mask)
    if algorithm.whiten:
        advantage = whitened(advantage)
    advantage, old, mask = (jax.lax.stop_gradient(x.reshape(-1, 1)) for x in (advantage, behavior, mask))
    values, returns = (jax.lax.stop_gradient(x.reshape(-1, 1, size)) for x in (values, returns))
    policy = PolicyBatch(
        batch=inputs,
        completion_mask=mask,
        advantages=advantage,
        old_log_probs=old,
        behavior_log_probs=old,
        ref_log_probs=old if uses_kl(algorithm) else None,
        extras={},
    )
    return ppo.PPOBatch(policy, values, returns), metrics


def objectives_loss(
    scores: TokenScores, values: chex.Array, batch: ppo.PPOBatch, algorithm: Algorithm
) -> tuple[Mean, dict[str, Mean | Max]]:
    """control.loss with one critic loss per objective, summed.

    Args:
      scores: [n, 1] of the agent's predict, differentiated.
      values: float32 [n, 1, K], differentiated.
      batch: its values and returns are [n, 1, K].
      algorithm: see Algorithm.
    """
    parts = [
        batch._replace(values=batch.values[..., k], returns=batch.returns[..., k]) for k in range(values.shape[-1])
    ]
    total, metrics = loss(scores, values[..., :1], parts[0], algorithm)
    for k, part in enumerate(parts[1:], start=1):
        critic, _ = ppo.value_loss(values[..., k : k + 1], part, algorithm.objective)
        total = Mean(total.total + algorithm.objective.value_coef * critic.total, total.count)
        metrics["value/loss"] = Mean(metrics["value/loss"].total + critic.total, metrics["value/loss"].count)
    return total, metrics


def make_member(
    agent, env, algorithm: Algorithm, optimizer: optax.GradientTransformation, *, num_steps: int, scales: chex.Array
) -> tuple[UpdateParts, Callable]:
    """One policy: (its parts, advance(state, coefs) -> (state, metrics)).

    Args:
      agent: models.agents.actor_critic.Agent with K values.
      env: envs.Vector with K objectives.
      algorithm: the choices that make the update.
      optimizer: any optax transformation.
      num_steps: T.
      scales: float32 [K].
    """

    def rule_of(coefs: Any) -> Callable:
        def rule(agent, env, algorithm, *, num_steps, axis_name) -> LearnRule:
            return LearnRule(
                policy=lambda params, normalize: memoryless(lambda x: agent.policy(params, normalize(x))),
                assign=lambda params, rows, normalize, began: assign_objectives(
                    agent, params, rows, normalize, algorithm, coefs, scales
                ),
                size=env.num_envs * num_steps,
            )

        return rule

    def parts_of(coefs: Any) -> UpdateParts:
        return make_parts(agent, env, algorithm, optimizer, num_steps=num_steps, learner=rule_of(coefs))

    unravel = unraveler(agent)

    def loss_of(params: chex.Array, batch: ppo.PPOBatch):
        return objectives_loss(*agent.predict(unravel(params), batch.policy.batch), batch, algorithm)

    train_step = make_train_step(loss_of, optimizer, max_grad_norm=algorithm.max_grad_norm)

    def advance(state: ControlState, coefs: Any):
        state, batch, order, metrics = parts_of(coefs).gather(state)

        def turn(train: TrainState, index: chex.Array):
            train, learned = train_step(train, jax.tree.map(lambda x: x[index], batch))
            return train, {name: learned[name] for name in TURN_METRICS}

        train, learned = jax.lax.scan(turn, state.train, order)
        ended = loss_of(train.params, jax.tree.map(lambda x: x[order[-1]], batch))[1]
        return state._replace(train=train), metrics | over_turns(learned) | ended

    return parts_of(None), advance


def make_objectives_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    utility: str = "linear",
    weights: Sequence[float] = (),
    ideal: Sequence[float] = (),
    scales: Sequence[float] = (),
    decay: float = 0.9,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) of one policy, as update.make_update does.

    Args:
      agent: models.agents.actor_critic.Agent with K values.
      env: envs.Vector with K objectives.
      algorithm: its advantage, surrogate, coefficients and passes; what is not read here is refused.
      optimizer: any optax transformation.
      num_steps: T.
      axis_name: must be None.
      utility: one of UTILITIES; "conditioned" takes the weights from the observations.
      weights: w, K numbers; () is ones.
      ideal: z of chebyshev, K numbers, in units of `scales`; () is ones.
      scales: rewards are divided by these K numbers before anything else; () is ones.
      decay: of the estimate of J, per update.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if a setting has no meaning here.
    """
    check(env, algorithm, num_steps, axis_name)
    if utility not in UTILITIES:
        raise ValueError(f"updater.utility={utility!r} is none of {', '.join(UTILITIES)}")
    w, z = (
        jnp.asarray(pareto.check_weights(f"updater.{name}", x, env.objectives))
        for name, x in (("weights", weights), ("ideal", ideal))
    )
    scale = jnp.asarray(pareto.check_scales("updater.scales", scales, env.objectives))
    parts, advance = make_member(agent, env, algorithm, optimizer, num_steps=num_steps, scales=scale)

    def init(key: chex.PRNGKey) -> ControlState:
        state = parts.init(key)
        nothing = MeanReturns(jnp.zeros(env.objectives), jnp.float32(0.0))
        return state._replace(train=state.train._replace(trackers=state.train.trackers | {"objectives": nothing}))

    def update(state: ControlState):
        known = state.train.trackers["objectives"]
        coefs = None if utility == "conditioned" else slope(utility, known.value(), w, z)
        state, metrics = advance(state, coefs)
        known = remember(known, metrics, scale, decay)
        if coefs is not None:
            metrics |= {f"coef/objective_{k}": Mean(x, jnp.float32(1.0)) for k, x in enumerate(coefs)}
        trackers = state.train.trackers | {"objectives": known}
        return state._replace(train=state.train._replace(trackers=trackers)), metrics

    return init, update, parts.policy_of


def check(env, algorithm: Algorithm, num_steps: int, axis_name) -> None:
    """Raises ValueError if the environment has one objective, or a setting has no meaning for several."""
    if not env.objectives:
        raise ValueError("updates of several objectives need an environment with a vector of rewards (objectives/...)")
    if axis_name is not None:
        raise ValueError("updates of several objectives hold statistics of all environments: use mesh=seeds:N")
    if (env.num_envs * num_steps) % algorithm.minibatches:
        raise ValueError(
            f"{env.num_envs} environments x {num_steps} steps do not divide into {algorithm.minibatches} minibatches"
        )
    if algorithm.objective.num_outputs() != 1:
        raise ValueError("a critic of several objectives regresses: set algorithm.value_loss to mse, huber or clipped")
    unread = dict(normalize_rewards=False, actor_lag=1, kl_control=None, auxiliary=None, relabel=None)
    check_unread(algorithm, "updates of several objectives", **unread)
