"""Bisimulation: codes of two situations should be as far apart as their rewards and what follows them.

    J = (|z - z'| - |r - r'| - gamma W2(P, P'))^2,   W2^2 = |m - m'|^2 + |s - s'|^2  of diagonal Gaussians

What is differentiated and what is data is said by each.
"""

import chex
import jax
import jax.numpy as jnp


def norm(x: chex.Array) -> chex.Array:
    """|x| over the last axis, float [...]; its gradient at 0 is 0, not nan."""
    square = jnp.sum(jnp.square(x), axis=-1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def wasserstein(means: chex.Array, stds: chex.Array, other_means: chex.Array, other_stds: chex.Array) -> chex.Array:
    """W2 = sqrt(|m - m'|^2 + |s - s'|^2) between Gaussians with diagonal covariances. float [N, Z] x4 -> float [N]."""
    chex.assert_equal_shape([means, stds, other_means, other_stds])
    return norm(jnp.concatenate([means - other_means, stds - other_stds], axis=-1))


def bisimulation(
    codes: chex.Array,
    rewards: chex.Array,
    means: chex.Array,
    stds: chex.Array,
    partners: chex.Array,
    *,
    discount: float = 1.0,
) -> chex.Array:
    """(|z_i - z_j| - |r_i - r_j| - gamma W2(P_i, P_j))^2 of each i and its partner j, float [N].

    dJ/dz_i = 2 (|z_i - z_j| - target) (z_i - z_j) / |z_i - z_j|; both codes of a pair are moved. With exact models and
    one action in each state it is 0 for the on-policy bisimulation metric d = |r - r'| + gamma d(next, next').

    Source: arXiv 2310.20663, whose J is quoted in its public reviews: |phi(h) - phi(h')| against |r(z, a) - r(z', a')|
    and D(P(. | z, a), P(. | z', a')), without a discount. The paper itself could not be read: which norm and which D
    are those of arXiv 2006.10742 (DBC) equation 4, which has W2 and the discount, here with Euclidean norms.

    Args:
      codes: z, float [N, Z], differentiated.
      rewards: predicted from each code and its action, float [N]; data.
      means: of the predicted next code, float [N, Z]; data.
      stds: its deviations, float [N, Z]; data.
      partners: j of each i, int [N].
      discount: gamma.
    """
    chex.assert_rank([codes, rewards, partners], [2, 1, 1])
    chex.assert_equal_shape([codes, means, stds])
    chex.assert_equal_shape([rewards, partners])
    ahead = wasserstein(means, stds, means[partners], stds[partners])
    wanted = jax.lax.stop_gradient(jnp.abs(rewards - rewards[partners]) + discount * ahead)
    return jnp.square(norm(codes - codes[partners]) - wanted)


def normal_loss(means: chex.Array, stds: chex.Array, found: chex.Array) -> chex.Array:
    """-log N(x; m, s^2) summed over the last axis, without its constant. float [N, Z] x3 -> float [N]. found: data."""
    chex.assert_equal_shape([means, stds, found])
    z = (jax.lax.stop_gradient(found) - means) / stds
    return jnp.sum(0.5 * jnp.square(z) + jnp.log(stds), axis=-1)
