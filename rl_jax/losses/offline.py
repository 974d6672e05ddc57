"""Losses of offline reinforcement learning: arrays [N] of single steps in, losses [N] out.

    V from Q, with d = Q(s, a) - V(s) of the data's actions, so that V is that of the best actions in the data
    expectile   |tau - 1(d < 0)| d^2                       IQL, arXiv 2110.06169
    gumbel      exp(d / beta) - d / beta - 1        XQL, arXiv 2301.02328: beta log E exp(Q / beta)
    chi2        lam (d + d^2 / 4) 1(d > 0) - (1 - lam) d                      f-DVL, arXiv 2302.08560
    tv          lam max(d, 0) - (1 - lam) d                                   f-DVL: a quantile

    the policy
    exp_advantage     min(exp(beta A), w_max), the weight of cloning          AWR, arXiv 1910.00177
    td3_bc            -lambda Q(s, pi(s)) + w (pi(s) - a)^2                   TD3+BC, arXiv 2106.06860

    Q
    conservative      log sum exp Q(s, .) - Q(s, a)                           CQL, arXiv 2006.04779

What is differentiated and what is data is said by each.
"""

import chex
import jax
import jax.numpy as jnp


def _gap(values: chex.Array, q: chex.Array) -> chex.Array:
    """d = Q - V; only V is differentiated. float [N] x2 -> float [N]."""
    chex.assert_equal_shape([values, q])
    chex.assert_type([values, q], float)
    return jax.lax.stop_gradient(q) - values


def expectile(values: chex.Array, q: chex.Array, *, expectile: float = 0.7) -> chex.Array:
    """|tau - 1(d < 0)| d^2, d = q - v. tau = .5 gives the mean of q, tau -> 1 its maximum.

    dl/dv = -2 |tau - 1(d < 0)| d.

    Source: arXiv 2110.06169 equation 5, ikostrikov/implicit_q_learning (no factor 1/2 there either).

    Args:
      values: float [N], V(s), differentiated.
      q: float [N], Q(s, a) of the data's actions; data.
      expectile: tau; .7 published for locomotion, .9 for mazes.

    Returns:
      float [N].
    """
    gap = _gap(values, q)
    return jnp.where(gap > 0, expectile, 1.0 - expectile) * jnp.square(gap)


def gumbel(values: chex.Array, q: chex.Array, *, beta: float = 2.0, max_clip: float = 7.0) -> chex.Array:
    """exp(z - M) - z exp(-M) - exp(-M), z = min(d / beta, max_clip), M = max(max_N z, -1), d = q - v.

    It is exp(z) - z - 1 scaled by exp(-M) of the batch, so that it cannot overflow; the minimum is V = beta log E
    exp(q / beta). A clipped entry has no gradient. Source: arXiv 2301.02328, Div99/XQL (gumbel_rescale_loss).

    Args:
      values: float [N], V(s), differentiated.
      q: float [N], Q(s, a) of the data's actions; data.
      beta: temperature, in units of the return; 2 published for locomotion.
      max_clip: largest z; 7 published. inf: none.

    Returns:
      float [N].
    """
    z = jnp.minimum(_gap(values, q) / beta, max_clip)
    top = jax.lax.stop_gradient(jnp.maximum(jnp.max(z), -1.0))
    return jnp.exp(z - top) - z * jnp.exp(-top) - jnp.exp(-top)


def gumbel_plain(values: chex.Array, q: chex.Array, *, beta: float = 2.0) -> chex.Array:
    """exp(z) - z - 1, z = (q - v) / beta, as the equation has it: one outlier of 89 beta overflows float32.

    Source: arXiv 2301.02328 equation 11. To show what the scale and the clip of `gumbel` are for.

    Args:
      values: float [N], V(s), differentiated.
      q: float [N]; data.
      beta: temperature.

    Returns:
      float [N].
    """
    z = _gap(values, q) / beta
    return jnp.exp(z) - z - 1.0


