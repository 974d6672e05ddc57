"""control.py: every method solves a probe, critics find the right values, and the parts against plain numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control import environments as configs
from experiments.parts import control_runs, control_setup
from rl_jax import control, envs, ppo
from rl_jax.advantages import steps as step_advantages
from rl_jax.envs.worlds import probes
from rl_jax.losses import value
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs.steps import Transitions

# What takes time in tests this small is LLVM; the threads could wait for each other.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
# PPO is below; trpo learns in test_control_trust_region.py, hl_gauss in test_control_levels.py and in
# test_a_categorical_critic_finds_the_value.
METHODS = ["vtrace", "mdpo", "a2c", "reinforce", "ppo_kl", "two_hot"]


def train(config, updates):
    """(state with runs first, metrics) of a config's runs, side by side, of a probe's size."""
    config.network.hidden, config.sample.num_steps = (16,), 32
    config.train.total_steps = updates * config.sample.num_envs * config.sample.num_steps
    config.log_every = config.checkpoint.every = updates
    keys, values = control_setup.runs_of(config)
    init, advance, _ = control_runs.make_run(config)

    def whole(keys, values):
        # The start has the axis of the runs already: from one without it, a scan is traced once more for each level.
        return jax.vmap(lambda state, values: advance(state, values, updates))(jax.vmap(init)(keys, values), values)

    return jax.jit(whole, compiler_options=QUICK)(keys, values)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_solves_the_matching_probe(method):
    config = configs.get_config(f"matching,{method}")
    updates = 60 if config.train.epochs == 4 else 400
    config.num_seeds = 3
    config.eval.num_episodes = 64
    _, metrics = train(config, updates)
    assert (np.asarray(metrics["eval/return"]) > 0.9).all(), metrics["eval/return"]
    assert not np.asarray(metrics["nonfinite/skipped"]).any()


@functools.cache
def runs_of_both_signs():
    """(state, metrics) of three seeds of PPO [3, 2, 2]: advantages as they are or turned round, finite steps or not."""
    config = configs.get_config("matching")

    def signed(*arrays, discount, sign):
        advantages, returns = step_advantages.gae(*arrays, discount=discount)
        return sign * advantages, returns

    config.algorithm.advantage = dict(fn=signed, discount=0.99, sign=1.0)
    rates = (config.train.optimizer.learning_rate, float("inf"))
    sweep = (("algorithm.advantage.sign", (1.0, -1.0)), ("train.optimizer.learning_rate", rates))
    config.update(num_seeds=3, sweep=sweep)
    config.eval.num_episodes = 64
    return jax.tree.map(lambda x: x.reshape(3, 2, 2, *x.shape[1:]), train(config, 60))


def returns_of_both_signs():
    """The evaluated returns of those with finite steps, [2, 3]."""
    metrics = runs_of_both_signs()[1]
    assert not np.asarray(metrics["nonfinite/skipped"])[..., 0].any()
    return np.asarray(metrics["eval/return"])[..., 0].T


@pytest.mark.slow
def test_steps_that_would_poison_the_params_are_undone_and_counted():
    state, metrics = runs_of_both_signs()
    steps = 60 * 4 * 4  # updates, epochs, minibatches
    assert (np.asarray(metrics["nonfinite/skipped"])[..., 1] == steps).all()
    assert (np.asarray(state.train.skipped_in_a_row) == [0, steps]).all()
    assert (np.asarray(state.train.step) == steps).all()
    params = np.asarray(state.train.params)
    assert np.isfinite(params).all()
    np.testing.assert_array_equal(params[:, 0, 1], params[:, 1, 1])  # where they began: the sign made no difference


@pytest.mark.slow
def test_ppo_solves_the_matching_probe():
    assert (returns_of_both_signs()[0] > 0.9).all(), returns_of_both_signs()


@pytest.mark.slow
def test_the_wrong_sign_does_not_solve_it():
    """The same probe and budget with the advantages turned round: the policy learns to be wrong."""
    assert (returns_of_both_signs()[1] < -0.5).all(), returns_of_both_signs()


def learned_values(env, observations, **choices):
    """A critic's values of some observations [N, 1] after a short training."""
    objective = choices.pop("objective", control.Algorithm().objective._replace(value_loss=value.mse))
    agent = make_agent((1,), categorical(env.action_space.n), hidden=(16,), num_values=objective.num_outputs())
    algorithm = control.Algorithm(objective=objective, minibatches=2, **choices)
    updates = 150
    rate = optax.linear_schedule(1e-2, 1e-4, updates * 8)
    init, update, _ = control.make_update(agent, envs.vectorize(env, 8), algorithm, optax.adam(rate), num_steps=16)

    def whole(key):
        state = jax.lax.scan(lambda state, _: update(state), init(key), None, updates)[0]
        outputs = agent.value(control.unraveler(agent)(state.train.params), jnp.asarray(observations))
        return objective.values(outputs)

    return np.asarray(jax.jit(whole, compiler_options=QUICK)(jax.random.key(0)))


