"""Decision transformers: cloning of actions given the return to go, alone or with the next state and return.

    dt      mean over t of (tanh(mean) - a_t)^2, or -log pi(a_t) of a finite set
    mo_dt   w L_action + (1 - w) (L_state + L_return), with the w that makes the norm of the gradients' sum smallest

A batch is windows of K steps of one episode each (data.windows).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.recipe import Batch, Recipe
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Params


class Windows(NamedTuple):
    """What a sequence model learns from.

    Attributes:
      data: OfflineData [B, K].
      mask: bool [B, K].
    """

    data: datasets.OfflineData
    mask: chex.Array


def sample_windows(data: datasets.OfflineData, key: chex.PRNGKey, size: int, *, context: int) -> Windows:
    """`size` windows that end at random steps."""
    ends = jax.random.randint(key, (size,), 0, len(data.episode))
    return Windows(*datasets.windows(data, ends, context))


def min_norm_pair(first: chex.Array, second: chex.Array) -> chex.Array:
    """w = clip((g2 - g1) . g2 / |g1 - g2|^2, 0, 1): w g1 + (1 - w) g2 is the shortest of the convex combinations.

    Source: MGDA for two objectives, arXiv 1810.04650 equation 4.

    Args:
      first: float [n], g1.
      second: float [n], g2.

    Returns:
      float [].
    """
    chex.assert_equal_shape([first, second])
    gap = second - first
    return jnp.clip(jnp.sum(gap * second) / jnp.maximum(jnp.sum(jnp.square(gap)), 1e-12), 0.0, 1.0)


def sequence_terms(model, params: Params, batch: Batch, scale: float) -> tuple[Mean, Mean]:
    """(L_action, L_state + L_return), undivided.

    Args:
      model: models.agents.decision_transformer.DecisionTransformer.
      params: differentiated.
      batch: its data are Windows.
      scale: returns to go are divided by it.
    """
    data, mask = batch.data
    steps = data.steps
    inputs = data.to_go / scale, steps.observations, model.encode(steps.actions), data.time, mask
    outputs, following, returns = model.apply(params, model.sequence(*inputs))
    if jnp.issubdtype(steps.actions.dtype, jnp.integer):
        action = -model.distribution.log_prob(outputs, steps.actions)
    else:
        action = jnp.mean(jnp.square(model.distribution.mode(outputs) - steps.actions), axis=-1)
    wanted = steps.next_observations.reshape(*mask.shape, -1).astype(jnp.float32)
    state = jnp.mean(jnp.square(following - wanted), axis=-1)
    ahead = jnp.square(returns - (data.to_go - steps.rewards) / scale)
    return masked_mean(action, mask), masked_mean(state + ahead, mask)


def dt(model, *, scale: float = 1.0, target: float = 1.0) -> Recipe:
    """The decision transformer. Source: arXiv 2106.01345.

    Args:
      model: DecisionTransformer.
      scale: returns to go are divided by it.
      target: what the policy is asked for, 0 for the return that counts as 0 in eval/normalized, 1 for 100.
    """

    def loss(params, batch: Batch):
        action, _ = sequence_terms(model, params, batch, scale)
        return action, {"loss/action": action}

    return Recipe(loss, ("sequence",))


def mo_dt(model, *, scale: float = 1.0, target: float = 1.0, weight: float = -1.0) -> Recipe:
    """A decision transformer that also predicts states and returns, its objectives weighed against each other.

    Source: arXiv 2308.16379. Its combiner is not published in code: here MGDA of two objectives. Its second variant,
    tokens of action regions, is not here.

    Args:
      model: DecisionTransformer.
      scale: as in `dt`.
      target: as in `dt`.
      weight: of the action's loss, the others' is 1 - weight; 1 is dt. Below 0: `min_norm_pair` of the gradients.
    """

    def loss(params, batch: Batch):
        def term(params, index: int) -> chex.Array:
            return sequence_terms(model, params, batch, scale)[index].value()

        share = weight
        if weight < 0.0:
            gradients = [jax.grad(term)(params, i)["sequence"] for i in range(2)]
            share = jax.lax.stop_gradient(min_norm_pair(*gradients))
        action, rest = sequence_terms(model, params, batch, scale)
        whole = Mean(share * action.total + (1.0 - share) * rest.total, action.count)
        one = jnp.float32(1.0)
        return whole, {"loss/action": action, "loss/rest": rest, "policy/share": Mean(jnp.float32(share), one)}

    return Recipe(loss, ("sequence",))
