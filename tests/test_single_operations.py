"""single_operations.py: every operation beside XLA, bit by bit; what it must leave to XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests import single_operations

SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3.4e38, 2e-30, 1 / 3, 2.0**24 + 1, 7.0]
FLOATS = np.float32([SPECIAL, [x * 0.7 for x in SPECIAL], np.linspace(-3, 3, 12)])
PLAIN = np.float32(np.random.default_rng(0).normal(size=(3, 12)))
INTEGERS = np.int32(np.random.default_rng(1).integers(-(2**31), 2**31 - 1, (3, 12)))
BITS = INTEGERS % 3 == 0
CASES = {
    "broadcast_in_dim": (lambda x: jnp.broadcast_to(x, (2, 3, 12)), FLOATS),
    "broadcast_in_dim, inside": (lambda x: x[:, None], FLOATS),
    "reshape": (lambda x: x.reshape(4, 9), FLOATS),
    "squeeze": (lambda x: jnp.squeeze(x, 0), FLOATS[None]),
    "transpose": (jnp.transpose, FLOATS),
    "rev": (lambda x: jnp.flip(x, 1), FLOATS),
    "slice": (lambda x: lax.slice(x, (1, 2), (3, 11), (1, 3)), FLOATS),
    "dynamic_slice": (lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 5)), FLOATS, 5, -4),
    "split": (lambda x: jnp.split(x, (2, 5), axis=1), FLOATS),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), FLOATS, PLAIN),
    "select_n": (jnp.where, BITS, FLOATS, PLAIN),
    "iota": (lambda: jnp.arange(7.0),),
    "iota, wide": (lambda: lax.broadcasted_iota(np.int32, (3, 4), 1),),
    "copy": (jnp.copy, FLOATS),
    "stage": (jnp.asarray, 3),
    "convert_element_type, integers": (lambda x: x.astype(np.float32), INTEGERS),
    "convert_element_type, narrower": (lambda x: x.astype(np.uint8), INTEGERS),
    "convert_element_type, bools": (lambda x: x.astype(np.float32), BITS),
    "convert_element_type, to bools": (lambda x: x.astype(bool), FLOATS),
    "add": (jnp.add, FLOATS, FLOATS[::-1]),
    "add, weak": (lambda x: x + 1.1, PLAIN),
    "add, integers": (jnp.add, INTEGERS, INTEGERS),
    "sub": (jnp.subtract, FLOATS, FLOATS[::-1]),
    "mul": (jnp.multiply, FLOATS, PLAIN),
    "mul, integers": (jnp.multiply, INTEGERS, INTEGERS),
    "div": (jnp.true_divide, FLOATS, PLAIN),
    "square": (jnp.square, FLOATS),
    "sqrt": (jnp.sqrt, FLOATS),
    "integer_pow": (lambda x: lax.integer_pow(x, 2), FLOATS),
    "neg": (jnp.negative, FLOATS),
    "abs": (jnp.abs, INTEGERS),
    "is_finite": (jnp.isfinite, FLOATS),
    "eq": (jnp.equal, FLOATS, FLOATS[::-1]),
    "ne": (jnp.not_equal, FLOATS, FLOATS),
    "lt": (jnp.less, FLOATS, FLOATS[::-1]),
    "le": (jnp.less_equal, FLOATS, FLOATS[::-1]),
    "gt": (jnp.greater, FLOATS, FLOATS[::-1]),
    "ge": (jnp.greater_equal, FLOATS, FLOATS[::-1]),
    "max": (jnp.maximum, PLAIN, PLAIN[::-1]),
    "min": (jnp.minimum, INTEGERS, INTEGERS[::-1]),
    "and": (jnp.bitwise_and, INTEGERS, INTEGERS[::-1]),
    "or": (jnp.logical_or, BITS, BITS[::-1]),
    "xor": (jnp.bitwise_xor, INTEGERS, INTEGERS[::-1]),
    "not": (jnp.logical_not, BITS),
    "reduce_sum": (lambda x: jnp.sum(x, 0), INTEGERS),
    "reduce_sum, bools": (jnp.sum, BITS),
    "reduce_max": (lambda x: jnp.max(x, 1), PLAIN),
    "reduce_min": (jnp.min, INTEGERS),
    "reduce_and": (lambda x: jnp.all(x, 0), BITS),
    "reduce_or": (lambda x: jnp.any(x, 1), BITS),
}
XLAS = {
    "subnormal": (jnp.add, np.float32([1e-40]), np.float32([1e-40])),
    "a subnormal result": (jnp.multiply, np.float32([1e-30]), np.float32([1e-10])),
    "two zeros": (jnp.maximum, np.float32([0.0]), np.float32([-0.0])),
    "beside nan": (jnp.minimum, np.float32([np.nan]), np.float32([1.0])),
    "a sum": (jnp.sum, PLAIN),
    "two roundings": (jax.jit(lambda x, y: x * y + x), PLAIN, PLAIN[::-1]),
    "a float to an integer": (lambda x: x.astype(np.int32), PLAIN),
    "an exponential": (jnp.exp, PLAIN),
    "a quotient of integers": (jnp.floor_divide, INTEGERS, INTEGERS[::-1]),
    "bfloat16": (lambda x: x + x, jnp.ones(3, jnp.bfloat16)),
}


@pytest.fixture
def compiled():
    """Names of the programs that are compiled from here on."""
    names = []

    def listen(event, seconds, **keywords):
        if event.endswith("backend_compile_duration"):
            names.append(keywords.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.clear_caches()
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def both(function, *arrays):
    """(results of the operation by itself, of the program that XLA makes of it)."""
    arrays = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays]
    alone = function(*arrays)
    return alone, jax.jit(function).lower(*arrays).compile()(*arrays)


def bits(tree):
    """Everything that can be told of arrays."""
    leaves = jax.tree.leaves(tree)
    return [(np.asarray(x).tobytes(), x.dtype, x.shape, x.weak_type, x._committed, x.devices()) for x in leaves]


def test_every_operation_has_a_case():
    assert {name.partition(",")[0] for name in CASES} == set(single_operations.OPERATIONS)


@pytest.mark.parametrize("name", CASES)
def test_numpy_has_the_bits_of_xla(name, compiled):
    function, *arrays = CASES[name]
    alone, program = both(function, *arrays)
    assert bits(alone) == bits(program)
    assert len(compiled) == 1  # XLA's own


@pytest.mark.parametrize("name", XLAS)
def test_what_has_no_one_right_result_is_left_to_xla(name, compiled):
    function, *arrays = XLAS[name]
    alone, program = both(function, *arrays)
    assert bits(alone) == bits(program)
    assert len(compiled) >= 2


def test_what_is_bound_to_a_device_or_called_often_is_compiled(compiled):
    bound = jax.device_put(PLAIN, jax.devices()[3])
    assert (bound + bound).devices() == {jax.devices()[3]} and len(compiled) == 1
    x = jnp.ones(5)
    for _ in range(single_operations.MOST_CALLS):
        x = x * 1.5
    assert len(compiled) == 1
    x * 1.5
    assert len(compiled) == 2


def test_gradients_and_maps_are_the_same(compiled):
    x = jnp.asarray(PLAIN)
    alone = jax.grad(lambda x: jnp.sum(jnp.square(jnp.where(x > 0, x, -x))[1:]))(x)
    np.testing.assert_array_equal(alone, np.where(np.arange(3)[:, None] > 0, 2 * PLAIN, 0.0))
    rows = jax.vmap(functools.partial(jnp.subtract, x[0]))(x)
    np.testing.assert_array_equal(rows, PLAIN[0] - PLAIN)


def test_a_result_shares_no_memory_with_its_argument():
    x = jnp.asarray(np.arange(64, dtype=np.float32))
    y = x.reshape(8, 8)
    add = jax.jit(lambda x: x + jnp.exp(x), donate_argnums=0)
    add(x)
    np.testing.assert_array_equal(y.ravel(), np.arange(64))


def test_a_not_a_number_is_an_error_for_who_looks_for_it():
    zeros = jnp.zeros((2, 3))
    assert np.isnan(zeros / zeros).all()
    with jax.debug_nans(True):
        assert np.isinf((zeros + 1.0) / zeros).all()
        with pytest.raises(FloatingPointError):
            zeros / zeros
    with jax.debug_infs(True), pytest.raises(FloatingPointError):
        (zeros + 1.0) / zeros
