"""control/tree_search.py: in a model that is the world itself a search finds the best actions and their values."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import tabular, tree_search
from rl_jax.envs.worlds.tabular import gridworld

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAMMA = 0.9
TABLE = gridworld(size=3)
Q, V = (np.asarray(x) for x in tabular.solve(TABLE.rewards, TABLE.transition_probs, discount=GAMMA))


def known_model(value):
    """The grid as a model: its policy is uniform, its value a table [S + 1]; the last state is that after the end."""
    ends = 1.0 - TABLE.transition_probs.sum(axis=2)
    following = np.where(ends > 0.5, len(V), TABLE.transition_probs.argmax(axis=2))
    following = jnp.asarray(np.concatenate([following, np.full((1, 4), len(V))]))
    rewards = jnp.asarray(np.concatenate([TABLE.rewards, np.zeros((1, 4))]), jnp.float32)
    value = jnp.asarray(value, jnp.float32)
    return tree_search.Plannable(
        lambda states: (jnp.zeros((len(states), 4)), value[states]),
        lambda states, actions: (following[states, actions], rewards[states, actions]),
        GAMMA,
    )


@pytest.mark.slow
@pytest.mark.parametrize("search", tree_search.SEARCHES)
def test_a_search_in_the_true_model_finds_the_best_actions(search):
    """Up to three steps from the goal, with values that say nothing (0): only rewards in the tree can guide it."""
    states = jnp.asarray([s for s in range(len(V)) if V[s] >= GAMMA**2 - 1e-6])
    fn = functools.partial(tree_search.SEARCHES[search], known_model(np.zeros(len(V) + 1)), simulations=160)
    found = jax.jit(fn, compiler_options=QUICK)(states, jax.random.key(0))
    best = Q[states] > V[states][:, None] - 1e-6
    rows = np.arange(len(states))
    assert len(states) == 7 and best[rows, np.argmax(found.policies, axis=1)].all()
    assert (np.sum(found.policies * best, axis=1) > 0.5).all(), found.policies
    if search == "gumbel":  # the other one's actions are drawn from the visits
        assert best[rows, found.actions].all()
    np.testing.assert_allclose(jnp.sum(found.policies, axis=1), 1.0, rtol=1e-5)
    # Means over all that was tried: not above the best value, and far above that of the root's network.
    assert (found.values <= V[states] + 1e-5).all() and (found.values > 0.4 * V[states]).all(), found.values


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[muzero\]'"):
        tree_search.mctx_module()
