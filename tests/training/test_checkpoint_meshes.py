"""A model saved from an FSDP 2x4 mesh gives the same logits on 1, 4 and 8 devices, from the same bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding
from rl_jax.training.checkpoint import Checkpointer, checksum
from tests.tiny import CONFIG, random_params

MODEL = make_transformer(CONFIG)
TOKENS = np.arange(32, dtype=np.int32).reshape(8, 4) % CONFIG.vocab_size
BATCH = TokenBatch(TOKENS, np.broadcast_to(np.arange(4, dtype=np.int32), (8, 4)), np.ones((8, 4), np.int32))


def shapes_on(mesh, params):
    """What restore fills: the shapes of `params`, sharded as the rules say for that mesh."""
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, sharding.tree_shardings(params, mesh)
    )


def logits(mesh, params):
    """float32 [8, 4, V], computed on the mesh."""
    batch = jax.device_put(BATCH, sharding.batch_sharding(mesh))
    return np.asarray(jax.jit(lambda params, batch: MODEL.unembed(params, MODEL.apply(params, batch)))(params, batch))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(folder of a checkpoint written from data:2,fsdp:4, the params there, the logits there)."""
    folder = tmp_path_factory.mktemp("fsdp")
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:4"))
    params = random_params()
    params = jax.device_put(params, sharding.tree_shardings(params, mesh))
    spread = [leaf.addressable_shards[0].data.size < leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(spread) > 5, "hardly anything was sharded"
    with Checkpointer(folder, every=1) as checkpoints:
        checkpoints.save(1, {"params": params}, {"step": 1})
    return folder, params, logits(mesh, params)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "fsdp:4", "fsdp:2,tensor:4"])
def test_equal_logits_on_another_mesh(saved, text):
    folder, before, expected = saved
    mesh = sharding.make_mesh(sharding.parse_mesh(text))
    with Checkpointer(folder, every=1) as checkpoints:
        params = checkpoints.restore({"params": shapes_on(mesh, before)})[0]["params"]
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(params)} == {mesh.size}
    assert checksum(params) == checksum(before)
    np.testing.assert_allclose(logits(mesh, params), expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 1.0 and jnp.isfinite(expected).all()
