"""experiments.sweep with a program that only counts: real processes, real kills."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from experiments.ablation.once import asked_for
from experiments.parts.stops import STOPPED
from experiments.sweep import cli as program
from experiments.sweep import folder, launchers, points, runner
from experiments.sweep.display import Display
from rl_jax.runs.logging import read_jsonl
from rl_jax.runs.run_record import read_json
from tests.paths import REPO_ROOT

CONFIG = "tests/experiments/fake_config.py"
FAKE = f"--config={CONFIG} --program=tests.experiments.fake_program".split()
TIMEOUT_S = 600.0  # of a machine under load; nothing waits for a time, all for a moment


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(REPO_ROOT)


def sweep(workdir, *arguments: str) -> subprocess.Popen:
    """A sweep of the fake program, as a process of its own."""
    command = [sys.executable, "-m", "experiments.sweep", *FAKE, f"--workdir={workdir}", *arguments]
    return subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen) -> tuple[int, str]:
    try:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, printed


def until(moment, process=None):
    give_up = time.monotonic() + TIMEOUT_S
    while not moment():
        assert time.monotonic() < give_up, "the moment never came"
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def complete(workdir) -> set[str]:
    return {path.parent.name for path in workdir.glob("points/*/final.json")}


def held(path) -> bool:
    """Whether a living process has the lock."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def contents(workdir, names) -> dict:
    """What the folders of these points hold, and when it was written."""
    files = [path for name in names for path in sorted((workdir / "points" / name).iterdir())]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A sweep of four points to which nothing happened."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "sweep"
    status, printed = end(sweep(workdir, "--sweep=lr,seed:2", "--jobs=3"))
    assert status == 0, printed
    return workdir, printed


@pytest.mark.slow
def test_a_sweep_runs_every_point_and_writes_its_table(undisturbed):
    workdir, printed = undisturbed
    record = read_json(workdir / "sweep.json")
    assert [point["name"] for point in record["points"]] == [
        f"lr={lr},seed={seed}" for lr in (0.1, 0.2) for seed in range(2)
    ]
    first = record["points"][0]
    assert first["overrides"] == {"fake.lr": 0.1, "seed": 0} and first["arm"] == "lr=0.1" and first["seed"] == 0
    assert {"name", "config", "program", "sweep", "command", "created"} <= set(record)
    assert read_json(workdir / first["workdir"] / "config.json")["fake"]["lr"] == 0.1
    table = read_json(workdir / "table.json")
    assert table["metric"] == "eval/return"
    counts = [(arm["arm"], arm["complete"], arm["points"]) for arm in table["arms"]]
    assert counts == [("lr=0.1", 2, 2), ("lr=0.2", 2, 2)]
    # The fake's result is steps * lr + seed.
    assert [arm["mean"] for arm in table["arms"]] == pytest.approx([0.8, 1.1])
    assert (table["arms"][1]["least"], table["arms"][1]["greatest"]) == pytest.approx((0.6, 1.6))
    assert "| lr=0.2 | 2 of 2 | 1.1 | 0.6 | 1.6 |" in (workdir / "table.md").read_text()
    assert len(re.findall(r"^complete lr=\S+  step 3  eval/return \S+  in ", printed, flags=re.M)) == 4
    assert {point["state"] for point in read_json(workdir / "state.json")["points"].values()} == {"complete"}


