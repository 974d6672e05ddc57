"""experiments/parts/rollout_mesh.py: rollouts in another layout, or on other devices, are those of the training's
own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import check_config, rollout_mesh
from experiments.parts.clock import Clock
from experiments.parts.sampler import make_sampler
from experiments.parts.setup import make_setup
from rl_jax.core.types import path_name
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from tests.experiments import small
from tests.tiny import CONFIG, prompts, random_params, token_batch


def setup_of(tmp_path, **fields):
    """The Setup of the smallest run; fields as in small.config."""
    return make_setup(small.config(tmp_path, **fields))


def sampled(setup, params):
    """8 prompts, two samples each."""
    tokenizer = setup.task.tokenizer
    options = dict(completion_length=4, group_size=2, sampling=Sampling(), eos_ids=tokenizer.eos_ids, pad_id=0)
    generate = make_sampler(setup, 8, **options)
    tokens, mask = map(np.asarray, prompts([8, 5, 3, 8, 7, 6, 2, 4], 8, vocab_size=tokenizer.vocab_size))
    rollout = generate(params, tokens, mask, jax.random.key(5))
    assert generate._cache_size() >= 1
    return generate, jax.tree.map(np.asarray, rollout)


def shapes(params):
    """path -> the shape of a device's shard, and the devices that have one."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {path_name(path): (x.sharding.shard_shape(x.shape), x.sharding.device_set) for path, x in leaves}


@pytest.fixture(scope="module")
def same(tmp_path_factory):
    """(the run's folder, its params on the host, the rollout of a run that samples where it trains)."""
    folder = tmp_path_factory.mktemp("layouts")
    setup = setup_of(folder, mesh="fsdp:8")
    params = setup.init_params()
    assert setup.rollout is None and rollout_mesh.place(None, params) is params
    return folder, jax.device_get(params), sampled(setup, params)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh, fields",
    [
        ("fsdp:8", dict(rollout__mesh="data:4,tensor:2")),
        ("fsdp:4", dict(rollout__mesh="data:2,tensor:2", rollout__devices="separate")),
        (
            "fsdp:8",
            dict(rollout__mesh="data:4,tensor:2", rollout__engine__name="continuous", rollout__engine__slots=8),
        ),
    ],
    ids=["same devices", "other devices", "continuous"],
)
def test_another_layout_samples_the_same_tokens(same, mesh, fields):
    folder, params, expected = same
    setup = setup_of(folder, mesh=mesh, **fields)
    params = jax.device_put(params, setup.param_shardings)
    clock = Clock()
    placed = rollout_mesh.place(setup.rollout, params, clock)
    here, there = shapes(params), shapes(placed)
    assert here["layers/up/kernel"][0] == (1, 32 // setup.mesh.size, 64) and there["layers/up/kernel"][0] == (1, 32, 32)
    devices = set(jax.devices()[:8])
    separate = fields.get("rollout__devices") == "separate"
    assert there["layers/up/kernel"][1] == (devices - here["layers/up/kernel"][1] if separate else devices)
    assert clock.totals(1)["reshard_s"] > 0
    generate, rollout = sampled(setup, placed)
    np.testing.assert_array_equal(rollout.batch.tokens, expected.batch.tokens)
    np.testing.assert_allclose(rollout.sampled_log_probs, expected.sampled_log_probs, atol=1e-5)
    if fields.get("rollout__engine__name") is None:  # params of the training's layout do as well, at the same cost
        tokens, mask = map(np.asarray, prompts([8, 5, 3, 8, 7, 6, 2, 4], 8, vocab_size=setup.model.vocab_size))
        again = generate(params, tokens, mask, jax.random.key(5))
        np.testing.assert_array_equal(again.batch.tokens, rollout.batch.tokens)
        assert generate._cache_size() == 1
        with pytest.raises(ValueError, match=r"3 prompts do not divide over the \d row shards of rollout.mesh"):
            generate(params, tokens[:3], mask[:3], jax.random.key(5))


@pytest.mark.slow
def test_matrices_are_rounded_before_they_are_moved():
    """Half the bytes, and a bfloat16 model reads the same numbers: its logits are equal to the bit."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16", num_layers=1)
    params, batch, model = random_params(config), token_batch([6, 9], 9), make_transformer(config)
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,tensor:4"))
    layout = rollout_mesh.Layout(mesh, sharding.tree_shardings(params, mesh), dtype="bfloat16")
    placed = rollout_mesh.place(layout, params)
    kinds = {path_name(path): x.dtype for path, x in jax.tree_util.tree_leaves_with_path(placed)}
    assert kinds["layers/up/kernel"] == kinds["embed/embedding"] == jnp.bfloat16
    assert kinds["final_norm/scale"] == kinds["layers/attention_norm/scale"] == jnp.float32
    both = (rollout_mesh.rounded(params, "bfloat16"), params)
    moved, whole = (sharding.moved_bytes(x, layout.param_shardings) for x in both)
    assert moved < 0.52 * whole
    logits = jax.jit(lambda params: model.unembed(params, model.apply(params, batch)))
    np.testing.assert_array_equal(logits(jax.device_get(placed)), logits(params))
    assert rollout_mesh.place(layout._replace(dtype=""), params)["embed"]["embedding"].dtype == jnp.float32


def test_the_cost_is_told(same):
    folder, params, _ = same
    setup = setup_of(folder, mesh="fsdp:4", rollout__mesh="tensor:2", rollout__devices="separate")
    told = rollout_mesh.cost(setup.rollout, jax.device_put(params, setup.param_shardings))
    shares = [x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(rollout_mesh.place(setup.rollout, params))]
    each = 4 * sum(int(np.prod(shape)) for shape in shares)  # nothing is there yet
    assert told.startswith(f"rollouts on tensor:2, separate devices: moving the weights takes {2 * each:,} bytes")
    assert f"{each:,} to each device" in told


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(rollout__mesh="data:4"), r"rollout.mesh='data:4' has 4 devices and mesh='fsdp:8' 8: make them equal"),
        (dict(rollout__mesh="rows:8"), "'rows:8' is not AXIS:SIZE"),
        (dict(rollout__mesh="data:8", rollout__devices="others"), "rollout.devices='others' is neither"),
        (dict(rollout__devices="separate"), "rollout.devices='separate' needs rollout.mesh"),
        (dict(rollout__mesh="data:8", rollout__engine__name="openai"), "the server has its own layout"),
    ],
)
def test_layouts_that_cannot_be_are_named(tmp_path, fields, message):
    config = small.config(tmp_path, mesh="fsdp:8", **fields)
    with pytest.raises(ValueError, match=message):
        rollout_mesh.num_devices(config)
    with pytest.raises(ValueError):  # before anything is loaded
        check_config.check(config)


def test_separate_devices_are_counted(tmp_path):
    fields = dict(mesh="fsdp:4", rollout__mesh="data:3", rollout__devices="separate")
    assert rollout_mesh.num_devices(small.config(tmp_path, **fields)) == 7
