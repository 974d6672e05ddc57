"""Rewards that learn from how the policy behaves that they have trained: config.algorithm.updater.design by name.

BARFI (arXiv 2310.19007): a designer's auxiliary reward is mixed into the primary one as far as it serves it.

    r_phi(s, a) = phi_1(s) + phi_2(s) r_p(s, a) + phi_3(s) r_aux(s, a),   gamma = sigmoid(phi_4)
    J           = -mean_t log pi(a_t|s_t) G^p_t + lam_gamma gamma + lam_r |phi|^2 / 2,   G^p of r_p alone

phi_k are linear in the observation, as in its code (Dhawgupta/gupta2023behavior, barfi-gw, -mc, -cp), or numbers, as in
barfi-mujoco, which begins at phi = (0, 1, 1). The code of the gridworld and of MuJoCo leaves phi_2 at 1.

PARL (arXiv 2308.02585): a reward from preferences between segments of the policy itself.

    r_nu(s, a)  = w_a . s + b_a,   a = 1 .. A
    J           = E_{tau, tau' ~ pi_theta*(nu)} [ nll ],   nll = -log sigmoid(y (R_nu(tau) - R_nu(tau'))),   y = +-1
    d_theta J   = E [ nll (grad log pi(tau) + grad log pi(tau')) ]

d_theta J is the term of the policy that nu has trained; without it a reward is learned as in RLHF. Of PARL no code was
found and only the beginning of the paper could be read: J and the implicit term are as its abstract and notes say them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums
from rl_jax.control.relabelling import terms
from rl_jax.control.relabelling.base import as_the_env
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions

PARTS = ("bonus", "primary", "auxiliary")  # phi_1, phi_2, phi_3


class Steps(NamedTuple):
    """What both levels read of a rollout.

    Attributes:
      observations: float32 [B, T, *shape].
      actions: [B, T, ...].
      rewards: float32 [B, T], the environment's.
      auxiliary: float32 [B, T], a designer's; 0 without one.
      over: bool [B, T], the episode's last step.
    """

    observations: chex.Array
    actions: chex.Array
    rewards: chex.Array
    auxiliary: chex.Array
    over: chex.Array


class DesignedReward(NamedTuple):
    """A reward with params phi, and what they are judged by.

    Attributes:
      begin: () -> phi, {name: float32 [...]}.
      read: Transitions [B, T] -> Steps.
      rewards: (phi, Steps) -> float [B, T], what the policy is trained on.
      discount: phi -> gamma of it, float [].
      judge: (log_probs [B, T] of the newest policy, phi, Steps, key) -> J, float [], to be minimised. Its gradient with
        respect to log_probs is the score function's.
      measure: (phi, Steps) -> {name: float []}, metrics of every update.
      implicit: whether dJ / dphi has the term of the policy that phi has trained; False leaves d_phi J.
      fixed: names of entries of phi that do not move.
    """

    begin: Callable
    read: Callable
    rewards: Callable
    discount: Callable
    judge: Callable
    measure: Callable
    implicit: bool = True
    fixed: tuple[str, ...] = ()


def rewards_to_go(rewards: chex.Array, over: chex.Array, discount: float | chex.Array) -> chex.Array:
    """G_t = r_t + gamma G_{t+1} within an episode; nothing follows the last column. Differentiable in r and gamma.

    Args:
      rewards: float [B, T].
      over: bool [B, T].
      discount: gamma, float or float [].
    """
    chex.assert_equal_shape([rewards, over])
    return backward_sums(rewards, jnp.where(over, 0.0, discount * jnp.ones_like(rewards)))


def weights_of(params: chex.Array, observations: chex.Array) -> chex.Array:
    """phi_k(s), float [B, T]: w . s + b, or b alone if there are no w.

    Args:
      params: float [D + 1], b last; or float [1].
      observations: float [B, T, *shape].
    """
    chex.assert_rank(params, 1)
    flat = observations.reshape(*observations.shape[:2], -1)
    if len(params) == 1:
        return jnp.broadcast_to(params[0], flat.shape[:2])
    return flat @ params[:-1] + params[-1]


def behavior_rewards(phi: Mapping[str, chex.Array], steps: Steps) -> chex.Array:
    """BARFI's r_phi = phi_1(s) + phi_2(s) r_p + phi_3(s) r_aux, float [B, T]."""
    bonus, primary, auxiliary = (weights_of(phi[name], steps.observations) for name in PARTS)
    return bonus + primary * steps.rewards + auxiliary * steps.auxiliary