@pytest.mark.slow
def test_killed_with_9_and_started_again_no_finished_point_runs_again(undisturbed, tmp_path):
    workdir, gate = tmp_path / "sweep", tmp_path / "gate"
    arguments = ["--sweep=lr,seed:2", f"--config.fake.gate={gate}"]
    first = sweep(workdir, *arguments)
    until(lambda: (workdir / "points/lr=0.1,seed=1/metrics.jsonl").exists(), first)
    first.kill()
    first.communicate()
    assert complete(workdir) == {"lr=0.1,seed=0"}
    # One that ran on when its sweep was killed is left to end by itself, and counts as what it comes to.
    gate.touch()
    until(lambda: not any(held(path) for path in (workdir / "locks").iterdir()))
    done = complete(workdir)
    before = contents(workdir, done)
    assert done == {f"lr=0.1,seed={seed}" for seed in range(2)}
    status, printed = end(sweep(workdir, *arguments))
    assert status == 0, printed
    assert contents(workdir, done) == before
    assert all(f"started  {name}" not in printed for name in done)
    assert (workdir / "table.md").read_bytes() == (undisturbed[0] / "table.md").read_bytes()
    assert (workdir / "table.json").read_bytes() == (undisturbed[0] / "table.json").read_bytes()
    for name in complete(workdir):
        assert len(read_json(workdir / "points" / name / "run.json")["attempts"]) == 1


@pytest.mark.slow
def test_a_run_that_outlives_its_sweep_is_waited_for(tmp_path):
    workdir, gate = tmp_path / "sweep", tmp_path / "gate"
    arguments = ["--sweep=lr:0.1", "--config.seed=1", f"--config.fake.gate={gate}"]
    first = sweep(workdir, *arguments)
    until(lambda: (workdir / "points/lr=0.1/metrics.jsonl").exists(), first)
    first.kill()
    first.communicate()
    second = sweep(workdir, *arguments)
    line = second.stdout.readline()
    gate.touch()
    assert line == "lr=0.1 is still running, started by an earlier sweep\n"
    assert end(second)[0] == 0
    assert len(read_json(workdir / "points/lr=0.1/run.json")["attempts"]) == 1
    assert complete(workdir) == {"lr=0.1"}


@pytest.mark.slow
def test_sigterm_lets_runs_save_and_the_next_start_resumes_them(tmp_path):
    gate = tmp_path / "gate"
    arguments = ["--sweep=seed:1/2", "--jobs=2", f"--config.fake.gate={gate}"]
    first = sweep(tmp_path, *arguments)
    paths = [tmp_path / "points" / f"seed={seed}" for seed in (1, 2)]
    until(lambda: all((path / "metrics.jsonl").exists() for path in paths), first)
    first.send_signal(signal.SIGTERM)
    status, printed = end(first)
    assert status == 128 + signal.SIGTERM and "stopping 2 runs" in printed
    assert [folder.state_of(path) for path in paths] == [("preempted", "")] * 2
    assert {found["state"] for found in read_json(tmp_path / "state.json")["points"].values()} == {"preempted"}
    gate.touch()
    status, _ = end(sweep(tmp_path, *arguments))
    assert status == 0
    for path in paths:
        attempts = read_json(path / "run.json")["attempts"]
        assert [attempt["state"] for attempt in attempts] == ["preempted", "complete"]
        assert [row["step"] for row in read_jsonl(path / "metrics.jsonl")] == [1, 2, 3]
    assert all(found["failures"] == 0 for found in read_json(tmp_path / "state.json")["points"].values())


@pytest.mark.parametrize(("second", "later", "at_once"), [(15, 0.0, False), (15, 2.0, True), (2, 0.0, True)])
def test_a_sigterm_that_comes_twice_at_once_is_one(tmp_path, second, later, at_once):
    """As from `timeout`, which tells its child and then the child's group: the runs would not save."""
    loop = runner.Runner(tmp_path, [], [])
    loop._note(signal.SIGTERM, None)
    loop._noted_at -= later
    loop._note(signal.Signals(second), None)
    assert (loop._signal, loop._stopped_at) == (signal.SIGTERM, 0.0 if at_once else None)


