"""experiments.tools.checkpoint_faults: what it does to files, and that no fault passes for a checkpoint."""

import gc

import numpy as np
import pytest

from experiments.tools import checkpoint_faults as faults

# Orbax leaves the other reads of a failed one to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine")


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing_to_the_collector():
    """What orbax leaves would otherwise be found in another file's test. What was there before it is passed over."""
    gc.freeze()
    yield
    gc.collect()


@pytest.mark.slow
def test_no_fault_is_silently_wrong(tmp_path):
    """40 faults of a fixed seed; `python -m experiments.tools.checkpoint_faults` makes 700."""
    told = []
    counts = faults.run(40, 5, tmp_path, told.append)
    total = sum(counts.values(), start=faults.collections.Counter())
    assert not told and total[faults.WRONG] == total[faults.UNCLEAR] == 0
    # Orbax names its files at random, so that a fault's file is not the same in each run: 14 to 20 of 40 hit something.
    assert total.total() == 40 and total[faults.FELL_BACK] >= 8, "faults that hit nothing show nothing"
    assert all(counts[kind].total() >= 3 for kind in faults.KINDS)
    assert faults.table(counts).splitlines()[-1].startswith("| all | ")


def test_the_tool_sees_what_is_wrong(tmp_path, monkeypatch):
    """It is not the tool that is blind: without digests a flipped bit passes, and is counted."""
    monkeypatch.setattr(faults.checkpoint.digests, "fault", lambda record, tree: "")
    faults.save(tmp_path)
    assert faults.outcome(tmp_path, "whole")[0] == faults.HARMLESS
    path = max((p for p in (tmp_path / "4/params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found, said = faults.outcome(tmp_path, "whole")
    assert found in (faults.WRONG, faults.FELL_BACK), said


def test_each_kind_of_fault_changes_the_newest_step_only_or_swaps(tmp_path):
    kinds = set()
    for seed in range(30):
        folder = tmp_path / str(seed)
        for step in (faults.BEFORE, faults.NEWEST):
            (folder / str(step) / "host").mkdir(parents=True)
            (folder / str(step) / "host" / "metadata").write_bytes(bytes(range(1, 101)) * step)
        before = (folder / "2/host/metadata").read_bytes()
        fault = faults.damage(folder, np.random.default_rng(seed))
        kinds.add(fault.kind)
        if fault.kind != "swap":
            assert (folder / "2/host/metadata").read_bytes() == before
            newest = folder / "4/host/metadata"
            assert not newest.exists() or newest.read_bytes() != bytes(range(1, 101)) * 4
    assert kinds == set(faults.KINDS)
