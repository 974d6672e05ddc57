"""rollout/envs/beam.py: a tree of three actions and three steps against lists, from one beam to all leaves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.protocol import Step
from rl_jax.rollout.envs.beam import beam_search

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
ACTIONS, STEPS, NODES = 3, 3, 40
LOGITS = np.random.default_rng(0).normal(0, 1.0, (NODES, ACTIONS)).astype(np.float32)
REWARDS = np.random.default_rng(1).normal(0, 1.0, NODES).astype(np.float32)


def child(node, action):
    return ACTIONS * node + action + 1


def step(key, node, action):
    node = child(node, action)
    no = jnp.bool_(False)
    return node, Step(node[None].astype(jnp.float32), jnp.asarray(REWARDS)[node], no, no)


TREE = SimpleNamespace(reset=lambda key: (jnp.int32(0), jnp.zeros(1)), step=step)


def policy(observations):
    return jnp.asarray(LOGITS)[observations[:, 0].astype(jnp.int32)]


def searched(width):
    """The best return of the kept, with lists."""
    log_probs = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    kept = [(0.0, 0, 0.0)]
    for _ in range(STEPS):
        grown = [
            (score + log_probs[node, a], child(node, a), total + REWARDS[child(node, a)])
            for score, node, total in kept
            for a in range(ACTIONS)
        ]
        kept = sorted(grown, reverse=True)[:width]
    return max(total for _, _, total in kept)


@pytest.mark.parametrize("width", [1, 2, 5, 27])
def test_the_kept_are_the_likeliest_beginnings(width):
    found = jax.jit(lambda key: beam_search(policy, TREE, key, width=width, num_steps=STEPS), compiler_options=QUICK)(
        jax.random.key(0)
    )
    np.testing.assert_allclose(found, searched(width), rtol=1e-5)
    assert len({searched(w) for w in (1, 2, 5, 27)}) > 2


def test_a_beam_of_none():
    with pytest.raises(ValueError, match="width=0 must be 1 or more"):
        beam_search(policy, TREE, jax.random.key(0), width=0, num_steps=1)
