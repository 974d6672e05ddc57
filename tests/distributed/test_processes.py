"""Two and four real processes on loopback: they do what one does, they survive each other, and they leave nothing."""

import json
import math
import os
import shutil
import signal
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.parts import processes
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import checkpoint, sharding
from tests.distributed.worker import LENGTHS
from tests.paths import REPO_ROOT
from tests.tiny import CONFIG, random_params, token_batch

pytestmark = pytest.mark.slow

TIMEOUT_S = 600.0
SILENCE_S = 20  # after which a process is taken for dead
MESH = "data:2,fsdp:2"
# What is counted from sampled tokens is equal as long as no token flips; sums over floats are close.
COUNTED = "reward/mean reward/std completion_length finished truncated group/zero_variance mask_occupancy".split()
NOISE = "sampler/gap_max ratio/first_max_dev".split()  # differences of nearly equal numbers
JUDGED = ("implicit", "implicit/log_ratio")  # terms of a sample that a judge's model gives

# A reward model's loop is DPO's, on a mesh of one process in tests/experiments/test_reward_model.py.
PROGRAMS = ("grpo", "ppo", "dpo", "online_dpo")


class Group:
    """Processes of tests.distributed.worker in one folder; none of them outlives the `with` block."""

    def __init__(self, folder, count, *jobs):
        self.logs = [folder / f"log_{count}_{index}.txt" for index in range(count)]
        command = [sys.executable, "-m", "tests.distributed.worker", str(folder), MESH, *jobs, "--"]
        command += [f"--heartbeat_timeout_s={SILENCE_S}"] if count > 1 else []
        # One folder of compiled programs for all groups; a single process finds there what it has compiled itself.
        limits = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if count > 1 else "0.2"}
        variables = {**os.environ, **limits, "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache")}
        self.processes = processes.start_locally(command, count, self.logs, env=variables, cwd=REPO_ROOT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def finish(self, timeout_s=TIMEOUT_S) -> list[int]:
        """The exit statuses. A group that does not end in time fails the test."""
        give_up = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes):
            assert time.monotonic() < give_up, f"not done after {timeout_s} s:\n{self.tails()}"
            time.sleep(0.02)
        return [process.returncode for process in self.processes]

    def wait_for(self, words: str, timeout_s=TIMEOUT_S) -> None:
        """Until all have printed `words`. A group that ends before fails the test."""
        give_up = time.monotonic() + timeout_s
        while not all(words in log.read_text(errors="replace") for log in self.logs):
            assert time.monotonic() < give_up and all(p.poll() is None for p in self.processes), self.tails()
            time.sleep(0.02)

    def tails(self) -> str:
        """The last of what each printed."""
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in self.logs)


