"""models/agents/scoring.py: what learning sees of an agent, in steps and in rows, and a loss that sees no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import control, ppo
from rl_jax.core.types import PolicyBatch, SequenceInputs, StepInputs, TokenScores
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.models.agents.memory import make_gru_agent
from rl_jax.models.agents.scoring import make_score


def shaken(agent, seed=0):
    """Params away from their start, where the policy is almost uniform."""
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(agent.init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(scale=0.5, size=s.shape), jnp.float32), shapes)


def expected_scores(outputs, actions):
    """(log_probs, entropy) of categorical outputs [..., 3], in numpy."""
    outputs = np.asarray(outputs, np.float64)
    log_probs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    taken = np.take_along_axis(log_probs, np.asarray(actions)[..., None], axis=-1)[..., 0]
    return taken, -(np.exp(log_probs) * log_probs).sum(-1)


def assert_scores(scores, outputs, actions):
    for found, expected in zip(scores, expected_scores(outputs, actions), strict=True):  # log-probs, entropies
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_step_is_a_row_of_one_token():
    agent, rng = make_agent((2,), categorical(3), num_values=2, hidden=(8,)), np.random.default_rng(1)
    params = shaken(agent)
    observations, following = jnp.asarray(rng.normal(size=(2, 5, 2)), jnp.float32)
    inputs = StepInputs(observations, jnp.asarray(rng.integers(0, 3, 5)))
    scores, values, next_values = agent.predict_ahead(params, inputs, following)
    assert scores.log_probs.shape == scores.entropy.shape == (5, 1) and values.shape == next_values.shape == (5, 1, 2)
    assert_scores((x[:, 0] for x in scores[:2]), agent.policy(params, observations), inputs.actions)
    np.testing.assert_array_equal(values[:, 0], agent.value(params, observations))
    np.testing.assert_array_equal(next_values[:, 0], agent.value(params, following))
    assert np.abs(next_values - values).max() > 0.1
    for found, expected in zip(agent.predict(params, inputs), (scores, values), strict=True):
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, make_score(agent)(params, inputs), scores)


@pytest.mark.slow
def test_real_actions_are_scored_before_they_are_squashed():
    agent = make_agent((2,), tanh_gaussian(np.array([-1.0], np.float32), np.array([1.0], np.float32)), hidden=(8,))
    params, rng = shaken(agent), np.random.default_rng(2)
    observations, actions = (jnp.asarray(rng.normal(size=(5, n)), jnp.float32) for n in (2, 1))
    scores = make_score(agent)(params, StepInputs(observations, actions))
    outputs = agent.policy(params, observations)
    np.testing.assert_array_equal(scores.log_probs[:, 0], agent.distribution.log_prob(outputs, actions))
    np.testing.assert_array_equal(scores.entropy[:, 0], agent.distribution.entropy(outputs))


@pytest.mark.slow
def test_a_row_is_scored_with_the_memory_it_began_with():
    """Against the agent's own steps, one after the other; an episode ends inside each row."""
    agent, rng = make_gru_agent((2,), categorical(3), hidden=(4,), width=4), np.random.default_rng(3)
    params = shaken(agent)
    observations, following = jnp.asarray(rng.normal(size=(2, 3, 5, 2)), jnp.float32)
    first = jnp.zeros((3, 5), bool).at[:, 2].set(True)
    memory = jax.tree.map(lambda x: x + 0.5, agent.initial_state(3))
    inputs = SequenceInputs(observations, jnp.asarray(rng.integers(0, 3, (3, 5))), first, memory)
    scores, values, next_values = jax.jit(agent.predict_ahead)(params, inputs, following)
    state, columns = memory, []
    for t in range(5):
        outputs, value, state = agent.step(params, observations[:, t], state, first[:, t])
        ahead = agent.step(params, following[:, t], state, jnp.zeros(3, bool))[1]
        columns.append((outputs, value, ahead))
    outputs, expected, ahead = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    assert_scores(scores[:2], outputs, inputs.actions)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(next_values, ahead, rtol=1e-4, atol=1e-5)
    for found, expected in zip(agent.predict(params, inputs), (scores, values), strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)
    emptied = make_score(agent)(params, inputs._replace(memory=agent.initial_state(3)))
    moved = np.abs(emptied.log_probs - scores.log_probs)
    assert moved[:, :2].max() > 1e-2 and moved[:, 2:].max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
def test_a_loss_does_not_see_how_many_turns_an_action_took(entropy_coef):
    """An action sampled at once or in two turns (as a diffusion policy would): two tokens, and the same gradient."""
    rng = np.random.default_rng(4)
    start = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2,), (2, 2)))
    actions, advantages = jnp.asarray(rng.integers(0, 4, 6)), jnp.asarray(rng.normal(size=(6, 1)), jnp.float32)
    inputs = StepInputs(jnp.zeros((6, 1)), actions)

    def in_turns(params, inputs):
        """The first turn picks a pair of actions, the second one of the pair."""
        first, second = (jax.nn.log_softmax(x) for x in params)
        pairs, members = inputs.actions // 2, inputs.actions % 2
        log_probs = jnp.stack([first[pairs], second[pairs, members]], axis=1)
        # By the chain rule the second turn's share of the entropy is its mean over the first.
        entropies = jnp.stack([-jnp.sum(jnp.exp(first) * first), -jnp.sum(jnp.exp(first) @ (jnp.exp(second) * second))])
        return TokenScores(log_probs, jnp.broadcast_to(entropies, (6, 2)))

    def at_once(params, inputs):
        return jax.tree.map(lambda x: jnp.sum(x, axis=1, keepdims=True), in_turns(params, inputs))

    def gradient(score):
        old = score(start, inputs).log_probs
        mask, blank = jnp.ones(old.shape, bool), jnp.zeros(old.shape)
        policy = PolicyBatch(inputs, mask, jnp.broadcast_to(advantages, old.shape), old, old, None)
        batch, algorithm = ppo.PPOBatch(policy, blank, blank), control.Algorithm(entropy_coef=entropy_coef)

        def mean(params):
            total, _ = control.loss(score(params, inputs), blank[..., None], batch, algorithm)
            return total.value() * old.shape[1]  # the loss is a mean over tokens

        return jax.grad(mean)(start)

    one, two = gradient(at_once), gradient(in_turns)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), one, two)
    assert max(float(jnp.abs(x).max()) for x in one) > 0.01
