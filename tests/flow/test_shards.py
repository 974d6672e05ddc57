"""Weights in pieces, on each link: a box is what numpy's slice of the whole is, and only what meets it is read."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from rl_jax.flow import shard_files, shards
from rl_jax.flow.folder import Folder
from rl_jax.flow.shards import Cut, Piece
from tests.flow.test_links import open_pair, same

RNG = np.random.default_rng(0)
WHOLE = {
    "layers": {"q": RNG.normal(size=(8, 6)).astype(np.float32), "one": np.asarray(2.5, ml_dtypes.bfloat16)},
    "embed": RNG.normal(size=(4, 3, 2)).astype(ml_dtypes.bfloat16),
    "ids": np.arange(5, dtype=np.int32),
}


def in_pieces(array, *cuts):
    """A Cut of an array along its first axes at these places."""
    spans = [list(zip((0, *at), (*at, size), strict=True)) for at, size in zip(cuts, array.shape, strict=False)]
    corners = [[]]
    for span in spans:
        corners = [[*corner, ends] for corner in corners for ends in span]
    pieces = []
    for owner, corner in enumerate(corners):
        box = tuple(slice(a, b) for a, b in corner)
        start = tuple(a for a, _ in corner) + (0,) * (array.ndim - len(corner))
        pieces.append(Piece(start, array[box], owner))
    return Cut(array.shape, array.dtype.name, pieces)


CUT = {
    "layers": {"q": in_pieces(WHOLE["layers"]["q"], (2, 4, 6)), "one": in_pieces(WHOLE["layers"]["one"])},
    "embed": in_pieces(WHOLE["embed"], (1,), (2,)),
    "ids": WHOLE["ids"],
}
BOXES = [
    ("layers/q", (0, 0), (8, 3)),
    ("layers/q", (3, 1), (5, 6)),
    ("layers/q", (4, 0), (4, 6)),
    ("layers/one", (), ()),
    ("embed", (0, 1, 0), (3, 3, 1)),
    ("ids", (2,), (4,)),
    ("ids", (0,), (5,)),
]


def of(name):
    first, _, last = name.partition("/")
    return WHOLE[first][last] if last else WHOLE[first]


@pytest.fixture(params=["local", "both", "folder", "flight"])
def pair(request, tmp_path):
    sides = open_pair(request.param, tmp_path / "link")
    yield sides
    for side in sides[::-1]:
        side.close()


@pytest.mark.parametrize("published", [CUT, WHOLE], ids=["in pieces", "whole"])
def test_a_box_is_a_slice(pair, published):
    trainer, sampler = pair
    trainer.resume(0)
    assert sampler.slices() is None and sampler.slices(0) is None
    trainer.publish(0, published)
    for slices in (sampler.slices(), sampler.slices(0)):
        assert slices.version == 0 and slices.leaves["embed"] == ((4, 3, 2), "bfloat16")
        for (name, start, stop), found in zip(BOXES, slices.read(BOXES), strict=True):
            wanted = of(name)[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]
            assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
        for box in [("layers/q", (0, 0), (9, 6)), ("layers/q", (0,), (8,)), ("none", (), ())]:
            with pytest.raises(ValueError, match="no box of|no array"):
                slices.read([box])
    same(sampler.weights(0), WHOLE)
    same(sampler.newest()[1], WHOLE)


def test_versions_in_pieces_come_and_go(tmp_path):
    """An index makes a version; its shards go with it, and shards without one when the trainer comes back."""
    trainer, sampler = open_pair("folder", tmp_path, keep=2)
    trainer.resume(0)
    for version in range(3):
        trainer.publish(version, CUT if version != 1 else WHOLE)
    assert sampler.slices().version == 2 and sampler.slices(1).version == 1
    with pytest.raises(LookupError, match="version 0 are gone"):
        sampler.slices(0)
    assert not list((tmp_path / "weights").glob(f"{0:012}*")) and len(list((tmp_path / "weights").iterdir())) == 6
    trainer.resume(1)
    assert sampler.slices().version == 1
    trainer.close()
    left = tmp_path / "weights" / f"{7:012}-0000.shard"
    left.write_bytes(b"of a trainer that was killed before it wrote the index")
    with_link = Folder(tmp_path, role="trainer")
    assert not left.exists() and sampler.slices().version == 1
    with_link.close()


@pytest.mark.parametrize("cuts", [(4,), (2, 4, 6)], ids=["other pieces", "pieces of the same shapes"])
def test_an_old_index_reads_no_new_shards(tmp_path, cuts):
    """A trainer that comes back with another mesh publishes a version again, while a sampler reads it."""
    array, box = np.arange(16, dtype=np.float32).reshape(8, 2), [("q", (0, 0), (8, 2))]
    shard_files.write(tmp_path, 3, {"q": in_pieces(array, (2, 4, 6))})
    old = shard_files.open_slices(tmp_path / f"{3:012}.json")
    again = in_pieces(array, cuts)
    turned = [piece._replace(owner=len(again.pieces) - 1 - piece.owner) for piece in again.pieces]
    shard_files.write(tmp_path, 3, {"q": again._replace(pieces=turned)})
    with pytest.raises(FileNotFoundError):
        old.read(box)
    assert np.array_equal(shard_files.open_slices(tmp_path / f"{3:012}.json").read(box)[0], array)
    assert len(list(tmp_path.iterdir())) == len(turned) + 1, "the old shards are gone"
    shard_files.remove(tmp_path / f"{3:012}.json")
    assert not list(tmp_path.iterdir())


def test_shards_of_a_run_before_there_were_tokens(tmp_path):
    leaves = {"q": ["float32", [2], [[1, [0], [2]]]]}
    (tmp_path / f"{3:012}.json").write_text(json.dumps({"leaves": leaves}))
    safetensors.numpy.save_file({"q": np.ones(2, np.float32)}, tmp_path / f"{3:012}-0001.shard")
    assert (shard_files.open_slices(tmp_path / f"{3:012}.json").read([("q", (0,), (2,))])[0] == 1).all()


def test_a_shard_of_another_shape_is_refused(tmp_path):
    shard_files.write(tmp_path, 3, {"q": in_pieces(np.zeros((8, 2), np.float32), (4,))})
    slices = shard_files.open_slices(tmp_path / f"{3:012}.json")
    safetensors.numpy.save_file({"q": np.zeros((6, 2), np.float32)}, next(tmp_path.glob(f"{3:012}-0001*.shard")))
    with pytest.raises(ValueError, match=r"not the shard of its index \('q' of shape \[6, 2\], not \[4, 2\]\)"):
        slices.read([("q", (5, 0), (6, 2))])


def test_only_the_shards_that_are_needed_are_opened(tmp_path, monkeypatch):
    trainer, sampler = open_pair("folder", tmp_path)
    trainer.resume(0)
    trainer.publish(0, CUT)
    opened, opens = [], safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", lambda path, **how: (opened.append(path.name), opens(path, **how))[1])
    sampler.slices(0).read([("layers/q", (3, 0), (5, 2)), ("layers/q", (2, 0), (3, 6))])
    assert sorted(name[:17] for name in opened) == [f"{0:012}-0001", f"{0:012}-0002"]
    shard_files.remove(tmp_path / "weights" / f"{0:012}.json")
    assert sampler.slices(0) is None
    trainer.close()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([Piece((0,), np.zeros(2, np.float32))], "its pieces are not the whole of shape"),
        ([Piece((0,), np.zeros(3, np.int32))], "pieces of another dtype than float32"),
        ([Piece((1,), np.zeros(3, np.float32))], "is no box of an array of shape"),
        ([Piece((0,), np.zeros(2, np.float32)), Piece((2,), np.zeros(1, np.float32))], "two pieces of owner 0"),
    ],
)
def test_pieces_that_are_no_array_are_refused(tmp_path, pieces, words):
    trainer = Folder(tmp_path, role="trainer")
    with pytest.raises(ValueError, match=words):
        trainer.publish(0, {"w": Cut((3,), "float32", pieces)})
    trainer.close()


def test_a_hole_is_seen():
    """Two pieces that overlap are as many values as the whole, and do not cover it."""
    twice = Cut((4,), "float32", [Piece((0,), np.zeros(2, np.float32)), Piece((0,), np.zeros(2, np.float32), 1)])
    with pytest.raises(ValueError, match="the pieces cover 0 of 2 values"):
        shards.read({"w": twice}, [("w", (2,), (4,))])
