"""control/tabular.py: exact solutions of small MDPs against all policies, and what regret is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import segments, tabular
from tests.control.segment_cases import all_segments


def random_mdp(states=4, actions=3, seed=0):
    """(rewards [S, A], transition_probs [S, A, S]); a tenth of the probability ends the episode."""
    rng = np.random.default_rng(seed)
    probs = 0.9 * rng.dirichlet(0.5 * np.ones(states), size=(states, actions))
    return rng.normal(size=(states, actions)).astype(np.float32), probs.astype(np.float32)


def test_solve_finds_the_best_of_all_policies():
    rewards, probs = random_mdp(3, 2)
    best = np.full(3, -np.inf)
    for choice in itertools.product(range(2), repeat=3):
        taken = np.arange(3), np.array(choice)
        best = np.maximum(best, np.linalg.solve(np.eye(3) - 0.9 * probs[taken], rewards[taken]))
    q, v = tabular.solve(jnp.asarray(rewards), jnp.asarray(probs), discount=0.9, iterations=100)
    np.testing.assert_allclose(v, best, rtol=1e-5)
    np.testing.assert_allclose(q, rewards + 0.9 * probs @ best, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_soft_solution_is_a_policy_and_its_gradient_is_right():
    rewards, probs = (jnp.asarray(x) for x in random_mdp())
    options = dict(discount=0.9, temperature=0.5, iterations=150)
    advantages = tabular.advantages(rewards, probs, **options)
    np.testing.assert_allclose(jnp.sum(jnp.exp(advantages / 0.5), axis=1), 1.0, rtol=1e-5)
    _, v = tabular.solve(rewards, probs, **options)
    np.testing.assert_allclose(advantages + v[:, None] @ jnp.ones((1, 3)), rewards + 0.9 * probs @ v, atol=1e-5)
    slope = jax.grad(lambda r: tabular.solve(r, probs, **options)[1][0])(rewards)
    step = jnp.zeros_like(rewards).at[2, 1].set(1e-2)
    up, down = (tabular.solve(rewards + sign * step, probs, **options)[1][0] for sign in (1, -1))
    np.testing.assert_allclose(slope[2, 1], (up - down) / 2e-2, rtol=2e-2, atol=1e-3)


def test_regret_is_the_partial_return_but_for_the_ends():
    """Deterministic: sum_t gamma^t A_t = sum_t gamma^t r_t + gamma^K V(s_K) - V(s_0) (2206.02231, regret_d)."""
    rng = np.random.default_rng(0)
    following = rng.integers(0, 4, size=(4, 3))
    rewards = rng.normal(size=(4, 3)).astype(np.float32)
    probs = jnp.asarray(np.eye(4, dtype=np.float32)[following])
    advantages = tabular.advantages(jnp.asarray(rewards), probs, discount=0.9, iterations=200)
    _, v = tabular.solve(jnp.asarray(rewards), probs, discount=0.9, iterations=200)
    at, chosen = all_segments(4, 3, 3, following)
    mask = jnp.ones(at.shape, bool)
    returns = segments.segment_sums(jnp.asarray(rewards[at, chosen]), mask, discount=0.9)
    minus_regrets = segments.segment_sums(advantages[at, chosen], mask, discount=0.9)
    ends = np.asarray(v)[following[at[:, -1], chosen[:, -1]]]
    np.testing.assert_allclose(minus_regrets, returns + 0.9**3 * ends - np.asarray(v)[at[:, 0]], atol=1e-5)
    assert (np.asarray(minus_regrets) < 1e-5).all()


def test_the_policy_of_a_table_is_read_off_what_is_seen():
    rewards, probs = random_mdp()
    q, _ = tabular.solve(jnp.asarray(rewards), jnp.asarray(probs), discount=0.9, iterations=50)
    seen = np.array([2, 0, 3, 3])
    observations = jax.nn.one_hot(seen, 4)
    np.testing.assert_array_equal(tabular.states(observations.reshape(2, 2, 4)), seen.reshape(2, 2))
    policy = tabular.q_policy(jnp.asarray(rewards), jnp.asarray(probs), discount=0.9, iterations=50)
    np.testing.assert_array_equal(policy(observations), q[seen])