@pytest.mark.slow
def test_value_probes():
    np.testing.assert_allclose(learned_values(probes.observation(), [[-1.0], [1.0]]), [-1.0, 1.0], atol=0.05)
    discounted = functools.partial(step_advantages.gae, discount=0.5, lam=0.8)
    found = learned_values(probes.discount(), [[0.0], [1.0]], advantage=discounted)
    np.testing.assert_allclose(found, [0.5, 1.0], atol=0.05)


@pytest.mark.slow
def test_truncation_is_not_the_end():
    """Reward 1 for ever, cut off every 5 steps: V = 1 / (1 - gamma) = 5, and 3.36 where being cut off is an end."""
    advantage = functools.partial(step_advantages.gae, discount=0.8, lam=0.9)
    found = learned_values(probes.endless(limit=5), [[0.0]], advantage=advantage)
    np.testing.assert_allclose(found, [5.0], atol=0.25)


@pytest.mark.slow
def test_a_categorical_critic_finds_the_value():
    support = value.Support(-2.0, 2.0, num_bins=31)
    objective = ppo.Objective(
        policy=control.Algorithm().objective.policy, value_loss=value.hl_gauss, support=support, value_coef=0.5
    )
    found = learned_values(probes.observation(), [[-1.0], [1.0]], objective=objective)
    np.testing.assert_allclose(found, [-1.0, 1.0], atol=0.1)


# --- The parts -------------------------------------------------------------------------------------------------------


def transitions(rows=3, length=8, seed=0):
    rng = np.random.default_rng(seed)
    observations, following = rng.normal(size=(2, rows, length, 1)).astype(np.float32)
    outputs = rng.normal(size=(rows, length, 2)).astype(np.float32)
    actions = rng.integers(0, 2, size=(rows, length)).astype(np.int32)
    rewards = rng.normal(size=(rows, length)).astype(np.float32)
    ended, cut = rng.random((2, rows, length)) < 0.2
    return Transitions(*map(jnp.asarray, (observations, following, outputs, actions, rewards, ended, cut & ~ended)))


def small_agent():
    agent = make_agent((1,), categorical(2), hidden=(8,))
    return agent, agent.init(jax.random.key(0))


