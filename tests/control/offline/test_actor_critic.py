"""CQL's estimate of log-integral exp Q over the box of actions, against a critic whose integral is known."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control.offline.actor_critic import cql
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.recipe import Batch
from rl_jax.control.transitions import Transitions
from rl_jax.models.agents.offline_networks import bounded_normal

ROWS, DRAWN = 512, 20


def loss_and_slopes(size, std):
    """(q/gap, its slopes) of a flat critic. Its params: the value at clipped candidates, and that of all actions."""

    def q(params, observations, actions):
        at_edge = (jnp.abs(actions) == 1.0).any(-1) & (observations[:, 0] == 0.0)
        level = params["q"][1] + params["q"][0] * at_edge
        return jnp.stack([level, level])

    def policy(params, observations):
        spread = jnp.full((len(observations), size), jnp.log(std)) + params["policy"]
        return jnp.concatenate([jnp.zeros_like(spread), spread], axis=-1)

    nets = types.SimpleNamespace(
        num_actions=0, size=size, distribution=bounded_normal(-np.ones(size), np.ones(size)), policy=policy, q=q
    )
    flags, seen = jnp.zeros(ROWS, bool).at[-1].set(True), jnp.zeros((ROWS, 1))
    rows = Transitions(seen, jnp.zeros((ROWS, size)), jnp.zeros(ROWS), seen, flags, jnp.zeros(ROWS, bool))
    params = {"q": jnp.zeros(2), "policy": jnp.zeros(())}
    batch = Batch(make_data(rows, discount=0.9), {"q": params["q"]}, jax.random.key(0))
    recipe = cql(nets, num_actions=DRAWN, weight=1.0)

    def gap(params):
        total, count = recipe.loss(params, batch)[1]["q/gap"]
        return total / count

    return *jax.jit(jax.value_and_grad(gap))(params), jax.jit(jax.grad(lambda p: recipe.loss(p, batch)[0].total))(
        params
    )


@pytest.mark.parametrize("size", [1, 3])
def test_cqls_integral_of_a_flat_critic_is_the_boxes_volume(size):
    """Each critic's gap is log(3 M vol) on average; clipped draws count in M, but have no term and no push."""
    gap, slopes, of_loss = loss_and_slopes(size, std=1.0)
    np.testing.assert_allclose(gap / 2 - np.log(3 * DRAWN), size * np.log(2.0), atol=0.06)
    assert slopes["q"][0] == 0.0, "clipped candidates are pushed down"
    np.testing.assert_allclose(slopes["q"][1], 0.0, atol=1e-5)  # a level moves the data's Q as much
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(of_loss))


def test_a_policy_that_is_clipped_almost_always_leaves_the_uniform_candidates():
    gap, slopes, of_loss = loss_and_slopes(3, std=7.0)
    assert np.isfinite(gap) and slopes["q"][0] == 0.0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(of_loss))
