"""Methods that never ask Q for an action outside of the data: cloning, AWR, IQL, XQL and the dual family.

    V <- a loss of Q(s, a) - V(s) at the data's actions      losses.offline: expectile, gumbel, chi2, tv
    Q <- r + gamma V(s')
    pi <- min(exp(beta A), w) -log pi(a | s),  A = min Q_target - V

They differ in the first line only. Each function gives the Recipe of a method.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_jax.control.offline.recipe import Batch, Recipe, mean, td_targets, total, with_targets
from rl_jax.losses import offline as losses


def _log_probs(nets, params, data):
    return nets.distribution.log_prob(nets.policy(params, data.steps.observations), data.steps.actions)


def bc(nets) -> Recipe:
    """Behaviour cloning: -log pi(a | s) of the data's actions.

    nets: models.agents.offline_networks.OfflineNetworks.
    """

    def loss(params, batch: Batch):
        log_probs = _log_probs(nets, params, batch.data)
        return total(-log_probs), {"policy/log_prob": mean(log_probs)}

    return Recipe(loss, ("policy",))


def filtered_bc(nets, *, share: float = 0.1) -> Recipe:
    """Cloning of the best `share` of the data: steps whose discounted return is among the largest of the batch.

    Source: "10 % BC" of arXiv 2106.01345, there of whole trajectories of the dataset, here of the batch's steps.

    Args:
      nets: OfflineNetworks.
      share: above 0, 1 at most; 1 is bc.
    """

    def loss(params, batch: Batch):
        log_probs, returns = _log_probs(nets, params, batch.data), batch.data.returns
        best = (returns >= jnp.quantile(returns, 1.0 - share)).astype(jnp.float32)
        return total(-best * log_probs / jnp.maximum(jnp.mean(best), 1e-6)), {"policy/log_prob": mean(log_probs)}

    return Recipe(loss, ("policy",))


def awr(nets, *, beta: float = 1.0, max_weight: float = 20.0) -> Recipe:
    """AWR: V regresses the data's returns G, and pi is cloned with weights min(exp(beta (G - V)), max_weight).

    Source: arXiv 1910.00177, offline as in its section 5.3; there V has TD(lambda) returns, here lambda = 1.

    Args:
      nets: OfflineNetworks.
      beta: inverse temperature, per unit of the return.
      max_weight: 20 published.
    """

    def loss(params, batch: Batch):
        data = batch.data
        values = nets.value(params, data.steps.observations)
        gaps = data.returns - jax.lax.stop_gradient(values)
        weights = losses.exp_advantage(gaps, beta=beta, max_weight=max_weight)
        value_loss = losses.expectile(values, data.returns, expectile=0.5)
        policy_loss = -weights * _log_probs(nets, params, data)
        return total(value_loss, policy_loss), _shown(value_loss, policy_loss, weights, values)

    return Recipe(loss, ("policy", "value"))


def iql(
    nets,
    *,
    expectile: float = 0.7,
    beta: float = 3.0,
    max_weight: float = 100.0,
    discount: float = 0.99,
    target_rate: float = 0.005,
) -> Recipe:
    """IQL: V is an expectile of Q. Source: arXiv 2110.06169, ikostrikov/implicit_q_learning.

    Args:
      nets: OfflineNetworks.
      expectile: tau; .7 for locomotion, .9 for mazes.
      beta: of the policy's weights; 3 for locomotion, 10 for mazes.
      max_weight: 100 published.
      discount: gamma.
      target_rate: of the critics' targets.
    """
    value_loss = functools.partial(losses.expectile, expectile=expectile)
    return _in_sample(nets, value_loss, beta, max_weight, discount, target_rate)


def xql(
    nets,
    *,
    temperature: float = 2.0,
    max_clip: float = 7.0,
    beta: float = 3.0,
    max_weight: float = 100.0,
    discount: float = 0.99,
    target_rate: float = 0.005,
    delta: float = 20.0,
) -> Recipe:
    """XQL: V = beta log E exp(Q / beta) by Gumbel regression. Source: arXiv 2301.02328, Div99/XQL.

    Args:
      nets: OfflineNetworks.
      temperature: beta of `losses.offline.gumbel`.
      max_clip: of the exponent; inf: none.
      beta: of the policy's weights.
      max_weight: 100 published.
      discount: gamma.
      target_rate: of the critics' targets.
      delta: of the critics' Huber loss; 20 in the code.
    """
    value_loss = functools.partial(losses.gumbel, beta=temperature, max_clip=max_clip)
    return _in_sample(nets, value_loss, beta, max_weight, discount, target_rate, delta)


def dual(
    nets,
    *,
    divergence: str = "chi2",
    lam: float = 0.7,
    beta: float = 3.0,
    max_weight: float = 100.0,
    discount: float = 0.99,
    target_rate: float = 0.005,
) -> Recipe:
    """f-DVL, the dual family: V by the conjugate of a divergence. Source: arXiv 2302.08560; KL is `xql`.

    Args:
      nets: OfflineNetworks.
      divergence: "chi2" or "tv".
      lam: from .5 to below 1.
      beta: of the policy's weights.
      max_weight: 100 published.
      discount: gamma.
      target_rate: of the critics' targets.

    Raises:
      ValueError: for another divergence.
    """
    known = {"chi2": losses.chi2, "tv": losses.tv}
    if divergence not in known:
        raise ValueError(f"divergence={divergence!r} is none of {', '.join(known)}; KL's is the method xql")
    return _in_sample(nets, functools.partial(known[divergence], lam=lam), beta, max_weight, discount, target_rate)


def recoil(
    nets,
    *,
    expert: int = 0,
    reward: float = 2.0,
    temperature: float = 1.0,
    max_clip: float = 7.0,
    beta: float = 3.0,
    max_weight: float = 100.0,
    discount: float = 0.99,
    target_rate: float = 0.005,
) -> Recipe:
    """ReCOIL: imitation of some steps of mixed data; no reward is read. Source: arXiv 2302.08560.

    V is that of xql, of all data; see losses.offline.recoil for Q. The gradient penalty of its code is left out.

    Args:
      nets: OfflineNetworks.
      expert: number of the data's source that is the expert's.
      reward: of losses.offline.recoil.
      temperature: of V's Gumbel regression, in units of Q.
      max_clip: of its exponent.
      beta: of the policy's weights, per unit of Q.
      max_weight: 100 published.
      discount: gamma.
      target_rate: of the targets of Q and V.
    """

    def loss(params, batch: Batch):
        data, steps, slow = batch.data, batch.data.steps, with_targets(params, batch)
        encoded, theirs = nets.encode(steps.actions), (data.source == expert).astype(jnp.float32)
        q_target = jnp.min(nets.q(slow, steps.observations, encoded), axis=0)
        values, following = nets.value(params, steps.observations), nets.value(slow, steps.next_observations)
        v_loss = losses.gumbel(values, q_target, beta=temperature, max_clip=max_clip)
        going_on = 1.0 - steps.terminated.astype(jnp.float32)
        q = nets.q(params, steps.observations, encoded)
        q_loss = losses.recoil(q, following, going_on, theirs, discount=discount, reward=reward)
        weights = losses.exp_advantage(q_target - values, beta=beta, max_weight=max_weight)
        policy_loss = -weights * _log_probs(nets, params, data)
        return total(v_loss, q_loss, policy_loss), _shown(v_loss, policy_loss, weights, values) | {
            "loss/q": mean(q_loss),
            "q/mean": mean(q_target),
            "data/expert": mean(theirs),
        }

    return Recipe(loss, ("policy", "q", "value"), targets=("q", "value"), target_rate=target_rate)


def _in_sample(
    nets,
    value_loss: Callable,
    beta: float,
    max_weight: float,
    discount: float,
    target_rate: float,
    delta: float = float("inf"),
) -> Recipe:
    """The Recipe of the lines at the top. value_loss: (values, q) [n] -> [n]."""

    def loss(params, batch: Batch):
        data, steps = batch.data, batch.data.steps
        encoded = nets.encode(steps.actions)
        q_target = jnp.min(nets.q(with_targets(params, batch), steps.observations, encoded), axis=0)
        values = nets.value(params, steps.observations)
        v_loss = value_loss(values, q_target)
        targets = td_targets(batch, nets.value(params, steps.next_observations), discount)
        q_loss = losses.bellman(nets.q(params, steps.observations, encoded), targets, delta=delta)
        weights = losses.exp_advantage(q_target - values, beta=beta, max_weight=max_weight)
        policy_loss = -weights * _log_probs(nets, params, data)
        return total(v_loss, q_loss, policy_loss), _shown(v_loss, policy_loss, weights, values) | {
            "loss/q": mean(q_loss),
            "q/mean": mean(q_target),
        }

    return Recipe(loss, ("policy", "q", "value"), targets=("q",), target_rate=target_rate)


def _shown(value_loss, policy_loss, weights, values):
    return {
        "loss/value": mean(value_loss),
        "loss/policy": mean(policy_loss),
        "policy/weight": mean(weights),
        "value/mean": mean(values),
    }
