"""Decision transformers: cloning of actions given the return to go, alone or with the next state and return.

    dt          mean over t of (tanh(mean) - a_t)^2, or -log pi(a_t) of a finite set
    mo_dt       w L_action + (1 - w) (L_state + L_return), with the w that makes the norm of the gradients' sum smallest
    region_dt   the same with L_action + c L_region in the place of L_action

A batch is windows of K steps of one episode each (data.windows).
"""

from collections.abc import Callable
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


def sequence_of(model, windows: Windows, scale: float):
    """What the model reads of the windows: a Sequence [B, K].

    Args:
      model: DecisionTransformer or RegionTransformer.
      windows: [B, K].
      scale: returns to go are divided by it.
    """
    data, mask = windows
    return model.sequence(
        data.to_go / scale, data.steps.observations, model.encode(data.steps.actions), data.time, mask
    )


def sequence_errors(model, predicted: tuple, windows: Windows, scale: float) -> tuple[Mean, Mean]:
    """(L_action, L_state + L_return), undivided.

    Args:
      model: DecisionTransformer or RegionTransformer.
      predicted: (outputs [B, K, num_outputs], next observations float32 [B, K, D], returns float32 [B, K]).
      windows: [B, K].
      scale: returns to go are divided by it.
    """
    (outputs, following, returns), (data, mask) = predicted, windows
    steps = data.steps
    chex.assert_equal_shape([returns, mask])
    if jnp.issubdtype(steps.actions.dtype, jnp.integer):
        action = -model.distribution.log_prob(outputs, steps.actions)
    else:
        action = jnp.mean(jnp.square(model.distribution.mode(outputs) - steps.actions), axis=-1)
    wanted = steps.next_observations.reshape(*mask.shape, -1).astype(jnp.float32)
    state = jnp.mean(jnp.square(following - wanted), axis=-1)
    ahead = jnp.square(returns - (data.to_go - steps.rewards) / scale)
    return masked_mean(action, mask), masked_mean(state + ahead, mask)


def sequence_terms(model, params: Params, batch: Batch, scale: float) -> tuple[Mean, Mean]:
    """(L_action, L_state + L_return), undivided.

    Args:
      model: models.agents.decision_transformer.DecisionTransformer.
      params: differentiated.
      batch: its data are Windows.
      scale: returns to go are divided by it.
    """
    predicted = model.apply(params, sequence_of(model, batch.data, scale))
    return sequence_errors(model, predicted, batch.data, scale)


def region_terms(model, params: Params, batch: Batch, scale: float) -> tuple[Mean, Mean, Mean]:
    """(L_action, L_state + L_return, L_region), undivided; L_region = -log p(z_t | R_1 s_1 ... R_t s_t).

    The regions' dimensions are independent. Arguments: as for `sequence_terms`, of a RegionTransformer.
    """
    steps = sequence_of(model, batch.data, scale)
    *predicted, logits = model.apply(params, steps)
    chosen = jax.nn.one_hot(model.regions(steps.actions), logits.shape[-1])
    chex.assert_equal_shape([logits, chosen])
    region = -jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=(-2, -1))
    action, rest = sequence_errors(model, tuple(predicted), batch.data, scale)
    return action, rest, masked_mean(region, batch.data.mask)


def weighed(terms: Callable, params: Params, weight: float) -> tuple[Mean, dict[str, Mean]]:
    """w first + (1 - w) second of two losses over the same steps, and their metrics with w as policy/share.

    Args:
      terms: params -> (first Mean, second Mean, {name: Mean}).
      params: {"sequence": a vector}, differentiated.
      weight: w; below 0: `min_norm_pair` of the two gradients, through which nothing flows. One that is traced (swept)
        may be either, and both are computed.
    """
    share, plain = weight, isinstance(weight, int | float)
    if not plain or weight < 0.0:
        gradients = [jax.grad(lambda own, i=i: terms(own)[i].value())(params)["sequence"] for i in range(2)]
        shortest = jax.lax.stop_gradient(min_norm_pair(*gradients))
        share = shortest if plain else jnp.where(weight < 0.0, shortest, weight)
    first, second, metrics = terms(params)
    whole = Mean(share * first.total + (1.0 - share) * second.total, first.count)
    return whole, metrics | {"policy/share": Mean(jnp.float32(share), jnp.float32(1.0))}


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

    Source: arXiv 2308.16379. Its combiner is not published in code: here MGDA of two objectives. `region_dt` is its
    second variant.

    Args:
      model: DecisionTransformer.
      scale: as in `dt`.
      target: as in `dt`.
      weight: of the action's loss, the others' is 1 - weight; 1 is dt. Below 0: `min_norm_pair` of the gradients.
    """

    def loss(params, batch: Batch):
        def terms(own: Params):
            action, rest = sequence_terms(model, own, batch, scale)
            return action, rest, {"loss/action": action, "loss/rest": rest}

        return weighed(terms, params, weight)

    return Recipe(loss, ("sequence",))


def region_dt(
    model, *, scale: float = 1.0, target: float = 1.0, weight: float = -1.0, region_coef: float = 0.1
) -> Recipe:
    """`mo_dt` on trajectories with regions of the action space: the region is predicted first, then the action in it.

        w (L_action + c L_region) + (1 - w) (L_state + L_return)

    Source: arXiv 2308.16379, which adds regions to the trajectory; the loss of the region and its place among the
    objectives could not be read: here its cross-entropy, beside the action's.

    Args:
      model: RegionTransformer.
      scale: as in `dt`.
      target: as in `dt`.
      weight: as in `mo_dt`, of the action's and the region's losses.
      region_coef: c, in squared units of the action per nat.
    """

    def loss(params, batch: Batch):
        def terms(own: Params):
            action, rest, region = region_terms(model, own, batch, scale)
            policy = Mean(action.total + region_coef * region.total, action.count)
            return policy, rest, {"loss/action": action, "loss/rest": rest, "loss/region": region}

        return weighed(terms, params, weight)

    return Recipe(loss, ("sequence",))
