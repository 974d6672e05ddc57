"""Lucy-SKG's auxiliary networks as its code has them (arXiv 2305.15801), against loops in numpy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import auxiliary

N, STEPS, STATE, WIDTH, MEMORY = 6, 3, 4, 5, 2


def make_net(width, size, *, hidden):
    """One linear layer."""
    assert not hidden
    return SimpleNamespace(init=lambda key: jax.random.normal(key, (width, size)), apply=lambda params, x: x @ params)


def made(**keywords):
    sizes = dict(steps=STEPS, memory=MEMORY, encoder=(4, 3), decoder=(3, 4))
    return auxiliary.reward_sequence_and_state(width=WIDTH, make_net=make_net, state_size=STATE, **sizes | keywords)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(params, layer, observations, behind, valid, rewards):
    """(cross entropy of the signs, smooth L1 of the states) with torch's LSTM and batch norm written out."""
    p, z = jax.tree.map(np.asarray, params), np.tanh(observations @ layer)
    entropies = []
    for n in range(N):
        h, c = np.zeros(MEMORY), np.zeros(MEMORY)
        for k in range(STEPS):
            if not valid[n, k]:
                continue
            gates = np.concatenate([np.tanh(behind[n, k] @ layer), h]) @ p["memory"]["kernel"] + p["memory"]["bias"]
            i, f, g, o = gates.reshape(4, MEMORY)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        logits = h @ p["head"]
        label = 2 if rewards[n] > 0.1 else 0 if rewards[n] < -0.1 else 1
        entropies.append(np.log(np.exp(logits).sum()) - logits[label])
    for place, weights in enumerate(p["layers"]):
        z = z @ weights
        if place < len(p["layers"]) - 1:
            z = (z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5)
            z = z * p["norms"][place]["scale"] + p["norms"][place]["offset"]
        z = np.maximum(z, 0)
    apart = np.abs(z - observations)
    return np.mean(entropies), np.mean(np.where(apart < 1, apart**2 / 2, apart - 0.5))


def case():
    rng = np.random.default_rng(0)
    observations, behind = (np.float32(rng.normal(1, 1, size)) for size in ((N, STATE), (N, STEPS, STATE)))
    valid = np.array([[0, 0, 1], [0, 1, 1], [1, 1, 1]] * 2, bool)
    rewards, layer = np.float32([0.5, -0.5, 0.1, 0.0, -0.1, 2.0]), np.float32(rng.normal(size=(STATE, WIDTH)))
    return observations, behind, valid, rewards, layer


def test_the_losses_by_loops():
    observations, behind, valid, rewards, layer = case()
    found = made(threshold=0.1, reward_coef=0.7, state_coef=0.3)
    params = found.init(jax.random.key(1))
    params["norms"] = jax.tree.map(lambda x: x + 0.2 * jnp.arange(len(x)), params["norms"])
    extras = {"step_rewards": rewards[:, None], "behind_observations": behind, "behind_valid": valid}
    features = lambda x: jnp.tanh(x @ layer)  # noqa: E731
    arguments = (features, observations, np.zeros((N, 1)), observations, jax.random.key(0), extras)
    expected = by_hand(params, layer, observations, behind, valid, rewards)
    np.testing.assert_allclose(found.loss(params, *arguments), np.dot(expected, [0.7, 0.3]), rtol=1e-4)
    np.testing.assert_allclose(made(reward_coef=0.0).loss(params, *arguments), expected[1], rtol=1e-4)
    moved = extras | {"behind_observations": np.where(valid[:, :, None], behind, 9.0)}  # what is not there
    again = made(threshold=0.1, state_coef=0.0).loss(params, *arguments[:-1], moved)
    np.testing.assert_allclose(again, expected[0], rtol=1e-4)
    assert found.coef == 1.0 and found.reads_extras and found.look is not None
    slopes = jax.grad(lambda w: found.loss(params, lambda x: jnp.tanh(x @ w), *arguments[1:]))(jnp.asarray(layer))
    assert np.abs(slopes).max() > 1e-3, "it teaches the actor's layers"
    with pytest.raises(ValueError, match="steps=0 must be 1 or more"):
        made(steps=0)


def test_the_published_sizes():
    published = auxiliary.reward_sequence_and_state(width=8, make_net=make_net, state_size=STATE)
    shapes = jax.eval_shape(published.init, jax.random.key(0))
    assert [x.shape[1] for x in shapes["layers"]] == [128, 32, 16, 32, 128, 512, 512, STATE]
    assert shapes["memory"]["kernel"].shape == (8 + 32, 4 * 32) and shapes["head"].shape == (32, 3)


def test_the_steps_behind_are_of_one_episode():
    observations = np.arange(14, dtype=np.float32).reshape(2, 7, 1)
    done = np.zeros((2, 7), bool)
    done[0, 2] = done[1, 5] = True
    found = auxiliary.steps_behind(observations, jnp.asarray(done), steps=STEPS)
    for b in range(2):
        for t in range(7):
            for k in range(STEPS):
                at = t - (STEPS - 1) + k
                there = at >= 0 and not done[b, max(at, 0) : t].any()
                assert bool(found["behind_valid"][b, t, k]) == there
                if there:
                    assert found["behind_observations"][b, t, k, 0] == observations[b, at, 0]
