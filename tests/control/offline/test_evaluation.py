"""Off-policy evaluation: importance sampling against enumeration, fitted Q against the exact values of a chain."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control.offline import evaluation
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.recipe import make_fit
from rl_jax.control.transitions import Transitions
from rl_jax.models.agents.offline_networks import make_networks
from tests.control.offline.worlds import QUICK

PI = np.array([0.8, 0.2])  # of two actions, at both of two steps; mu is uniform


def every_episode():
    """All four episodes of two steps, equally likely under mu; r_t = a_t + 2 a_0 a_1 at the end."""
    actions = np.array(list(itertools.product(range(2), repeat=2)))
    rewards = actions.astype(np.float32).copy()
    rewards[:, 1] += 2.0 * actions[:, 0] * actions[:, 1]
    return jnp.asarray(np.log(PI[actions] / 0.5), jnp.float32), jnp.asarray(rewards), jnp.ones((4, 2), bool)


@pytest.mark.parametrize("per_decision", [True, False])
def test_importance_sampling_over_all_episodes_is_exact(per_decision):
    log_ratios, rewards, mask = every_episode()
    found = evaluation.importance_sampling(log_ratios, rewards, mask, discount=0.5, per_decision=per_decision)
    np.testing.assert_allclose(found, 0.2 + 0.5 * (0.2 + 2 * 0.04), rtol=1e-5)


def test_laws_of_importance_sampling():
    log_ratios, rewards, mask = every_episode()
    same = functools.partial(evaluation.importance_sampling, jnp.zeros((4, 2)), rewards, mask)
    for keywords in itertools.product([True, False], repeat=2):  # pi = mu: the mean return
        found = same(per_decision=keywords[0], weighted=keywords[1])
        np.testing.assert_allclose(found, rewards.sum(1).mean(), rtol=1e-6)
    weighted = functools.partial(evaluation.importance_sampling, log_ratios, mask=mask, weighted=True)
    np.testing.assert_allclose(weighted(rewards=rewards + 1.0) - weighted(rewards=rewards), 2.0, rtol=1e-5)
    longer = [jnp.concatenate([x, jnp.full((4, 1), 9.0)], axis=1) for x in (log_ratios, rewards)]
    padded = evaluation.importance_sampling(*longer, jnp.concatenate([mask, ~mask[:, :1]], axis=1))
    np.testing.assert_allclose(padded, evaluation.importance_sampling(log_ratios, rewards, mask), rtol=1e-6)
    np.testing.assert_allclose(evaluation.effective_sample_size(jnp.zeros(4)), 4.0, rtol=1e-6)
    np.testing.assert_allclose(evaluation.effective_sample_size(jnp.array([0.0, -50.0])), 1.0, rtol=1e-6)


@pytest.mark.slow
def test_fitted_q_of_a_chain():
    """Two states, then the end; action 1 pays 1. Q of pi is r + gamma E_pi, whatever policy the data are of."""
    states, actions = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    rows = Transitions(
        jnp.eye(3)[states], jnp.asarray(actions), jnp.asarray(actions, jnp.float32), jnp.eye(3)[states + 1],
        jnp.asarray(states == 1), jnp.asarray(states == 0),
    )  # fmt: skip
    nets = make_networks((3,), num_actions=2, hidden=(16,))

    def policy(observations):
        return jnp.broadcast_to(jnp.log(jnp.asarray(PI, jnp.float32)), (len(observations), 2))

    recipe = evaluation.fitted_q(nets, policy, discount=0.5)
    begin, fit = make_fit(recipe, 1e-2, batch_size=16)

    def run(key):
        state, _ = fit(begin(nets.init(key), key), make_data(rows, discount=0.5), 500)
        q = nets.q(state.params, rows.observations, nets.encode(rows.actions))
        return q, evaluation.policy_values(nets, state.params, policy, rows.observations)

    q, values = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    wanted = actions + np.where(states == 0, 0.5 * 0.2, 0.0)
    np.testing.assert_allclose(q, np.stack([wanted, wanted]), atol=0.05)
    np.testing.assert_allclose(values, np.where(states == 0, 0.3, 0.2), atol=0.05)
