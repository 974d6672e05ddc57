"""A decision transformer with one more token for each step: the region of the action space that the action is in.

    z_t      the cell of a_t on a grid over [-1, 1]^A, `cells` of equal width for each dimension
    tokens   R_1 s_1 z_1 a_1 ... R_K s_K z_K a_K, each embedded, plus an embedding of its step's time
    heads    z_t from the token of s_t, a softmax for each dimension;   a_t from the token of z_t;
             s_{t+1} and R_{t+1} from the token of a_t, which sees z_t

A region is chosen before the action: among actions of several modes the policy takes one of them, not their mean.
Source: arXiv 2308.16379. That it adds regions of the action space to the trajectory is known from its abstract; how it
divides the space, and which token predicts which, could not be read and is chosen here.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.decision_transformer import (
    Sequence,
    block_shapes,
    blocks,
    flattened,
    interleaved,
    vector_of,
)
from rl_jax.models.agents.distributions import Distribution


class RegionTransformer(NamedTuple):
    """Pure functions of params {"sequence": a vector}.

    Attributes:
      init: (key) -> params.
      apply: (params, Sequence) -> (outputs, next observations, returns) as DecisionTransformer's, and logits of the
        regions float32 [B, K, A, cells]. Those of the outputs are given the region of the step's own action.
      act: (params, Sequence) -> outputs [B, distribution.num_outputs] of the newest step in its likeliest region; its
        action is not read.
      regions: encoded actions float32 [..., A] -> int32 [..., A], the cell in each dimension.
      distribution: of the actions.
      encode: actions -> float32 [..., A].
      size: A.
      context: K.
      sequence: makes a Sequence of its fields.
    """

    init: Callable
    apply: Callable
    act: Callable
    regions: Callable
    distribution: Distribution
    encode: Callable
    size: int
    context: int
    sequence: Callable = Sequence


def grid_cells(actions: chex.Array, cells: int) -> chex.Array:
    """floor((a + 1) / 2 cells), at most cells - 1 and at least 0.

    Args:
      actions: float [..., A], in [-1, 1]; those outside are in the outermost cells.
      cells: for each dimension.

    Returns:
      int32 [..., A].
    """
    chex.assert_type(actions, float)
    return jnp.clip(jnp.floor((actions + 1.0) * (0.5 * cells)), 0, cells - 1).astype(jnp.int32)


def make_region_transformer(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    encode: Callable,
    size: int,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    context: int = 10,
    cells: int = 3,
) -> RegionTransformer:
    """A RegionTransformer.

    Args:
      observation_shape: as for make_decision_transformer.
      distribution: of the actions, which are continuous.
      encode: actions -> float32 [..., size], in [-1, 1].
      size: A.
      width: as for make_decision_transformer.
      layers: as for make_decision_transformer.
      heads: as for make_decision_transformer.
      context: K.
      cells: of each dimension; 1 is a transformer with a token that says nothing.

    Raises:
      ValueError: if heads does not divide width, or cells is below 1.
    """
    if cells < 1:
        raise ValueError(f"sequence.cells={cells} must be 1 or more")
    flat = math.prod(observation_shape)
    shapes = {"to_go": (1, width), "observation": (flat, width), "region": (size * cells, width)}
    shapes |= {"action": (size, width), "kind": (4, width)} | block_shapes(width, layers, heads)
    shapes |= {"cells": (width, size * cells), "head": (width, distribution.num_outputs)}
    shapes |= {"next": (width, flat), "return": (width, 1)}
    init, parts_of = vector_of(shapes)

    def regions(actions: chex.Array) -> chex.Array:
        return grid_cells(actions, cells)

    def forward(params: dict[str, Any], steps: Sequence, chosen: chex.Array):
        own = parts_of(params["sequence"])
        tokens = [
            steps.to_go[:, :, None] @ own["to_go"],
            flattened(steps.observations) @ own["observation"],
            flattened(jax.nn.one_hot(chosen, cells)) @ own["region"],
            steps.actions @ own["action"],
        ]
        x = blocks(own, *interleaved(own, tokens, steps), layers=layers, heads=heads)
        logits = (x[:, :, 1] @ own["cells"]).reshape(*steps.mask.shape, size, cells)
        return x[:, :, 2] @ own["head"], x[:, :, 3] @ own["next"], (x[:, :, 3] @ own["return"])[:, :, 0], logits

    def apply(params: dict[str, Any], steps: Sequence):
        return forward(params, steps, regions(steps.actions))

    def act(params: dict[str, Any], steps: Sequence) -> chex.Array:
        logits = apply(params, steps)[3][:, -1]  # the newest step's region is not among what they read
        chosen = regions(steps.actions).at[:, -1].set(jnp.argmax(logits, axis=-1))
        return forward(params, steps, chosen)[0][:, -1]

    return RegionTransformer(init, apply, act, regions, distribution, encode, size, context)