@pytest.mark.slow
def test_failed_points_are_tried_again_so_many_times(tmp_path):
    arguments = ["--sweep=fail", "--jobs=3", "--retries=1"]
    status, printed = end(sweep(tmp_path, *arguments))
    assert status == 1
    states = read_json(tmp_path / "state.json")["points"]
    assert {name: (found["state"], found["attempts"], found["failures"]) for name, found in states.items()} == {
        "fail=once": ("complete", 2, 1),
        "fail=always": ("failed", 2, 2),
        "fail=stop": ("failed", 2, 2),
    }
    assert "FAILED   fail=always (no retries left): FloatingPointError: seed 0 was told to fail; see " in printed
    assert states["fail=stop"]["error"] == "ended without a final.json"
    assert folder.state_of(tmp_path / "points/fail=always")[0] == "failed"
    again, printed = end(sweep(tmp_path, *arguments))
    assert again == 1 and "fail=always has failed 2 times and is skipped; raise --retries" in printed
    assert read_json(tmp_path / "state.json")["points"]["fail=always"]["attempts"] == 2


def test_a_point_that_another_has_stopped_goes_on_and_has_not_failed(tmp_path):
    """Status 75: a signal that did not come from the sweep. 76 is a failure like any other."""
    states = {}
    for status in (STOPPED, 76):
        place = tmp_path / str(status)
        program = (
            "import pathlib, sys\nplace = pathlib.Path(sys.argv[1])\nagain = (place / 'again').exists()\n"
            f"(place / ('final.json' if again else 'again')).write_text('{{}}')\nsys.exit(0 if again else {status})"
        )
        task = runner.Task("a", place / "a", [sys.executable, "-c", program, str(place / "a")], ["a"])
        runner.Runner(place, [task], [runner.Slot()], retries=0, poll_s=0.005).run()
        states[status] = read_json(place / "state.json")["points"]["a"]
    assert (states[75]["state"], states[75]["attempts"], states[75]["failures"]) == ("complete", 2, 0)
    assert (states[76]["state"], states[76]["attempts"], states[76]["failures"]) == ("failed", 1, 1)


def test_a_point_that_failed_too_often_for_fewer_retries_is_no_success(tmp_path):
    """Stopped while it was to be tried again, started again with fewer --retries; until its folder is removed."""
    place = tmp_path / "a"
    task = runner.Task("a", place, [sys.executable, "-c", f"open({str(place / 'final.json')!r}, 'w').close()"], ["a"])
    state = {"state": "pending", "attempts": 2, "failures": 2, "error": "no luck"}
    folder.write_json(tmp_path / "state.json", {"points": {"a": state}})
    place.mkdir()
    (place / runner.LOG_FILE).touch()
    assert runner.Runner(tmp_path, [task], [runner.Slot()], retries=1).run() == 1
    assert read_json(tmp_path / "state.json")["points"]["a"] == state | {"state": "failed"}
    shutil.rmtree(place)
    assert runner.Runner(tmp_path, [task], [runner.Slot()], retries=1, poll_s=0.005).run() == 0
    found = read_json(tmp_path / "state.json")["points"]["a"]
    assert found == {"state": "complete", "attempts": 3, "failures": 0, "error": ""}


