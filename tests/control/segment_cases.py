"""Segments for the tests of what learns from them: ragged ones, their sums in torch, and all walks of a finite MDP."""

import itertools

import jax.numpy as jnp
import numpy as np
import torch

from rl_jax.core.types import PreferenceBatch


def pairs_of(rows=5, length=6, seed=0):
    """(float32 [n, 2, K] with nan behind the mask, a PreferenceBatch of ragged segments)."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, size=(rows, 2, 1))
    x = np.where(mask, rng.normal(size=mask.shape), np.nan).astype(np.float32)
    present, places = jnp.ones((rows, 2), bool), jnp.broadcast_to(jnp.array([1.0, 0.0]), (rows, 2))
    return x, PreferenceBatch((), jnp.asarray(mask), present, places)


def torch_sums(x, batch, discount):
    """(a leaf that requires gradients, its sums [n, 2])."""
    leaf = torch.tensor(np.nan_to_num(x), dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(np.asarray(batch.completion_mask)) * discount ** torch.arange(x.shape[2])
    return leaf, (leaf * weights).sum(-1)


def all_segments(states, actions, length, following):
    """Every walk of a deterministic MDP: (states, actions), int [N, K] each."""
    walks = []
    for first, chosen in itertools.product(range(states), itertools.product(range(actions), repeat=length)):
        at = [first]
        for action in chosen[:-1]:
            at.append(int(following[at[-1], action]))
        walks.append((at, chosen))
    return tuple(np.array(x) for x in zip(*walks, strict=True))
