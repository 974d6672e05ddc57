"""Lucy-SKG's auxiliary losses (arXiv 2305.15801): against loops, by what they teach, and through the program's seam."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import auxiliary

ROWS, STATE, ACTIONS, WIDTH = 6, 4, 2, 3


def make_net(width, size, *, hidden):
    """One linear layer."""
    return SimpleNamespace(init=lambda key: jax.random.normal(key, (width, size)), apply=lambda params, x: x @ params)


def made(**keywords):
    return auxiliary.reward_and_state(width=WIDTH, action_size=ACTIONS, make_net=make_net, state_size=STATE, **keywords)


def test_the_loss_by_loops():
    rng = np.random.default_rng(0)
    observations = np.float32(rng.normal(size=(ROWS, 2, 2)))  # flattened for the reconstruction
    actions, layer = np.float32(rng.normal(size=(ROWS, ACTIONS))), np.float32(rng.normal(size=(STATE, WIDTH)))
    rewards = np.float32([0.5, -0.5, 0.1, 0.0, -0.1, 2.0])  # of a threshold of .1: 2, 0, 1, 1, 1, 2
    found = made(threshold=0.1, reward_coef=0.7, state_coef=0.3, coef=0.2)
    params = found.init(jax.random.key(1))

    def features(x):
        return jnp.tanh(x.reshape(len(x), -1) @ layer)

    arguments = (observations, actions, observations, jax.random.key(0), {"step_rewards": rewards[:, None]})
    expected = np.zeros(2)
    for row, label in enumerate((2, 0, 1, 1, 1, 2)):
        z = np.tanh(observations[row].ravel() @ layer)
        logits = np.concatenate([z, actions[row]]) @ np.asarray(params["reward"])
        expected[0] += (np.log(np.exp(logits).sum()) - logits[label]) / ROWS
        expected[1] += np.mean((z @ np.asarray(params["state"]) - observations[row].ravel()) ** 2) / ROWS
    np.testing.assert_allclose(found.loss(params, features, *arguments), expected @ [0.7, 0.3], rtol=1e-5)
    assert found.coef == 0.2 and found.reads_extras and found.begin is None
    alone = made(threshold=0.1, reward_coef=0.0)
    np.testing.assert_allclose(alone.loss(params, features, *arguments), expected[1], rtol=1e-5)  # an autoencoder

    # It teaches the layers of the actor, and its heads to tell the signs of the rewards.
    def total(both):
        return found.loss(both[0], lambda x: jnp.tanh(x.reshape(len(x), -1) @ both[1]), *arguments)

    both = (params, jnp.asarray(layer))
    assert np.abs(jax.grad(total)(both)[1]).max() > 1e-3
    step = jax.jit(lambda both: jax.tree.map(lambda x, g: x - 0.3 * g, both, jax.grad(total)(both)))
    for _ in range(30):
        both = step(both)
    assert total(both) < 0.7 * total((params, jnp.asarray(layer)))
