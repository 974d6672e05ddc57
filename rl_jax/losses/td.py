"""Losses of values learned from single steps: temporal differences, their targets, and distributional forms.

    y = r + d V(s'),   d = gamma, and 0 where the task ended

Arrays are [N], one entry per step. Targets are data: gradients are stopped here. rl_jax.losses.value_heads makes of
them what a config names; rl_jax.losses.actor has the losses of actors.
"""

import chex
import jax
import jax.numpy as jnp


def td_target(rewards: chex.Array, discounts: chex.Array, next_values: chex.Array) -> chex.Array:
    """y = r + d V(s'), float [N], without a gradient.

    Args:
      rewards: float [N].
      discounts: float [N]. gamma, or gamma^n after n steps; 0 where the task ended.
      next_values: float [N].
    """
    chex.assert_rank([rewards, discounts, next_values], 1)
    chex.assert_equal_shape([rewards, discounts, next_values])
    return jax.lax.stop_gradient(rewards + discounts * next_values)


def squared(values: chex.Array, targets: chex.Array) -> chex.Array:
    """(q - y)^2 / 2, float [N]. dl/dq = q - y. values: float [N], differentiated. targets: float [N], data."""
    chex.assert_equal_shape([values, targets])
    return 0.5 * jnp.square(values - jax.lax.stop_gradient(targets))


def huber(values: chex.Array, targets: chex.Array, *, delta: float = 1.0) -> chex.Array:
    """Huber loss, e = q - y. dl/dq = clip(e, -delta, delta).

        l = e^2 / 2 if |e| <= delta, delta (|e| - delta / 2) otherwise

    Args:
      values: float [N], differentiated.
      targets: float [N], data.
      delta: in the reward's units.
    """
    chex.assert_equal_shape([values, targets])
    error = values - jax.lax.stop_gradient(targets)
    bounded = jnp.clip(error, -delta, delta)
    return bounded * (error - 0.5 * bounded)


def project(atoms: chex.Array, probs: chex.Array, rewards: chex.Array, discounts: chex.Array) -> chex.Array:
    """The distribution of r + d Z on the atoms of Z: C51's projection. float [N, K], without a gradient.

        p_i = sum_j probs_j max(0, 1 - |clip(r + d z_j, z_1, z_K) - z_i| / (z_2 - z_1))

    Args:
      atoms: float [K], z, equally spaced.
      probs: float [N, K] of Z in the next state.
      rewards: float [N].
      discounts: float [N].

    Source: arXiv 1707.06887 algorithm 1.
    """
    chex.assert_rank([atoms, probs, rewards, discounts], [1, 2, 1, 1])
    moved = jnp.clip(rewards[:, None] + discounts[:, None] * atoms[None, :], atoms[0], atoms[-1])
    near = jnp.abs(moved[:, None, :] - atoms[None, :, None]) / (atoms[1] - atoms[0])
    return jax.lax.stop_gradient(jnp.sum(jnp.maximum(1.0 - near, 0.0) * probs[:, None, :], axis=-1))


def cross_entropy(logits: chex.Array, target: chex.Array) -> chex.Array:
    """-sum_i p_i log softmax(logits)_i, float [N]. logits: float [N, K], differentiated. target: float [N, K], data."""
    chex.assert_equal_shape([logits, target])
    return -jnp.sum(jax.lax.stop_gradient(target) * jax.nn.log_softmax(logits), axis=-1)


def quantile_huber(quantiles: chex.Array, targets: chex.Array, *, kappa: float = 1.0) -> chex.Array:
    """Quantile regression with Huber's loss, u_ij = y_j - theta_i and tau_i = (i + 1/2) / K. float [N].

        l = sum_i mean_j |tau_i - [u_ij < 0]| huber_kappa(u_ij) / kappa

    QR-DQN itself does not divide, which only scales the gradient. kappa 0 is plain quantile regression,
    |tau_i - [u < 0]| |u|.

    Args:
      quantiles: float [N, K], theta, differentiated.
      targets: float [N, M], samples or quantiles y of the target; data.
      kappa: in the reward's units, 0 or more; it may be traced.

    Sources: arXiv 1710.10044; divided by kappa: arXiv 1806.06923 equation 3.
    """
    chex.assert_rank([quantiles, targets], 2)
    count = quantiles.shape[1]
    levels = (jnp.arange(count, dtype=quantiles.dtype) + 0.5) / count
    error = jax.lax.stop_gradient(targets)[:, None, :] - quantiles[:, :, None]
    weight = jnp.abs(levels[None, :, None] - jax.lax.stop_gradient(error < 0).astype(quantiles.dtype))
    size, plain = jnp.abs(error), isinstance(kappa, int | float)
    if not plain or kappa > 0:
        width = kappa if plain else jnp.where(kappa > 0, kappa, 1.0)  # at 0 the other side is read, without its nan
        bounded = jnp.clip(error, -width, width)
        smooth = bounded * (error - 0.5 * bounded) / width
        size = smooth if plain else jnp.where(kappa > 0, smooth, size)
    return jnp.sum(jnp.mean(weight * size, axis=2), axis=1)


def n_step(
    rewards: chex.Array, terminated: chex.Array, truncated: chex.Array, discount: float
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """Sums of up to n rewards, to the end of the episode at most.

        R = sum_{k < m} gamma^k r_k,   d = gamma^m, and 0 if step m - 1 terminated the task

    Args:
      rewards: float [N, n], of successive steps.
      terminated: bool [N, n].
      truncated: bool [N, n]. The sum ends here too, but the value after it still counts.
      discount: gamma.

    Returns:
      (R float [N], d float [N], m - 1 int32 [N], the index of the last step of the sum).
    """
    chex.assert_rank([rewards, terminated, truncated], 2)
    done = terminated | truncated
    alive = jnp.cumprod(jnp.concatenate([jnp.ones_like(rewards[:, :1]), 1.0 - done[:, :-1]], axis=1), axis=1)
    powers = jnp.power(discount, jnp.arange(rewards.shape[1], dtype=rewards.dtype))
    total = jnp.sum(alive * powers[None, :] * rewards, axis=1)
    last = jnp.sum(alive, axis=1).astype(jnp.int32) - 1
    ended = jnp.take_along_axis(terminated, last[:, None], axis=1)[:, 0]
    return total, jnp.where(ended, 0.0, powers[last] * discount), last
