"""control/replay_methods/mixed.py: the loss by a loop over agents; on QMIX's game of two steps QMIX finds 8, VDN 7."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.control import replay_methods as methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds.matrix_games import QMIX_TABLES
from rl_jax.losses import value_heads
from rl_jax.models.agents import mixers, value_networks

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
AGENTS, OWN, STATES, GAMMA = 2, 5, 3, 0.99


def seen(state):
    """Both agents' features with their one-hots, and the state: envs.agents.as_one of two_step."""
    return np.concatenate([np.eye(3)[state], np.eye(2)[0], np.eye(3)[state], np.eye(2)[1], np.eye(3)[state]])


@pytest.fixture(scope="module")
def batch():
    """Every state with every pair of actions."""
    rows = []
    for state, i, j in itertools.product(range(STATES), (0, 1), (0, 1)):
        after = 1 + i if state == 0 else state
        rows.append((seen(state), (i, j), 0.0 if state == 0 else QMIX_TABLES[state - 1][i][j], seen(after), state > 0))
    columns = [np.array(x) for x in zip(*rows, strict=True)]
    observations, rewards, following = (jnp.asarray(columns[i], jnp.float32) for i in (0, 2, 3))
    ended = jnp.asarray(columns[4])
    steps = Transitions(observations, jnp.asarray(columns[1], jnp.int32), rewards, following, ended, ~ended & False)
    return ReplayBatch(steps, jnp.where(ended, 0.0, GAMMA), jnp.ones(len(rows)), jnp.zeros((len(rows), 2), jnp.int32))


def made(name, double=True, head="scalar", **layers):
    critic = value_networks.make_action_values((OWN,), 2, 1, hidden=(16,), **layers)
    mixer = mixers.vdn(AGENTS, STATES) if name == "vdn" else mixers.qmix(AGENTS, STATES, width=8, hidden=8)
    head = value_heads.scalar(delta=np.inf) if head == "scalar" else value_heads.quantile(num_quantiles=4, kappa=1.0)
    parts = methods.ReplayParts(critic, None, head, mixer=mixer)
    return methods.value_decomposition(parts, agents=AGENTS, own=OWN, double=double), critic, mixer


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
def test_the_loss_is_that_of_a_loop(batch, double):
    method, critic, mixer = made("qmix", double)
    newest, slow = (method.init(jax.random.key(i))["critic"] for i in (0, 1))

    def of(params, observation):
        parts = [observation[None, a * OWN : (a + 1) * OWN] for a in range(AGENTS)]
        return np.stack([critic.apply(params["agents"], x)[0, 0, :, 0] for x in parts])

    expected = []
    rows = (*batch.steps[:4], batch.discounts)
    for o, u, r, after, d in zip(*(x[::3] for x in rows), strict=True):
        choosing = of(newest if double else slow, after)
        best = choosing.argmax(axis=1)
        target = mixer.apply(slow["mixer"], of(slow, after)[[0, 1], best][None], after[None, AGENTS * OWN :])[0]
        found = mixer.apply(newest["mixer"], of(newest, o)[[0, 1], np.asarray(u)][None], o[None, AGENTS * OWN :])[0]
        expected.append(0.5 * (found - r - d * target) ** 2)
    loss = method.critic_loss({"critic": newest}, {"critic": slow}, batch, jax.random.key(2))[0]
    np.testing.assert_allclose(loss[::3], expected, rtol=1e-4, atol=1e-5)
    total = jax.jit(lambda x, y: jnp.sum(method.critic_loss({"critic": x}, {"critic": y}, batch, None)[0]))
    of_newest, of_slow = jax.jit(jax.grad(total, argnums=(0, 1)), compiler_options=QUICK)(newest, slow)
    assert not any(np.any(x) for x in jax.tree.leaves(of_slow))  # nothing flows into the target
    against, along = (jax.tree.map(lambda x, g: x + s * g, newest, of_newest) for s in (-1e-3, 1e-3))  # noqa: B023
    assert total(against, slow) < jnp.sum(loss) < total(along, slow)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "best"), [("vdn", 7.0), ("qmix", 8.0)])
def test_the_two_step_game(batch, name, best):
    """The return of the greedy agents from 3 of 3 seeds, as in figure 3 of arXiv 1803.11485."""
    method = made(name)[0]
    optimizer = optax.adam(1e-2)

    def trained(key):
        params = method.init(key)

        def turn(carry, _):
            params, state, slow, count = carry
            slow = jax.tree.map(lambda old, new: jnp.where(count % 50 == 0, new, old), slow, params)
            slopes = jax.grad(lambda x: jnp.mean(method.critic_loss(x, slow, batch, key)[0]))(params)
            updates, state = optimizer.update(slopes, state)
            return (optax.apply_updates(params, updates), state, slow, count + 1), None

        carry, _ = jax.lax.scan(turn, (params, optimizer.init(params), params, 0), None, 800)
        rows = jnp.asarray(np.stack([seen(s) for s in range(STATES)]), jnp.float32)
        values = method.policy(carry[0], rows).reshape(STATES, AGENTS, 2)
        return jnp.argmax(values, axis=-1)

    compiled = jax.jit(jax.vmap(trained), compiler_options=QUICK)
    for actions in np.asarray(compiled(jax.random.split(jax.random.key(0), 3))):
        branch = actions[0, 0]
        assert QMIX_TABLES[branch][actions[1 + branch, 0]][actions[1 + branch, 1]] == best


def test_a_mixture_needs_one_number_per_agent():
    for fields in (dict(head="quantile"), dict(members=2)):
        with pytest.raises(ValueError, match="mixes one number per agent"):
            made("vdn", **fields)
