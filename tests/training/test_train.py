"""train.py: one division whatever the micro-batches and the mesh, steps that are skipped, schedules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import grpo
from rl_jax.core.masked import Max, masked_mean, zero_masked
from rl_jax.core.types import PolicyBatch
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score
from rl_jax.training.step import all_finite, init_state, make_schedule, make_train_step, unless_poisoned
from tests.tiny import CONFIG, max_difference, random_params, token_batch


def _loss(params, batch):
    """Mean squared error over the mask, of a linear model; rows of very different lengths."""
    x, y, mask = batch
    error = zero_masked(x @ params["w"] + params["b"] - y, mask)
    return masked_mean(jnp.square(error), mask), {
        "error": masked_mean(error, mask),
        "largest": Max(jnp.max(jnp.where(mask, error, -jnp.inf))),
    }


def _batch(seed=0, rows=8, length=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, length, 3)).astype(np.float32)
    y = rng.normal(size=(rows, length)).astype(np.float32)
    lengths = np.array([5, 1, 3, 0, 2, 5, 1, 4])[:rows]
    return x, y, np.arange(length) < lengths[:, None]


def _params():
    return {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.zeros(())}


def _state(optimizer):
    return init_state(_params(), optimizer, jax.random.key(0))


def _numpy_gradient(params, batch):
    """d/dw of sum over live tokens of error^2 / their number: all rows in one sum, one division."""
    x, y, mask = (np.asarray(a, np.float64) for a in batch)
    w, b = np.asarray(params["w"], np.float64), float(params["b"])
    error = (x @ w + b - y) * mask
    return {"w": 2 * np.einsum("bt,btd->d", error, x) / mask.sum(), "b": 2 * error.sum() / mask.sum()}, error


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4, 8])
def test_one_division_whatever_the_micro_batches(num_micro_batches):
    """Against numpy over the whole batch; rows hold 0 to 5 tokens, so a mean of means is far off."""
    optimizer, batch = optax.sgd(0.1), _batch()
    step = make_train_step(_loss, optimizer, num_micro_batches=num_micro_batches)
    state, metrics = jax.jit(step)(_state(optimizer), batch)
    gradient, error = _numpy_gradient(_params(), batch)
    for name, value in gradient.items():
        np.testing.assert_allclose(state.params[name], np.asarray(_params()[name]) - 0.1 * value, rtol=1e-5)
    live = batch[2]
    expected = {
        "loss": (error**2).sum() / live.sum(),
        "error": error.sum() / live.sum(),
        "largest": error[live].max(),
        "grad_norm": np.sqrt(sum(np.sum(g**2) for g in gradient.values())),
        "nonfinite/skipped": 0.0,
    }
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5)
    assert state.step == 1 and state.skipped == 0


def test_the_means_of_micro_batches_would_differ():
    """The case above can fail: dividing in each of two micro-batches gives another gradient."""
    batch = _batch()
    halves = [_numpy_gradient(_params(), [x[i::2] for x in batch])[0]["w"] for i in range(2)]
    assert np.max(np.abs(np.mean(halves, axis=0) - _numpy_gradient(_params(), batch)[0]["w"])) > 0.02


def test_adam_by_hand():
    optimizer = optax.adam(0.01, b1=0.9, b2=0.99, eps=1e-8)
    step, state, params = jax.jit(make_train_step(_loss, optimizer)), _state(optimizer), _params()
    w, first, second = np.asarray(params["w"], np.float64), 0.0, 0.0
    b, first_b, second_b = 0.0, 0.0, 0.0
    for t in range(1, 4):
        batch = _batch(seed=t)
        gradient, _ = _numpy_gradient({"w": w, "b": b}, batch)
        state, _ = step(state, batch)
        first, second = 0.9 * first + 0.1 * gradient["w"], 0.99 * second + 0.01 * gradient["w"] ** 2
        first_b, second_b = 0.9 * first_b + 0.1 * gradient["b"], 0.99 * second_b + 0.01 * gradient["b"] ** 2
        fix, fix2 = 1 - 0.9**t, 1 - 0.99**t
        w = w - 0.01 * (first / fix) / (np.sqrt(second / fix2) + 1e-8)
        b = b - 0.01 * (first_b / fix) / (np.sqrt(second_b / fix2) + 1e-8)
        np.testing.assert_allclose(state.params["w"], w, rtol=1e-5)
        np.testing.assert_allclose(state.params["b"], b, rtol=1e-4)


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e6])
def test_the_divided_gradient_is_what_is_clipped(max_grad_norm):
    optimizer, batch = optax.sgd(1.0), _batch()
    step = make_train_step(_loss, optimizer, num_micro_batches=2, max_grad_norm=max_grad_norm)
    state, metrics = jax.jit(step)(_state(optimizer), batch)
    gradient, _ = _numpy_gradient(_params(), batch)
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)  # reported before it is clipped
    moved = np.asarray(_params()["w"]) - np.asarray(state.params["w"])
    np.testing.assert_allclose(moved, gradient["w"] * min(1.0, max_grad_norm / norm), rtol=1e-3)


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted():
    optimizer = optax.adam(0.1)
    step = jax.jit(make_train_step(_loss, optimizer, max_grad_norm=1.0, schedule=lambda count: count * 1.0))
    good, bad = _batch(), _batch()
    bad[1][0, 0] = np.nan
    infinite = _batch()
    infinite[0][0, 0, 0] = np.inf
    before, _ = step(_state(optimizer), good)
    state, metrics = step(before, bad)
    assert not np.isfinite(metrics["loss"])
    state, metrics = step(state, infinite)
    for left, right in zip(
        jax.tree.leaves((state.params, state.opt_state)),
        jax.tree.leaves((before.params, before.opt_state)),
        strict=True,
    ):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    assert (state.step, state.skipped, state.skipped_in_a_row) == (3, 2, 2)
    assert metrics["nonfinite/skipped"] == 2 and metrics["lr"] == 1  # updates made so far, not steps
    state, metrics = step(state, good)
    assert (state.step, state.skipped, state.skipped_in_a_row) == (4, 2, 0)
    assert metrics["nonfinite/skipped"] == 2 and np.any(state.params["w"] != before.params["w"])


@pytest.mark.parametrize("rate", [np.nan, 1e38])
def test_a_good_gradient_that_would_poison_the_params_changes_nothing(rate):
    optimizer = optax.sgd(rate)
    step = jax.jit(make_train_step(_loss, optimizer))
    before, batch = _state(optimizer), _batch()
    batch[0][:] *= 100.0  # the gradient's size
    state, metrics = step(before, batch)
    assert np.isfinite(metrics["grad_norm"]) and np.isfinite(metrics["loss"])
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (state.params, before.params)), strict=True))
    assert (state.step, state.skipped, state.skipped_in_a_row) == (1, 1, 1) and metrics["nonfinite/skipped"] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rule", [optax.adamw(1e-3), optax.sgd(1e-3, momentum=0.9)])
def test_narrow_params_and_their_moments_keep_their_type(dtype, rule):
    """Their gradient, summed over the tokens, is beyond the largest square of float16, and clipped."""
    before = init_state(jax.tree.map(lambda x: x.astype(dtype), _params()), rule, jax.random.key(0))
    batch, step = _batch(), jax.jit(make_train_step(_loss, rule, max_grad_norm=1.0))
    batch[1][:] += 300.0
    state, metrics = step(step(before, batch)[0], batch)
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(lambda x: x.dtype, before)
    assert state.skipped == 0 and metrics["grad_norm"] > 256
    assert np.any(np.asarray(state.params["b"] != before.params["b"]))


def test_one_float_of_one_leaf_is_enough():
    tree = {"a": jnp.ones(3), "n": jnp.arange(2)}
    assert all_finite(tree) and all_finite({})
    assert not all_finite(tree | {"b": jnp.array([1.0, np.nan])})
    assert not all_finite(tree | {"b": jnp.array([np.inf, 1.0])})


def test_many_unchecked_steps_keep_their_start_if_a_param_is_poisoned():
    optimizer = optax.sgd(lambda count: jnp.where(count == 1, jnp.inf, 0.1))  # of three updates, the second poisons
    step = make_train_step(_loss, optimizer, check_params=False)

    @jax.jit
    def steps(state, batches):
        after, metrics = jax.lax.scan(step, state, batches)
        return unless_poisoned(state, after), metrics

    def same(left, right):
        return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (left, right)), strict=True))

    batches = jax.tree.map(lambda x: np.stack([x, x, x]), _batch())
    start = _state(optimizer)._replace(step=jnp.int32(10), skipped=jnp.int32(2), skipped_in_a_row=jnp.int32(1))
    kept, metrics = steps(start, batches)
    assert np.isfinite(metrics["loss"][:2]).all()
    assert same((kept.params, kept.opt_state), (start.params, start.opt_state))
    assert (kept.step, kept.skipped, kept.skipped_in_a_row) == (13, 5, 4)
    late = start._replace(opt_state=jax.tree.map(lambda count: count + 2, start.opt_state))  # past the second
    moved, _ = steps(late, batches)
    alone, once = late, jax.jit(step)
    for _ in range(3):
        alone, _ = once(alone, _batch())
    assert max_difference(moved.params, alone.params) < 1e-6
    assert (moved.step, moved.skipped, moved.skipped_in_a_row) == (13, 2, 0)


def test_a_nan_behind_the_mask_is_not_a_bad_gradient():
    batch, clean = _batch(), _batch()
    batch[1][~batch[2]] = np.nan
    step = jax.jit(make_train_step(_loss, optax.sgd(0.1)))
    left, right = (step(_state(optax.sgd(0.1)), b)[0] for b in (clean, batch))
    assert right.skipped == 0 and max_difference(left.params, right.params) == 0


def test_a_batch_without_a_token_has_a_zero_gradient():
    x, y, mask = _batch()
    optimizer = optax.sgd(0.1)
    step = jax.jit(make_train_step(_loss, optimizer, num_micro_batches=2))
    state, metrics = step(_state(optimizer), (x, y, np.zeros_like(mask)))
    assert max_difference(state.params, _params()) == 0
    assert metrics["grad_norm"] == 0 and metrics["loss"] == 0 and state.skipped == 0


def test_rows_that_do_not_divide_are_refused():
    step = make_train_step(_loss, optax.sgd(0.1), num_micro_batches=3)
    with pytest.raises(ValueError, match="8 rows do not divide into num_micro_batches=3"):
        step(_state(optax.sgd(0.1)), _batch())


def test_schedule_values():
    warm = make_schedule(learning_rate=1.0, warmup_steps=4, decay_steps=10, final_fraction=0.1)
    np.testing.assert_allclose([warm(i) for i in range(5)], [0.25, 0.5, 0.75, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(warm(4 + 5), 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * 0.5)), rtol=1e-6)
    np.testing.assert_allclose([warm(14), warm(1000)], [0.1, 0.1], rtol=1e-6)
    constant = make_schedule(learning_rate=0.3)
    np.testing.assert_allclose([constant(0), constant(99)], [0.3, 0.3])
    one = make_schedule(learning_rate=0.3, warmup_steps=1)
    np.testing.assert_allclose([one(0), one(1), one(7)], [0.3, 0.3, 0.3])


@pytest.mark.parametrize("decay", ["cosine", "linear", "sqrt"])
def test_shapes_of_the_decay(decay):
    """Warm-up of 2, 3 updates at the peak, 4 of decay: in numpy, update by update."""
    fields = dict(learning_rate=2.0, warmup_steps=2, hold_steps=3, decay_steps=4, final_fraction=0.2, decay=decay)
    schedule, done = make_schedule(**fields), np.arange(5) / 4
    left = {"cosine": 0.5 * (1 + np.cos(np.pi * done)), "linear": 1 - done, "sqrt": 1 - np.sqrt(done)}[decay]
    expected = [1.0, 2.0, 2.0, 2.0, 2.0, *(2.0 * (0.2 + 0.8 * left)), 0.4, 0.4]
    np.testing.assert_allclose([schedule(i) for i in range(len(expected))], expected, rtol=1e-6)
    with pytest.raises(ValueError, match="decay='step' is none of cosine, linear, sqrt"):
        make_schedule(**fields | dict(decay="step"))


def test_lr_is_the_rate_of_the_update_that_was_made():
    schedule = make_schedule(learning_rate=0.2, warmup_steps=4)
    optimizer, batch = optax.sgd(schedule), _batch()
    step, state = jax.jit(make_train_step(_loss, optimizer, schedule=schedule)), _state(optax.sgd(schedule))
    for expected in (0.05, 0.1, 0.15):
        gradient, _ = _numpy_gradient(state.params, batch)
        after, metrics = step(state, batch)
        np.testing.assert_allclose(metrics["lr"], expected, rtol=1e-6)
        np.testing.assert_allclose(after.params["w"], state.params["w"] - expected * gradient["w"], rtol=1e-5)
        state = after


def _grpo_case():
    """A train step of GRPO on the tiny transformer, its state, and a batch of 8 ragged rows, on no device yet."""
    model = make_transformer(CONFIG)
    score = make_score(model, completion_length=8, chunk=4)
    objective = grpo.Objective()

    def loss_fn(params, batch):
        return grpo.loss(score(params, batch.batch), batch, objective)

    # eps well above float noise: AdamW would otherwise turn a gradient of 1e-9 of either sign into a whole step.
    optimizer = optax.adamw(1e-2, eps=1e-4)
    rng = np.random.default_rng(0)
    tokens = token_batch([12, 9, 10, 12, 6, 11, 7, 12], 12, left=False)
    mask = np.asarray(tokens.segment_ids)[:, 4:] > 0
    params = random_params()
    old = np.asarray(jax.jit(score)(params, tokens).log_probs)
    near = [old + 0.3 * rng.normal(size=mask.shape).astype(np.float32) for _ in range(3)]
    advantages = np.broadcast_to(rng.normal(size=(8, 1)), mask.shape).astype(np.float32)
    batch = PolicyBatch(tokens, mask, advantages, near[0], near[1], near[2])
    make = functools.partial(make_train_step, loss_fn, optimizer, max_grad_norm=1.0)
    return make, lambda: init_state(jax.tree.map(jnp.copy, params), optimizer, jax.random.key(0)), batch


def _three_steps(make, state, batch, mesh_text, num_micro_batches=1):
    mesh = sharding.make_mesh(sharding.parse_mesh(mesh_text))
    shardings = sharding.tree_shardings(state, mesh)
    state = jax.device_put(state, shardings)
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    step = jax.jit(
        make(num_micro_batches=num_micro_batches),
        donate_argnums=0,
        out_shardings=(shardings, sharding.replicated(mesh)),
    )
    for _ in range(3):
        donated = state
        state, metrics = step(state, batch)
    assert donated.params["embed"]["embedding"].is_deleted()
    assert state.params["layers"]["q"]["kernel"].sharding == shardings.params["layers"]["q"]["kernel"]
    return jax.device_get((state.params, metrics))


@functools.cache
def _on_one_device():
    make, state, batch = _grpo_case()
    return _three_steps(make, state(), batch, "")


@pytest.mark.slow
@pytest.mark.parametrize("mesh, num_micro_batches", [("data:2,fsdp:2,tensor:2", 1), ("data:2,tensor:4", 2)])
def test_eight_devices_equal_one(mesh, num_micro_batches):
    """Three GRPO steps of the tiny transformer: params and metrics to float32 rounding."""
    make, state, batch = _grpo_case()
    params, metrics = _three_steps(make, state(), batch, mesh, num_micro_batches)
    expected_params, expected_metrics = _on_one_device()
    moved = max_difference(expected_params, random_params())
    difference = max_difference(params, expected_params)
    print(f"{mesh}: params differ by {difference:.1e} after moving {moved:.1e}")
    assert moved > 1e-2 and difference < 2e-5
    assert metrics.keys() == expected_metrics.keys()
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_pmap_over_eight_devices_equals_jit():
    """Three GRPO steps of the tiny transformer, a row a device: the path for models that fit into one."""
    make, state, batch = _grpo_case()
    step = jax.pmap(make(axis_name="devices"), axis_name="devices", in_axes=(0, 0), donate_argnums=0)
    state = jax.tree.map(lambda x: jnp.stack([x] * 8), state())
    batch = jax.tree.map(lambda x: jnp.asarray(x).reshape(8, 1, *x.shape[1:]), batch)
    for _ in range(3):
        state, metrics = step(state, batch)
        jax.block_until_ready(state)
    expected_params, expected_metrics = _on_one_device()
    for device in (0, 7):
        params = jax.tree.map(lambda x, i=device: np.asarray(x)[i], state.params)
        assert max_difference(params, expected_params) < 2e-5 < 1e-2 < max_difference(params, random_params())
    assert metrics.keys() == expected_metrics.keys()
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], np.full(8, value), rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_rows_over_a_mapped_axis_make_the_step_of_all_rows():
    """The parts hold different counts, some none at all: a mean of the parts' means would be another step."""
    optimizer = optax.sgd(0.1)
    batch = jax.tree.map(jnp.asarray, _batch())
    whole = make_train_step(_loss, optimizer, max_grad_norm=0.5)
    expected, metrics = whole(_state(optimizer), batch)
    spread = make_train_step(_loss, optimizer, max_grad_norm=0.5, axis_name="parts")
    parts = jax.tree.map(lambda x: x.reshape(8, 1, *x.shape[1:]), batch)
    found, of_parts = jax.vmap(spread, in_axes=(None, 0), axis_name="parts")(_state(optimizer), parts)
    for part in range(8):
        assert max_difference(jax.tree.map(lambda x, p=part: x[p], found.params), expected.params) < 1e-6
    for name in ("loss", "error", "largest", "grad_norm"):
        np.testing.assert_allclose(of_parts[name], np.full(8, metrics[name]), rtol=1e-5)
