"""Heads that are trained beside a model: added on the mesh, and saved apart from the params that any program loads."""

from collections.abc import Callable
from typing import Any

import jax

from experiments.parts import run
from experiments.parts.setup import Setup
from rl_jax.core.types import Params
from rl_jax.models.heads import HEADS, without_head
from rl_jax.training import sharding
from rl_jax.training.step import TrainState


def add_head(setup: Setup, add: Callable[[Params], Params], params: Params) -> Params:
    """`add(params)`, which have a new head, on the mesh. The buffers of `params` are donated."""
    shardings = sharding.tree_shardings(jax.eval_shape(add, params), setup.mesh)
    return jax.jit(add, out_shardings=shardings, donate_argnums=0)(params)


def head_of(params: Params) -> Params:
    """The head among the params, {} if there is none."""
    return {name: group for name, group in params.items() if name in HEADS}


def checkpoint_items(state: TrainState) -> dict[str, Any]:
    """What is saved: the model's own params as an item that any program can load, the head (if any), and the rest."""
    own = state._replace(params=without_head(state.params))
    return run.checkpoint_items(own, head=head_of(state.params) or None)


def state_of(items: dict[str, Any]) -> TrainState:
    """The TrainState from the items of checkpoint_items."""
    state = run.state_of(items)
    return state._replace(params={**state.params, **items.get("head", {})})
