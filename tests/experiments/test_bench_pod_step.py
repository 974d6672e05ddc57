"""experiments.bench.pod_step: MaxText's compiled text is read as ours is, and only beside the plan of the same step."""

import json
import sys

import pytest

from experiments.bench import pod_step
from tests.experiments.test_plan import COMPILED, SENT_BY_FOUR

PARAMETERS = 8030261248
GIB = 2**30


def plan(**changes):
    """Of ours: 16 rows in 2 micro-batches on 4 chips."""
    one = {"rows": 16, "micro_batches": 2, "peak_bytes": 3 * GIB, "synchronous_bytes": {"all-reduce over fsdp": 1e8}}
    one |= {"sent_bytes": {"all-reduce over fsdp": 1e8, "all-gather over fsdp": 4e8}} | changes
    return {
        "config": "plan_8b", "topology": "v5e:2x2", "parameters": PARAMETERS, "tokens": [1, 4095],
        "programs": {"sft": one},
    }  # fmt: skip


def write_step(folder, **changes):
    """What peers/maxtext_step.py leaves of a step of that plan."""
    folder.mkdir()
    step = {
        "work": pod_step.make_work(plan(), {"num_vocab_tiling": "8"}),
        "mesh": {"fsdp": 4},
        "state": {"float32": 3 * PARAMETERS + 2, "int32": 2},
        "peak_bytes": 6 * GIB,
    }  # fmt: skip
    (folder / "step.json").write_text(json.dumps(step | changes))
    (folder / "compiled.txt").write_text(COMPILED["v5e"].read_text())
    return folder


def test_the_work_is_the_plan_s():
    work = pod_step.make_work(plan(), {})
    assert work == {
        "topology": "v5e-4", "model": "llama3.1-8b", "length": 4096, "rows": 2, "micro_batches": 2, "settings": {},
    }  # fmt: skip


def test_both_sides_are_counted_alike_and_ours_is_over_the_least_of_theirs(tmp_path):
    folder = write_step(tmp_path / "tiles_8")
    more = write_step(tmp_path / "tiles_1", peak_bytes=11 * GIB)
    refused = write_step(tmp_path / "tiles_0", refused="RESOURCE_EXHAUSTED: 20G of 15.75G")
    found = pod_step.compare(plan(), [folder, more, refused])
    one, other = found["maxtext"]["tiles_8"], found["maxtext"]["tiles_1"]
    assert (one["peak_gib"], other["peak_gib"]) == (6, 11)
    assert one["sent_gb"] == round(SENT_BY_FOUR / 1e9, 3) == other["sent_gb"]
    assert 0 < one["synchronous_gb"] < one["sent_gb"] and one["settings"] == {"num_vocab_tiling": "8"}
    assert "20G" in found["maxtext"]["tiles_0"]["refused"]
    assert found["ours"]["kinds_gb"] == {"all-reduce over fsdp": 0.1, "all-gather over fsdp": 0.4}
    assert found["ratio"]["peak_gib"] == 0.5 and found["ratio"]["sent_gb"] == round(0.5 / 0.245, 3)


def test_another_step_is_not_compared(tmp_path):
    folder = write_step(tmp_path / "other")
    with pytest.raises(ValueError, match="compile one again"):
        pod_step.theirs(folder, plan(rows=32))
    with pytest.raises(ValueError, match="has 7 float32 parameters"):
        pod_step.theirs(write_step(tmp_path / "small", state={"float32": 22}), plan())
    step = json.loads((folder / "step.json").read_text())
    (folder / "step.json").write_text(json.dumps({name: step[name] for name in step if name != "peak_bytes"}))
    with pytest.raises(ValueError, match="has no peak_bytes"):
        pod_step.theirs(folder, plan())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"programs": {"train": {}}}, "add --programs=sft"),
        ({"parameters": 7}, "a model of 7 parameters"),
        ({"programs": {"sft": {"rows": 6, "micro_batches": 1}}}, "do not divide over 4 chips"),
    ],
)
def test_what_maxtext_cannot_make_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        pod_step.make_work(plan() | changes, {})


def test_the_command_runs_the_peer_and_then_reads_its_folder(tmp_path, capsys):
    """The peer here is a program that prints nothing and leaves what MaxText's would."""
    path, to = tmp_path / "ours.json", tmp_path / "to"
    path.write_text(json.dumps(plan()))
    source = write_step(tmp_path / "made")
    peer = tmp_path / "peer.sh"
    peer.write_text(f'#!/bin/sh\ntest -f "$1" && test -f "$2" && cp {source}/* "$3"\n')
    peer.chmod(0o755)
    pod_step.main([f"--plan={path}", f"--peer={peer}", f"--to={to}", "--settings=num_vocab_tiling=8"])
    found = json.loads(capsys.readouterr().out)
    assert found["maxtext"]["to"]["peak_gib"] == 6 and found["slice"] == "v5e:2x2"
    assert json.loads((to / "work.json").read_text()) == pod_step.make_work(plan(), {"num_vocab_tiling": "8"})


@pytest.mark.parametrize(
    ("given", "said"),
    [([], "nothing to compare"), ([f"--peer={sys.executable}"], "go together"), (["--to=x"], "together")],
)
def test_half_a_command_is_refused(given, said, capsys):
    with pytest.raises(SystemExit):
        pod_step.main(["--plan=x", *given])
    assert said in capsys.readouterr().err
