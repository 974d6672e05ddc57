"""A policy with several low-rank adapters: its skills, composed in parameter space by weights of the state.

    every layer:   y = x W0 + b0 + s sum_k c_k (x A_k) B_k
    c              one vector for all layers: 0 (the base), one-hot (a skill), or alpha(o) of a network of its own
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.continual_networks import mlp
from rl_jax.models.agents.offline_networks import OfflineNetworks, layers_of, uniform_vector
from rl_jax.models.agents.torso import ACTIVATIONS, linear


class SkillNetworks(NamedTuple):
    """Pure functions of params, those of OfflineNetworks with "policy": {"base", "skills", "weights"}.

    "skills" is {"a": float32 [K, .], "b": float32 [K, .]}, each layer's matrices behind the last one's.

    Attributes:
      single: OfflineNetworks, of whose params "policy" is the base alone.
      init: (key) -> params; B_k is 0, so that every skill is the base at first.
      composed: (params["policy"], observations [N, ...], coefs [N, K]) -> outputs of single.distribution [N, .].
      weights: (params["policy"], observations [N, ...]) -> alpha, float32 [N, K].
      skills: K.
    """

    single: OfflineNetworks
    init: Callable
    composed: Callable
    weights: Callable
    skills: int


def composed_linear(
    x: chex.Array, layer: dict[str, chex.Array], a: chex.Array, b: chex.Array, coefs: chex.Array
) -> chex.Array:
    """x W0 + b0 + sum_k c_k (x A_k) B_k: float [N, D_out]. Source: arXiv 2502.05932, ltlhuuu/PSEC (LoRALayer).

    Args:
      x: float [N, D_in].
      layer: {"kernel": [D_in, D_out], "bias": [D_out]}.
      a: float [K, D_in, r].
      b: float [K, r, D_out].
      coefs: c, float [N, K], the adapters' scale included.
    """
    chex.assert_rank([x, a, b, coefs], [2, 3, 3, 2])
    chex.assert_shape(coefs, (len(x), len(a)))
    inner = jnp.einsum("nd,kdr->nkr", x, a) * coefs[:, :, None]
    return linear(x, layer) + jnp.einsum("nkr,kro->no", inner, b)


def make_skill_networks(
    observation_shape: tuple[int, ...],
    single: OfflineNetworks,
    *,
    skills: int,
    rank: int = 8,
    scale: float = 2.0,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
) -> SkillNetworks:
    """SkillNetworks around the policy of `single`. Source: arXiv 2502.05932, ltlhuuu/PSEC.

    Departs: the policy is that of `single`, a Gaussian or a categorical one; there it is a diffusion.

    Args:
      observation_shape: of one observation; it is flattened.
      single: networks with the same hidden layers and activation.
      skills: K.
      rank: r; 8 published.
      scale: s, of the product of the two matrices; 16 / 8 published.
      hidden: widths of the layers, of the policy and of alpha.
      activation: "tanh", "relu" or "silu".

    Raises:
      ValueError: if there are no skills, or the rank is below 1.
    """
    if skills < 1 or rank < 1:
        raise ValueError(f"skills={skills} and rank={rank} must be at least 1")
    flat, act = math.prod(observation_shape), ACTIVATIONS[activation]
    sizes = (flat, *hidden, single.distribution.num_outputs)
    pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
    weight_sizes = (flat, *hidden, skills)

    def rows(x: chex.Array) -> chex.Array:
        return x.reshape(len(x), -1).astype(jnp.float32)

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        own_key, a_key, weights_key = jax.random.split(key, 3)
        params = single.init(own_key)
        bounds = jnp.concatenate([jnp.full((1, inputs * rank), inputs**-0.5) for inputs, _ in pairs], axis=1)
        a = bounds * jax.random.uniform(a_key, (skills, bounds.size), minval=-1.0, maxval=1.0)
        b = jnp.zeros((skills, rank * sum(outputs for _, outputs in pairs)))
        alpha = uniform_vector(weights_key, weight_sizes)
        return {**params, "policy": {"base": params["policy"], "skills": {"a": a, "b": b}, "weights": alpha}}

    def composed(policy: dict[str, Any], observations: chex.Array, coefs: chex.Array) -> chex.Array:
        x, layers, a_place, b_place = rows(observations), layers_of(policy["base"], sizes), 0, 0
        for i, (inputs, outputs) in enumerate(pairs):
            a = policy["skills"]["a"][:, a_place : a_place + inputs * rank].reshape(skills, inputs, rank)
            b = policy["skills"]["b"][:, b_place : b_place + rank * outputs].reshape(skills, rank, outputs)
            a_place, b_place = a_place + inputs * rank, b_place + rank * outputs
            x = composed_linear(x, layers[i], a, b, scale * coefs)
            x = act(x) if i < len(pairs) - 1 else x
        return x

    def weights(policy: dict[str, Any], observations: chex.Array) -> chex.Array:
        return mlp(policy["weights"], weight_sizes, activation, rows(observations))

    return SkillNetworks(single, init, composed, weights, skills)