def primary_loss(log_probs: chex.Array, returns: chex.Array) -> chex.Array:
    """-mean log pi G: its gradient is that of minus the primary return, by the score function. float [B, T] each."""
    chex.assert_equal_shape([log_probs, returns])
    return -jnp.mean(log_probs * jax.lax.stop_gradient(returns))


def barfi(
    *,
    observation_shape: tuple[int, ...],
    distribution,
    discount: Any,
    auxiliary: Mapping[str, Any] | str,
    scale: Any = 1.0,
    of_state: bool = True,
    fixed: tuple[str, ...] = ("primary",),
    discount_cost: Any = 0.06125,
    reward_cost: Any = 0.0,
) -> DesignedReward:
    """BARFI's reward. Source: arXiv 2310.19007 and its code.

    Departs: r_phi begins at r_p + r_aux, on which the gridworld's code trains in its first updates only; both
    regularisers are of squares.

    Args:
      observation_shape: of the environment.
      distribution: of the policy's actions.
      discount: of the primary return, and where the learned one begins.
      auxiliary: r_aux, a function of relabelling.terms, or "module:function", with its keywords.
      scale: of r_aux.
      of_state: whether phi_k read the observation; False: they are numbers.
      fixed: of "bonus", "primary", "auxiliary" and "discount", what stays where it begins.
      discount_cost: lam_gamma. The code sweeps .06125 to 16.
      reward_cost: lam_r. The code has 0 and .06125, of norms.

    Raises:
      ValueError: if a name in `fixed` is unknown.
    """
    if unknown := sorted(set(fixed) - {*PARTS, "discount"}):
        raise ValueError(f"barfi: fixed={unknown[0]!r} is none of {', '.join((*PARTS, 'discount'))}")
    term, width = bind(auxiliary, terms), 1 + math.prod(observation_shape) if of_state else 1

    def begin() -> dict[str, chex.Array]:
        start = zip(PARTS, (0.0, 1.0, 1.0), strict=True)
        phi = {name: jnp.zeros(width).at[-1].set(value) for name, value in start}
        return phi | {"discount": jax.scipy.special.logit(jnp.float32(discount))}

    def read(rows: Transitions) -> Steps:
        found = scale * term(as_the_env(rows, distribution))
        return Steps(rows.observations, rows.actions, rows.rewards, found, rows.terminated | rows.truncated)

    def discount_of(phi: dict) -> chex.Array:
        return jax.nn.sigmoid(phi["discount"])

    def judge(log_probs: chex.Array, phi: dict, steps: Steps, key: chex.PRNGKey) -> chex.Array:
        loss = primary_loss(log_probs, rewards_to_go(steps.rewards, steps.over, discount))
        squares = sum(jnp.sum(jnp.square(phi[name])) for name in PARTS)
        return loss + discount_cost * discount_of(phi) + 0.5 * reward_cost * squares

    def measure(phi: dict, steps: Steps) -> dict[str, chex.Array]:
        means = {f"phi/{name}": jnp.mean(weights_of(phi[name], steps.observations)) for name in PARTS}
        return means | {"phi/discount": discount_of(phi)}

    return DesignedReward(begin, read, behavior_rewards, discount_of, judge, measure, fixed=tuple(fixed))


def linear_reward(phi: Mapping[str, chex.Array], observations: chex.Array, actions: chex.Array) -> chex.Array:
    """r_nu(s, a) = w_a . s + b_a, float [B, T]: of one-hot observations a table.

    Args:
      phi: {"kernel": float [D, A], "bias": float [A]}.
      observations: float [B, T, *shape].
      actions: int [B, T].
    """
    flat = observations.reshape(*actions.shape, -1)
    each = flat @ phi["kernel"] + phi["bias"].reshape(1, 1, -1)
    return jnp.take_along_axis(each, actions[..., None], axis=-1)[..., 0]


def pair_sums(x: chex.Array, length: int) -> chex.Array:
    """Sums over segments of `length` steps, as pairs: float [B, T] -> float [B T / (2 length), 2].

    A segment is paired with the one of the same steps B / 2 rows further down, so that both are of other environments.
    """
    half = x.shape[0] // 2
    sums = jnp.sum(x.reshape(2, half, -1, length), axis=-1)
    return sums.reshape(2, -1).T


