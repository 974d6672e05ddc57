"""control/sequences.py: what has to be remembered is learned with a memory and not without, in each algorithm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control import environments as configs
from experiments.parts import control_runs, control_setup
from rl_jax import control, envs
from rl_jax.advantages.steps import gae
from rl_jax.control.sequences import assign_rows
from rl_jax.core.trackers import adaptive_kl
from rl_jax.envs.worlds import probes
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.models.agents.memory import MemoryAgent, make_gru_agent, make_transformer_agent
from rl_jax.models.agents.scoring import predict_rows
from rl_jax.rollout.envs.steps import collect, evaluate, memoryless, start

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
NETWORKS = {
    "gru": functools.partial(make_gru_agent, hidden=(8,), width=8),
    "transformer": functools.partial(make_transformer_agent, hidden=(8,), width=8, context=5, heads=2),
}


def trained(words, **fields):
    """Metrics [3 runs] of a config's last 20 updates of 40; an episode of 4 steps often lies across two rows of 10."""
    config = configs.get_config(words)
    config.num_seeds, config.sample.num_steps, config.train.total_steps = 3, 10, 40 * 16 * 10
    config.network.update(hidden=(16,), width=8, heads=2, context=5)
    config.eval.num_episodes = 64
    with config.unlocked():
        config.update_from_flattened_dict(fields)
    config.log_every = config.checkpoint.every = 20
    keys, values = control_setup.runs_of(config)
    init, advance, _ = control_runs.make_run(config)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def whole(keys, values):
        def call(state, _):
            return jax.vmap(lambda state, values: advance(state, values, 20))(state, values)

        return jax.lax.scan(call, jax.vmap(init)(keys, values), None, 2)[1]

    return jax.tree.map(lambda x: np.asarray(x)[-1], whole(keys, values))


@pytest.mark.parametrize("method", sorted(set(configs.METHODS) - {"trpo"}))
def test_every_method_takes_rows(method):
    """The shapes of its update, of steps that are numbers and of such that are choices."""
    config = configs.get_config(f"{'aim' if method in ('mdpo', 'vtrace') else 'recall'},gru,{method}")
    config.sample.update(num_steps=4, num_envs=4)
    env = control_setup.load_env(config, 4)
    algorithm = control_setup.make_algorithm(control_setup.settings_of(config))
    agent = control_setup.make_network(config, env, algorithm.objective.num_outputs())
    init, update, _ = control.make_update(
        agent, env, algorithm, optax.sgd(0.1), num_steps=4, learner=control.by_rows
    )
    state = jax.eval_shape(init, jax.random.key(0))
    after, _ = jax.eval_shape(update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_what_has_no_use_for_a_memory_says_so():
    with pytest.raises(ValueError, match="trpo takes single steps, gru needs whole rows"):
        configs.get_config("recall,gru,trpo")
    config = configs.get_config("recall,stacked")
    with pytest.raises(ValueError, match="actor_features counts from the oldest frame"):
        config.network.actor_features = 1
        control_runs.make_run(config)
    config.network.actor_features = 0
    with pytest.raises(ValueError, match="network.kind='lstm' is none of mlp, denoiser, windows, gru, transformer"):
        config.network.kind = "lstm"
        control_runs.make_run(config)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "transformer", "stacked"])
def test_a_cue_is_remembered(memory):
    """In evaluations, and in the rollouts, whose rows are begun in the middle of an episode."""
    metrics = trained(f"recall,{memory}")
    assert (metrics["eval/return"] > 0.9).all(), metrics["eval/return"]
    assert (metrics["episode/return"] > 0.8).all(), metrics["episode/return"]
    assert not metrics["nonfinite/skipped"].any()


@pytest.mark.slow
def test_without_memory_it_is_not():
    assert np.abs(trained("recall")["eval/return"]).max() < 0.4


# --- The parts -------------------------------------------------------------------------------------------------------

