"""A transformer over the cities that are left, which chooses one of them: their order and their number do not matter.

    tokens   here, each city that is left, the destination; their places W x, plus an embedding of which of the three
    block    x <- x + a_1 attention(x),   x <- x + a_2 MLP(x),   a_1 = a_2 = 0 at the start (ReZero)
    logit    of each city from its own token

Source: arXiv 2301.03313 (BQ-NCO), naver/bq-nco. There is no positional encoding and no normalisation. Departs: places
are relative to here, products in the attention are divided by the root of their size, and no layer has a bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.decision_transformer import attend, uniform_matrices

ABSENT = -1e9  # the logit of a row without a city


class SetPolicy(NamedTuple):
    """Pure functions of params {"policy": ...}.

    Attributes:
      init: (key) -> params.
      policy: (params, observations float32 [B, 3 n - 1]) -> logits [B, n - 1], for any n of 2 or more.
    """

    init: Callable
    policy: Callable


def make_set_policy(*, width: int = 64, layers: int = 3, heads: int = 4) -> SetPolicy:
    """A SetPolicy of the observations of envs.worlds.salesman: the destination, then (dx, dy, 1) of each city left.

    Args:
      width: of the residual stream; the MLPs are 4 times as wide. 192 published, with MLPs of 512.
      layers: number of blocks; 9 published.
      heads: of the attention; 12 published.

    Raises:
      ValueError: if heads does not divide width.
    """
    if width % heads:
        raise ValueError(f"sequence.width={width} does not divide into sequence.heads={heads}")
    shapes = {"place": (2, width), "kind": (3, width), "head": (width, 1)}
    shapes |= {"qkv": (layers, width, 3 * width), "out": (layers, width, width)}
    shapes |= {"up": (layers, width, 4 * width), "down": (layers, 4 * width, width)}

    def init(key: chex.PRNGKey) -> Params:
        return {"policy": uniform_matrices(key, shapes) | {"share": jnp.zeros((layers, 2))}}

    def policy(params: Params, observations: chex.Array) -> chex.Array:
        chex.assert_rank(observations, 2)
        own, rows = params["policy"], observations[:, 2:].reshape(len(observations), -1, 3)
        left, destination = rows[:, :, 2] > 0.5, observations[:, None, :2]
        kinds = [own["kind"][i][None, None, :] for i in range(3)]
        here = jnp.broadcast_to(kinds[0], (len(observations), 1, width))
        x = jnp.concatenate([here, rows[:, :, :2] @ own["place"] + kinds[1], destination @ own["place"] + kinds[2]], 1)
        seen = jnp.pad(left, ((0, 0), (1, 1)), constant_values=True)
        visible = jnp.broadcast_to(seen[:, None, :], (*seen.shape, seen.shape[1]))
        for i in range(layers):
            x = x + own["share"][i, 0] * (attend(x @ own["qkv"][i], visible, heads) @ own["out"][i])
            x = x + own["share"][i, 1] * (jax.nn.relu(x @ own["up"][i]) @ own["down"][i])
        return jnp.where(left, (x[:, 1:-1] @ own["head"])[:, :, 0], ABSENT)

    return SetPolicy(init, policy)
