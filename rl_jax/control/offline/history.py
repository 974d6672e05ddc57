"""Offline methods on histories of observations: what they read is a code, which bisimulation keeps compact.

    z     = phi(o_1, a_1, ..., o_t)                         the last K steps of the episode
    base  : the loss of another method, whose observations are z and the code after the step
    model : (r_hat(z, a) - r)^2 - log P_hat(z_next | z, a)
    J     = (|z - z'| - |r_hat - r_hat'| - gamma W2(P_hat, P_hat'))^2         losses.bisimulation, random pairs

J is small if histories that differ in nothing that matters have one code, so that what was learned of one is known of
the others: without that nothing can be stitched together, since no two episodes have the same history.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline.recipe import Batch, Recipe, mean
from rl_jax.control.offline.sequence import Windows
from rl_jax.core.masked import Mean
from rl_jax.losses.bisimulation import bisimulation, normal_loss


def before_and_after(windows: Windows, model) -> tuple:
    """The histories before and after the last step of each window: two of model.sequence, [B, K].

    Args:
      windows: [B, K].
      model: models.agents.history.HistoryNetworks.
    """
    data, mask = windows
    actions, observations = model.readers.encode(data.steps.actions), data.steps.observations
    before = model.sequence(jnp.zeros(mask.shape), observations, actions, data.time, mask)

    def pushed(old: chex.Array, new: chex.Array) -> chex.Array:
        return jnp.concatenate([old[:, 1:], new[:, None]], axis=1)

    after = model.sequence(
        before.to_go,
        pushed(observations, data.steps.next_observations[:, -1]),
        pushed(actions, jnp.zeros_like(actions[:, -1])),
        pushed(data.time, data.time[:, -1] + 1),
        pushed(mask, jnp.ones_like(mask[:, -1])),
    )
    return before, after


def histories(model, *, base: Callable, coef: float = 1.0, model_coef: float = 1.0, discount: float = 1.0) -> Recipe:
    """A method on codes of histories with the bisimulation loss. Source: arXiv 2310.20663, there CQL and ILQL.

    See losses.bisimulation for what could be read of the paper. Choices of our own: the model is fitted to the codes as
    they are and does not move them; the next code is phi's of the same update, without a gradient; pairs are a random
    order of the batch; phi is a network of the last K steps, and the loss of `base` moves it, too.

    Args:
      model: models.agents.history.HistoryNetworks.
      base: OfflineNetworks -> Recipe, a method of single steps.
      coef: weight of J; 0 is the base on histories.
      model_coef: weight of the model's loss.
      discount: gamma of J; 1 as quoted. Below 1 the distances are bounded, however long an episode is.
    """
    inner = base(model.readers)

    def loss(params, batch: Batch):
        windows = batch.data
        before, after = before_and_after(windows, model)
        codes = model.encode(params, before)
        following = jax.lax.stop_gradient(model.encode(params, after))
        last = jax.tree.map(lambda x: x[:, -1], windows.data)
        steps = last.steps._replace(observations=codes, next_observations=following)
        whole, metrics = inner.loss(params, batch._replace(data=last._replace(steps=steps)))
        rewards, means, stds = model.predict(params, jax.lax.stop_gradient(codes), steps.actions)
        fitted = jnp.square(rewards - steps.rewards) + normal_loss(means, stds, following)
        partners = jax.random.permutation(jax.random.fold_in(batch.key, 1), len(codes))
        apart = bisimulation(codes, rewards, means, stds, partners, discount=discount)
        added = mean(model_coef * fitted + coef * apart)
        share = whole.count / added.count
        return Mean(whole.total + share * added.total, whole.count), metrics | {
            "loss/bisimulation": mean(apart),
            "loss/model": mean(fitted),
        }

    return inner._replace(loss=loss, uses=(*inner.uses, "history", "model"))
