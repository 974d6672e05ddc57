"""Behaviour cloning of a deterministic policy from demonstrations, as one pure function: a base for others to correct.

    min over theta of  mean_i |pi_theta(s_i) - a_i|^2,  i drawn uniformly

It is -log pi(a | s) of a Gaussian of fixed deviation, up to constants; `offline.bc` has a learned one.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.relabelling.base import begin, descend


def clone(
    apply: Callable,
    params: Any,
    observations: chex.Array,
    actions: chex.Array,
    key: chex.PRNGKey,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
) -> Any:
    """The params after `steps` steps of Adam on the squared error of random batches.

    Source: arXiv 2509.19301 (ResFiT) for the role of the result, a base policy that is frozen afterwards.

    Args:
      apply: (params, observations [N, D]) -> actions [N, A].
      params: pytree at the start.
      observations: float [M, D].
      actions: float [M, A], in the units of `apply`.
      key: for the batches.
      steps: of the optimizer.
      batch_size: N, with replacement.
      learning_rate: of Adam.

    Raises:
      ValueError: if there are no demonstrations.
    """
    chex.assert_rank([observations, actions], 2)
    chex.assert_equal_shape_prefix([observations, actions], 1)
    if not len(actions):
        raise ValueError("clone: there are no demonstrated steps")
    optimizer, size = optax.adam(learning_rate), min(batch_size, len(actions))

    def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
        index = jax.random.randint(key, (size,), 0, len(actions))
        return jnp.mean(jnp.sum(jnp.square(apply(params, observations[index]) - actions[index]), axis=1))

    return descend(loss_fn, begin(params, optimizer, key), optimizer, steps=steps).params