def preference_loss(
    log_probs: chex.Array, gaps: chex.Array, preferred: chex.Array, *, implicit: bool = True
) -> chex.Array:
    """PARL's J, float []: mean nll, whose gradient by the policy is that of E[nll] by the score function.

    nll = -log sigmoid(y gap); the mean over the pairs is the score function's baseline. With J's value goes
    mean (nll - mean nll) log pi, whose nll is a constant.

    Args:
      log_probs: log pi of both segments of a pair, float [N].
      gaps: R_nu(tau) - R_nu(tau'), float [N], differentiated.
      preferred: bool [N], whether tau is.
      implicit: False leaves the policy out.
    """
    chex.assert_equal_shape([log_probs, gaps, preferred])
    nll = jax.nn.softplus(jnp.where(preferred, -gaps, gaps))
    loss = jnp.mean(nll)
    if not implicit:
        return loss
    apart = jax.lax.stop_gradient(nll - loss)
    scores = jnp.mean(apart * log_probs)
    return loss + scores - jax.lax.stop_gradient(scores)


def parl(
    *,
    observation_shape: tuple[int, ...],
    distribution,
    discount: Any,
    num_envs: int,
    num_steps: int,
    length: int = 8,
    beta: Any = 5.0,
    implicit: bool = True,
    reward_cost: Any = 0.0,
) -> DesignedReward:
    """PARL's reward, from preferences that the environment's returns give; the policy is paid by r_nu alone.

    Departs: r_nu is linear in the observation and begins at 0; a segment may run over an episode's end, and its first
    state is not differentiated by the policy.

    Args:
      observation_shape: of the environment.
      distribution: of the policy's actions, which are discrete.
      discount: of the policy's return.
      num_envs: B, even.
      num_steps: T, a multiple of `length`.
      length: steps of a segment.
      beta: y is drawn with probability sigmoid(beta (R(tau) - R(tau'))), R the environment's undiscounted return.
      implicit: whether J is differentiated through the policy (PARL); False: by r_nu alone.
      reward_cost: weight of |nu|^2 / 2.

    Raises:
      ValueError: if the rollout does not divide into pairs of segments, or, when traced, if actions are not discrete.
    """
    if length < 1 or num_steps % length or num_envs % 2:
        raise ValueError(
            f"parl: {num_envs} environments x {num_steps} steps do not divide into pairs of segments of length={length}"
        )
    inputs = math.prod(observation_shape)

    def begin() -> dict[str, chex.Array]:
        return {"kernel": jnp.zeros((inputs, distribution.num_outputs)), "bias": jnp.zeros(distribution.num_outputs)}

    def read(rows: Transitions) -> Steps:
        actions = distribution.to_env(rows.actions)
        if not jnp.issubdtype(actions.dtype, jnp.integer):
            raise ValueError(f"parl: actions are {actions.dtype}, but its reward has a row for each discrete action")
        return Steps(
            rows.observations, actions, rows.rewards, jnp.zeros_like(rows.rewards), rows.terminated | rows.truncated
        )

    def rewards(phi: dict, steps: Steps) -> chex.Array:
        return linear_reward(phi, steps.observations, steps.actions)

    def judge(log_probs: chex.Array, phi: dict, steps: Steps, key: chex.PRNGKey) -> chex.Array:
        true, own, scores = (pair_sums(x, length) for x in (steps.rewards, rewards(phi, steps), log_probs))
        preferred = jax.random.bernoulli(key, jax.nn.sigmoid(beta * (true[:, 0] - true[:, 1])))
        loss = preference_loss(jnp.sum(scores, axis=1), own[:, 0] - own[:, 1], preferred, implicit=implicit)
        return loss + 0.5 * reward_cost * sum(jnp.sum(jnp.square(x)) for x in phi.values())

    def measure(phi: dict, steps: Steps) -> dict[str, chex.Array]:
        true, own = (pair_sums(x, length) for x in (steps.rewards, rewards(phi, steps)))
        gaps, wanted = own[:, 0] - own[:, 1], jnp.sign(true[:, 0] - true[:, 1])
        apart = jnp.sum(wanted != 0)
        agreed = jnp.sum((jnp.sign(gaps) == wanted) & (wanted != 0))
        # 1 / 2 where no pair tells: as good as a guess.
        return {"reward/accuracy": jnp.where(apart == 0, 0.5, agreed / jnp.maximum(apart, 1))}

    return DesignedReward(begin, read, rewards, lambda phi: jnp.float32(discount), judge, measure, implicit=implicit)