def finished(place, config) -> None:
    """Writes what a complete run of `config` leaves."""
    place.mkdir(parents=True)
    for name, content in (("config", config.to_dict()), ("run", {"attempts": [], "algorithm": "fake"}), ("final", {})):
        (place / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("action", [[], ["--print"], ["--table"], ["--submit=slurm", "--cluster=local"]], ids=str)
def test_a_point_that_was_finished_with_other_settings_is_refused(action, tmp_path, capsys, monkeypatch):
    """As of before the config file was edited: its result is not one of the point that is asked for."""
    monkeypatch.setattr(runner.Runner, "run", lambda self: 0)
    made = points.expand(CONFIG, "lr,seed:1", program="tests.experiments.fake_program")
    for point in made:
        finished(tmp_path / "points" / point.name, points.resolve(point))
    folder.write_sweep(tmp_path, made, name="x", config=CONFIG, sweep="", command="")
    arguments = [*FAKE, "--sweep=lr,seed:1", f"--workdir={tmp_path}"]
    assert program.main([*arguments, *action]) == 0
    path = tmp_path / "points" / made[1].name / "config.json"
    config = read_json(path)
    config["fake"]["steps"] = 99
    path.write_text(json.dumps(config))
    capsys.readouterr()
    assert program.main([*arguments, *action]) == 2
    said = capsys.readouterr().err
    assert f"{path.parent} has a run of other settings" in said and "  fake.steps: 99 -> 3\n" in said
    assert "Delete that folder, or give a new --workdir" in said


def test_an_arm_with_a_result_that_is_not_finite_has_no_mean(tmp_path):
    for seed, value in enumerate((1.0, None, 2.0)):
        place = tmp_path / "points" / f"seed={seed}"
        place.mkdir(parents=True)
        (place / "metrics.jsonl").write_text(json.dumps({"eval/return": value, "step": 1}) + "\n")
        (place / "final.json").write_text("{}")
    made = points.expand(CONFIG, "seed:3", program="tests.experiments.fake_program")
    folder.write_sweep(tmp_path, made, name="x", config=CONFIG, sweep="", command="")
    assert folder.table(tmp_path)["arms"] == [{"arm": "all", "complete": 3, "points": 3}]
    assert "| all | 3 of 3 | - | - | - |" in folder.markdown(folder.table(tmp_path))


def test_two_sweeps_in_one_folder_are_refused(tmp_path, capsys):
    with folder.locked(tmp_path):
        assert program.main([*FAKE, "--sweep=seed:1", f"--workdir={tmp_path}"]) == 2
        assert f"another sweep runs in {tmp_path} (process {os.getpid()})" in capsys.readouterr().err
    with folder.locked(tmp_path):
        pass


def test_a_sweep_may_grow_but_not_change(tmp_path):
    head = dict(name="x", config=CONFIG, sweep="", command="")
    make = lambda names, **more: points.expand(CONFIG, names, program="tests.experiments.fake_program", **more)  # noqa: E731
    folder.write_sweep(tmp_path, make("lr,seed:1"), **head)
    grown = folder.write_sweep(tmp_path, make("lr,seed:2"), **head)
    assert len(grown["points"]) == 4
    with pytest.raises(ValueError, match="already has a different point lr=0.1,seed=0"):
        folder.write_sweep(tmp_path, make("lr,seed:1", fixed=["fake.steps=4"]), **head)


@pytest.mark.slow
def test_list_and_print_start_nothing(undisturbed, tmp_path, capsys):
    workdir, _ = undisturbed
    assert program.main([*FAKE, "--sweep=lr,seed:3", f"--workdir={workdir}", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and sum(line.startswith("complete") for line in lines) == 4
    assert lines[2].split() == ["pending", "lr=0.1,seed=2", "fake.lr=0.1", "seed=2"]
    assert program.main([*FAKE, "--sweep=lr,seed:3", f"--workdir={workdir}", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith("--config.fake.lr=0.1 --config.seed=2")
    assert "-m tests.experiments.fake_program " in lines[0] and "lr=0.1,seed=2" in lines[0]
    assert program.main([*FAKE, f"--workdir={tmp_path / 'new'}", "--list"]) == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rollout.prompt_buckets=(8,16)", (8, 16)),
        ("rollout.prompt_buckets=16,", (16,)),
        ("rollout.stop_strings=('a',)", ("a",)),
        ("reward.terms=math,0.2*my_rewards:f", {"math": (1.0, "math"), "f": (0.2, "my_rewards:f")}),
        ("reward.terms={'a': {'fn': 'math', 'weight': 2.0}}", {"a": (2.0, "math")}),
    ],
    ids=str,
)
def test_tuples_and_terms_are_fields_as_on_a_program_s_command_line(field, value):
    config = "configs/tasks/arithmetic.py"
    (point,) = points.expand(config, "seed:1", fixed=[field])
    group, name = field.partition("=")[0].split(".")
    found = points.resolve(point)[group][name]
    plain = {k: (term.weight, term.fn) for k, term in found.items()} if name == "terms" else found
    assert plain == value and type(plain) is type(value)
    words = [word for word in point.command("w") if word.startswith("--config.")]
    assert asked_for(config, words).to_dict() == points.resolve(point).to_dict()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sweep=lrr"], "has no sweep 'lrr'; near it: lr; it has: bad, fail, lr, seed"),
        (["--sweep=bad"], "no field fake.lrr; near it: fake.lr"),
        (["--sweep=lr:x"], "'x' must be numbers"),
        (["--sweep=lr", "--config.fake.stepz=1"], "no field fake.stepz; near it: fake.steps"),
        (["--sweep=lr", "--config.fake=a"], "fake is a ConfigDict: set it in the config file"),
        (["--config=configs/tasks/arithmetic.py", "--config.rollout.prompt_buckets=(8,"], "must be a tuple, such as"),
        (["--config=configs/tasks/arithmetic.py", "--config.reward.terms=x*f"], "'x' in 'x*f' must be a number"),
        (["--sweep=lr", "--config.fake.steps=a"], "fake.steps=a: the value must be a int"),
        (["--sweep=seed:10000/10001"], "are tuning seeds, not test seeds"),
        (["--sweep=seed:1", "--config.seed=3"], "seed is both set on the command line and swept"),
        (["--sweep=seed:1,seed:1"], "two sweeps set seed"),
        (["--sweep=seed:1", "--subsample=2"], "2 points cannot be sampled from a sweep of 1"),
        (["--sweep=seed:1", "--vmap"], "only control.ppo can"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_misspelt_is_named(arguments, said, tmp_path, capsys):
    assert program.main([*FAKE, f"--workdir={tmp_path / 'sweep'}", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "sweep" / "points").exists()


@pytest.mark.parametrize("argument", ["--sweeep=lr", "--jobs=0", "--submit=hosts", "--slurm=x"])
def test_unknown_arguments_are_refused(argument, capsys):
    with pytest.raises(SystemExit):
        program.main([*FAKE, "--sweep=lr", argument])
    assert "error: " in capsys.readouterr().err


def test_slots_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    cores = [slot.cores for slot in runner.local_slots(3)]
    assert [len(part) for part in cores] == [2, 3, 3] and frozenset.union(*cores) == frozenset(range(8))
    assert sum(map(len, cores)) == 8
    assert [set(slot.cores) for slot in runner.local_slots(10)][8:] == [{0}, {1}]
    assert runner.local_slots(2, pin=False) == [runner.Slot()] * 2


def test_each_run_has_the_cores_of_its_slot(tmp_path):
    before, core = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    code = f"import json, os; json.dump(sorted(os.sched_getaffinity(0)), open({str(tmp_path / 'a/final.json')!r}, 'w'))"
    task = runner.Task("a", tmp_path / "a", [sys.executable, "-c", code], ["a"])
    assert runner.Runner(tmp_path, [task], [runner.Slot(frozenset([core]))]).run() == 0
    assert json.loads((tmp_path / "a/final.json").read_text()) == [core]
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_hosts_get_their_runs_by_ssh(tmp_path, monkeypatch, capsys):
    """An ssh of our own, which notes the host and runs the command here."""
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/bash\necho "${{@: -2:1}}" >> {tmp_path}/hosts.txt\nexec bash -c "${{@: -1}}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    (tmp_path / "hosts").write_text("pod-0 2  # two at a time\n\nme@pod-1\n")
    arguments = [*FAKE, "--sweep=seed:3", f"--workdir={tmp_path / 'sweep'}", f"--hosts={tmp_path / 'hosts'}"]
    assert program.main([*arguments, "--print"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in printed] == ["pod-0", "pod-0", "me@pod-1"]
    assert program.main([*arguments, "--submit=hosts"]) == 0
    assert len(complete(tmp_path / "sweep")) == 3
    assert sorted((tmp_path / "hosts.txt").read_text().split()) == ["me@pod-1", "pod-0", "pod-0"]
    for line in ("-oProxyCommand=x", "a b", "a 0", "a 1 2"):
        (tmp_path / "hosts").write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"hosts:1: .* must be HOST or HOST COUNT"):
            launchers.read_hosts(tmp_path / "hosts")


@pytest.mark.slow
def test_slurm_through_submitit(tmp_path, capsys, monkeypatch):
    """submitit's local cluster: the same executor, processes here."""
    arguments = ["--sweep=seed:1", "--submit=slurm", "--cluster=local", "--slurm=timeout_min=5"]
    status, printed = end(sweep(tmp_path, *arguments))
    assert status == 0 and "submitted 1 runs: " in printed, printed
    until(lambda: complete(tmp_path) == {"seed=0"})
    arguments = [*FAKE, f"--workdir={tmp_path}", *arguments]
    assert program.main(arguments) == 0
    assert "all points are complete" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert program.main([*arguments, "--sweep=seed:2"]) == 2
    assert 'submitit is not installed; install it with: pip install -e ".[slurm]"' in capsys.readouterr().err


def test_without_slurm_or_ray_the_error_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun
    arguments = [*FAKE, "--sweep=seed:1", f"--workdir={tmp_path}"]
    assert program.main([*arguments, "--submit=slurm"]) == 2
    assert "there is no SLURM here" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert program.main([*arguments, "--submit=ray"]) == 2
    assert 'ray is not installed; install it with: pip install -e ".[ray]"' in capsys.readouterr().err


@pytest.mark.slow
def test_ray_runs_the_commands(tmp_path, capsys, monkeypatch):
    """A ray of three functions; with ray 2.60 itself it was run by hand."""

    class Ray:
        @staticmethod
        def is_initialized():
            return True

        @staticmethod
        def remote(**options):
            assert options == {"num_cpus": 1.0, "max_retries": 2}
            return lambda function: type("Remote", (), {"remote": staticmethod(function)})

        @staticmethod
        def get(found):
            return found

    monkeypatch.setitem(sys.modules, "ray", Ray)
    arguments = [*FAKE, "--sweep=fail:always,seed:1", f"--workdir={tmp_path}", "--submit=ray"]
    assert program.main(arguments) == 1
    assert program.main([*arguments[:-3], "--sweep=seed:1", *arguments[-2:]]) == 0
    assert complete(tmp_path) == {"seed=0"} and "| seed=0 | complete | 3 |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_live_table_shows_what_runs_and_what_failed(undisturbed, tmp_path):
    from rich.console import Console

    workdir, _ = undisturbed
    names = ["lr=0.1,seed=0", "lr=0.1,seed=1", "lr=0.2,seed=0"]
    tasks = [runner.Task(name, workdir / "points" / name, [], [name]) for name in names]
    with open(tmp_path / "out", "w") as stream:
        shown = Display(tasks, jobs=1, stream=stream)
        shown.completed(tasks[0], 60.0)
        states = {
            name: {"state": state, "attempts": 2, "error": "no luck"}
            for name, state in zip(names, ("complete", "running", "failed"), strict=True)
        }
        console = Console(width=120, record=True, file=stream)
        console.print(shown.table(states, [(tasks[1], 0.0)], 10.0))
    text = console.export_text()
    assert "1 complete  1 running  1 failed" in text and "step 3  eval/return 1.3" in text
    assert "failed" in text and "no luck" in text and "10s" in text
    # Two are left, a minute each; the one that runs has had its minute.
    assert shown.eta(2, [(tasks[1], time.monotonic() - 90.0)]) == "1m00s"
