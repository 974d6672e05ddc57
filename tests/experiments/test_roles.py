"""experiments.sweep.roles with programs that only write down their arguments: real processes, real signals."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from experiments.parts.stops import STOPPED
from experiments.sweep import launchers, roles
from tests.paths import REPO_ROOT

# A role: writes down that it has begun. A sampler fails the first `fails` times, a trainer waits for a file; either
# ends with STOPPED after SIGTERM.
PROGRAM = f"""
    import os, pathlib, signal, sys, time
    folder, fails = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    name = "_".join(word.partition("=")[2] for word in sys.argv[3:])
    signal.signal(signal.SIGTERM, lambda *_: (folder.joinpath("stopped_" + name).touch(), os._exit({STOPPED})))
    starts = folder / ("starts_" + name)
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    if "sampler" in name and len(starts.read_text()) <= fails:
        sys.exit(3)
    while "trainer" in name and not (folder / "end").exists():
        time.sleep(0.01)
    if "sampler" in name:
        (folder / "end").touch()
"""


def command_of(folder, fails=0):
    return [sys.executable, "-S", "-c", textwrap.dedent(PROGRAM), str(folder), str(fails)]


def test_each_role_gets_its_name_and_its_number():
    tasks = roles.tasks_of("trainer,sampler:2", ["run", "--workdir=w"])
    assert [task.name for task in tasks] == ["trainer", "sampler_0", "sampler_1"]
    assert [list(task.command[2:]) for task in tasks] == [
        ["--role=trainer"],
        ["--role=sampler", "--sampler=0"],
        ["--role=sampler", "--sampler=1"],
    ]
    assert all(list(task.command[:2]) == ["run", "--workdir=w"] for task in tasks)


@pytest.mark.parametrize("text", ["", "trainer,", "trainer:0", "trainer:x", "a b", "trainer:2:3"])
def test_other_roles_are_refused(text, capsys):
    assert roles.main([f"--roles={text}", "--", "run"]) == 2
    assert "must be NAME or NAME:COUNT" in capsys.readouterr().err


def test_a_role_in_the_command_or_named_twice_is_refused(capsys):
    assert roles.main(["--", "run", "--role=trainer"]) == 2
    assert "--role=trainer: leave it out of the command" in capsys.readouterr().err
    assert roles.main(["--roles=trainer,trainer", "--", "run"]) == 2
    assert "names 'trainer' twice" in capsys.readouterr().err


def test_who_dies_is_started_again_and_the_others_wait(tmp_path, capsys):
    assert roles.main(["--roles=trainer,sampler:1", "--", *command_of(tmp_path, fails=2)]) == 0
    assert (tmp_path / "starts_sampler_0").read_text() == "xxx" and (tmp_path / "starts_trainer").read_text() == "x"
    found = capsys.readouterr()
    assert "trainer: 0, sampler_0: 0" in found.out
    assert "sampler_0 ended with status 3; 3 of 3 starts left" in found.err


def test_who_fails_for_good_ends_the_others(tmp_path, capsys):
    assert roles.main(["--roles=trainer,sampler", "--retries=1", "--", *command_of(tmp_path, fails=9)]) == 1
    assert (tmp_path / "starts_sampler").read_text() == "xx"
    assert "sampler: 3" in capsys.readouterr().out and not (tmp_path / "end").exists()


def test_a_signal_is_passed_on_and_nothing_is_started_again(tmp_path):
    command = [sys.executable, "-m", "experiments.sweep.roles", "--roles=trainer:2", "--", *command_of(tmp_path)]
    with subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True) as process:
        begun = threading.Event()

        def watch():  # until both have begun, or the launcher has ended without
            while process.poll() is None and not begun.wait(0.01):
                if all((tmp_path / f"starts_trainer_{i}").exists() for i in range(2)):
                    begun.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        watcher.join()
        assert begun.is_set()
        os.kill(process.pid, signal.SIGTERM)
        assert f"trainer_0: {STOPPED}, trainer_1: {STOPPED}" in process.communicate()[0]
    assert process.returncode == STOPPED
    assert all((tmp_path / f"stopped_trainer_{i}").exists() for i in range(2))


def test_slurm_gets_an_array_of_all_at_once(tmp_path, monkeypatch, capsys):
    given = []

    def submit(folder, tasks, *, jobs, parameters, cluster):
        given.append((folder, [task.name for task in tasks], jobs, parameters, cluster))
        return ["1_0", "1_1"]

    monkeypatch.setattr(launchers, "submit_slurm", submit)
    assert roles.main(["--submit=slurm", "--slurm=gpus_per_node=8", f"--folder={tmp_path}", "--", "run"]) == 0
    assert given == [(tmp_path, ["trainer", "sampler"], 2, {"gpus_per_node": "8"}, "slurm")]
    assert "submitted trainer, sampler: 1_0, 1_1" in capsys.readouterr().out


def test_ray_starts_again_what_ends_with_an_error(tmp_path, monkeypatch, capsys):
    """A ray of three functions that runs one task after the other."""

    class Ray:
        @staticmethod
        def is_initialized():
            return True

        @staticmethod
        def remote(**options):
            assert options == {"num_cpus": 2.0, "max_retries": 3}
            return lambda function: type("Remote", (), {"remote": staticmethod(function)})

        @staticmethod
        def get(found):
            return found

    monkeypatch.setitem(sys.modules, "ray", Ray)
    assert (
        roles.main(["--roles=sampler,trainer", "--submit=ray", "--cpus=2", "--", *command_of(tmp_path, fails=1)]) == 0
    )
    assert (tmp_path / "starts_sampler").read_text() == "xx"
    assert "sampler: 0, trainer: 0" in capsys.readouterr().out