@pytest.mark.slow
def test_assign_bootstraps_from_where_the_step_led_to():
    agent, params = small_agent()
    rows = transitions()
    batch, _ = control.assign(agent, params, rows, lambda x: x, control.Algorithm(whiten=False))
    values = agent.value(params, rows.observations.reshape(-1, 1)).reshape(3, 8)
    following = agent.value(params, rows.next_observations.reshape(-1, 1)).reshape(3, 8)
    expected = step_advantages.gae(rows.rewards, values, following, rows.terminated, rows.truncated)
    np.testing.assert_allclose(batch.policy.advantages[:, 0], expected[0].reshape(-1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch.returns[:, 0], expected[1].reshape(-1), rtol=1e-5, atol=1e-6)
    log_probs = np.asarray(jax.nn.log_softmax(rows.outputs)).reshape(-1, 2)
    expected = log_probs[np.arange(24), np.asarray(rows.actions).reshape(-1)]
    np.testing.assert_allclose(batch.policy.old_log_probs[:, 0], expected, rtol=1e-5)
    assert batch.policy.ref_log_probs is None and batch.completion_mask.all()


def test_a_lagging_actors_log_probs_are_its_own():
    agent, params = small_agent()
    rows = transitions()
    batch, _ = control.assign(agent, params, rows, lambda x: x, control.Algorithm(actor_lag=4))
    newest = jax.nn.log_softmax(agent.policy(params, rows.observations.reshape(-1, 1)))
    expected = np.asarray(newest)[np.arange(24), np.asarray(rows.actions).reshape(-1)]
    np.testing.assert_allclose(batch.policy.old_log_probs[:, 0], expected, rtol=1e-5)
    assert np.abs(batch.policy.behavior_log_probs - batch.policy.old_log_probs).max() > 0.1


@pytest.mark.slow
def test_the_loss_is_the_sum_that_ppo_writes():
    agent, params = small_agent()
    algorithm = control.Algorithm(entropy_coef=0.1)
    batch, _ = control.assign(agent, params, transitions(), lambda x: x, algorithm)
    moved = jax.tree.map(lambda x: x * 1.3 + 0.01, params)
    loss, metrics = control.loss(*agent.predict(moved, batch.policy.batch), batch, algorithm)
    log_probs = np.asarray(jax.nn.log_softmax(agent.policy(moved, batch.policy.batch.observations)))
    chosen = log_probs[np.arange(24), np.asarray(batch.policy.batch.actions)]
    ratio = np.exp(chosen - batch.policy.old_log_probs[:, 0])
    advantages, returns, before = (np.asarray(x)[:, 0] for x in (batch.policy.advantages, batch.returns, batch.values))
    clip = np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 0.8, 1.2))
    values = np.asarray(agent.value(moved, batch.policy.batch.observations))[:, 0]
    bounded = before + np.clip(values - before, -0.2, 0.2)
    critic = 0.5 * np.maximum((values - returns) ** 2, (bounded - returns) ** 2)
    entropy = -(np.exp(log_probs) * log_probs).sum(1)
    np.testing.assert_allclose(loss.value(), (clip + 0.5 * critic - 0.1 * entropy).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"].value(), entropy.mean(), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 96, 4096, 4100])
def test_shuffled_is_a_permutation_an_epoch(size):
    order = np.asarray(control.shuffled(jax.random.key(size), 3, size))
    np.testing.assert_array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(size), (3, size)))
    if size > 5:
        assert (order[0] != order[1]).any() and (order[0] != np.arange(size)).any()


def test_shuffled_puts_each_index_everywhere():
    order = np.asarray(jax.vmap(lambda key: control.shuffled(key, 1, 6)[0])(jax.random.split(jax.random.key(0), 6000)))
    counts = np.stack([np.bincount(order[:, place], minlength=6) for place in range(6)])
    np.testing.assert_allclose(counts / 6000, 1 / 6, atol=0.025)


def test_whitened():
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 5)).astype(np.float32)
    np.testing.assert_allclose(control.whitened(jnp.asarray(x)), (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    parts = jax.vmap(lambda x: control.whitened(x, "parts"), axis_name="parts")(jnp.asarray(x)[:, None])
    np.testing.assert_allclose(parts[:, 0], control.whitened(jnp.asarray(x)), rtol=1e-4, atol=1e-5)


def test_minibatches_have_to_divide_the_batch():
    agent, _ = small_agent()
    env = envs.vectorize(probes.matching(), 3)
    with pytest.raises(ValueError, match="3 environments x 5 steps do not divide into 4"):
        control.make_update(agent, env, control.Algorithm(), optax.adam(1e-3), num_steps=5)


@pytest.mark.slow
def test_normalised_observations_are_those_of_the_past():
    """The policy acts with the statistics of before the rollout, and the learner sees the same numbers."""
    agent, _ = small_agent()
    env = envs.vectorize(probes.matching(), 4)
    algorithm = control.Algorithm(normalize_observations=True, normalize_rewards=True)
    init, update, _ = control.make_update(agent, env, algorithm, optax.adam(1e-3), num_steps=8)
    state = init(jax.random.key(0))
    after, metrics = jax.jit(update, compiler_options=QUICK)(state)
    moments = after.train.trackers["observations"]
    assert moments.count == 32 and np.abs(moments.mean) < 1 and 0.5 < moments.std()[0] < 1.1
    assert after.train.trackers["rewards"].moments.count == 32
    assert metrics["ratio/max_dev"].value() < 0.5  # of the update's last turns; a mismatch would start with a jump
