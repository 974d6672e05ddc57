"""Several responses of a prompt against each other: K >= 2, the best first if a ranking is meant.

`rewards` [N, K] grade the responses. Two of equal reward are not compared; `pro` keeps a constant term e^0 of them.
Responses that are not `present` are left out of every sum, softmax and rank.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def softmax(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """S-DPO: -log softmax(s)_1 over the first response and all of lower reward; K = 2 is DPO.

    Source: arXiv 2406.09215.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], the best first.

    Returns:
      float [N]; 0 if all rewards are equal.
    """
    _check(scores, present, rewards)
    itself = jnp.arange(scores.shape[1])[None] == 0
    compared = jnp.where(itself, present[:, :1], _better(rewards, present)[:, 0])
    return zero_masked(-_log_softmax(scores, compared)[:, 0], present[:, 0])


def plackett_luce(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """The likelihood of the ranking; K = 2 is DPO.

        -sum_k (s_k - log(exp s_k + sum_{R_j < R_k} exp s_j))

    Without equal rewards the second sum is over everything ranked after k. Responses of equal reward are each chosen
    ahead of what is worse, and not ahead of each other. Source: arXiv 2305.18290, appendix A.3; list-MLE in LiPO.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], in any order.

    Returns:
      float [N]; 0 if all rewards are equal.
    """
    _check(scores, present, rewards)
    itself = jnp.eye(scores.shape[1], dtype=bool)[None] & present[:, :, None]
    among = jnp.where(_better(rewards, present) | itself, scores[:, None, :], -jnp.inf)
    return jnp.sum(zero_masked(jax.nn.logsumexp(_finite(among), axis=2) - scores, present), axis=1)


def all_pairs(
    scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array, reduce: str = "sum"
) -> chex.Array:
    """sum_{R_i > R_j} l(s_i - s_j): LiPO's pair-logistic, and its pair-hinge with the hinge as link.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: (margins) -> losses, elementwise.
      rewards: float [N, K].
      reduce: "sum", as in LiPO (arXiv 2402.01878), or "mean" over the pairs, as in InstructGPT (arXiv 2203.02155).

    Returns:
      float [N]; 0 if no two rewards differ.

    Raises:
      ValueError: if reduce is neither of the two.
    """
    _check(scores, present, rewards)
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce={reduce!r} is not 'sum' or 'mean'")
    better = _better(rewards, present)
    total = jnp.sum(zero_masked(link(_differences(scores, better)), better), axis=(1, 2))
    return total if reduce == "sum" else total / jnp.maximum(jnp.sum(better, axis=(1, 2)), 1)


def lambda_pairs(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """LiPO-lambda: pairs weighted by how much swapping them would change the DCG.

        sum_{psi_i > psi_j} |2^psi_i - 2^psi_j| |1/ln(1 + r_i) - 1/ln(1 + r_j)| l(s_i - s_j)

    r is the rank of a response by its current score, 1 for the highest, without gradient. Equal scores keep the given
    order. Source: arXiv 2402.01878.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: (margins) -> losses, elementwise.
      rewards: float [N, K], psi, published in [0, 1]: the mean probability of beating another response.

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    ranks = _ranks(jax.lax.stop_gradient(scores), present)
    gains = jnp.exp2(zero_masked(rewards, present))
    discounts = 1.0 / jnp.log1p(ranks)
    weights = jnp.abs(gains[:, :, None] - gains[:, None, :]) * jnp.abs(discounts[:, :, None] - discounts[:, None, :])
    better = _better(rewards, present)
    return jnp.sum(zero_masked(weights * link(_differences(scores, better)), better), axis=(1, 2))


