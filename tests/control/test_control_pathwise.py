"""control/pathwise.py: the gradient by finite differences, and a store that is run at the closed form's cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax import control, envs
from rl_jax.control import pathwise
from rl_jax.control.algorithm import Relabel
from rl_jax.core import trackers
from rl_jax.envs.worlds import probes
from rl_jax.envs.worlds.inventory import Store, base_stock_level, least_cost, poisson
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.rollout.envs.steps import collect, start

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
LEAD_TIME, PERIODS = 2, 24
STORE = Store(poisson(5.0), LEAD_TIME)
PLAIN = control.Algorithm(epochs=1, minibatches=1, entropy_coef=0.0)


def store_agent(num_envs, hidden=(16, 16), periods=PERIODS):
    env = envs.vectorize(probes.inventory(lead_time=LEAD_TIME, periods=periods), num_envs)
    space = env.action_space
    return env, make_agent(env.observation_space.shape, tanh_gaussian(space.low, space.high), hidden=hidden)


@pytest.mark.slow
def test_the_gradient_is_that_of_finite_differences():
    env, agent = store_agent(4, hidden=(5,), periods=6)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, float), agent.init(jax.random.key(0)))
        flat, unravel = ravel_pytree(params)

        def loss(flat):
            return pathwise.path_loss(agent, unravel(flat), env, jax.random.key(1), num_steps=6)[0].value()

        both = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)
        gradient = both(flat)[1]
        rng = np.random.default_rng(0)
        for _ in range(3):
            towards = rng.normal(size=len(flat))
            slope = (both(flat + 1e-6 * towards)[0] - both(flat - 1e-6 * towards)[0]) / 2e-6
            np.testing.assert_allclose(gradient @ towards, slope, rtol=1e-3)
        assert not np.any(ravel_pytree(unravel(gradient)["critic"])[0])


@functools.cache
def trained(updates=250, seeds=3):
    """What orders up to, and the mean cost a period, of each seed's policy on 512 new paths."""
    env, agent = store_agent(64)
    algorithm = PLAIN._replace(max_grad_norm=1.0)
    optimizer = optax.adam(optax.linear_schedule(1e-2, 1e-4, updates))
    init, update, policy_of = control.make_pathwise_update(agent, env, algorithm, optimizer, num_steps=PERIODS)
    judged, _ = store_agent(512)
    greedy = agent.distribution._replace(sample=lambda outputs, noise: agent.distribution.mode(outputs))

    def whole(key):
        state = jax.lax.scan(lambda state, _: update(state), init(key), None, updates)[0]
        worlds = start(judged, jax.random.key(10**6))
        _, rows, _ = collect(policy_of(state), greedy, judged, worlds, jax.random.key(7), num_steps=PERIODS)
        position = 5.0 * rows.observations.sum(-1) + agent.distribution.to_env(rows.actions)[..., 0]
        return position, -rows.rewards

    positions, costs = jax.jit(jax.vmap(whole), compiler_options=QUICK)(jax.random.split(jax.random.key(0), seeds))
    return np.asarray(positions), np.asarray(costs)


@pytest.mark.slow
def test_the_store_is_run_at_the_closed_forms_cost():
    """Within 1 %; a level that is one unit off costs 2 % more (test_inventory)."""
    positions, costs = trained()
    best = least_cost(STORE, PERIODS)
    assert (np.abs(costs.mean(axis=(1, 2)) / best - 1.0) < 0.01).all(), costs.mean(axis=(1, 2)) / best
    level = base_stock_level(STORE)
    # The last L orders arrive after the end.
    found = positions[:, :, 2 : PERIODS - LEAD_TIME]
    np.testing.assert_allclose(found.mean(axis=(1, 2)), level, atol=0.5)
    assert np.abs(found - level).mean() < 1.0


def test_refusals():
    env = envs.vectorize(probes.matching(), 2)
    agent = make_agent((1,), categorical(2), hidden=(4,))
    make = functools.partial(control.make_pathwise_update, optimizer=optax.adam(1e-3), num_steps=4)
    with pytest.raises(ValueError, match="actions are whole numbers"):
        make(agent, env, control.Algorithm())
    env, agent = store_agent(2)
    relabel = Relabel(tuple, lambda state, rows: (state, rows))
    for fields, said in (
        (dict(normalize_rewards=True), "know no normalize_rewards=True: set it to False"),
        (dict(entropy_coef=0.01), "know no entropy_coef=0.01: set it to 0.0"),
        (dict(entropy_coef=jnp.float32(0.0)), "know no entropy_coef=0.0: set it to 0.0"),  # swept
        (dict(kl_coef=0.1), "know no kl_coef=0.1"),
        (dict(kl_control=trackers.adaptive_kl(initial=1.0, target=0.01, horizon=1.0)), "know no kl_control: leave it"),
        (dict(auxiliary=lambda params, batch: (0.0, 1.0)), "know no auxiliary: leave it away"),
        (dict(relabel=relabel), "know no relabel: leave it away"),
    ):
        with pytest.raises(ValueError, match=said):
            make(agent, env, PLAIN._replace(**fields))
    with pytest.raises(ValueError, match="lives on the host"):
        make(agent, env._replace(pure=False), control.Algorithm())
