"""models/transformer/gathered.py: weights gathered along lines of devices change no value, and are sent as it says."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.plan import hlo
from rl_jax.models.transformer import gathered
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding
from tests.tiny import CONFIG, max_difference, random_params, token_batch

ONE = (((1,), (0,)), ((), ()))


def mesh_of(text):
    return sharding.make_mesh(sharding.parse_mesh(text))


@pytest.mark.parametrize(("devices", "shape"), [(64, (8, 8)), (32, (8, 4)), (12, (4, 3)), (256, (16, 16))])
def test_a_grid_is_as_square_as_it_can_be(devices, shape):
    rows, columns = gathered.grid_lines(devices)
    grid = np.arange(devices).reshape(shape)
    assert np.array_equal(rows, grid) and np.array_equal(columns, grid.T)


@pytest.mark.parametrize("devices", [1, 2, 7])
def test_a_line_is_no_grid(devices):
    assert gathered.grid_lines(devices) is None


@pytest.mark.parametrize(("text", "longest"), [("", 1), ("data:8", 1), ("fsdp:8", 16), ("fsdp:8", 8), ("fsdp:8", 7)])
def test_few_devices_leave_it_to_xla(monkeypatch, text, longest):
    """As many as XLA sends a weight around, which overlaps with the product."""
    monkeypatch.setattr(gathered, "LONGEST_RING", longest)
    with jax.set_mesh(mesh_of(text)):
        assert (gathered.gathered_products(again=False) == (None, None)) == (longest != 7)


def products(mesh):
    """(x, kernel, back) -> (value, gradients) of sum(tanh(x kernel) back weighted), by the mesh's products."""

    def value(x, kernel, back):
        into, out_of = gathered.gathered_products(again=False)
        y = out_of(jnp.tanh(into(x, kernel, ONE)), back, ONE)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size).reshape(y.shape)))

    return jax.jit(sharding.on_mesh(jax.value_and_grad(value, (0, 1, 2)), mesh), in_shardings=layout(mesh))


def layout(mesh):
    names = ((("rows", None), (16, 8)), (("embed", "mlp"), (8, 12)), (("mlp", "embed"), (12, 8)))
    sizes = dict(mesh.shape)
    return tuple(jax.NamedSharding(mesh, gathered.spec(shape, axes, sizes)) for axes, shape in names)


@pytest.mark.parametrize("text", ["fsdp:8", "data:2,fsdp:4", "fsdp:4,tensor:2"])
def test_values_and_gradients_are_those_of_numpy(monkeypatch, text):
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    rng = np.random.default_rng(0)
    x, kernel, back = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 8), (8, 12), (12, 8)))
    value, (by_x, by_kernel, by_back) = products(mesh_of(text))(x, kernel, back)
    weights = np.cos(np.arange(16 * 8).reshape(16, 8))
    hidden = np.tanh(x @ kernel)
    by_hidden = weights @ back.T * (1 - hidden**2)
    np.testing.assert_allclose(value, np.sum(hidden @ back * weights), rtol=1e-4)
    np.testing.assert_allclose(by_back, hidden.T @ weights, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_kernel, x.T @ by_hidden, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_x, by_hidden @ kernel.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("text", "devices"), [("fsdp:8", 8), ("data:2,fsdp:4", 4), ("expert:2,fsdp:4", 4)])
def test_gradients_are_scattered_and_not_sent_whole(monkeypatch, text, devices):
    """Each device sends 7/8 of a weight to gather it and 7/8 of its gradient, or 3/4 and its own part over `data`."""
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    mesh, shapes = mesh_of(text), ((16, 8), (8, 12), (12, 8))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = products(mesh).lower(*arrays).compile().as_text()
    found = [one for one in hlo.collectives(text, dict(mesh.shape)) if one.bytes > 8]  # without the sum of the loss
    sent = {kind: sum(one.bytes for one in found if one.kind == kind) for kind in hlo.KINDS}
    weight = 8 * 12 * 4
    assert sent["reduce-scatter"] == 2 * weight * (devices - 1) / devices
    assert sent["all-reduce"] == (0 if devices == 8 else 2 * weight / devices), sent
    assert sent["all-gather"] == 2 * weight * (devices - 1) / devices, "and kept for the backward pass"
    assert sum(one.kind == "reduce-scatter" for one in found) == 4


def test_rows_that_do_not_divide_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    x, kernel = np.ones((3, 8), np.float32), np.ones((8, 12), np.float32)
    with jax.set_mesh(mesh_of("fsdp:8")):
        into, _ = gathered.gathered_products(again=False)
        text = str(jax.make_jaxpr(lambda x, kernel: into(x, kernel, ONE))(x, kernel))
    assert "shard_map" not in text and "dot_general" in text


@pytest.mark.parametrize(("rows", "gathered_by_hand"), [(8, True), (6, False)])
def test_a_batch_whose_rows_do_not_divide_is_left_to_xla(monkeypatch, rows, gathered_by_hand):
    """Though its tokens do: they would go from one layout to the other at every product."""
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    model, params, batch = make_transformer(CONFIG), random_params(CONFIG), token_batch([8] * rows, 8)
    with jax.set_mesh(mesh_of("fsdp:8")):
        text = str(jax.make_jaxpr(model.apply)(params, batch))
    assert ("all_gather" in text) == gathered_by_hand


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_no_device_keeps_the_weights_of_all_layers(monkeypatch, remat):
    """What the loop over layers keeps for the backward pass is not every device's copy of a weight."""
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    config = dataclasses.replace(CONFIG, num_layers=3, embed_dim=32, mlp_dim=48, remat=remat)
    model, params, batch = make_transformer(config), random_params(config), token_batch([8] * 8, 8)
    with jax.set_mesh(mesh_of("fsdp:8")):
        program = jax.make_jaxpr(jax.grad(lambda params: jnp.sum(model.apply(params, batch) ** 2)))(params)
    assert "all_gather" in str(program) and "f32[3,32,48]" in str(program), "all layers' weights"
    assert "f32[3,256," not in str(program), "those of all layers and devices"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["fsdp:8", "data:2,fsdp:4", "fsdp:4,tensor:2", "fsdp:4,context:2"])
def test_a_model_s_step_is_that_of_one_device(monkeypatch, text):
    """Biases, grouped heads, rematerialised, in float32: the loss and every gradient."""
    config = dataclasses.replace(CONFIG, qkv_bias=True, num_layers=2, embed_dim=32, remat="full")
    params, batch = random_params(config), token_batch([8, 5, 1, 7, 3, 8, 2, 6], 8)

    def loss(model, params, batch):
        log_probs = jax.nn.log_softmax(model.unembed(params, model.apply(params, batch)))
        return jnp.mean(jnp.where((batch.segment_ids > 0)[..., None], log_probs, 0.0) ** 2)

    def gradient(model):
        return jax.value_and_grad(functools.partial(loss, model))

    expected = jax.jit(gradient(make_transformer(config)))(params, batch)
    monkeypatch.setattr(gathered, "LONGEST_RING", 2)
    mesh = mesh_of(text)
    placed = jax.device_put(params, sharding.tree_shardings(params, mesh))
    program = jax.jit(gradient(sharding.model_on_mesh(make_transformer(config), mesh)))
    assert "all_gather" in str(jax.make_jaxpr(program)(placed, batch))
    assert max_difference(jax.device_get(program(placed, batch)), jax.device_get(expected)) < 1e-5
