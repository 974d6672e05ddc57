"""Losses of a sequence of tasks, of which only the newest one's data are left: how the old ones are not forgotten.

    dual_cloning    |pi_t(s) - mu(s)|^2 + coef mean_{j<t} |pi_j(s_j) - a_j|^2       OER, arXiv 2305.13804
    held_outputs    mean_{j<t} |H(e_j; now) - H(e_j; before)|^2                     HyperCRL, arXiv 2009.11997

The task's number t is an array, so that one program serves all tasks: `seen` says which of K are before it.
"""

import chex
import jax
import jax.numpy as jnp


def over_seen(each: chex.Array, seen: chex.Array) -> chex.Array:
    """The mean over those of K that are seen, 0 if there are none.

    Args:
      each: float [K, ...].
      seen: bool [K].

    Returns:
      float [...].
    """
    chex.assert_equal_shape_prefix([each, seen], 1)
    mask = seen.reshape(seen.shape + (1,) * (each.ndim - 1))
    return jnp.sum(jnp.where(mask, each, 0.0), axis=0) / jnp.maximum(jnp.sum(seen), 1)


def dual_cloning(
    actions: chex.Array,
    wanted: chex.Array,
    replayed: chex.Array,
    stored: chex.Array,
    seen: chex.Array,
    *,
    coef: float | chex.Array = 1.0,
) -> chex.Array:
    """mean_d (pi_t(s) - mu(s))^2 + coef mean_{j<t} mean_d (pi_j(s_j) - a_j)^2.

    mu learns the newest task by Q and never sees a replayed step; pi, which acts, is cloned from mu on the new task
    and from what was stored of the old ones. coef = 0 forgets. In the first task there is only the first term.

    Source: arXiv 2305.13804, read in the public code of its first author (COImpl.update_actor), which takes a step of
    Adam for each of the two terms; here they are one loss.

    Args:
      actions: float [n, A], pi_t(s) of the newest task's states, differentiated.
      wanted: float [n, A], mu(s); data.
      replayed: float [K, n, A], pi_j(s_j) of each task's kept states, differentiated.
      stored: float [K, n, A], the actions that were kept with them; data.
      seen: bool [K], j < t.
      coef: weight of the old tasks; 1 in the code.

    Returns:
      float [n].
    """
    chex.assert_equal_shape([actions, wanted])
    chex.assert_equal_shape([replayed, stored])
    chex.assert_shape(replayed, (*seen.shape, *actions.shape))
    new = jnp.mean(jnp.square(actions - jax.lax.stop_gradient(wanted)), axis=-1)
    # Before the square: a task that has not come yet has no gradient, whatever stands in its place.
    gaps = jnp.where(seen[:, None, None], replayed - jax.lax.stop_gradient(stored), 0.0)
    old = jnp.mean(jnp.square(gaps), axis=-1)
    return new + coef * over_seen(old, seen)


def held_outputs(weights: chex.Array, before: chex.Array, seen: chex.Array) -> chex.Array:
    """mean_{j<t} sum_i (H(e_j; now)_i - H(e_j; before)_i)^2, 0 in the first task.

    Source: arXiv 2009.11997, rvl-lab-utoronto/HyperCRL (calc_fix_target_reg). "now" is there the hypernetwork one step
    of Adam on the task's own loss ahead, and that step is data (`rl_jax.control.offline.hypernetwork`).

    Args:
      weights: float [K, P], the weights made for each task, differentiated.
      before: float [K, P], those made when the newest task began; data.
      seen: bool [K], j < t.

    Returns:
      float [].
    """
    chex.assert_rank(weights, 2)
    chex.assert_equal_shape([weights, before])
    gaps = jnp.where(seen[:, None], weights - jax.lax.stop_gradient(before), 0.0)
    return over_seen(jnp.sum(jnp.square(gaps), axis=-1), seen)
