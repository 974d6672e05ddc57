"""losses/preference/degrees.py: the loss and the accuracy of SPO's head, against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses.preference import regularizers
from rl_jax.losses.preference.degrees import degree_accuracy


def test_the_loss_of_the_head_is_a_cross_entropy_of_what_is_there():
    rng = np.random.default_rng(0)
    logits, degrees = np.float32(rng.normal(size=(3, 6, 4))), np.float32(rng.integers(0, 4, (3, 6)))
    present = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
    logits[~present] = 1e30  # of rows that are not there
    blank = np.zeros((3, 6, 2), np.float32)

    def loss(logits):
        named = dict(degree_logits=logits, degrees=jnp.asarray(degrees), present=jnp.asarray(present))
        return regularizers.degree_head_nll(jnp.asarray(blank), jnp.asarray(blank > -1), **named)

    expected, right = [], []
    for n in range(3):
        own = []
        for k in np.flatnonzero(present[n]):
            shares = np.exp(logits[n, k]) / np.exp(logits[n, k]).sum()
            own.append(-np.log(shares[int(degrees[n, k])]))
            right.append(shares.argmax() == degrees[n, k])
        expected.append(np.mean(own) if own else 0.0)
    np.testing.assert_allclose(loss(jnp.asarray(logits)), expected, rtol=1e-5)
    slope = np.asarray(jax.grad(lambda x: loss(x).sum())(jnp.asarray(logits)))
    assert np.abs(slope[present]).min() > 0 and not slope[~present].any()
    found = degree_accuracy(jnp.asarray(logits), jnp.asarray(degrees), jnp.asarray(present))
    np.testing.assert_allclose([found.total, found.count], [sum(right), present.sum()])
    with pytest.raises(AssertionError):
        degree_accuracy(jnp.asarray(logits), jnp.asarray(degrees), jnp.asarray(present)[..., None])
