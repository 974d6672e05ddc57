"""The same command on a mesh of 2 x 2 x 2 simulated devices walks the same path as on one device.

The eight sample in a layout of their own, as on a pod; what they tell of it is read here, too.
"""

import json
import math

import pytest

from tests.experiments import programs

pytestmark = pytest.mark.slow

# A pod's program must not hang a laptop: simulated devices that wait for each other can, and then this is a failure.
TIMEOUT_S = 600.0
EXTRA = (
    "sft.steps=6 sft.eval_every=6 sft.optimizer.learning_rate=0.02 "
    # Rewards other than 0 without a long warm start; a worker would import as much as the program.
    "reward.function=tests.experiments.small:sevens reward.num_workers=0 "
    "train.steps=3 eval.every=3 train.epochs=2 train.minibatches=2 checkpoint.every=100 "
    # The test set is sampled by the program that the rollouts are sampled by: one less to compile for eight devices.
    "eval.batch_size=8 eval.samples_per_prompt=4 eval.temperature=1.0 "
    # Adam divides by the gradient's own size: with the usual eps, rounding alone drives two runs apart.
    "sft.optimizer.eps=1e-3 train.optimizer.eps=1e-3"
).split()
# What is counted from sampled tokens is equal as long as no token flips; sums over floats are close.
COUNTED = "reward/mean reward/std completion_length finished truncated group/zero_variance mask_occupancy".split()
MEASURED = "loss entropy kl/k1 kl/k3 grad_norm".split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The two runs' workdirs: one device, and eight."""
    folder = tmp_path_factory.mktemp("mesh")
    log, variables = folder / "log.txt", programs.environment(folder / "home")
    del variables["NPROC"]  # conftest sets it for this process; the program must think of it itself
    for name, *meshes in (("one", "mesh="), ("eight", "mesh=data:2,fsdp:2,tensor:2", "rollout.mesh=data:4,tensor:2")):
        options = (*EXTRA, "log.progress=true", *meshes)
        process = programs.start(programs.command(folder / name, *options), variables, log)
        assert programs.finish(process, log, TIMEOUT_S) == 0, programs.tail(log)
    return folder / "one", folder / "eight"


def rows(workdir, name="metrics.jsonl"):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


def test_eight_devices_were_used(runs):
    devices = [json.loads((workdir / "run.json").read_text())["hardware"]["devices"] for workdir in runs]
    assert [len(found) for found in devices] == [1, 8]


def test_metrics_agree(runs):
    one, eight = map(rows, runs)
    assert [row["step"] for row in one] == [row["step"] for row in eight] == list(range(4))
    for a, b in zip(one, eight, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if name in COUNTED or name.startswith("eval/"):
                assert a[name] == b[name], f"{name} of step {a['step']}: a sampled token flipped?"
            elif name in MEASURED:
                assert math.isclose(a[name], b[name], rel_tol=1e-3, abs_tol=1e-5), (name, a["step"], a[name], b[name])
    assert any(row["reward/std"] > 0 for row in one[1:]), "no reward, no advantage"
    assert one[-1]["kl/k3"] > 1e-5 and one[-1]["grad_norm"] > 1e-4, "nothing moved, so nothing was compared"


def test_samples_and_the_warm_start_agree(runs):
    one, eight = (rows(workdir, "samples.jsonl") for workdir in runs)
    assert one == eight
    for a, b in zip(*(rows(workdir / "sft") for workdir in runs), strict=True):
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-4)


def test_what_lives_where_and_what_the_move_costs_is_told(runs):
    one, eight = (rows(workdir, "timing.jsonl") for workdir in runs)
    assert all(row["reshard_s"] > 0 for row in eight[1:]) and "reshard_s" not in one[1]
    told = (runs[0].parent / "log.txt").read_text()
    assert "rollouts on data:4,tensor:2, shared devices: moving the weights takes" in told
    assert "bytes per device  split over" in told and "axis fsdp:2 splits" in told
