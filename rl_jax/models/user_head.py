"""A reward head for many users: what a user wants is inferred from pairs that they have judged (arXiv 2408.10075).

    e_j = MLP(h_w, h_l)                               each pair that the user has judged, chosen and rejected
    o   = mean_c sum_j softmax_j(q_c . k_j / sqrt d) v_j
    mu, log sd^2 = W o, clipped to [-1, 1];   z = mu + sd eps,  z <- sqrt d z / |z|
    r(h, z) = MLP(h, z)

h are hidden states at the responses' last tokens. A row's pairs are the other rows of its user in the same batch, so
that nothing is read twice. Source: WEIRDLabUW/vpl_llm's vae_utils.py, with z beside h in the reward as in the paper.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params

SLOPE = 0.2  # of the leaky units below 0


def init_user_head(key: chex.PRNGKey, width: int, *, hidden: int, latent: int) -> Params:
    """The params of the head: linear layers with kernels N(0, 1 / inputs) and no bias at first.

    Args:
      key: a typed key.
      width: D, of the hidden states.
      hidden: width of the layers between.
      latent: d.
    """
    sizes = {
        "pair": (2 * width, hidden, hidden, latent),
        "reward": (width + latent, hidden, hidden, 1),
        **{name: (latent, latent) for name in ("query", "key", "value", "mean", "log_var")},
    }
    keys = jax.random.split(key, len(sizes))
    return {name: _init(k, shape) for k, (name, shape) in zip(keys, sizes.items(), strict=True)}


def user_rewards(
    head: Params, hidden: chex.Array, users: chex.Array, live: chex.Array, noise: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """(rewards float32 [N, 2] for each row's user, KL float32 [N] of what is inferred of them to N(0, 1)).

        KL = -1/2 sum_d (1 + log sd^2 - mu^2 - sd^2)

    A row whose user has no other row in the batch has z = 0 and no KL.

    Args:
      head: of `init_user_head`.
      hidden: float [N, 2, D], chosen and rejected.
      users: [N], a number per user.
      live: bool [N], rows that are there.
      noise: float [N, d], eps; 0 for the mean.
    """
    chex.assert_rank([hidden, users, live, noise], [3, 1, 1, 2])
    rows = len(users)
    pairs = _mlp(head["pair"], hidden.reshape(rows, -1))
    others = (users[:, None] == users[None]) & live[None] & ~jnp.eye(rows, dtype=bool)  # [row, pair of its user]
    read = _attend(head, pairs, others)
    mean, log_var = (jnp.clip(_mlp(head[name], read), -1.0, 1.0) for name in ("mean", "log_var"))
    known = others.any(axis=1)
    kl = -0.5 * jnp.sum(1.0 + log_var - jnp.square(mean) - jnp.exp(log_var), axis=1)
    z = mean + jnp.exp(0.5 * log_var) * noise
    z = z * jnp.sqrt(z.shape[1] / jnp.maximum(jnp.sum(jnp.square(z), axis=1, keepdims=True), 1e-12))
    z = jnp.where(known[:, None], z, 0.0)
    inputs = jnp.concatenate([hidden, jnp.broadcast_to(z[:, None], (rows, 2, z.shape[1]))], axis=2)
    return _mlp(head["reward"], inputs)[..., 0], jnp.where(known, kl, 0.0)


def _attend(head: Params, pairs: chex.Array, others: chex.Array) -> chex.Array:
    """Self-attention among the pairs of each row, then their mean: [N, d], bool [N, N] -> [N, d]."""
    query, key, value = (_mlp(head[name], pairs) for name in ("query", "key", "value"))
    scores = query @ key.T / jnp.sqrt(1.0 * pairs.shape[1])
    scores = jnp.where(others[:, None, :], scores[None], -1e30)  # [row, pair c, pair j]
    weights = jax.nn.softmax(scores, axis=2) * others[:, :, None]
    number = jnp.maximum(jnp.sum(others, axis=1), 1)
    return jnp.sum(weights, axis=1) @ value / number[:, None]


def _init(key: chex.PRNGKey, sizes: Sequence[int]) -> list[Params]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"kernel": jax.random.normal(k, (a, b)) / jnp.sqrt(1.0 * a), "bias": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes, sizes[1:], strict=False)
    ]


def _mlp(layers: Sequence[Params], x: chex.Array) -> chex.Array:
    for place, layer in enumerate(layers):
        if place:
            x = jax.nn.leaky_relu(x, SLOPE)
        x = jnp.einsum("...i,io->...o", x, layer["kernel"], precision=jax.lax.Precision.HIGHEST)
        x += jnp.broadcast_to(layer["bias"], x.shape)
    return x
