"""digests.py: one value per array, whatever the mesh, and another one for any other contents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rl_jax.training import digests, sharding


def digest(x) -> str:
    return digests.of({"x": x})["x"]


def by_hand(x: np.ndarray) -> str:
    """The formula at the head of the file, in Python's integers."""
    total = 0
    for place, bits in enumerate(np.ravel(x).view(f"u{x.itemsize}").tolist()):
        value = (bits + (place + 1) * int(digests.WEIGHT)) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ value >> shift) * factor % 2**64
        total += value ^ value >> 31
    return f"{x.dtype}[{','.join(map(str, x.shape))}] {total % 2**64:016x}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "uint32", "float64", "int64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 2, 3)])
def test_the_formula(dtype, shape):
    x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2 + 0.5).astype(jnp.dtype(dtype))
    assert digest(x) == by_hand(x)


def test_long_and_narrow_arrays_are_cut_into_pieces(monkeypatch):
    x = np.random.default_rng(0).integers(0, 2**32, (50, 7), np.uint32)
    expected = by_hand(x)
    for chunk in (1, 5, 7, 8, 100, 1000):
        monkeypatch.setattr(digests, "CHUNK", chunk)
        assert digest(x) == expected
    monkeypatch.setattr(digests, "SMALL", 0)  # threads
    assert digest(x) == expected


SPECS = [(), ("data",), (None, "tensor"), (("data", "tensor"),), ("tensor", "data"), (None, None, "tensor")]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_it_does_not_depend_on_the_mesh(spec):
    mesh = sharding.make_mesh(sharding.parse_mesh("data:4,tensor:2"))
    x = np.random.default_rng(0).standard_normal((8, 8, 6)).astype(np.float32)
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    assert digest(placed) == by_hand(x)


def test_any_other_contents_have_another_digest():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    seen = {digest(x), digest(x.T), digest(x.reshape(24)), digest(x.view(np.int32)), digest(x[:, :5]), digest(x[::-1])}
    for place in range(24):
        for bit in (0, 13, 31):
            y = x.copy()
            y.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
            seen.add(digest(y))
        seen.add(digest(np.roll(x, place + 1).reshape(4, 6)) if place < 23 else digest(x * 0))
    assert len(seen) == 6 + 24 * 3 + 24
    assert digest(jax.random.key(0)) != digest(jax.random.key(1))


def test_a_fault_is_named():
    tree = {"params": {"a": np.ones(3, np.float32), "b": np.ones((2, 2), np.float32)}}
    record = digests.of(tree)
    assert digests.fault(record, tree) == "" == digests.fault(record, {"params": {"b": tree["params"]["b"]}})
    tree["params"]["b"][1, 1] = 2.0
    said = digests.fault(record, tree)
    assert said.startswith("params/b is not what was saved: its digest is float32[2,2] ")
    tree["params"]["c"] = np.ones(1, np.float32)
    assert digests.fault(record, tree).endswith("and 1 more arrays")


def test_the_host_s_state_is_sealed():
    record, host = {"params/w": "float32[1] 00"}, {"step": 3, "data": {"position": (1, 2)}, "nan": float("nan")}
    content = digests.seal(3, host, record)
    found, arrays = digests.unseal(3, content)
    assert arrays == record and found.pop("nan") != 0 and found == {"step": 3, "data": {"position": [1, 2]}}
    assert digests.unseal(3, {"step": 3}) == ({"step": 3}, None), "an older one"
    for wrong in (content | {"step": 4}, content | {"more": 1}, {k: v for k, v in content.items() if k != digests.SEAL},
                  {k: v for k, v in content.items() if k != digests.RECORD}):  # fmt: skip
        with pytest.raises(ValueError, match="its checksum differs"):
            digests.unseal(3, wrong)
    with pytest.raises(ValueError, match="the checkpoint of step 3, not 5"):
        digests.unseal(5, content)
    with pytest.raises(ValueError, match="has a field 'digests'"):
        digests.seal(3, {"digests": 1}, record)
