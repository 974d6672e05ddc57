"""attention.py: blocks of queries change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer.attention import attend, attend_causally


@pytest.mark.slow
@pytest.mark.parametrize(("length", "softcap"), [(128, 0.0), (300, 0.0), (300, 2.0)])
def test_blocks_of_queries_equal_the_whole(length, softcap):
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(key, (2, length, heads, 4)) for key, heads in zip(keys[:3], (2, 1, 1), strict=True))
    itself = jnp.eye(length, dtype=bool)[None, None]
    mask = jnp.tril(jax.random.bernoulli(keys[3], 0.7, (2, 1, length, length))) | itself

    def total(function, q, k, v):
        out = function(q, k, v, mask, scale=0.5, softcap=softcap)
        return jnp.sum(jnp.sin(out)), out

    (value, gradient), (found, blocked) = (
        jax.jit(jax.grad(functools.partial(total, f), argnums=(0, 1, 2), has_aux=True))(q, k, v)[::-1]
        for f in (attend, attend_causally)
    )
    np.testing.assert_allclose(found, value, atol=1e-5)
    for ours, theirs in zip(blocked, gradient, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
