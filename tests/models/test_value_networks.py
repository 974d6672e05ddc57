"""models/agents/value_networks.py and exploration.py: ensembles, dueling, combinations, corrections, random actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import docking, restless
from rl_jax.models.agents import exploration, value_networks
from rl_jax.models.agents.torso import linear

LOW, HIGH = np.float32([-2.0, 0.0]), np.float32([2.0, 1.0])
UNIT = np.ones(2, np.float32)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def test_members_are_networks_of_their_own_and_dueling_takes_the_mean_out():
    critic = value_networks.make_action_values((4,), 3, 2, dueling=True, members=2, hidden=(8,), activation="tanh")
    params = critic.init(jax.random.key(0))
    out = critic.apply(params, X)
    assert out.shape == (2, 5, 3, 2) and (out[0] != out[1]).all()
    own = jax.tree.map(lambda x: x[1], params)
    h = np.tanh(X @ own["layer_0"]["kernel"] + np.asarray(own["layer_0"]["bias"])[None])
    np.testing.assert_allclose(out[1].mean(1), linear(h, own["value"]), rtol=1e-4, atol=1e-6)
    many = value_networks.make_action_values((4,), 3, 1, members=5, hidden=(8,))  # by vmap
    params = many.init(jax.random.key(0))
    one = value_networks.make_action_values((4,), 3, 1, hidden=(8,))
    alone = one.apply(jax.tree.map(lambda x: x[3:4], params), X)
    np.testing.assert_allclose(many.apply(params, X)[3], alone[0], rtol=1e-4, atol=1e-6)


def test_layer_norm_forgets_the_scale_of_what_a_layer_gives():
    critic = value_networks.make_q_function((4,), LOW, HIGH, hidden=(8,), layer_norm=True)
    params = critic.init(jax.random.key(0))
    bigger = params | {"layer_0": jax.tree.map(lambda x: 7 * x, params["layer_0"])}
    actions = np.tile(HIGH, (5, 1))
    np.testing.assert_allclose(critic.apply(params, X, actions), critic.apply(bigger, X, actions), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="layer_norm=True reads vectors"):
        value_networks.make_action_values((4, 4, 1), 3, 1, layer_norm=True)


def test_values_of_combinations_are_those_of_each_alone_and_the_largest_is_found():
    vectors = restless.action_vectors()
    critic = value_networks.make_enumerated_values((6,), vectors, 1, hidden=(16,))
    params, states = critic.init(jax.random.key(0)), np.random.default_rng(1).integers(0, 2, (4, 6)).astype(np.float32)
    found = np.asarray(critic.apply(params, states))[0, :, :, 0]
    own = jax.tree.map(lambda x: np.asarray(x[0]), params)
    for i, state in enumerate(states):
        each = []
        for vector in vectors:
            h = np.maximum(np.concatenate([state, vector]) @ own["layer_0"]["kernel"] + own["layer_0"]["bias"], 0)
            each.append((h @ own["head"]["kernel"] + own["head"]["bias"])[0])
        np.testing.assert_allclose(found[i], each, rtol=1e-4, atol=1e-5)
        assert exploration.greedy(15).mode(jnp.asarray(found[i])) == np.argmax(each)


def test_a_correction_begins_at_the_fixed_policy_and_stays_within_its_scale():
    base = docking.biased_pd
    law = exploration.residual(-UNIT, UNIT, scale=0.2)
    fixed = value_networks.Base(lambda key: {}, lambda params, observations: base(observations))
    actor = value_networks.make_residual_actor((4,), law, fixed, hidden=(8,))
    params = actor.init(jax.random.key(0))
    np.testing.assert_array_equal(law.mode(actor.apply(params, X)), base(jnp.asarray(X)))
    moved = jax.tree.map(lambda x: x + 1.0, params)
    change = np.abs(np.asarray(law.mode(actor.apply(moved, X))) - base(jnp.asarray(X)))
    assert 0.05 < change.max() <= 0.2 + 1e-6
    fixed = exploration.residual(-UNIT, UNIT, scale=0.0)  # scale 0 is the fixed policy, whatever is learned
    np.testing.assert_array_equal(fixed.mode(actor.apply(moved, X)), base(jnp.asarray(X)))
    noise = jnp.full((5, 2), 100.0)
    clipped = exploration.residual(-UNIT, UNIT, scale=0.0, clip=0.1).sample(actor.apply(params, X), noise)
    np.testing.assert_allclose(clipped, np.clip(base(jnp.asarray(X)) + 0.1, -1, 1), rtol=1e-6)


def test_random_actions_are_as_likely_as_asked_and_within_the_bounds():
    soft = exploration.squashed(LOW, HIGH)
    for law, low in ((exploration.noisy(LOW, HIGH), LOW), (soft, LOW), (exploration.greedy(3), None)):
        high = None if low is None else HIGH
        uniform = exploration.uniform_actions(law, low, high, stored_before_squash=law is soft)
        acting = exploration.exploring(law, uniform)
        outputs = jnp.concatenate([jnp.zeros((4000, law.num_outputs)), jnp.full((4000, 1), 0.25)], axis=1)
        actions = np.asarray(acting.to_env(acting.sample(outputs, acting.noise(jax.random.key(0), (4000,)))))
        if low is None:
            np.testing.assert_allclose(np.bincount(actions) / 4000, [0.75 + 0.25 / 3, 0.25 / 3, 0.25 / 3], atol=0.02)
        else:
            assert (actions >= LOW).all() and (actions <= HIGH).all()
        assert acting.mode(outputs).shape == actions.shape
        sure = outputs.at[:, -1].set(1.0)
        actions = np.asarray(acting.to_env(acting.sample(sure, acting.noise(jax.random.key(1), (4000,)))))
        if low is not None:
            scaled = (actions - LOW) / (HIGH - LOW)
            np.testing.assert_allclose(np.quantile(scaled, [0.1, 0.5, 0.9], axis=0).mean(1), [0.1, 0.5, 0.9], atol=0.03)
    law = exploration.residual(-UNIT, UNIT, scale=0.2)
    outputs = jnp.asarray([[0.5, -0.5, 0.0, 0.0, 1.0]])
    around = lambda own, random: own[..., :2] + 0.2 * random  # noqa: E731
    acting = exploration.exploring(law, exploration.uniform_actions(law, -UNIT, UNIT), around=around)
    drawn = acting.sample(outputs, acting.noise(jax.random.key(0), (1,)))
    assert (np.abs(np.asarray(drawn)[0] - [0.5, -0.5]) <= 0.2).all()


def test_the_density_is_that_of_the_scaled_action():
    law = exploration.squashed(LOW, HIGH)
    outputs = jnp.zeros((1, 4)).at[:, 2:].set(-0.5)
    u = np.linspace(-6, 6, 4001)
    grid = np.stack([u, np.zeros_like(u)], axis=1).astype(np.float32)
    density = np.exp(np.asarray(law.log_prob(jnp.tile(outputs, (4001, 1)), grid)))
    along = density / density[2000] * (1 / np.sqrt(2 * np.pi) / np.exp(-0.5))  # of the first coordinate alone
    assert np.trapezoid(along, np.tanh(u)) == pytest.approx(1.0, abs=2e-3)
    np.testing.assert_allclose(law.to_env(jnp.asarray([[0.0, 0.0]])), [[0.0, 0.5]])
    with pytest.raises(ValueError, match="finite bounds"):
        exploration.noisy(np.float32([-np.inf]), np.float32([1.0]))