def run(folder, count, *jobs):
    """The folder after `jobs` in so many processes."""
    with Group(folder, count, *jobs) as group:
        assert group.finish() == [0] * count, group.tails()
    return folder


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory):
    """name -> a folder beside the pairs that DPO reads."""
    top = tmp_path_factory.mktemp("distributed")
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(list("abc"), 4)) for _ in range(60)]
    pairs = [dict(prompt=p, chosen="x" * rng.integers(2, 5), rejected="y" * rng.integers(2, 5)) for p in prompts]
    (top / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    def make(name):
        (top / name).mkdir()
        return top / name

    return make


@pytest.fixture(scope="module")
def both(new_folder):
    """The folders of two processes and of one, which runs while the first of the two is still to hear of a death.

    All that needs no other start is done by the two, in this order: a start costs what a program does.
    """
    two, one = new_folder("two"), new_folder("one")
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:2,tensor:4"))
    params = random_params()
    placed = jax.device_put(params, sharding.tree_shardings(params, mesh))
    assert any(leaf.addressable_shards[0].data.size * 8 == leaf.size for leaf in jax.tree.leaves(placed))
    with checkpoint.Checkpointer(two / "params", every=1) as checkpoints:
        checkpoints.save(1, {"params": placed}, {})
    first = ("seam", "widths", "logits", "continuous")
    control = ("control_halves", "control_envs", "control_diverges")
    with Group(two, 2, *first, *PROGRAMS, *control, "stopped", "killed") as group:
        group.wait_for('{"done": "stopped"}')
        shutil.copytree(two / "saved", one / "stopped")
        run(one, 1, "continuous", *PROGRAMS, "goes_on", "control_seeds", "control_envs")
        statuses = group.finish()
        said = [log.read_text(errors="replace") for log in group.logs]
        assert all('{"done": "stopped"}' in log and '{"done": "killed"}' not in log for log in said), group.tails()
        # One died; the other heard of it and ended itself, though it had nothing wrong.
        assert statuses[1] == -signal.SIGKILL and statuses[0] not in (0, -signal.SIGKILL), group.tails()
        assert "another task died" in said[0], group.tails()
    return one, two


@pytest.fixture(scope="module")
def one(both):
    """The folder of one process with four devices, which also goes on with a run that two have begun."""
    return both[0]


@pytest.fixture(scope="module")
def two(both):
    """The folder of two processes with two devices each, which also read a checkpoint of 8 devices. One dies."""
    return both[1]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_equal_metrics(left, right):
    """Two metrics.jsonl of the same run in another number of processes."""
    left, right = rows(left / "metrics.jsonl"), rows(right / "metrics.jsonl")
    assert [row["step"] for row in left] == [row["step"] for row in right] and len(left) > 2
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if name in COUNTED and "completion_length" in a:
                assert a[name] == b[name], f"{name} of step {a['step']}: a sampled token flipped?"
            elif name == "rewards/accuracy" and abs(a["rewards/margin"]) < 1e-6:
                continue  # the policy is its reference: the signs of margins are those of rounding
            elif name in NOISE:
                assert abs(a[name] - b[name]) < 1e-5
            else:
                assert math.isclose(a[name], b[name], rel_tol=1e-4, abs_tol=1e-6), (name, a["step"], a[name], b[name])
    assert len({row["loss"] for row in left[1:]}) == len(left) - 1, "nothing moved, so nothing was compared"


@pytest.mark.parametrize("program", [*PROGRAMS, "control_envs"])
def test_two_processes_walk_the_path_of_one(one, two, program):
    assert_equal_metrics(one / program, two / program)
    if program in ("grpo", "ppo", "online_dpo"):  # every sampled token, and whose prompt it answers
        samples, theirs = (rows(folder / program / "samples.jsonl") for folder in (one, two))
        judged, again = (
            [row["terms"].pop(name) for row in side for name in JUDGED if name in row["terms"]]
            for side in (samples, theirs)
        )
        assert samples == theirs and len(samples) >= 8
        np.testing.assert_allclose(judged, again, rtol=1e-4, atol=1e-6)
        assert bool(judged) == (program == "ppo")


def test_runs_in_environments_are_those_of_one_process_to_the_bit(one, two):
    """Although a signal to one of the two processes ended both, and both went on."""
    whole, halves = one / "control_seeds", two / "control_halves"
    for name in ("metrics.jsonl", "episodes.jsonl", "final.json"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name
    assert [row["step"] for row in rows(halves / "metrics.jsonl")] == [4, 8, 12]
    assert len(json.loads((halves / "run.json").read_text())["attempts"]) == 2
    final = json.loads((halves / "final.json").read_text())
    assert len(set(final["metrics"]["loss"])) == 4, "each run is its own"


def test_runs_that_all_diverge_end_in_all_processes(two):
    said = [(two / f"log_2_{index}.txt").read_text() for index in range(2)]
    assert all("gradients in a row were not finite in any run, up to step 4" in log for log in said)
    assert not (two / "control_diverges" / "final.json").exists()


def test_the_warm_start_agrees(one, two):
    losses = [[row["loss"] for row in rows(folder / "dpo" / "sft" / "metrics.jsonl")] for folder in (one, two)]
    assert len(losses[0]) == 2 and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_params_agree(one, two):
    """Not only what is logged: the params of the last checkpoints, of one and of two processes, read by this one."""
    for program in PROGRAMS:
        found = []
        for folder in (one, two):
            steps = (folder / program / "checkpoints").iterdir()
            newest = max((path for path in steps if path.name.isdecimal()), key=lambda path: int(path.name)) / "params"
            with ocp.StandardCheckpointer() as reader:
                shapes = reader.metadata(newest).item_metadata.tree
                found.append(reader.restore(newest, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)))
        for a, b in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_each_thing_is_written_once(two):
    record = json.loads((two / "grpo" / "run.json").read_text())
    assert len(record["hardware"]["devices"]) == 4 and len(record["attempts"]) == 1
    steps = [row["step"] for row in rows(two / "grpo" / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    logs = [(two / f"log_2_{index}.txt").read_text() for index in range(2)]
    assert all(log.count(f'{{"done": "{PROGRAMS[-1]}"}}') == 1 for log in logs)
    assert sum("4 runs, mean return of each" in log for log in logs) == 1


def test_a_checkpoint_of_eight_devices_is_read_by_two_processes(two):
    model, params, batch = make_transformer(CONFIG), random_params(), token_batch(LENGTHS, 8)
    expected = model.unembed(params, model.apply(params, batch))
    np.testing.assert_allclose(np.load(two / "logits.npy"), expected, rtol=1e-5, atol=1e-5)


def assert_same_samples(left, right):
    """Two continuous.npz of the same rollouts in another number of processes."""
    left, right = (np.load(folder / "continuous.npz") for folder in (left, right))
    assert left.files == right.files and len(left.files) > 5
    for name in left.files:
        if left[name].dtype.kind == "f":
            np.testing.assert_allclose(right[name], left[name], rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(right[name], left[name])


def test_the_continuous_engine_samples_what_one_process_does(one, two):
    """8 rows in 4 slots, so that slots are refilled; two calls, so that the second finds the buffers of the first."""
    assert_same_samples(one, two)


def last_step(folder):
    """The last step that a run has logged."""
    return max(row["step"] for row in rows(folder / "metrics.jsonl"))


def test_two_processes_stop_together_and_one_goes_on(one, two):
    """SIGTERM for one of two: both save the same step and end the run. What they saved, a single process reads."""
    saved = [int(path.name) for path in (two / "saved" / "checkpoints").iterdir() if path.name.isdecimal()]
    assert max(saved) == last_step(two / "saved") == 4 and not (two / "saved" / "final.json").exists()
    assert_equal_metrics(one / "dpo", one / "stopped")


def test_death_ends_the_other_and_a_restart_ends_where_the_undisturbed_run_did(two, new_folder):
    """The death, and how the other process ends, are in the fixture."""
    folder = new_folder("restarted")
    shutil.copytree(two / "stopped", folder / "stopped")
    assert last_step(folder / "stopped") in (6, 7) and not (folder / "stopped" / "final.json").exists()
    run(folder, 2, "goes_on")
    for name in ("final.json", "metrics.jsonl"):
        assert (folder / "stopped" / name).read_bytes() == (two / "dpo" / name).read_bytes(), name


def test_what_passes_between_four_processes_and_what_they_sample(one, new_folder):
    assert_same_samples(one, run(new_folder("four"), 4, "seam", "continuous"))
