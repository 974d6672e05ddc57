"""shared_programs: what is shared is the same, and what differs anywhere is not shared."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax.models.transformer.model import make_transformer
from tests.experiments import shared_programs
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.tiny import CONFIG

OFFSET = 1.0


def make(scale, power=2):
    """A function that differs in what it is closed over."""

    def inner(x):
        return x**power

    return lambda x: scale * inner(x)


def defaults(x, *, factor=1.0):
    return x * factor


def test_the_same_is_jitted_once():
    first, second = jax.jit(make(2.0)), jax.jit(make(2.0))
    assert first is second and first(jnp.float32(3.0)) == 18.0
    assert jax.jit(make_transformer(CONFIG).init) is jax.jit(make_transformer(CONFIG).init)
    first, second = (jax.jit(make(ravel_pytree(dict(a=jnp.full(2, x)))[1])) for x in (0.0, 1.0))
    assert first is second and jax.jit(make(jnp.tanh)) is jax.jit(make(jnp.tanh))


def different():
    """Pairs of arguments of jax.jit that are not the same program."""
    model = make_transformer(CONFIG)
    other = make_transformer(dataclasses.replace(CONFIG, num_layers=CONFIG.num_layers + 1))
    array = np.arange(3.0)
    return {
        "a value": (make(2.0), make(3.0)),
        "a type of a value": (make(2), make(2.0)),
        "a value further in": (make(2.0), make(2.0, power=3)),
        "code": (lambda x: x + 1, lambda x: x + 2),
        "a partial's keyword": tuple(functools.partial(defaults, factor=factor) for factor in (1.0, 2.0)),
        "an array": (make(array), make(array + 1)),
        "a type of an array": (make(array), make(array.astype(np.float32))),
        "an array of jax": (make(jnp.ones(2)), make(jnp.zeros(2))),
        "a random key": (make(jax.random.key(0)), make(jax.random.key(1))),
        "a model": (model.apply, other.apply),
        "a jitted function": (make(jax.jit(make(1.0))), make(jax.jit(make(2.0)))),
        "the shapes of an unraveler": tuple(make(ravel_pytree(dict(a=jnp.ones(n)))[1]) for n in (2, 3)),
        "the names of an unraveler": tuple(make(ravel_pytree({name: jnp.ones(2)})[1]) for name in "ab"),
    }


@pytest.mark.parametrize("what", different())
def test_what_differs_is_not_shared(what):
    left, right = different()[what]
    assert shared_programs.key_of(left) != shared_programs.key_of(right)
    assert jax.jit(left) is not jax.jit(right)


def test_options_of_jit_are_part_of_it():
    function = make(5.0)
    assert jax.jit(function) is not jax.jit(function, donate_argnums=0) is not jax.jit(function, static_argnums=0)


@pytest.mark.parametrize(
    "unknown", [[], object(), np.zeros(5000), iter(())], ids=["list", "object", "large", "iterator"]
)
def test_what_nothing_is_known_of_is_not_shared(unknown):
    assert jax.jit(make(unknown)) is not jax.jit(make(unknown))


def test_nothing_is_shared_once_something_is_replaced(monkeypatch):
    """What a function finds by its global name is not in its key."""

    def shifted():
        return lambda x: x + OFFSET

    assert jax.jit(shifted())(1.0) == 2.0
    monkeypatch.setattr("tests.experiments.test_shared_programs.OFFSET", 5.0)
    assert jax.jit(shifted())(1.0) == 6.0
    monkeypatch.undo()
    assert jax.jit(shifted())(1.0) == 2.0
