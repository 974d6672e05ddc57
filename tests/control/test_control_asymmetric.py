"""The asymmetric actor-critic: what only the critic sees moves no action, and takes the noise out of the advantages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import environments as configs
from experiments.parts import control_runs, control_setup
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


@pytest.mark.slow
def test_the_actor_reads_its_features_and_the_critic_all():
    agent = make_agent((5,), categorical(3), hidden=(8,), actor_features=2)
    params = agent.init(jax.random.key(0))
    observations = jax.random.normal(jax.random.key(1), (6, 5))
    slope = jax.grad(lambda x: jnp.sum(agent.policy(params, x)[:, 0]))(observations)
    assert (slope[:, 2:] == 0.0).all() and (slope[:, :2] != 0.0).any()
    assert (jax.grad(lambda x: jnp.sum(agent.value(params, x)))(observations) != 0.0).all()
    assert [params[name]["layer_0"]["kernel"].shape for name in ("actor", "critic")] == [(2, 8), (5, 8)]
    alone = make_agent((2,), categorical(3), hidden=(8,))
    expected = alone.policy(params, observations[:, :2])
    np.testing.assert_array_equal(agent.policy(params, observations), expected)


@pytest.mark.parametrize(("shape", "features"), [((3,), 4), ((3,), -1), ((6, 6, 2), 1)])
def test_features_that_are_not_there(shape, features):
    with pytest.raises(ValueError, match=f"{features} features of observations of shape"):
        make_agent(shape, categorical(2), actor_features=features)


def trained(seeds=8, **env):
    """(probability of the right actions, explained variance of the last update) of each seed."""
    config = configs.get_config("privileged")
    updates = 40
    config.num_seeds, config.train.total_steps = seeds, updates * 128
    config.sample.update(num_envs=8, num_steps=16)
    config.network.hidden = (16,)
    config.eval.num_episodes = 0
    config.env.update(env)
    keys, _ = control_setup.runs_of(config)
    init, advance, params = control_runs.make_run(config)
    agent = control_setup.make_network(config, control_setup.load_env(config, 1), 1)

    def whole(key):
        state, metrics = jax.lax.scan(lambda state, _: advance(state, {}, 1), init(key, {}), None, updates)
        outputs = agent.policy(params(state), jnp.asarray([[-1.0, 0.0], [1.0, 0.0]]))
        return jnp.mean(jnp.diagonal(jax.nn.softmax(outputs))), metrics["value/explained_variance"][-1]

    return map(np.asarray, jax.jit(jax.vmap(whole), compiler_options=QUICK)(keys))


@pytest.mark.slow
def test_a_critic_that_sees_the_noise_learns_more():
    """The same budget, nets and seeds; only the critic's second feature differs, and the policy sees it in neither."""
    seeing, explained = trained(shown=True)
    blind, unexplained = trained(shown=False)
    assert (explained > 0.95).all() and (unexplained < 0.3).all(), (explained, unexplained)
    assert (seeing > 0.95).all() and (blind > 0.95).sum() <= 4, (seeing, blind)
    assert seeing.mean() > blind.mean() + 0.1
