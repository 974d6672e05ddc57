"""CLAM: two parts of what was seen in one episode are told from parts of other episodes.

    e = features(window),   v = unit(P e),   L = two_sided(v, v') of a crop with some frames hidden and of another crop
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.core.masked import masked_mean
from rl_jax.core.vectors import unit
from rl_jax.losses import contrastive


def episodes_of(done: chex.Array) -> chex.Array:
    """A number for the episode of each step, int32 [B, T]. done: bool [B, T], True in an episode's last step."""
    rows, length = done.shape
    before = jnp.cumsum(done, axis=1, dtype=jnp.int32) - done
    return before + (jnp.arange(rows, dtype=jnp.int32) * (length + 1))[:, None]


def cropped(
    windows: chex.Array, key: chex.PRNGKey, *, context: int, shortest: float, hidden_share: float
) -> chex.Array:
    """Each window with all but a random part of its frames set to 0, and some of that part, too.

    Args:
      windows: float [n, K C]; frames of zeros come first and are not there.
      key: for the parts.
      context: K.
      shortest: least length of a part, as a share of the frames that are there.
      hidden_share: of the frames of the part.
    """
    frames = windows.reshape(len(windows), context, -1)
    there = jnp.sum(jnp.any(frames != 0.0, axis=-1), axis=1)
    length_key, start_key, hide_key = jax.random.split(key, 3)
    share = jax.random.uniform(length_key, (len(frames),), minval=shortest)
    length = jnp.maximum(jnp.ceil(share * there), 1.0)
    start = context - there + jnp.floor(jax.random.uniform(start_key, (len(frames),)) * (there - length + 1.0))
    place = jnp.arange(context)[None]
    kept = (place >= start[:, None]) & (place < (start + length)[:, None])
    kept &= ~jax.random.bernoulli(hide_key, hidden_share, kept.shape)
    return jnp.where(kept[:, :, None], frames, 0.0).reshape(windows.shape)


def agent_model(
    *,
    width: int,
    context: int,
    make_net: Callable,
    temperature: float = 0.5,
    shortest: float = 0.2,
    hidden_share: float = 0.3,
    code: int = 64,
    coef: float = 1.0,
    rows: int = 128,
) -> Auxiliary:
    """The contrast of windows that teaches the code of the other agents' policies. For network.kind "windows".

    Source: arXiv 2401.00132, fadegehg/CLAM clam/models/policy_representation.py: random crops of 8 to 48 of 50 steps,
    frames hidden in the first, SupCon's loss without labels. Departs: trained with the policy on its batch, not on a
    buffer of trajectories; so rows of one episode are no negatives of each other. No batch norm in the head;
    SupCon's factor tau / .07 is left to coef.

    Args:
      width: of e.
      context: K.
      make_net: models.agents.features.make_net.
      temperature: of the contrast; .5 published.
      shortest: least length of a crop, as a share of the window's frames.
      hidden_share: of the first crop's frames; .3 published.
      code: size of v; 64 published.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.
    """
    net = make_net(width, code, hidden=(128,))

    def loss(params, features, observations, actions, next_observations, key, extras) -> chex.Array:
        seen, episode = observations[:rows], extras["episode"][:rows].reshape(-1)
        # One frame has no two parts.
        valid = jnp.sum(jnp.any(seen.reshape(len(seen), context, -1) != 0.0, axis=-1), axis=1) > 1
        codes = []
        for own, hidden in zip(jax.random.split(key), (hidden_share, 0.0), strict=True):
            part = cropped(seen, own, context=context, shortest=shortest, hidden_share=hidden)
            codes.append(unit(net.apply(params, features(part)), 1e-6))
        apart = (episode[:, None] != episode[None]) & valid[None]
        each = contrastive.two_sided(*codes, apart, temperature=temperature)
        return masked_mean(each, jnp.concatenate([valid, valid])).value()

    def look(observations, next_observations, actions, rewards, done) -> dict[str, chex.Array]:
        return {"episode": episodes_of(done)}

    return Auxiliary(net.init, loss, coef, reads_extras=True, look=look)
