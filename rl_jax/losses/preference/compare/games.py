"""Each response against a judgement by a judge, a reward or an opponent: games between policies, and policy gradients.

`rewards` [N, K] is that judgement: a win probability against the other samples or the opponent, a reward, or a log
target. No function here uses the link. With no offset and no score map, s / beta is the log-ratio to the reference,
written a.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def win_rates(
    scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array, beta: float
) -> chex.Array:
    """SPPO: squared error to the win rate, published for the best and the worst of K samples.

        1/2 sum_k (a_k - (P_k - 1/2) / beta)^2

    The reference is the policy that sampled. P_k = 1 and 0 (a pair that is only ordered) is half of TRL's sppo_hard.
    Source: arXiv 2405.00675; the factor 1/2 is the official code's.

    Args:
      scores: float [N, K], beta a.
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], P_k in [0, 1], the mean probability that k beats a sample of the policy.
      beta: 1 / eta, published 0.001.

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    errors = (scores - (rewards - 0.5)) / beta
    return 0.5 * jnp.sum(jnp.square(zero_masked(errors, present)), axis=1)


def contrastive_policy_gradient(
    scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array, beta: float
) -> chex.Array:
    """CoPG: the policy gradient in contrastive form.

        -mean over pairs of (r_i - r_j)(a_i - a_j), r = R - beta/2 a

    Its gradient is the policy gradient with the other response's regularised reward, R - beta a, as the baseline. It
    needs no importance weights off-policy, and its minimum is IPO's with R_i - R_j as the target. Source: arXiv
    2406.19185.

    Args:
      scores: float [N, K], beta a.
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.
      beta: coefficient of the KL.

    Returns:
      float [N]; 0 if fewer than two responses are present.
    """
    _check(scores, present, rewards)
    places = jnp.arange(scores.shape[1])
    both = (places[:, None] < places[None, :])[None] & present[:, :, None] & present[:, None, :]
    gap, x = _gaps(rewards, present), _gaps(scores, present)
    total = jnp.sum(zero_masked((gap - 0.5 * x) * x / beta, both), axis=(1, 2))
    return -total / jnp.maximum(jnp.sum(both, axis=(1, 2)), 1)


def nash_md(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    rewards: chex.Array,
    log_probs: chex.Array,
    log_ratios: chex.Array,
    beta: float,
    kl_granularity: str = "sequence",
) -> chex.Array:
    """Nash-MD's policy gradient, with y_k sampled from the policy itself.

        -mean_k logp_k (P_k - 1/2 - beta sg(a_k))

    P_k is the probability of beating a sample of the mixture pi^(1 - alpha) ref^alpha: alpha 0 is self-play, 1 a best
    response to the reference. The opponent's samples are judged but not trained on: they are not in the batch. Source:
    arXiv 2312.00886.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], P_k.
      log_probs: float [N, K, C], 0 outside the mask.
      log_ratios: float [N, K, C], 0 outside the mask.
      beta: the paper's tau.
      kl_granularity: "sequence": a_k = sum_t r_t, whose gradient is that of the KL. "token": beta sum_t sg(r_t) logp_t
        instead of beta sg(a_k) logp_k, as in TRL 1.13; a different gradient for responses of two or more tokens.

    Returns:
      float [N], the mean over the responses present.

    Raises:
      ValueError: if kl_granularity is neither of the two.
    """
    _check(scores, present, rewards)
    chex.assert_equal_shape([log_probs, log_ratios])
    if kl_granularity not in ("sequence", "token"):
        raise ValueError(f"kl_granularity={kl_granularity!r} is not 'sequence' or 'token'")
    ratios = jax.lax.stop_gradient(log_ratios)
    if kl_granularity == "sequence":
        ratios = jnp.broadcast_to(jnp.sum(ratios, axis=2, keepdims=True), ratios.shape)
    divergence = beta * jnp.sum(ratios * log_probs, axis=2)
    return _mean(divergence - (rewards - 0.5) * jnp.sum(log_probs, axis=2), present)


def advantage_leftover(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    rewards: chex.Array,
    values: chex.Array,
    log_probs: chex.Array,
    log_ratios: chex.Array,
    clip: float = 0.9,
) -> chex.Array:
    """A-LoL: clipped advantage-weighted likelihood.

        -mean_k max(0, R_k - V) sg(clip(exp a_k, 1 - eps, 1 + eps)) logp_k

    Source: arXiv 2305.14718; its official code.

    Args:
      scores: float [N, K], unused.
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.
      values: float [N], V, the reference policy's mean reward on the prompt.
      log_probs: float [N, K, C], 0 outside the mask.
      log_ratios: float [N, K, C], 0 outside the mask.
      clip: eps.

    Returns:
      float [N], the mean over the responses present.
    """
    _check(scores, present, rewards)
    chex.assert_shape(values, (scores.shape[0],))
    advantages = jnp.maximum(rewards - values[:, None], 0.0)
    # Clipped before exp, which overflows for large log-ratios.
    log_ratio = jnp.clip(jax.lax.stop_gradient(jnp.sum(log_ratios, axis=2)), -60.0, 60.0)
    ratio = jnp.clip(jnp.exp(log_ratio), 1.0 - clip, 1.0 + clip)
    return _mean(-advantages * ratio * jnp.sum(log_probs, axis=2), present)


def group_advantage_leftover(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    rewards: chex.Array,
    log_probs: chex.Array,
    log_ratios: chex.Array,
    clip: float = 0.9,
) -> chex.Array:
    """`advantage_leftover` with the mean reward of the prompt's responses as V; the paper trains a value head.

    That mean is the reference policy's if the responses are its samples. Arguments as in `advantage_leftover`, without
    the values.
    """
    _check(scores, present, rewards)
    count = jnp.maximum(jnp.sum(present, axis=1), 1)
    values = jnp.sum(zero_masked(rewards, present), axis=1) / count
    more = {"rewards": rewards, "values": values, "log_probs": log_probs, "log_ratios": log_ratios, "clip": clip}
    return advantage_leftover(scores, present, link, **more)


def _check(scores: chex.Array, present: chex.Array, rewards: chex.Array) -> None:
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present, rewards])
    chex.assert_type(present, bool)


def _mean(x: chex.Array, present: chex.Array) -> chex.Array:
    """The mean over the responses present, 0 if there are none: float [N, K] -> [N]."""
    return jnp.sum(zero_masked(x, present), axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)


def _gaps(x: chex.Array, present: chex.Array) -> chex.Array:
    x = zero_masked(x, present)
    return x[:, :, None] - x[:, None, :]
