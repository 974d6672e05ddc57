"""rl_jax/core/tracing.py: one trace for a function's shapes and a scan over it, and the same program as without."""

import jax
import jax.numpy as jnp
import pytest

from rl_jax.core.tracing import traced_once


@pytest.mark.parametrize(("once", "traces"), [(lambda fn: fn, 2), (traced_once, 1)])
def test_the_shapes_and_the_scan_share_a_trace_and_the_program_is_the_same(once, traces):
    calls = []

    @once
    def update(state, x):
        calls.append(1)
        return {"a": state["a"] * 0.5 + x}, {"mean": state["a"] - x, "one": 1.0}

    def run(state, xs):
        shapes = jax.eval_shape(update, state, xs[0])[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def step(carry, x):
            state, metrics = update(carry[0], x)
            return (state, jax.tree.map(jnp.add, carry[1], metrics)), None

        return jax.lax.scan(step, (state, zeros), xs)[0]

    made = jax.make_jaxpr(run)({"a": jnp.ones(3)}, jnp.ones((4, 3)))
    (loop,) = (eqn for eqn in made.eqns if eqn.primitive.name == "scan")
    assert [eqn.primitive.name for eqn in loop.params["jaxpr"].eqns] == ["mul", "add", "sub", "add", "add"]
    assert len(calls) == traces
