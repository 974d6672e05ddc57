"""training.streaming: a step in pieces is the step on all rows, whatever the pieces and their order."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.core.masked import Max, masked_mean, zero_masked
from rl_jax.training import balance
from rl_jax.training.step import init_state, make_train_step
from rl_jax.training.streaming import make_streaming_step

OPTIMIZER = optax.adam(0.1)
OPTIONS = dict(max_grad_norm=0.5, schedule=lambda count: 0.1)


def loss_fn(params, batch):
    x, y, mask = batch
    error = zero_masked(x @ params["w"] - y, mask)
    return masked_mean(jnp.square(error), mask), {"largest": Max(jnp.max(jnp.where(mask, error, -jnp.inf)))}


def rows(count=8, length=5):
    rng = np.random.default_rng(0)
    lengths = np.resize([5, 1, 3, 0, 2, 5, 1, 4], count)
    x, y = rng.normal(size=(count, length, 3)), rng.normal(size=(count, length))
    return np.float32(x), np.float32(y), np.arange(length) < lengths[:, None]


def state():
    return init_state({"w": jnp.array([0.5, -1.0, 2.0])}, OPTIMIZER, jax.random.key(0))


def streamed(parts):
    step = make_streaming_step(loss_fn, OPTIMIZER, **OPTIONS)
    start, add = state(), jax.jit(step.add)
    sums = step.begin(start.params, parts[0])
    for part in parts:
        sums = add(start.params, sums, part)
    return (*jax.jit(step.apply)(start, sums), add._cache_size())


def cut(batch, parts):
    return [tuple(array[part] for array in batch) for part in parts]


@pytest.mark.parametrize(
    "parts", [[range(8)], [[0, 1], [2, 3], [4, 5], [6, 7]], [[7], [3, 1, 0], [6, 5, 4, 2]]], ids=len
)
def test_pieces_are_the_whole(parts):
    batch = rows()
    whole, metrics = jax.jit(make_train_step(loss_fn, OPTIMIZER, **OPTIONS))(state(), batch)
    found, streamed_metrics, _ = streamed(cut(batch, [list(part) for part in parts]))
    np.testing.assert_allclose(found.params["w"], whole.params["w"], rtol=1e-6)
    assert streamed_metrics.keys() == metrics.keys() and found.step == 1
    for name, value in metrics.items():
        np.testing.assert_allclose(streamed_metrics[name], value, rtol=1e-5, err_msg=name)


def test_micro_batches_of_one_shape_are_one_program():
    """Rows of heavy-tailed lengths, split by balance.parts, each part filled up with empty rows."""
    batch = rows(40)
    parts = balance.parts(batch[2].sum(axis=1), max_tokens=20, hidden=1)
    height = max(len(part) for part in parts)
    filled = []
    for x, y, mask in cut(batch, parts):
        more = height - len(mask)
        filled.append(tuple(np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1)) for array in (x, y, mask)))
    found, _, programs = streamed(filled)
    whole, _ = jax.jit(make_train_step(loss_fn, OPTIMIZER, **OPTIONS))(state(), batch)
    np.testing.assert_allclose(found.params["w"], whole.params["w"], rtol=1e-5)
    assert len(parts) > 4 and programs == 1


def test_a_piece_that_is_not_finite_changes_nothing():
    batch = rows()
    batch[1][2, 0] = np.inf
    found, metrics, _ = streamed(cut(batch, [[0, 1], [2, 3]]))
    np.testing.assert_array_equal(found.params["w"], state().params["w"])
    assert found.skipped == 1 and metrics["nonfinite/skipped"] == 1