@functools.cache
def collected(kind):
    """(agent, params off their start, the worlds in the middle of things, 12 steps of 4 of them from there on)."""
    env = envs.vectorize(probes.corridor(length=2), 4)
    agent = NETWORKS[kind](env.observation_space.shape, categorical(2))
    rng, shapes = np.random.default_rng(3), jax.eval_shape(agent.init, jax.random.key(0))
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(scale=0.5, size=s.shape), jnp.float32), shapes)

    def policy(worlds):
        first = worlds.episode_length == 0
        outputs, _, memory = agent.step(params, worlds.observation, worlds.memory, first)
        return 0.1 * outputs, memory  # almost at random: some episodes end, some are cut off

    @functools.partial(jax.jit, compiler_options=QUICK)
    def whole(key):
        first, second = jax.random.split(key)
        worlds = start(env, key, agent.initial_state(4))
        began, _, _ = collect(policy, agent.distribution, env, worlds, first, num_steps=5)
        return began, collect(policy, agent.distribution, env, began, second, num_steps=12)[1]

    began, rows = whole(jax.random.key(0))
    assert rows.terminated.any() and rows.truncated.any() and (began.episode_length > 0).any()
    return agent, params, began, rows._replace(outputs=10.0 * rows.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_credit_is_that_of_a_loop_over_steps(kind):
    """V and V' one by one: V' by a memory that has seen the episode up to it, also where the episode was cut off."""
    agent, params, began, rows = collected(kind)
    algorithm = control.Algorithm(whiten=False, kl_coef=0.1)

    def step(carry, now):
        memory, first = carry
        observation, following, done = now
        _, value, memory = agent.step(params, observation, memory, first)
        ahead = agent.step(params, following, memory, jnp.zeros(4, bool))[1]
        return (memory, done), (value[:, 0], ahead[:, 0])

    def whole(began, rows):
        done = rows.terminated | rows.truncated
        columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (rows.observations, rows.next_observations, done))
        _, (values, ahead) = jax.lax.scan(step, (began.memory, began.episode_length == 0), columns)
        expected = gae(rows.rewards, values.T, ahead.T, rows.terminated, rows.truncated)
        batch, _ = assign_rows(agent, params, rows, lambda x: x, algorithm, began=began)
        emptied = began._replace(memory=agent.initial_state(4))
        other, _ = assign_rows(agent, params, rows, lambda x: x, algorithm, began=emptied)
        losses = [control.loss(*agent.predict(params, b.policy.batch), b, algorithm) for b in (batch, other)]
        deviations = [metrics["ratio/max_dev"].value() for _, metrics in losses]
        return values.T, expected, batch, deviations

    values, expected, batch, deviations = jax.jit(whole, compiler_options=QUICK)(began, rows)
    np.testing.assert_allclose(batch.values, values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.policy.advantages, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.returns, expected[1], rtol=1e-4, atol=1e-4)
    # The learner starts where the actor was: the ratio is 1 then, and not where another memory was at the row's start.
    assert deviations[0] < 1e-4 and deviations[1] > 0.01


def test_a_lagging_actors_log_probs_are_its_own():
    agent, params, began, rows = collected("gru")
    moved = jax.tree.map(lambda x: 1.2 * x, params)

    def whole(began, rows):
        algorithm = control.Algorithm(actor_lag=4)
        batch, _ = assign_rows(agent, moved, rows, lambda x: x, algorithm, began=began)
        outputs, _ = agent.unroll(moved, rows.observations, began.memory, batch.policy.batch.first)
        log_prob = agent.distribution.log_prob
        return batch.policy, log_prob(outputs, rows.actions), log_prob(rows.outputs, rows.actions)

    policy, own, acted = jax.jit(whole, compiler_options=QUICK)(began, rows)
    np.testing.assert_allclose(policy.old_log_probs, own, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.behavior_log_probs, acted, rtol=1e-4, atol=1e-5)
    assert np.abs(own - acted).max() > 0.05


