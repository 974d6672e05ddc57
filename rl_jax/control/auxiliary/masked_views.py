"""Two views of an observation, each with other features hidden, are told from those of other observations."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.core.vectors import unit
from rl_jax.losses import contrastive


def views(
    *,
    width: int,
    make_net: Callable,
    kind: str = "info_nce",
    hidden_share: float = 0.3,
    rho: float = 0.3,
    floor: float = 0.05,
    coef: float = 0.1,
    rows: int = 128,
) -> Auxiliary:
    """Two views of an observation, each with other features hidden, have to be told from those of other observations.

    Source: arXiv 2305.11965 (iSogCLR) with kind "robust"; with "info_nce" what CLAM (`agent_model`) does, of single
    observations.

    Args:
      width: of z.
      make_net: models.agents.features.make_net.
      kind: "info_nce" or "robust".
      hidden_share: of the features, in each view.
      rho: of robust.
      floor: smallest temperature; info_nce takes it as its only one.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.

    Raises:
      ValueError: if the kind is unknown.
    """
    if kind not in ("info_nce", "robust"):
        raise ValueError(f"views: kind={kind!r} must be info_nce or robust")
    net = make_net(width, width, hidden=(width,))

    def loss(params, features, observations, actions, next_observations, key) -> chex.Array:
        left, right = two_views(net, params, features, observations[:rows], key, hidden_share)
        if kind == "robust":
            return jnp.mean(contrastive.robust(left @ right.T, rho=rho, floor=floor)[0])
        return jnp.mean(contrastive.info_nce(left @ right.T / floor))

    return Auxiliary(net.init, loss, coef)


def two_views(net, params, features, seen, key, hidden_share: float) -> list[chex.Array]:
    """Codes of about length 1 of two views of each observation, float [n, width] twice; each hides other features."""
    kept = [jax.random.bernoulli(k, 1.0 - hidden_share, seen.shape) for k in jax.random.split(key)]
    codes = [net.apply(params, features(seen * mask)) for mask in kept]
    return [unit(x, 1e-2) for x in codes]  # a gradient that is small at 0, where every feature is hidden


def anchors(
    *,
    width: int,
    make_net: Callable,
    hidden_share: float = 0.3,
    rho: float = 0.3,
    tau: float = 0.07,
    slots: int = 4096,
    grain: float = 0.1,
    coef: float = 0.1,
    rows: int = 128,
    **steps: float,
) -> Auxiliary:
    """As `views`, with a moving average and a temperature for each observation (losses.contrastive.follow).

    Source: arXiv 2305.11965 (iSogCLR). Negatives are both views of the rows of other anchors, as there. Departs: a
    stream of observations has no index, so an anchor is a slot that the observation's features hash to; rho is smaller
    than the code's 6, as log of the number of negatives is its largest value that says something.

    Args:
      width: of z.
      make_net: models.agents.features.make_net.
      hidden_share: of the features, in each view.
      rho: of follow.
      tau: at the start.
      slots: number of anchors.
      grain: features that round to the same multiple of it are the same; of the observation as the loss reads it.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.
      **steps: further numbers of follow: rate, momentum, step_size, clip.
    """
    net = make_net(width, width, hidden=(width,))

    def contrasts(params, features, observations, key):
        seen, slot = observations[:rows], slots_of(observations[:rows], slots, grain)
        codes = jnp.concatenate(two_views(net, params, features, seen, key, hidden_share))
        slot = jnp.concatenate([slot, slot])
        return codes @ codes.T, slot[:, None] != slot[None, :], slot

    def observe(params, features, observations, key, kept, axis_name=None):
        scores, negatives, slot = contrasts(params, features, observations, key)
        kept, used, average = contrastive.follow(kept, slot, scores, negatives, rho=rho, axis_name=axis_name, **steps)
        pair = jnp.stack([used, average], axis=1).reshape(2, -1, 2).swapaxes(0, 1)
        return kept, {"anchors": jnp.pad(pair, ((0, len(observations) - len(pair)), (0, 0), (0, 0)))}

    def loss(params, features, observations, actions, next_observations, key, remembered) -> chex.Array:
        scores, negatives, slot = contrasts(params, features, observations, key)
        used, average = jnp.moveaxis(remembered["anchors"][:rows], (0, 1, 2), (2, 1, 0)).reshape(2, -1)
        positives = jnp.roll(scores, len(scores) // 2, axis=1).diagonal()
        return 2.0 * jnp.mean(contrastive.anchored(scores, positives, negatives, used, average))

    return Auxiliary(net.init, loss, coef, lambda: contrastive.new_anchors(slots, tau=tau), observe)


def slots_of(observations: chex.Array, slots: int, grain: float) -> chex.Array:
    """The slot of each observation, int32 [n] below `slots`: equal ones share it, others do by chance 1 / slots."""
    whole = jnp.round(observations.reshape(len(observations), -1) / grain).astype(jnp.int32).astype(jnp.uint32)
    odd = jax.random.bits(jax.random.key(0), (whole.shape[1],)) | jnp.uint32(1)
    mixed = jnp.sum((whole + 1) * odd[None], axis=1, dtype=jnp.uint32)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    return ((mixed ^ (mixed >> 13)) % jnp.uint32(slots)).astype(jnp.int32)
