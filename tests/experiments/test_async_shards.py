"""Weights from one mesh to another: the bits of whole arrays, and nobody has a whole one of those that are split."""

import json
import types

import jax
import numpy as np
import pytest

from configs import grpo_async as async_config
from experiments.parts import async_shards
from experiments.parts.async_links import Secrets, make_link
from experiments.parts.async_roles import Sampler, Trainer
from rl_jax.flow.shards import Slices
from rl_jax.training import sharding

SHAPES = {  # paths as those of a model, for sharding.PARAMS
    "embed": {"embedding": (16, 8)},
    "layers": {"q": {"kernel": (2, 8, 8)}, "down": {"kernel": (2, 16, 8)}, "norm": {"scale": (2, 8)}},
    "odd": {"scale": ()},
}
IS_SHAPE = dict(is_leaf=lambda x: isinstance(x, tuple))


def params_on(mesh: str, first: int = 0):
    """(params of the same values on this mesh, from its first device on; their shardings)."""
    rng, dtype = np.random.default_rng(0), jax.numpy.bfloat16
    values = jax.tree.map(lambda shape: np.asarray(rng.normal(size=shape), dtype), SHAPES, **IS_SHAPE)
    shardings = sharding.tree_shardings(values, sharding.make_mesh(sharding.parse_mesh(mesh), jax.devices()[first:]))
    return jax.device_put(values, shardings), shardings


@pytest.fixture(params=["", "grpc://127.0.0.1:0"], ids=["folder", "flight"])
def links(request, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_jax.flow.flight.LINGER_S", 0.0)
    known = Secrets("a-token-of-this-test" if request.param else None)
    trainer = make_link("trainer", tmp_path, request.param, known)
    yield trainer, make_link("sampler", tmp_path, getattr(trainer, "address", ""), known)
    trainer.close()


@pytest.mark.parametrize(("ours", "theirs"), [("fsdp:4", "tensor:2"), ("data:2,fsdp:2", "tensor:4"), ("", "fsdp:2")])
def test_from_one_mesh_to_another(tmp_path, links, monkeypatch, ours, theirs):
    params, _ = params_on(ours)
    wanted, shardings = params_on(theirs, first=4)
    setup = types.SimpleNamespace(config=async_config.get_config("smoke"), param_shardings=shardings)
    trainer, read, boxes = Trainer(setup, None, links[0], tmp_path / "checkpoints"), Slices.read, []
    monkeypatch.setattr(Slices, "read", lambda self, asked: (boxes.extend(asked), read(self, asked))[1])
    trainer.begun(0, params)
    sampler = Sampler(setup, links[1], tmp_path / "sampler")
    assert sampler._first() == 0
    found = sampler.weights(0)
    sampler.close()

    def same(x, y):
        assert x.sharding == y.sharding and x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))

    jax.tree.map(same, found, wanted)
    sizes = {}
    for name, start, stop in boxes:
        sizes.setdefault(name, []).append(int(np.prod(np.subtract(stop, start))))
    # Each value once, in as many boxes as this mesh splits the array into.
    assert {name: (sum(own), len(own)) for name, own in sizes.items()} == {
        "/".join(key.key for key in path): (x.size, len({str(s.index) for s in x.addressable_shards}))
        for path, x in jax.tree_util.tree_leaves_with_path(wanted)
    }
    assert ours == "" or len(sizes["layers/q/kernel"]) == int(theirs[-1])


def test_what_is_published_is_what_devices_hold(tmp_path):
    link = make_link("trainer", tmp_path, "")
    params, _ = params_on("data:2,fsdp:4")
    link.publish(3, async_shards.cut(params))
    index = json.loads((tmp_path / "link" / "weights" / f"{3:012}.json").read_text())["leaves"]
    link.close()
    assert [shape for _, _, shape in index["layers/q/kernel"][2]] == [[2, 2, 8]] * 4, "eight devices hold it twice"
    assert [shape for _, _, shape in index["layers/norm/scale"][2]] == [[2, 8]], "all hold it"
    assert len(list((tmp_path / "link" / "weights").glob("*.shard"))) == 4


def test_weights_of_another_model_are_named(tmp_path):
    link = make_link("trainer", tmp_path, "")
    params, shardings = params_on("")
    link.publish(0, {"embed": async_shards.cut(params)["embed"]})
    with pytest.raises(ValueError, match="of another model: layers/down/kernel, layers/norm/scale"):
        async_shards.place(link.slices(0), shardings)
    link.close()