@pytest.mark.slow
def test_an_agent_that_forgets_at_once_learns_the_same_from_rows_as_from_steps():
    """A network without memory behind both interfaces; one minibatch a batch, so that nothing depends on the order."""
    env = envs.vectorize(probes.aim(), 4)
    plain = make_agent((1,), tanh_gaussian(env.action_space.low, env.action_space.high), hidden=(8,))

    def on_rows(network, params, observations):
        flat = network(params, observations.reshape(-1, 1))
        return flat.reshape(*observations.shape[:2], -1)

    def unroll(params, observations, state, first):
        return on_rows(plain.policy, params, observations), on_rows(plain.value, params, observations)

    def look_ahead(params, observations, state, first, following):
        return *unroll(params, observations, state, first), on_rows(plain.value, params, following)

    def step(params, observations, state, first):
        return plain.policy(params, observations), plain.value(params, observations), state

    predictions = predict_rows(unroll, look_ahead, plain.distribution)
    remembering = MemoryAgent(
        plain.init, plain.initial_state, step, unroll, look_ahead, plain.distribution, *predictions
    )
    algorithm = control.Algorithm(minibatches=1, kl_control=adaptive_kl(initial=0.5), normalize_observations=True)
    ended = []
    for agent, keywords in ((plain, {}), (remembering, {"learner": control.by_rows})):
        init, update, _ = control.make_update(agent, env, algorithm, optax.sgd(0.05), num_steps=8, **keywords)
        whole = lambda key, init=init, update=update: jax.lax.scan(lambda s, _: update(s), init(key), None, 4)  # noqa: E731
        ended.append(jax.jit(whole, compiler_options=QUICK)(jax.random.key(0)))
    (state, metrics), (other, others) = ended
    np.testing.assert_allclose(state.train.params, other.train.params, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), metrics, others)


def counter(worlds):
    """Outputs that say which step of its episode this is, by a memory that counts."""
    memory = jnp.where(worlds.episode_length == 0, 0, worlds.memory) + 1
    return jax.nn.one_hot(memory, 16), memory


def test_a_memory_goes_from_one_rollout_to_the_next():
    env = envs.vectorize(probes.recall(delay=4), 3)
    distribution = categorical(16)._replace(to_env=lambda actions: actions % 2)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def whole(key):
        def rollout(worlds, key):
            worlds, rows, _ = collect(counter, distribution, env, worlds, key, num_steps=7)
            return worlds, rows.outputs.argmax(-1)

        return jax.lax.scan(rollout, start(env, key, jnp.full(3, 9)), jax.random.split(key, 3))[1]

    seen = whole(jax.random.key(0))
    np.testing.assert_array_equal(np.concatenate(seen, axis=1), np.broadcast_to(np.arange(21) % 5 + 1, (3, 21)))


def test_an_evaluation_remembers():
    env = envs.vectorize(probes.recall(delay=4), 32)

    def recall(worlds):
        cue = jnp.where(worlds.episode_length == 0, worlds.observation[:, 0], worlds.memory)
        return 30.0 * jnp.stack([1.0 - cue, cue], axis=1), cue

    def at_once(observation):
        return 30.0 * jnp.concatenate([1.0 - observation, observation], axis=1)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def judged(key):
        judge = functools.partial(evaluate, distribution=categorical(2), env=env, key=key, max_steps=9)
        return judge(recall, memory=jnp.zeros(32)), judge(memoryless(at_once))

    (returns, lengths, _), (without, *_) = judged(jax.random.key(0))
    np.testing.assert_array_equal(returns, 1.0)
    np.testing.assert_array_equal(lengths, 5)
    assert np.abs(without.mean()) < 0.6


def test_minibatches_are_whole_rows():
    env = envs.vectorize(probes.recall(), 6)
    agent = NETWORKS["gru"]((1,), categorical(2))
    with pytest.raises(ValueError, match="6 environments do not divide into 4 minibatches.*whole rows"):
        control.make_update(
            agent, env, control.Algorithm(), optax.adam(1e-3), num_steps=8, learner=control.by_rows
        )
