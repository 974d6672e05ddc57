"""transformer/splash_blocks.py: the table of the splash kernel's block sizes, and what a row takes of it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer import splash, splash_blocks
from rl_jax.models.transformer.attention import attend_causally, attention_mask
from rl_jax.models.transformer.splash_blocks import DEFAULT, LANES, Blocks, Entry, check, fit, lookup
from rl_jax.training import sharding
from tests.models.test_splash import LENGTH, projections, rows

BIG = Blocks(2048, 2048, 1024, 1024, 2048, 512, 2048, 1024)
ENTRIES = (
    Entry("TPU v5 lite", 128, "bfloat16", 4096, 8191, BIG, "a", False),
    Entry("TPU v5 lite", 128, "bfloat16", 8192, None, BIG._replace(q=1024), "b", False),
    Entry("TPU v5 lite", 128, "float32", 128, None, BIG._replace(q=512), "c", False),
    Entry("TPU v6 lite", 256, "bfloat16", 128, None, BIG._replace(q=256), "d", False),
)


def found(device="TPU v5 lite", head_dim=128, length=4096, dtype="bfloat16"):
    return lookup(device, head_dim=head_dim, length=length, dtype=dtype, entries=ENTRIES)


def test_an_entry_is_for_its_device_head_dtype_and_lengths():
    assert found() == found(length=8191) == BIG
    assert found(length=8192).q == found(length=1 << 20).q == 1024
    assert found(dtype="float32").q == 512 and found("TPU v6 lite", 256).q == 256
    assert found(head_dim=64) == BIG and found("TPU v6e", 192).q == 256, "heads are filled up; a second name"
    for other in (found(length=4095), found("TPU v4"), found("cpu"), found(head_dim=256), found(dtype="float16")):
        assert other == DEFAULT


@pytest.mark.parametrize("blocks", [DEFAULT, BIG, *[entry.blocks for entry in splash_blocks.table()]])
def test_a_fitted_size_divides_the_row_and_is_no_larger(blocks):
    for context in (1, 2, 4):
        for queries in (128, 256, 384, 512, 1152, 2048, 3072, 4096, 8320):
            sizes = fit(blocks, queries=queries, keys=queries * context)
            check(sizes, queries=queries, keys=queries * context)
            assert all(mine <= given for mine, given in zip(sizes, blocks, strict=True))
            assert fit(sizes, queries=queries, keys=queries * context) == sizes
    whole = fit(blocks, queries=4096 * 2, keys=4096 * 2)
    assert whole == blocks, "nothing changes if the sizes divide the row"


def test_the_default_of_rows_that_512_divides_is_512():
    assert fit(DEFAULT, queries=4096, keys=4096) == DEFAULT
    assert fit(DEFAULT, queries=256, keys=256) == Blocks(*(256,) * 8)
    assert fit(DEFAULT, queries=384, keys=1152) == Blocks(384, 384, 384, 384, 384, 384, 384, 384)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": 192}, "block q=192 is not a multiple of 128"),
        ({"kv_dq": 0}, "block kv_dq=0 is not a multiple"),
        ({"q_dkv": 4096}, "block q_dkv=4096 does not divide the 2048 tokens"),
        ({"kv": 8192}, "block kv=8192 does not divide the 4096 tokens"),
        ({"kv_compute": 384}, "block kv_compute=384 does not divide the 512 tokens"),
        ({"kv_dkv_compute": 1024}, "block kv_dkv_compute=1024 does not divide the 512 tokens"),
    ],
)
def test_sizes_that_the_kernel_cannot_have_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        check(DEFAULT._replace(**change), queries=2048, keys=4096)


def test_the_table_that_is_installed_says_where_its_entries_are_from():
    entries = splash_blocks.table()
    assert entries and all(entry.source and entry.head_dim % LANES == 0 for entry in entries)
    assert {entry.device for entry in entries} >= {"TPU v5 lite", "TPU v5", "TPU v6 lite"}
    assert not set(splash_blocks.KINDS) & {entry.device for entry in entries}
    one = entries[0]
    again = lookup(one.device, head_dim=one.head_dim, length=one.shortest, dtype=one.dtype)
    assert again == one.blocks != DEFAULT


def test_a_bad_table_is_refused(tmp_path):
    path = tmp_path / "table.json"
    row = ENTRIES[0]._asdict() | {"blocks": BIG._asdict()}
    for number, (broken, words) in enumerate([
        ([row, row], "two entries are for TPU v5 lite, 4096 tokens"),
        ([row | {"blocks": BIG._asdict() | {"kv": 100}}], "block kv=100 is not a multiple of 128"),
        ([row | {"typo": 1}], "is no table of block sizes"),
        ([{}], "is no table of block sizes"),
    ]):  # fmt: skip
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=words):
            splash_blocks.table(path)


def test_the_kind_is_of_the_mesh_that_a_program_is_for():
    assert splash_blocks.device_kind() == jax.devices()[0].device_kind == "cpu"
    mesh = sharding.make_mesh(sharding.parse_mesh("")).abstract_mesh
    described = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(mesh.update(abstract_device=described)):
        assert splash_blocks.device_kind() == "TPU v5 lite"


def kernels_sizes(monkeypatch, *, blocks=None, length=LENGTH, mesh=""):
    """The sizes with which the kernel is made for rows of a length."""
    seen = []
    make = splash._make_kernel
    monkeypatch.setattr(
        splash, "_make_kernel", lambda *a, blocks, **k: seen.append(blocks) or make(*a, blocks=blocks, **k)
    )
    q, k, v = [x[:, :length] for x in projections(128)]
    ids = rows().segment_ids[:, :length]
    attend = jax.jit(lambda q, k, v: splash.splash_attend(q, k, v, ids, scale=0.1, blocks=blocks, interpret=True))
    with jax.set_mesh(sharding.make_mesh(sharding.parse_mesh(mesh))):
        jax.eval_shape(attend, q, k, v)
    return seen[0]


def test_a_row_takes_its_sizes_from_the_table_and_an_argument_overrides_it(monkeypatch):
    assert kernels_sizes(monkeypatch) == Blocks(*(256,) * 8), "a CPU has no entry"
    small = Blocks(*(128,) * 8)
    assert kernels_sizes(monkeypatch, blocks=small) == small
    entry = Entry("cpu", 128, "float32", 128, None, Blocks(2048, 256, 128, 128, 128, 128, 256, 128), "", False)
    monkeypatch.setattr(splash_blocks, "table", lambda: (entry,))
    assert kernels_sizes(monkeypatch) == entry.blocks._replace(q=256)
    split = kernels_sizes(monkeypatch, mesh="context:2")
    assert split == entry.blocks._replace(q=128, q_dq=128), "queries of a device, keys of the whole row"
    assert kernels_sizes(monkeypatch, length=200) == entry.blocks._replace(q=256), "filled up to 256"
    with pytest.raises(ValueError, match="block q=512 does not divide the 256 tokens"):
        kernels_sizes(monkeypatch, blocks=DEFAULT)


@pytest.mark.slow
def test_values_and_gradients_do_not_depend_on_the_sizes(monkeypatch):
    """With an entry whose eight sizes are not alike, against plain attention."""
    entry = Entry("cpu", 128, "float32", 128, None, Blocks(128, 256, 128, 256, 128, 128, 128, 256), "", False)
    monkeypatch.setattr(splash_blocks, "table", lambda: (entry,))
    batch, arrays = rows(), [x[:1] for x in projections(128)]
    batch = jax.tree.map(lambda x: x[:1], batch._replace(prefix_ids=None))
    real = (batch.segment_ids > 0)[..., None, None]

    def total(attend):
        return jax.jit(
            jax.value_and_grad(lambda *x: jnp.sum(jnp.where(real, attend(*x), 0) * jnp.cos(x[0])), (0, 1, 2))
        )

    wanted = total(lambda q, k, v: attend_causally(q, k, v, attention_mask(batch), scale=0.1))(*arrays)
    kernel = total(lambda q, k, v: splash.splash_attend(q, k, v, batch.segment_ids, scale=0.1, interpret=True))
    for ours, theirs in zip(jax.tree.leaves(kernel(*arrays)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=3e-5)
