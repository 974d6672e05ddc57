"""TRPO: the longest natural-gradient step that keeps the mean KL within a bound, and a separate critic update.

    gain(theta) = mean_t ratio_t A_t (+ entropy_coef H),   kl(theta) = mean_t KL(pi_old(.|s_t) || pi_theta(.|s_t))
    x     = (F + damping I)^{-1} grad gain, by conjugate gradients on products with F, the Hessian of kl at pi_old
    theta <- theta + shrink^k sqrt(2 max_kl / x^T (F + damping I) x) x,  the first k = 0, 1, ... with
             gain > gain(pi_old) and kl <= max_kl; none: theta stays

The critic is a regression on the returns: epochs x minibatches of the optimizer, without the policy. Source: arXiv
1502.05477; arXiv 1506.02438 and OpenAI baselines' trpo_mpi, which bounds the line search at 1.5 max_kl.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax import ppo
from rl_jax.control.algorithm import Algorithm, check_unread, loss, uses_kl
from rl_jax.control.update import ControlState, make_parts, over_turns, unraveler
from rl_jax.core.masked import Mean
from rl_jax.training.step import make_train_step

CRITIC_METRICS = ("loss", "value/loss", "grad_norm", "nonfinite/skipped")  # measured in every turn of the critic

class Found(NamedTuple):
    """Result of a line search, float [] each.

    Attributes:
      fraction: of the full step; 0 means no step.
      kl: mean KL after the step, in nats.
      gain: increase of the objective.
    """

    fraction: chex.Array
    kl: chex.Array
    gain: chex.Array


def conjugate_gradient(
    product: Callable, right: chex.Array, *, iterations: int, tolerance: float = 1e-10
) -> chex.Array:
    """Solves A x = right from x = 0, for a symmetric positive definite A.

    Source: Hestenes and Stiefel, 1952.

    Args:
      product: v [N] -> A v [N].
      right: float [N].
      iterations: upper bound.
      tolerance: stops when |A x - right|^2 is below this.

    Returns:
      float [N]. x.
    """
    chex.assert_rank(right, 1)

    def unfinished(carry):
        return (carry[0] < iterations) & (carry[4] > tolerance)

    def turn(carry):
        count, x, residual, towards, size = carry
        image = product(towards)
        step = size / jnp.dot(towards, image)
        x, residual = x + step * towards, residual - step * image
        new = jnp.dot(residual, residual)
        return count + 1, x, residual, residual + (new / size) * towards, new

    carry = (jnp.int32(0), jnp.zeros_like(right), right, right, jnp.dot(right, right))
    return jax.lax.while_loop(unfinished, turn, carry)[1]


def fisher_product(kl: Callable, params: chex.Array, vector: chex.Array, *, damping: float) -> chex.Array:
    """(F + damping I) v with F the Hessian of kl at params: forward over reverse mode, without forming a matrix.

    Args:
      kl: params -> float [], the mean KL from the policy at `params`.
      params: float [N].
      vector: float [N]. v.
      damping: added to the diagonal of F.

    Returns:
      float [N].
    """
    return jax.jvp(jax.grad(kl), (params,), (vector,))[1] + damping * vector


def natural_step(
    params: chex.Array,
    gain: Callable,
    kl: Callable,
    *,
    max_kl: float | chex.Array,
    damping: float | chex.Array,
    cg_iterations: int,
    backtracks: int,
    shrink: float | chex.Array,
    axis_name: str | None = None,
) -> tuple[chex.Array, Found]:
    """One natural-gradient step with a backtracking line search; equations at the head of this file.

    Args:
      params: float [N], those of the old policy.
      gain: params -> float [], the mean over this part's steps.
      kl: params -> float [], the mean over this part's steps.
      max_kl: delta, in nats.
      damping: added to the diagonal of F.
      cg_iterations: upper bound.
      backtracks: upper bound of the line search.
      shrink: factor of the step per backtrack.
      axis_name: mapped axis over whose equally large parts the steps are spread.

    Returns:
      (params after the step, Found).
    """

    def average(x: chex.Array) -> chex.Array:
        return x if axis_name is None else jax.lax.pmean(x, axis_name)

    def product(vector: chex.Array) -> chex.Array:
        return average(fisher_product(kl, params, vector, damping=damping))

    before, gradient = jax.value_and_grad(gain)(params)
    before = average(before)
    direction = conjugate_gradient(product, average(gradient), iterations=cg_iterations)
    # 0 / 0 if the gradient is 0: then no step is accepted.
    full = jnp.sqrt(2.0 * max_kl / jnp.dot(direction, product(direction))) * direction

    def unfinished(carry):
        count, accepted, _ = carry
        return (count < backtracks) & ~accepted

    def attempt(carry):
        count, _, _ = carry
        fraction = jnp.asarray(shrink, full.dtype) ** count
        candidate = params + fraction * full
        result = Found(fraction, average(kl(candidate)), average(gain(candidate)) - before)
        return count + 1, (result.gain > 0.0) & (result.kl <= max_kl), result

    nothing = Found(*(jnp.zeros((), full.dtype) for _ in Found._fields))
    _, accepted, result = jax.lax.while_loop(unfinished, attempt, (jnp.int32(0), jnp.bool_(False), nothing))
    result = jax.tree.map(lambda x: jnp.where(accepted, x, 0.0), result)
    return jnp.where(accepted, params + result.fraction * full, params), result


def make_trust_region_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    max_kl: float | chex.Array = 0.01,
    damping: float | chex.Array = 0.1,
    cg_iterations: int = 10,
    backtracks: int = 10,
    shrink: float | chex.Array = 0.5,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) as update.make_update does: a natural step of the policy, then the critic's.

    Args:
      agent: models.agents.actor_critic.Agent.
      env: envs.Vector.
      algorithm: its surrogate and entropy_coef make the gain; its epochs and minibatches are the critic's.
      optimizer: the critic's.
      num_steps: T.
      axis_name: mapped axis over which the environments are spread.
      max_kl: delta, in nats. The defaults of this and the following are those of baselines for MuJoCo.
      damping: added to the diagonal of F.
      cg_iterations: upper bound.
      backtracks: upper bound of the line search.
      shrink: factor of the step per backtrack.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if the algorithm also weighs or controls a KL, or has a further loss.
    """
    if uses_kl(algorithm):
        raise ValueError("a trust region bounds the KL itself: leave kl_control away, and kl_coef 0")
    # A minibatch's gradient of it on the actor's layers would leave the region.
    check_unread(algorithm, "trust regions", auxiliary=None)
    parts = make_parts(agent, env, algorithm, optimizer, num_steps=num_steps, axis_name=axis_name)
    unravel = unraveler(agent)
    policy_only = algorithm._replace(objective=algorithm.objective._replace(value_coef=0.0))

    def critic_loss(params: chex.Array, batch: ppo.PPOBatch):
        _, values = agent.predict(unravel(params), batch.policy.batch)
        return ppo.value_loss(values, batch, algorithm.objective)

    train_step = make_train_step(critic_loss, optimizer, max_grad_norm=algorithm.max_grad_norm, axis_name=axis_name)

    def update(state: ControlState):
        state, batch, order, metrics = parts.gather(state)
        before = state.train.params
        observations = batch.policy.batch.observations
        old = agent.policy(unravel(before), observations)

        def gain(params: chex.Array) -> chex.Array:
            scores, values = agent.predict(unravel(params), batch.policy.batch)
            return -loss(scores, values, batch, policy_only)[0].value()

        # Of whole distributions, which scores of single actions cannot give.
        def kl(params: chex.Array) -> chex.Array:
            return jnp.mean(agent.distribution.kl(old, agent.policy(unravel(params), observations)))

        params, result = natural_step(
            before, gain, kl, max_kl=max_kl, damping=damping, cg_iterations=cg_iterations,
            backtracks=backtracks, shrink=shrink, axis_name=axis_name,
        )  # fmt: skip

        def turn(train, index: chex.Array):
            # The policy's gradient is 0 here, and so is its Adam update.
            train, learned = train_step(train, jax.tree.map(lambda x: x[index], batch))
            return train, {name: learned[name] for name in CRITIC_METRICS}

        train, learned = jax.lax.scan(turn, state.train._replace(params=params), order)
        named = {f"trust_region/{name}": Mean(x, jnp.float32(1.0)) for name, x in result._asdict().items()}
        ended = parts.loss(train.params, batch)[1]
        return state._replace(train=train), metrics | over_turns(learned) | named | ended

    return parts.init, update, parts.policy_of
