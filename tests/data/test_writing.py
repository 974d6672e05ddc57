"""rl_jax/data/writing.py: every writer of a file says which file a full disk has kept it from, and what to do."""

import builtins
import errno
import io
import os

import numpy as np
import pytest

from experiments.parts import pair_scores
from experiments.parts.async_flow import Flow
from rl_jax.data import writing
from rl_jax.data.append_lines import append_lines
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.parquet import write_parquet
from rl_jax.training.ref_log_prob_cache import ReferenceCache


def test_arrays_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    writing.write_arrays(path, {"a": np.arange(3), "b": np.ones(2)})
    with np.load(path) as found:
        assert found["a"].tolist() == [0, 1, 2] and found["b"].tolist() == [1.0, 1.0]
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writing.write_arrays(path, {"a": np.arange(4)})
    assert path.read_bytes() == before


def flow_of(path):
    flow = Flow.__new__(Flow)
    flow._path, flow._logs, flow._event, flow.ticks = path, True, {"step": 1}, 5
    flow.counters = type("Counters", (), {"version": 1, "admitted": 0, "dropped": 0})
    return flow


def cache_of(path):
    cache = ReferenceCache.__new__(ReferenceCache)
    cache._identity = "x"
    return cache


WRITERS = {
    "append_lines": lambda path: append_lines(path, ["a"]),
    "write_atomically": lambda path: write_atomically(path, b"x"),
    "write_arrays": lambda path: writing.write_arrays(path, {"a": np.ones(3)}),
    "write_parquet": lambda path: write_parquet(path, [{"a": 1}]),
    "schedule.jsonl": lambda path: flow_of(path)._log(),
    "scored pairs": lambda path: pair_scores.write_jsonl(path, [{"a": "é"}]),
    "reference log-probs": lambda path: cache_of(path)._write(path, np.ones(3)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_said_with_the_file_and_what_to_do(tmp_path, monkeypatch, name):
    """/dev/full takes the place of what is opened to write: each write to it fails as on a full disk."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = builtins.open

    def opened(path, mode="r", *arguments, **options):
        if str(path).startswith(str(tmp_path)) and mode[0] in "wa":
            path, mode = "/dev/full", mode.replace("+", "")
        return real(path, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(io, "open", opened)  # pathlib's
    if name == "write_parquet":
        monkeypatch.setattr("pyarrow.parquet.write_table", full)
    if name == "append_lines":
        monkeypatch.setattr("rl_jax.data.append_lines._cut", full)  # /dev/full has no place to seek from
    with pytest.raises(OSError, match=r"written cannot be written: the disk is full: free some space") as error:
        WRITERS[name](tmp_path / "written")
    assert isinstance(error.value.__cause__, OSError)
    assert not (tmp_path / "written").exists()  # half a file would be refused, or read
