"""Networks and action distributions for control: densities that integrate to 1, torch's own, and the convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.models.agents.torso import dense

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)


def gaussian_outputs(seed=0, rows=7):
    rng = np.random.default_rng(seed)
    mean, log_std = rng.normal(size=(rows, 2)), rng.uniform(-1.5, 0.5, size=(rows, 2))
    return jnp.asarray(np.concatenate([mean, log_std], axis=1), jnp.float32)


def torch_tanh_gaussian(outputs):
    mean, std = torch.tensor(np.asarray(outputs[:, :2])), torch.tensor(np.exp(np.asarray(outputs[:, 2:])))
    half, middle = torch.tensor((HIGH - LOW) / 2), torch.tensor((HIGH + LOW) / 2)
    transforms = [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(middle, half, event_dim=0)]
    return torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, std), transforms)


def test_tanh_gaussian_log_prob_is_torchs():
    dist, outputs = tanh_gaussian(LOW, HIGH), gaussian_outputs()
    u = dist.sample(outputs, dist.noise(jax.random.key(0), (7,)))
    action = np.asarray(dist.to_env(u))
    assert (action > LOW).all() and (action < HIGH).all()
    expected = torch_tanh_gaussian(outputs).log_prob(torch.tensor(action)).sum(-1).numpy()
    np.testing.assert_allclose(dist.log_prob(outputs, u), expected, rtol=1e-3, atol=1e-3)


def test_tanh_gaussian_density_integrates_to_one():
    dist = tanh_gaussian(LOW[:1], HIGH[:1])
    outputs = jnp.asarray([[0.4, -0.3]])
    u = np.linspace(-12, 12, 200_001)
    action = np.tanh(u) * 2.0
    log_prob = dist.log_prob(jnp.broadcast_to(outputs, (len(u), 2)), jnp.asarray(u[:, None], jnp.float32))
    assert np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), action) == pytest.approx(1.0, abs=1e-3)


def test_tanh_gaussian_far_out_is_finite():
    dist = tanh_gaussian(LOW, HIGH)
    outputs = jnp.asarray([[30.0, -30.0, 0.0, 0.0]])
    value, gradient = jax.value_and_grad(lambda o: dist.log_prob(o, jnp.asarray([[31.0, -29.0]])).sum())(outputs)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    # d/du log p = -(u - mean) / var + 2 tanh(u): the slope's own part has no gradient to the outputs.
    np.testing.assert_allclose(gradient, [[1.0, 1.0, 0.0, 0.0]], atol=1e-5)


@pytest.mark.slow
def test_tanh_gaussian_entropy_is_the_mean_of_minus_log_prob():
    dist, outputs = tanh_gaussian(LOW, HIGH), gaussian_outputs(1)
    u = dist.sample(jnp.broadcast_to(outputs, (40_000, 7, 4)), dist.noise(jax.random.key(1), (40_000, 7)))
    sampled = -dist.log_prob(jnp.broadcast_to(outputs, (40_000, 7, 4)), u).mean(0)
    np.testing.assert_allclose(dist.entropy(outputs), sampled, atol=0.03)
    with pytest.raises(ValueError, match="finite bounds"):
        tanh_gaussian(LOW, np.full(2, np.inf, np.float32))


@pytest.mark.slow
def test_the_entropys_gradient_pulls_a_saturated_mean_back():
    dist = tanh_gaussian(LOW[:1], HIGH[:1])
    gradient = jax.grad(lambda o: dist.entropy(o).sum())(jnp.asarray([[2.0, -1.0], [-2.0, -1.0]]))
    assert gradient[0, 0] < -0.5 and gradient[1, 0] > 0.5 and (gradient[:, 1] > 0).all()


def test_categorical_is_torchs():
    dist = categorical(3)
    outputs = jax.random.normal(jax.random.key(0), (5, 3)) * 2
    actions = jnp.asarray([0, 1, 2, 1, 0])
    expected = torch.distributions.Categorical(logits=torch.tensor(np.asarray(outputs)))
    np.testing.assert_allclose(
        dist.log_prob(outputs, actions), expected.log_prob(torch.tensor(np.asarray(actions))), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(dist.entropy(outputs), expected.entropy(), rtol=1e-5)
    np.testing.assert_array_equal(dist.mode(outputs), outputs.argmax(-1))


def test_categorical_samples_with_its_probabilities():
    dist = categorical(3)
    outputs = jnp.broadcast_to(jnp.log(jnp.asarray([0.2, 0.5, 0.3])), (30_000, 3))
    drawn = dist.sample(outputs, dist.noise(jax.random.key(0), (30_000,)))
    np.testing.assert_allclose(np.bincount(drawn) / 30_000, [0.2, 0.5, 0.3], atol=0.01)


@pytest.mark.slow
def test_networks_are_apart_and_start_as_ppo_does():
    agent = make_agent((4,), categorical(2), num_values=3, hidden=(8, 8))
    params = agent.init(jax.random.key(0))
    observations = jax.random.normal(jax.random.key(1), (6, 4))
    assert agent.policy(params, observations).shape == (6, 2) and agent.value(params, observations).shape == (6, 3)
    assert np.abs(agent.policy(params, observations)).max() < 0.05  # nearly uniform at first
    gradient = jax.grad(lambda p: agent.policy(p, observations).sum())(params)
    assert not any(np.any(x) for x in jax.tree.leaves(gradient["critic"]))
    kernel = params["actor"]["layer_1"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(8), atol=1e-5)
    # tanh(x W1 + b) and so on, by numpy
    x = np.asarray(observations)
    for name in ("layer_0", "layer_1"):
        x = np.tanh(x @ np.asarray(params["critic"][name]["kernel"]) + np.asarray(params["critic"][name]["bias"]))
    head = params["critic"]["head"]
    np.testing.assert_allclose(
        agent.value(params, observations), x @ np.asarray(head["kernel"]) + np.asarray(head["bias"]), atol=1e-5
    )


@pytest.mark.slow
def test_the_convolution_is_a_convolution():
    agent = make_agent((6, 5, 2), categorical(2), hidden=(), channels=3, activation="relu")
    params = agent.init(jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (4, 6, 5, 2))
    conv, head = params["actor"]["conv"], params["actor"]["head"]
    kernel = conv["kernel"].reshape(3, 3, 2, 3)
    hidden = jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    hidden = jax.nn.relu(hidden).reshape(4, -1)
    np.testing.assert_allclose(agent.policy(params, images), hidden @ head["kernel"], atol=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match="tanh, relu, silu"):
        make_agent((4,), categorical(2), activation="tahn")
    with pytest.raises(ValueError, match="only \\(D,\\) and"):
        make_agent((4, 4), categorical(2))


def test_orthogonal_weights_of_several_seeds_are_factored_one_by_one():
    """Two batches that are factored at once hang on two cores (jax 0.10.2); 16 threads, as here, would not show it."""
    keys = jax.random.split(jax.random.key(0), 3)

    def kernel(key):
        return dense(key, 4, 6, 2.0)["kernel"]

    found = jax.jit(jax.vmap(kernel))(keys)
    np.testing.assert_array_equal(found, jnp.stack([kernel(key) for key in keys]))
    np.testing.assert_allclose(found @ found.mT, jnp.broadcast_to(4.0 * jnp.eye(4), (3, 4, 4)), atol=1e-5)
    lines = str(jax.make_jaxpr(jax.vmap(kernel))(keys)).splitlines()
    factored = [line for line in lines if " = qr[" in line]
    assert factored and not any("[3," in line for line in factored)
