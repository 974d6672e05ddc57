"""models/agents/set_policy.py: no order and no number of cities, and a plain reference of its equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.agents.set_policy import ABSENT, make_set_policy

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
WIDTH, LAYERS, HEADS, ROWS = 8, 2, 2, 5


@functools.cache
def compiled():
    model = make_set_policy(width=WIDTH, layers=LAYERS, heads=HEADS)
    own = model.init(jax.random.key(0))["policy"]
    assert not own["share"].any()  # each block begins as the identity
    params = {"policy": own | {"share": jnp.asarray([[0.7, 0.4], [0.5, 0.9]])}}

    def chosen(params, observations):
        return jnp.sum(jax.nn.log_softmax(model.policy(params, observations))[:, 0])

    return params, *(jax.jit(fn, compiler_options=QUICK) for fn in (model.policy, jax.grad(chosen)))


def seen(left=(True, True, True, True, False)):
    """(destination [3, 2], places [3, ROWS, 2], left [3, ROWS])."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 2)), rng.normal(size=(3, ROWS, 2)), np.broadcast_to(np.asarray(left), (3, len(left)))


def flat(destination, places, left):
    rows = np.concatenate([places, left[..., None]], axis=2)
    return jnp.asarray(np.concatenate([destination, rows.reshape(len(rows), -1)], axis=1), jnp.float32)


def reference(own, destination, places, left):
    """The logits of one observation, a token at a time."""
    x = [own["kind"][0]] + [p @ own["place"] + own["kind"][1] for p in places[left]]
    x = np.stack([*x, destination @ own["place"] + own["kind"][2]])
    size = WIDTH // HEADS
    for i in range(LAYERS):
        qkv = (x @ own["qkv"][i]).reshape(len(x), 3, HEADS, size)
        heads = []
        for h in range(HEADS):
            q, k, v = qkv[:, 0, h], qkv[:, 1, h], qkv[:, 2, h]
            weights = np.exp(q @ k.T / np.sqrt(size))
            heads.append(weights / weights.sum(1, keepdims=True) @ v)
        x = x + own["share"][i, 0] * np.concatenate(heads, 1) @ own["out"][i]
        x = x + own["share"][i, 1] * np.maximum(x @ own["up"][i], 0) @ own["down"][i]
    logits = np.full(len(left), ABSENT)
    logits[left] = x[1:-1] @ own["head"][:, 0]
    return logits


def test_the_logits_are_those_of_the_equations():
    params, policy, _ = compiled()
    own = jax.tree.map(lambda x: np.asarray(x, np.float64), params["policy"])
    parts = seen()
    want = np.stack([reference(own, *row) for row in zip(*parts, strict=True)])
    np.testing.assert_allclose(policy(params, flat(*parts)), want, rtol=1e-4, atol=1e-5)


def test_another_order_of_the_cities_is_another_order_of_the_logits():
    params, policy, _ = compiled()
    destination, places, left = seen()
    order = np.array([3, 0, 4, 1, 2])
    want = policy(params, flat(destination, places, left))
    got = policy(params, flat(destination, places[:, order], left[:, order]))
    np.testing.assert_allclose(got, want[:, order], rtol=1e-5, atol=1e-5)
    assert np.ptp(np.asarray(want)[0, :4]) > 1e-3


def test_rows_without_a_city_say_nothing_and_their_number_does_not_matter():
    """Nor do what they contain, in the logits and in the gradient; the destination does matter."""
    params, policy, gradient = compiled()
    destination, places, left = seen()
    want = policy(params, flat(destination, places, left))
    other = np.where(left[..., None], places, 1e3)
    np.testing.assert_allclose(policy(params, flat(destination, other, left)), want, atol=1e-5)
    np.testing.assert_allclose(policy(params, flat(destination, places[:, :4], left[:, :4])), want[:, :4], atol=1e-5)
    assert np.abs(policy(params, flat(destination + 1.0, places, left)) - want)[:, :4].max() > 1e-3
    gradients = [gradient(params, flat(destination, x, left)) for x in (places, other)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), *gradients)
    assert all(jnp.all(jnp.isfinite(x)) and jnp.any(x != 0) for x in jax.tree.leaves(gradients[0]))


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="sequence.width=10 does not divide into sequence.heads=4"):
        make_set_policy(width=10, heads=4)
