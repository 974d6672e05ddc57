"""Draws by tests/random_bits.py are jax's own, bit by bit."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax._src.random import threefry2x32

from tests import random_bits


def draws(key):
    """What there is to draw, of one key and of several, in loops and under vmap."""
    keys = jax.random.split(key, 6)
    folded = jax.vmap(jax.random.fold_in)(keys, jnp.arange(6))
    drawn = jax.lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.bits(k, (5,))), key, None, 3)[1]
    each = jax.vmap(lambda k: jax.random.bits(k, (2, 3)))(folded.reshape(6))
    both = jax.vmap(jax.vmap(lambda k: jax.random.normal(k, (7,))))(keys.reshape(2, 3))
    order = jax.random.permutation(keys[0], 9), jax.random.categorical(keys[1], jnp.zeros((4, 3)))
    columns = jnp.linalg.qr(jax.random.normal(keys[2], (8, 4)))  # LAPACK's matrices are by columns
    return jax.random.key_data(folded), drawn, each, both, order, columns, jax.random.bits(key, (3,), "uint8")


def compiled(device_count: int = 1):
    """(text of a new program, what it draws)."""
    everywhere = jax.NamedSharding(jax.make_mesh((device_count,), ("x",)), jax.P())
    program = jax.jit(lambda key: draws(key), in_shardings=everywhere)
    key = jax.random.key(7)
    return program.lower(key).as_text(), jax.device_get(program(key))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the tests draw by XLA")
def test_every_draw_is_jaxs_own():
    text, found = compiled()
    assert random_bits.NAME in text, "conftest.py installs it"
    mlir.register_lowering(threefry2x32.threefry2x32_p, usual := threefry2x32._threefry2x32_cpu_lowering_rule, "cpu")
    try:
        own, expected = compiled()
    finally:
        mlir.register_lowering(threefry2x32.threefry2x32_p, random_bits.called(usual), "cpu")
    assert random_bits.NAME not in own
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_programs_over_devices_and_exported_ones_are_as_for_users():
    text, found = compiled(2)
    assert random_bits.NAME not in text
    jax.tree.map(np.testing.assert_array_equal, found, compiled()[1])
    exported = jax.export.export(jax.jit(lambda x: jax.random.bits(jax.random.key(x))))(jnp.uint32(3))
    assert random_bits.NAME not in str(exported.mlir_module())
