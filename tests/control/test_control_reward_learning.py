"""control/reward_learning.py: the loss in torch, what labels of either kind teach, and pay by what is learned."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from rl_jax import envs, reward_model
from rl_jax.control import reward_learning, segments, tabular
from rl_jax.core.types import StepInputs
from rl_jax.envs.learned import learned_reward
from rl_jax.envs.worlds import probes
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.models.agents.reward_network import make_reward_network
from rl_jax.rollout.envs.steps import collect, memoryless, start
from rl_jax.training.step import init_state
from tests.control.segment_cases import pairs_of, torch_sums

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def quick(fn, *args):
    return jax.jit(fn, compiler_options=QUICK)(*args)


@pytest.mark.slow
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_the_reward_loss_is_torchs_cross_entropy_of_the_sums(discount):
    members = [pairs_of(seed=seed)[0] for seed in (0, 0)]
    batch = pairs_of()[1]
    members[1] = 0.3 * members[1] + 0.1
    x = jnp.stack([jnp.asarray(m) for m in members], axis=-1)
    objective = reward_model.Objective(members=2)

    def loss(x):
        return reward_learning.reward_loss(x, batch, objective, discount=discount)[0].value()

    expected, gradients = 0.0, []
    for member in members:
        leaf, sums = torch_sums(member, batch, discount)
        term = torch.nn.functional.binary_cross_entropy_with_logits(
            sums[:, 0] - sums[:, 1], torch.ones(len(sums), dtype=torch.float64)
        )
        (term / 2).backward()
        expected, gradients = expected + float(term.detach()) / 2, [*gradients, leaf.grad.numpy()]
    found, gradient = quick(jax.value_and_grad(loss), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, np.stack(gradients, -1), rtol=1e-4, atol=1e-6)


def lottery(chance):
    """State 0: a sure 0.4 (by state 3), or a lottery of 1 (state 1) and 0 (state 2). -> (rewards, transition_probs)."""
    probs = jnp.zeros((4, 2, 4)).at[0, 0, 3].set(1.0).at[0, 1, 1].set(chance).at[0, 1, 2].set(1.0 - chance)
    return jnp.zeros((4, 2)).at[1].set(1.0).at[3].set(0.4), probs


def learned_choice(chance, model):
    """The action that is best in state 0 by a reward that was learned from errorless labels of that model."""
    rewards, probs = lottery(chance)
    at = np.array([[0, 1], [0, 1], [0, 2], [0, 2], [0, 3], [0, 3]])  # the walks: won, lost, sure; then either action
    chosen = np.array([[1, 0], [1, 1], [1, 0], [1, 1], [0, 0], [0, 1]])
    options = dict(discount=1.0, temperature=0.02, iterations=3)
    judged = rewards if model == "partial" else tabular.advantages(rewards, probs, discount=1.0, iterations=3)
    mask = jnp.ones(at.shape, bool)
    f = segments.segment_sums(judged[at, chosen], mask)
    pairs = segments.labelled_pairs(jax.random.key(0), f, count=400, beta=math.inf)
    data = segments.SegmentPairs(StepInputs(jax.nn.one_hot(at, 4), jnp.asarray(chosen)), mask, pairs)
    regret = functools.partial(tabular.advantages, transition_probs=probs, **options)
    score_of = (lambda rewards: rewards) if model == "partial" else regret
    loss_fn, optimizer = functools.partial(reward_learning.table_loss, score_of), optax.adam(0.02)
    fit = segments.make_fit(loss_fn, optimizer, batch_size=64)
    state, _ = fit(init_state(jnp.zeros(rewards.shape), optimizer, jax.random.key(1)), data, 150)
    return jnp.argmax(tabular.q_policy(state.params, probs, **options)(jax.nn.one_hot(jnp.array([0]), 4))[0])


@pytest.mark.slow
def test_partial_returns_cannot_tell_a_good_lottery_from_a_bad_one():
    """2206.02231: errorless partial returns rank won > sure > lost whatever the odds; regret knows them."""
    odds, right = jnp.array([0.45, 0.2]), [1, 0]
    choices = {
        model: quick(jax.vmap(functools.partial(learned_choice, model=model)), odds).tolist()
        for model in ("regret", "partial")
    }
    assert choices["regret"] == right and choices["partial"] != right, choices


@pytest.mark.slow
def test_the_loss_of_a_table_is_that_of_what_its_steps_add():
    """score_of says what; here 1 - r^2, so that the table itself would not do."""
    rng = np.random.default_rng(6)
    at, chosen = rng.integers(0, 4, (10, 3)), rng.integers(0, 2, (10, 3))
    mask, pairs = np.arange(3) < rng.integers(1, 4, (10, 1)), rng.integers(0, 10, (20, 2))
    rewards = rng.normal(size=(4, 2))
    added = np.where(mask, 1 - rewards[at, chosen] ** 2, 0.0) * 0.9 ** np.arange(3)
    gaps = added.sum(1)[pairs[:, 0]] - added.sum(1)[pairs[:, 1]]
    data = segments.SegmentPairs(StepInputs(np.eye(4, dtype=np.float32)[at], chosen), mask, pairs)

    def loss(table, data):
        batch = segments.pair_batch(data, jnp.arange(20))
        return reward_learning.table_loss(lambda r: 1 - jnp.square(r), table, batch, discount=0.9)[0].value()

    found = quick(loss, np.float32(rewards), data)
    np.testing.assert_allclose(found, np.log1p(np.exp(-gaps)).mean(), rtol=1e-5)


# --- Learned rewards --------------------------------------------------------------------------------------------------


def small_network(env, members=2):
    space = env.action_space
    kind = dict(num_actions=space.n) if isinstance(space, envs.Discrete) else dict(action_size=space.shape[0])
    return make_reward_network(env.observation_space.shape[0], **kind, members=members, hidden=(8,))


@pytest.mark.slow
@pytest.mark.parametrize("env", [probes.matching(), probes.aim()], ids=["matching", "aim"])
def test_relabelled_rows_are_what_the_environment_would_pay(env):
    """by_reward of T B steps at once and envs.learned in every step are one reward."""
    vector, network = envs.vectorize(env, 4), small_network(env)
    space = env.action_space
    discrete = isinstance(space, envs.Discrete)
    distribution = categorical(space.n) if discrete else tanh_gaussian(space.low, space.high)
    means, stds = np.float32([0.3, -0.2]), np.float32([2.0, 0.5])

    def rollout(vector, start_key, key):
        worlds = start(vector, start_key)

        def outputs(observations):
            return jnp.zeros((len(observations), distribution.num_outputs))

        return collect(memoryless(outputs), distribution, vector, worlds, key, num_steps=5)[1]

    def both(init_key, *keys):
        reward = reward_learning.LearnedReward(network.init(init_key), means, stds)
        reward_fn = functools.partial(reward_learning.learned, network.apply, reward)
        relabelling = reward_learning.by_reward(network.apply, distribution.to_env, lambda: reward)
        rows = rollout(vector, *keys)
        state, found = relabelling.apply(relabelling.init(), rows)
        assert state is reward
        each = network.apply(reward.params, rows.observations[:, 0], distribution.to_env(rows.actions[:, 0]))
        return rows, found, rollout(learned_reward(vector, reward_fn), *keys), each

    rows, found, paid, each = quick(both, *map(jax.random.key, range(3)))
    np.testing.assert_allclose(found.rewards, paid.rewards, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.actions, paid.actions)
    assert np.abs(found.rewards - rows.rewards).max() > 0.1
    expected = ((np.asarray(each) - [0.3, -0.2]) / [2.0, 0.5]).mean(1)
    np.testing.assert_allclose(found.rewards[:, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_members_differ_and_are_standardized_apart():
    network = small_network(probes.matching(), members=3)
    params = quick(network.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(50, 1)).astype(np.float32), rng.integers(0, 2, 50)
    mask = rng.random(50) < 0.7
    rewards = np.asarray(quick(network.apply, params, observations, actions))
    assert rewards.shape == (50, 3) and np.abs(np.diff(rewards, axis=1)).max() > 0.1
    found, uncentred = quick(
        lambda *x: [reward_learning.standardized_by(network.apply, *x, center=center) for center in (True, False)],
        *(params, observations, actions, mask),
    )
    np.testing.assert_allclose(found.means, rewards[mask].mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.stds, rewards[mask].std(0), rtol=1e-4)
    np.testing.assert_array_equal(uncentred.means, np.zeros(3))


def annotated(env, to_env, count, seed=0):
    """SegmentPairs of `matching` or `aim`, ordered by the true reward: the action that agrees with the observation."""
    rng, discrete = np.random.default_rng(seed), isinstance(env.action_space, envs.Discrete)
    observations = rng.choice([-1.0, 1.0], size=(60, 3, 1)).astype(np.float32)
    actions = rng.integers(0, 2, (60, 3)) if discrete else rng.normal(size=(60, 3, 1)).astype(np.float32)
    mask = np.arange(3) < rng.integers(1, 4, size=(60, 1))
    agrees = observations[..., 0] * (2 * actions - 1 if discrete else np.asarray(to_env(jnp.asarray(actions)))[..., 0])

    def labelled(key, agrees, mask):
        return segments.labelled_pairs(key, segments.segment_sums(agrees, mask), count=count, beta=math.inf)

    pairs = quick(labelled, jax.random.key(seed), np.float32(agrees), mask)
    return segments.SegmentPairs(StepInputs(jnp.asarray(observations), jnp.asarray(actions)), jnp.asarray(mask), pairs)


@pytest.mark.slow
@pytest.mark.parametrize("env", [probes.matching(), probes.aim()], ids=["matching", "aim"])
def test_a_reward_is_learned_and_scaled_on_its_segments(env):
    """The annotator's order on pairs that were held out; the standardised reward has mean 0 and std 1 on real steps."""
    space = env.action_space
    distribution = categorical(space.n) if isinstance(space, envs.Discrete) else tanh_gaussian(space.low, space.high)
    network, to_env = small_network(env), distribution.to_env
    data, held_out = annotated(env, to_env, 300), annotated(env, to_env, 100, seed=1)
    objective = reward_model.Objective(members=2)
    settings = dict(to_env=to_env, center=True, updates=120, batch_size=32, max_grad_norm=1.0)

    def learn(key):
        return reward_learning.learn_reward(network, key, data, held_out, objective, optax.adam(0.02), **settings)

    reward, metrics = quick(learn, jax.random.key(0))
    blank = reward_learning.blank_reward(network)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), blank) == jax.tree.map(lambda x: (x.shape, x.dtype), reward)
    assert not any(x.any() for x in jax.tree.leaves(blank))

    def judged(params, data, held_out):
        """(rewards of all steps, the loss of held-out pairs from single steps, and of whole ones)."""
        flat = (x.reshape(-1, *x.shape[2:]) for x in (data.steps.observations, to_env(data.steps.actions)))
        batch = segments.pair_batch(held_out, jnp.arange(100))
        observations, actions = batch.batch.observations, to_env(batch.batch.actions)
        rewards = [
            [network.apply(params, observations[:, i, t], actions[:, i, t]) for t in range(3)] for i in range(2)
        ]
        rewards = jnp.moveaxis(jnp.asarray(rewards), 2, 0)  # [n, 2, K, M]
        expected = reward_learning.reward_loss(rewards, batch, objective, discount=0.9)[0].value()
        options = dict(to_env=to_env, discount=0.9)
        found = reward_learning.network_loss(network.apply, params, batch, objective, **options)[0].value()
        return network.apply(params, *flat), expected, found

    each, expected, found = jax.device_get(quick(judged, reward.params, data, held_out))
    each = each[np.asarray(data.mask).reshape(-1)]
    np.testing.assert_allclose((reward.means, reward.stds), (each.mean(0), each.std(0)), rtol=1e-3, atol=1e-4)
    # Ties are labelled at random, and there are more of them among choices.
    assert metrics["reward/accuracy"] > (0.7 if isinstance(space, envs.Discrete) else 0.9)
    assert metrics["reward/margin"] > 0
    np.testing.assert_allclose(found, expected, rtol=1e-5)
