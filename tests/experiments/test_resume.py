"""A run that is killed and started again ends bit for bit where an undisturbed one ends. Real processes, real kills.

experiments.tools.chaos makes the undisturbed run and kills another with 9; test_chaos.py has its parts.
"""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.parts import stops
from tests.experiments import programs
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.slow

RESULTS = (
    "final.json metrics.jsonl samples.jsonl group_view.jsonl sft/final.json sft/metrics.jsonl sft/samples.jsonl".split()
)
# Two epochs of two minibatches: shuffled rows, old log-probs and several updates between two checkpoints, too.
# Everything that has a state of its own: the order of minibatches, trackers, prompts drawn again.
EXTRA = (
    "train.epochs=2",
    "train.minibatches=2",
    "sample.dynamic_sampling.max_batches=2",
    "sample.prompts.fn=by_success",
    "sample.memory.on=true",
    "algorithm.trackers.entropy.fn=adaptive_entropy",
    "algorithm.trackers.reward_kl.fn=adaptive_kl",
    "algorithm.trackers.reward_scale.fn=running_moments",
    "algorithm.shaping.fn=scaled",
    # The test set is sampled by the program that the rollouts are sampled by: each start has one less.
    "eval.samples_per_prompt=4",
    "eval.batch_size=8",
    "eval.temperature=1.0",
)
TIMEOUT_S = 600.0


class Runner:
    """Starts runs of one command in several workdirs; they share a home."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.log = folder / "log.txt"
        self.variables = programs.environment(folder / "home")

    def start(self, workdir: Path):
        """The process of one start."""
        return programs.start(programs.command(workdir, *EXTRA), self.variables, self.log)

    def to_the_end(self, workdir: Path) -> None:
        """Starts it and waits; it must exit with 0."""
        status = programs.finish(self.start(workdir), self.log, TIMEOUT_S)
        assert status == 0, programs.tail(self.log)

    def until(self, workdir: Path, name: str, step: int, number: signal.Signals) -> int:
        """Starts it, sends the signal as soon as the metrics of `name` reach `step`, and returns the exit status."""
        process = self.start(workdir)
        give_up = time.monotonic() + TIMEOUT_S
        try:
            while last_step(workdir / name / "metrics.jsonl") < step:
                assert process.poll() is None, f"it ended before the moment came:\n{programs.tail(self.log)}"
                assert time.monotonic() < give_up, f"the moment never came:\n{programs.tail(self.log)}"
                time.sleep(0.002)
            process.send_signal(number)
            return programs.finish(process, self.log, TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("resume"))


# A kill in the warm start, and one in the save of a step of GRPO. Its log of 20 is experiments/chaos_20.txt.
KILLS = "--kills=2 --in_save=0.5 --in_start=0.0 --seed=51 --timeout_s=1800".split()


@pytest.fixture(scope="module")
def chaos(runner):
    """(The folder of experiments.tools.chaos, its exit status, what it printed): two kills, and a run without."""
    folder = runner.folder / "chaos"
    command = [part for part in programs.command(folder, *EXTRA) if not part.startswith("--workdir")]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.tools.chaos", f"--folder={folder}", *KILLS, "--", *command],
        cwd=REPO_ROOT,
        env=runner.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
    )
    return folder, done.returncode, done.stdout


@pytest.fixture(scope="module")
def undisturbed(chaos):
    """The workdir of a run that nothing happened to."""
    return chaos[0] / "undisturbed"


def last_step(path: Path) -> int:
    """The newest step of a metrics.jsonl; -1 where there is none."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    steps = [json.loads(line)["step"] for line in lines if line.endswith(b"\n")]
    return max(steps, default=-1)


def assert_equal_results(workdir: Path, undisturbed: Path) -> None:
    for name in RESULTS:
        assert (workdir / name).read_bytes() == (undisturbed / name).read_bytes(), f"{name} differs"


