"""Curiosity in hindsight on bootstrapped latents (arXiv 2211.10515): the slow encoder, the bonus by hand, the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import relabelling
from rl_jax.models.agents.features import make_net
from tests.control.relabelling.test_novelty import TWO, walk, watched


def apart(x, y):
    """|unit(x) - unit(y)|^2 of each row."""
    x, y = (np.asarray(z) / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    return np.sum((x - y) ** 2, axis=1)


def test_the_target_follows_the_encoder_and_the_bonus_is_the_error_of_unit_latents():
    known = dict(make_net=make_net, observation_size=4, distribution=TWO, hidden=(8,), latent=3, keep=0.0)
    made = relabelling.by_bootstrap(**known, hindsight=0, target_rate=0.3, steps=2)
    before, rows = made.begin(jax.random.key(0)), walk([0, 1, 2, 3, 2, 1], 4)
    same = jax.tree.map(lambda x, y: bool(jnp.all(x == y)), before.target, before.learned.params["encode"])
    assert all(jax.tree.leaves(same))
    shifted = before._replace(target=jax.tree.map(lambda x: x + 0.1, before.target))
    after, paid = jax.jit(made.apply)(shifted, rows)
    encode, again = make_net(4, 3, hidden=(8,)), make_net(5, 3, hidden=(8,))
    params = before.learned.params
    seen = encode.apply(params["encode"], rows.observations[0])
    action = np.eye(2, dtype=np.float32)[np.asarray(rows.actions)[0]]
    said = again.apply(params["reconstruct"], jnp.concatenate([seen, action], axis=1))
    wanted = apart(said, encode.apply(shifted.target, rows.next_observations[0]))
    np.testing.assert_allclose(paid.rewards[0], wanted, rtol=1e-4, atol=1e-5)
    moved = jax.tree.map(lambda x: np.asarray(x), after.learned.params["encode"])
    for slow, old, new in zip(*map(jax.tree.leaves, (after.target, shifted.target, moved)), strict=True):
        np.testing.assert_allclose(slow, 0.7 * old + 0.3 * new, rtol=1e-5, atol=1e-6)
    changes = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), moved, params["encode"])
    assert max(jax.tree.leaves(changes)) > 1e-4, "the encoder learns"


@pytest.mark.slow
def test_noise_bores_in_hindsight_only():
    """A screen of 4 random channels: without hindsight its bonus stays, with it that of what is certain is near.

    Where the next state is certain both fall.
    """
    known = dict(make_net=make_net, observation_size=6, distribution=TWO, hidden=(32,), latent=8, keep=0.0)
    found = [watched(relabelling.by_bootstrap(**known, hindsight=n, target_rate=0.05), 4, 350)[-2:] for n in (0, 4)]
    (plain, certain), (noise, still) = (x.mean(axis=0) for x in found)
    assert plain > 0.12 and certain < 0.01, found
    assert noise < 0.06 and still < 0.06, found