def chi2(values: chex.Array, q: chex.Array, *, lam: float = 0.7) -> chex.Array:
    """lam (d + d^2 / 4) 1(d > 0) - (1 - lam) d, d = q - v: the conjugate of the chi^2 divergence, below 0 cut to 0.

    The minimum has lam mean[(1 + d / 2) 1(d > 0)] = 1 - lam. Source: arXiv 2302.08560 (f-DVL). Its code has max(d + d^2
    / 4, 0), which is above 0 again for d < -4; here it is 0, as the conjugate is.

    Args:
      values: float [N], V(s), differentiated.
      q: float [N], Q(s, a) of the data's actions; data.
      lam: from .5 to 1; towards 1 it is the maximum.

    Returns:
      float [N].
    """
    gap = _gap(values, q)
    positive = jnp.maximum(gap, 0.0)
    return lam * (positive + 0.25 * jnp.square(positive)) - (1.0 - lam) * gap


def tv(values: chex.Array, q: chex.Array, *, lam: float = 0.7) -> chex.Array:
    """lam max(d, 0) - (1 - lam) d, d = q - v: the total variation's conjugate, of which V is a quantile of q.

    P(q > V) <= (1 - lam) / lam.

    At lam = .5 every V below the smallest q is a minimum: use more. Source: arXiv 2302.08560 (f-DVL).

    Args:
      values: float [N], V(s), differentiated.
      q: float [N], Q(s, a) of the data's actions; data.
      lam: above .5, below 1.

    Returns:
      float [N].
    """
    gap = _gap(values, q)
    return lam * jnp.maximum(gap, 0.0) - (1.0 - lam) * gap


def bellman(q: chex.Array, targets: chex.Array, *, delta: float = float("inf")) -> chex.Array:
    """(Q_i - y)^2 of each critic, summed over the critics; beyond delta the Huber loss (twice optax's).

    Args:
      q: float [K, N], of K critics, differentiated.
      targets: float [N], y; data.
      delta: in units of the return; inf: squared errors. XQL's code has 20.

    Returns:
      float [N].
    """
    chex.assert_rank(q, 2)
    chex.assert_shape(targets, q.shape[1:])
    error = q - jax.lax.stop_gradient(targets)[None]
    bounded = jnp.clip(error, -delta, delta)
    return jnp.sum(bounded * (2.0 * error - bounded), axis=0)


def recoil(q: chex.Array, next_values: chex.Array, going_on: chex.Array, expert: chex.Array, *, discount, reward):
    """ReCOIL's critics: mean_E (Q - B)^2 / 2 + mean (Q - y)^2 / 2,  B = reward / (1 - discount), summed over critics.

        y = -reward + discount V(s'), and -reward - discount B after the end of the task

    The expert's steps are pulled up to the largest value, and all data follow the Bellman equation of the least reward.
    With discount .99 and reward 2 these are the constants 200, -2 and -200 of the code. Source: arXiv 2302.08560, read
    in a public copy of its code, whose batch is a half of mixed data and a half of the expert's; here one of both.

    Args:
      q: float [K, N], Q(s, a), differentiated.
      next_values: float [N], of the target network; data.
      going_on: float [N], 0 where the task ended.
      expert: float [N], 1 for the expert's steps.
      discount: gamma, below 1.
      reward: above 0.

    Returns:
      float [N], whose mean over the batch is the loss.
    """
    chex.assert_shape([next_values, going_on, expert], q.shape[1:])
    bound = reward / (1.0 - discount)
    targets = -reward + discount * (going_on * next_values - (1.0 - going_on) * bound)
    missed = q - jax.lax.stop_gradient(targets)[None]
    share = expert / jnp.maximum(jnp.mean(expert), 1e-6)
    return 0.5 * jnp.sum(share[None] * jnp.square(q - bound) + jnp.square(missed), axis=0)


def exp_advantage(advantages: chex.Array, *, beta: float = 3.0, max_weight: float = 100.0) -> chex.Array:
    """min(exp(beta A), max_weight), the weight of -log pi(a | s); data, nothing is differentiated.

    Source: arXiv 1910.00177 equation 10; IQL has beta = 3 and 100, AWR 1 / beta = .05 .. 1 and 20.

    Args:
      advantages: float [N].
      beta: inverse temperature.
      max_weight: the largest weight.

    Returns:
      float [N].
    """
    chex.assert_type(advantages, float)
    # The clip is inside of exp: exp of a large number would be inf, and min(inf, w) has no trouble, but its inputs do.
    limit = jnp.log(jnp.asarray(max_weight, advantages.dtype))
    return jax.lax.stop_gradient(jnp.exp(jnp.minimum(beta * advantages, limit)))