def label_softmax(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """LiPO's softmax: -sum_i psi_i / (sum_j psi_j) log softmax(s)_i.

    Source: arXiv 2402.01878; Cao et al. 2007 (ListNet).

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], psi >= 0.

    Returns:
      float [N]; 0 if all psi are 0.
    """
    _check(scores, present, rewards)
    labels = zero_masked(rewards, present)
    total = jnp.sum(labels, axis=1, keepdims=True)
    return _cross_entropy(labels / jnp.where(total == 0, 1.0, total), scores, present)


def point_square(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """LiPO's point-MSE: sum_i (psi_i - s_i)^2.

    Source: arXiv 2402.01878.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], psi.

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    return jnp.sum(jnp.square(zero_masked(rewards - scores, present)), axis=1)


def point_logistic(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """LiPO's point-sigmoid: -sum_i (psi_i log sigma(s_i) + (1 - psi_i) log sigma(-s_i)).

    Source: arXiv 2402.01878.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], psi in [0, 1].

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    losses = -rewards * jax.nn.log_sigmoid(scores) - (1.0 - rewards) * jax.nn.log_sigmoid(-scores)
    return jnp.sum(zero_masked(losses, present), axis=1)


def pro(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """PRO: one softmax per rank, with temperatures from the reward gaps.

        sum_{k < K} (log sum_{j >= k} exp(T_kj s_j) - T_kk s_k), T_kj = R_k - R_j, T_kk = max_{j > k} T_kj

    Published with s the mean log-prob (no reference, beta 1) and, as a regularizer, 0.05 (K - 1)^2 times the negative
    log-prob of the first response. Source: arXiv 2306.17492; the official code adds 1e-10 inside the logarithm.

    Args:
      scores: float [N, K], the best reward first.
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    places = jnp.arange(scores.shape[1])
    later = (places[None, :] > places[:, None])[None] & present[:, :, None] & present[:, None, :]
    temperatures = zero_masked(rewards[:, :, None] - rewards[:, None, :], later)
    own = jnp.max(temperatures, axis=2)
    ahead = own * scores
    # [N, k, j]: the terms of the sum for k, with its own first.
    others = jnp.where(later, temperatures * scores[:, None, :], -jnp.inf)
    total = jax.nn.logsumexp(jnp.concatenate([ahead[:, :, None], others], axis=2), axis=2)
    return jnp.sum(zero_masked(total - ahead, jnp.any(later, axis=2)), axis=1)


def rrhf(scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array) -> chex.Array:
    """RRHF: sum_{R_i > R_j} max(0, s_j - s_i), a hinge without margin.

    Published with s the mean log-prob (no reference, beta 1), plus the mean negative log-prob of the response with the
    best reward: regularizers.chosen_nll, because that response is the first. Source: arXiv 2304.05302.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.

    Returns:
      float [N].
    """
    return all_pairs(scores, present, lambda margins: jax.nn.relu(-margins), rewards=rewards)


def info_nca(
    scores: chex.Array, present: chex.Array, link: Callable, *, rewards: chex.Array, temperature: float = 1.0
) -> chex.Array:
    """InfoNCA: -sum_k softmax(R / alpha)_k log softmax(s)_k.

    Source: arXiv 2402.05369.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.
      temperature: alpha.

    Returns:
      float [N].
    """
    _check(scores, present, rewards)
    targets = jnp.exp(_log_softmax(rewards / temperature, present))
    return _cross_entropy(zero_masked(targets, present), scores, present)


def brain(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    rewards: chex.Array,
    prior_log_ratios: chex.Array,
    temperature: float = 1.0,
) -> chex.Array:
    """BRAIn: cross-entropy to self-normalised importance weights.

        -sum_k alpha_k log softmax(s)_k, alpha = softmax(R / gamma + log p0 - log q)

    The responses are samples of a proposal q, and the target is the prior p0 times exp(R / gamma). With s = log pi -
    log q (beta 1, the proposal as reference) the gradient is -sum_k (alpha_k - softmax(s)_k) grad log pi_k. Samples of
    the prior itself (p0 = q) give `info_nca`. Source: arXiv 2402.02479.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], R.
      prior_log_ratios: float [N, K], log p0(y) - log q(y).
      temperature: gamma.

    Returns:
      float [N].
    """
    _check(scores, present, rewards, prior_log_ratios)
    targets = rewards + temperature * prior_log_ratios
    return info_nca(scores, present, link, rewards=targets, temperature=temperature)


def _check(scores: chex.Array, present: chex.Array, *more: chex.Array) -> None:
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present, *more])
    chex.assert_type(present, bool)
    if scores.shape[1] < 2:
        raise ValueError(f"a list needs two or more responses per prompt, got {scores.shape[1]}")


def _finite(x: chex.Array) -> chex.Array:
    """Replaces -inf by a very low number: exp still makes it 0, and no difference of two becomes nan."""
    return jnp.maximum(x, jnp.finfo(x.dtype).min / 4)


def _log_softmax(x: chex.Array, present: chex.Array) -> chex.Array:
    """log softmax over the responses present; a finite value elsewhere."""
    return jax.nn.log_softmax(_finite(jnp.where(present, x, -jnp.inf)), axis=1)


def _cross_entropy(targets: chex.Array, scores: chex.Array, present: chex.Array) -> chex.Array:
    return -jnp.sum(zero_masked(targets * zero_masked(_log_softmax(scores, present), present), present), axis=1)


def _differences(scores: chex.Array, compared: chex.Array) -> chex.Array:
    """s_i - s_j if i and j are compared, 0 elsewhere, float [N, K, K]: no link sees what its sum leaves out."""
    return zero_masked(scores[:, :, None] - scores[:, None, :], compared)


def _better(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """Whether i beats j and both are present, bool [N, K, K]."""
    return (rewards[:, :, None] > rewards[:, None, :]) & present[:, :, None] & present[:, None, :]


def _ranks(scores: chex.Array, present: chex.Array) -> chex.Array:
    """Rank by score among the responses present, 1 for the highest; the absent come last. float [N, K]."""
    order = jnp.argsort(jnp.where(present, scores, -jnp.inf), axis=1, descending=True)
    return jnp.argsort(order, axis=1).astype(scores.dtype) + 1.0