def test_the_run_is_one_that_could_go_wrong(undisturbed):
    """Its steps differ, its params move, it has rewards: equal files below are not equal for lack of contents."""
    rows = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(17))
    assert len({row["entropy"] for row in rows[1:]}) == 16 and len({row["loss"] for row in rows[1:]}) == 16
    assert min(row["grad_norm"] for row in rows[1:]) > 1e-4
    assert any(row["reward/mean"] > 0 for row in rows[1:]) and rows[-1]["kl/k3"] > 0
    assert sum(1 for row in rows if "eval/pass@1" in row) == 5
    sft = json.loads((undisturbed / "sft" / "final.json").read_text())
    assert sft["step"] == 20
    assert sft["params_sha256"] != json.loads((undisturbed / "final.json").read_text())["params_sha256"]
    assert len((undisturbed / "group_view.jsonl").read_bytes()) > 1000


def damage_newest(folder: Path) -> tuple[Path, int]:
    """Cuts the largest file of the newest checkpoint short. (That checkpoint, the step of the one before.)"""
    *_, before, newest = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    files = (path for path in (folder / str(newest) / "params").rglob("*") if path.is_file())
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:1000])
    return folder / str(newest), before


@pytest.fixture(scope="module")
def disturbed(runner):
    """(The workdir of a run that two SIGTERMs end, what each of them left). Each start costs as much as a whole run."""
    workdir, left = runner.folder / "disturbed", {}
    for name in ("sft", ""):
        status = runner.until(workdir, name, 5, signal.SIGTERM)
        steps = [int(path.name) for path in (workdir / name / "checkpoints").iterdir() if path.name.isdecimal()]
        files = {path.name for path in workdir.iterdir()}
        left[name] = status, max(steps), last_step(workdir / name / "metrics.jsonl"), files, programs.tail(runner.log)
    return workdir, left


def test_two_kills_end_where_none_do(chaos, undisturbed):
    """With 9: one in the warm start, and one that waits for a save."""
    folder, status, printed = chaos
    assert status == 0, printed
    kills = re.findall(r"^kill +\d/2: (.*), \d+ rows logged; resumes from (.*)$", printed, re.MULTILINE)
    assert len(kills) == 2 and kills[1][0].startswith("inside the save of step ")
    assert re.fullmatch(r"step \d+ of sft", kills[0][1]) and re.fullmatch(r"step \d+", kills[1][1]), kills
    assert re.search(r"^2 kills, \d inside a save; 2 resumes: all equal$", printed, re.MULTILINE)
    for name in RESULTS:
        assert re.search(rf"^{name} +[0-9a-f]{{16}} equal$", printed, re.MULTILINE)
    assert_equal_results(folder / "killed", undisturbed)
    assert len(json.loads((folder / "killed" / "run.json").read_text())["resumed"]) == 2


def test_stopped_twice_and_its_newest_checkpoint_damaged(runner, undisturbed, disturbed):
    workdir, left = disturbed
    assert not (workdir / "final.json").exists(), "it was done before the last signal: nothing was resumed"
    newest, before = damage_newest(workdir / "checkpoints")
    runner.to_the_end(workdir)
    told = runner.log.read_text(errors="replace")  # not its tail: orbax may print a traceback after it
    assert f"checkpoint {newest} is damaged" in told and f"step {before} is used instead" in told
    assert_equal_results(workdir, undisturbed)
    assert len(json.loads((workdir / "run.json").read_text())["resumed"]) == len(left)


def test_sigterm_saves_and_exits_with_a_status_of_its_own(disturbed):
    """In the warm start, and in GRPO. A scheduler must not take it for a complete run."""
    for name, (status, newest, last, files, tail) in disturbed[1].items():
        assert status == stops.STOPPED, tail
        assert "final.json" not in files
        assert newest == last >= 5, "the last step was not saved"
        assert name == "" or "metrics.jsonl" not in files, "it ended in GRPO"