def td3_bc(
    q: chex.Array, actions: chex.Array, targets: chex.Array, weights: chex.Array | None = None, *, alpha: float = 2.5
) -> chex.Array:
    """-lambda Q(s, pi(s)) + mean_d w (pi(s) - a)^2, lambda = alpha / mean_N |Q|.

    TD3+BC if a is the data's action and w = 1; A2PR if both are chosen (`a2pr_targets`). lambda is data. Source: arXiv
    2106.06860, sfujim/TD3_BC; arXiv 2405.19909, ltlhuuu/A2PR.

    Args:
      q: float [N], Q_1(s, pi(s)), differentiated.
      actions: float [N, A], pi(s) in [-1, 1], differentiated.
      targets: float [N, A], the actions to stay near; data.
      weights: float [N], w; data. None: 1.
      alpha: 2.5 published.

    Returns:
      float [N].
    """
    chex.assert_equal_shape([actions, targets])
    chex.assert_shape(q, actions.shape[:1])
    scale = alpha / jnp.maximum(jax.lax.stop_gradient(jnp.mean(jnp.abs(q))), 1e-8)
    distance = jnp.mean(jnp.square(actions - jax.lax.stop_gradient(targets)), axis=-1)
    if weights is not None:
        distance = distance * jax.lax.stop_gradient(weights)
    return distance - scale * q


def a2pr_targets(
    actions: chex.Array, proposals: chex.Array, advantages: chex.Array, proposed: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """The better of the data's and the proposed action, and 1(A' >= 0 or A > 0), whether to stay near it.

    Source: arXiv 2405.19909, ltlhuuu/A2PR, which adds two bools of torch: that is "or", not 2. There the proposal is
    differentiated through; here it is data.

    Args:
      actions: float [N, A], the data's.
      proposals: float [N, A], of the generative model.
      advantages: float [N], A(s, a) of the data's actions.
      proposed: float [N], A' of the proposals.

    Returns:
      (targets float [N, A], weights float [N]: 0 or 1).
    """
    chex.assert_equal_shape([actions, proposals])
    better = (proposed >= advantages)[:, None]
    weights = ((proposed >= 0) | (advantages > 0)).astype(actions.dtype)
    return jax.lax.stop_gradient((jnp.where(better, proposals, actions), weights))


def vae(
    reconstructions: chex.Array, actions: chex.Array, mean: chex.Array, log_std: chex.Array, weights: chex.Array
) -> chex.Array:
    """mean_d w (a' - a)^2 + kl / 2, kl = -mean_d (1 + log s^2 - m^2 - s^2) / 2: A2PR's weighted autoencoder.

    Source: ltlhuuu/A2PR, with w = 1(Q(s, a) > V(s)): only actions better than the average are learned.

    Args:
      reconstructions: float [N, A], differentiated.
      actions: float [N, A]; data.
      mean: float [N, L], differentiated.
      log_std: float [N, L], differentiated.
      weights: float [N]; data.

    Returns:
      float [N].
    """
    error = jnp.mean(jnp.square(reconstructions - jax.lax.stop_gradient(actions)), axis=-1)
    kl = -0.5 * jnp.mean(1.0 + 2.0 * log_std - jnp.square(mean) - jnp.exp(2.0 * log_std), axis=-1)
    return jax.lax.stop_gradient(weights) * error + 0.5 * kl


def conservative(q: chex.Array, candidates: chex.Array, log_weights: chex.Array | None = None) -> chex.Array:
    """log sum_j exp(Q(s, a_j) - log mu_j) - Q(s, a), summed over the critics: it pushes down what the data lack.

    Source: arXiv 2006.04779 equation 4, CQL(H). For sampled actions mu_j is the density that they were drawn with.

    Args:
      q: float [K, N], Q(s, a) of the data's actions, differentiated.
      candidates: float [K, N, M], Q(s, a_j), differentiated.
      log_weights: float [N, M], log mu_j; data. inf leaves an action out. None: every action of a finite set, once.

    Returns:
      float [N].
    """
    chex.assert_shape(candidates, (*q.shape, None))
    if log_weights is not None:
        candidates = candidates - jax.lax.stop_gradient(log_weights)[None]
    return jnp.sum(jax.nn.logsumexp(candidates, axis=-1) - q, axis=0)
