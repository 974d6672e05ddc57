"""control/two_level.py, losses/commands.py, worlds/spoken.py: numpy, and a robot that learns from what it is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools import two_level as tool
from rl_jax.control import two_level
from rl_jax.envs.worlds import docking, spoken
from rl_jax.losses import commands as losses
from rl_jax.models.agents.features import Net


def test_the_loss_is_numpys_cross_entropy_of_cosines():
    rng = np.random.default_rng(0)
    z, e, said, tau = rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), rng.integers(0, 4, 5), 0.3
    cosines = z @ e.T / (np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(e, axis=1))
    probs = np.exp(cosines / tau)
    probs /= probs.sum(axis=1, keepdims=True)
    loss, slope = jax.value_and_grad(lambda t: losses.command_loss(z, e, said, t).sum())(tau)
    np.testing.assert_allclose(loss, -np.log(probs[np.arange(5), said]).sum(), rtol=1e-5)
    # d/dtau of -(c_y / tau - log sum exp(c / tau)) = (c_y - E c) / tau^2
    np.testing.assert_allclose(
        slope, ((cosines[np.arange(5), said] - (probs * cosines).sum(1)) / tau**2).sum(), rtol=1e-4
    )
    # At a large temperature every command is as likely, whatever was said.
    np.testing.assert_allclose(losses.command_loss(z, e, said, 1e6), np.log(4), rtol=1e-4)


def test_a_batch_has_its_share_of_the_newest_round():
    for newest, others, expected in ((5, 20, 3), (0, 20, 0), (5, 0, 10)):
        rows = np.asarray(two_level.draw_rounds(jax.random.key(1), newest, others, 10, share=0.37))
        assert (rows >= others).sum() == expected and (rows >= 0).all() and (rows < others + newest).all()
    with pytest.raises(ValueError, match="share=1.5"):
        two_level.draw_rounds(jax.random.key(0), 1, 1, 4, share=1.5)


def test_what_is_said():
    assert spoken.PUSH_TEXTS[0] == "push left down" and spoken.PUSH_TEXTS[4] == "wait"
    embedded = spoken.embed(spoken.PUSH_TEXTS)  # down, left, push, right, up, wait
    np.testing.assert_array_equal(embedded[0], [1, 1, 1, 0, 0, 0])
    assert len(np.unique(embedded, axis=0)) == 9
    every = np.arange(9)
    np.testing.assert_array_equal(spoken.push_command(spoken.pushed(every)), every)
    place = jnp.array([0.5, 0.0, 0.0, 0.0])
    places, own = jnp.stack([place, place, place, 0.1 * place]), jnp.array([7, 1, 4, 7])  # right, left, wait, right
    said, would = jax.jit(jax.vmap(spoken.guided))(places, own)
    assert would.tolist() == [True, False, True, False]
    assert [spoken.PUSH_TEXTS[i].split()[1] for i in said[:3].tolist()] == ["left"] * 3
    pedals = np.array([-2.0, -1.0, 0.0, 1.0])
    assert [spoken.PEDAL_TEXTS[i] for i in spoken.pedal_command(pedals)] == list(spoken.PEDAL_TEXTS)
    # speed 5, 60 m or 12 m to the front of a car at 3 m/s: free to speed up to 9; 3 + .15 (7 - 10) - 5 = -2.45, clipped
    seen = np.array([[0.5, 1.2, 0.3, 1.0, 0.0], [0.5, 0.24, 0.3, 1.0, 0.0]])
    np.testing.assert_allclose(spoken.driver(seen, jnp.full(2, 9.0)), [2.0, -2.0])
    np.testing.assert_allclose(spoken.driver(seen[:1], jnp.full(1, 5.5)), [0.5], rtol=1e-5)


@pytest.mark.slow
def test_a_robot_that_is_told_becomes_right_and_its_low_level_stays():
    """The low level is exact: a = .8 (right - left, up - down). The demonstrations go to (.4, .4)."""
    embedded = spoken.embed(spoken.PUSH_TEXTS)
    words = np.zeros((6, 2), np.float32)
    words[[3, 1], 0], words[[4, 0], 1] = (0.8, -0.8), (0.8, -0.8)
    features = lambda s: jnp.concatenate([s, jnp.abs(s[:, :2]), jnp.ones((len(s), 1))], axis=1)  # noqa: E731
    high = Net(None, lambda params, seen: features(seen) @ params)
    levels = two_level.Levels(high, Net(None, lambda params, x: x[:, 4:] @ params), embedded)
    data, rng = [], np.random.default_rng(0)
    data.append(tool.beside(rng, 256))
    first = {"net": jnp.asarray(0.1 * rng.normal(size=(7, 6)), jnp.float32), "temperature": jnp.float32(1.0)}
    fit = two_level.high_fitter(levels, steps=400, learning_rate=2e-2)
    nothing = two_level.Said(data[0].observations[:0], data[0].commands[:0])
    with pytest.raises(ValueError, match="nobody has said a command yet"):
        fit(first, [nothing], jax.random.key(0))
    settings = dict(rounds=3, episodes=16, fit=fit)
    found = tool.corrected(levels, first, jnp.asarray(words), data, jax.random.key(0), **settings)
    assert found[0].alone < 0.2 and found[-1].alone > 0.7, found
    assert found[-1].said < 0.3 * found[0].said and len(data) == 4
    # What is kept of a round is where the guide spoke, and what they said.
    said = jax.vmap(docking.guide)(jnp.asarray(data[1].observations)[:, None])[0][:, 0]
    np.testing.assert_array_equal(spoken.push_command(said), data[1].commands)
