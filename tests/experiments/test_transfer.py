"""experiments.tools.transfer: which commands it runs, what it prints, and what it refuses."""

import json
import sys

import pytest

from experiments.tools import transfer


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two complete runs, and evaluations whose result tells which run was tested on which task."""
    for name, task in (("sums", "a.py:smoke"), ("differences", "b.py")):
        folder = tmp_path / name
        folder.mkdir()
        command = ["python", "grpo.py", f"--config=configs/{task}", "--config.seed=3", "--workdir=x"]
        (folder / "run.json").write_text(json.dumps({"command": [*command, "--config.init_from=elsewhere"]}))
    asked = []

    def run(command, folder, source):
        asked.append(command)
        own = ("sums" in command[-2]) == any("a.py" in word for word in command)
        return {"eval/pass@1": 0.75 if own else 0.25}

    monkeypatch.setattr(transfer, "is_complete", lambda path: path.name in ("sums", "differences"))
    monkeypatch.setattr(transfer, "evaluate", run)
    return [str(tmp_path / name) for name in ("sums", "differences")], str(tmp_path / "out"), asked


def test_every_run_is_tested_on_every_task(runs, capsys):
    folders, output, asked = runs
    assert transfer.main([*folders, f"--output={output}"]) == 0
    assert len(asked) == 4
    assert asked[1][1:] == [
        "-m", "experiments.evaluate", "--config=configs/b.py", "--config.seed=3",
        f"--config.init_from={folders[0]}", f"--workdir={output}/sums_on_differences",
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| eval/pass@1, trained on | sums | differences | mean of the others |"
    assert lines[2:] == ["| sums | 0.750 | 0.250 | 0.250 |", "| differences | 0.250 | 0.750 | 0.250 |"]
    with open(f"{output}/transfer.json") as file:
        assert json.load(file) == {"runs": ["sums", "differences"], "eval/pass@1": [[0.75, 0.25], [0.25, 0.75]]}


def test_a_value_after_a_space_stays_with_its_flag():
    command = ["grpo.py", "--config", "a.py", "--config.name", "x", "--config.log.progress", "--config.init_from", "y"]
    assert transfer.config_words([*command, "--workdir", "z", "--config.seed=-1"]) == [
        "--config=a.py", "--config.name=x", "--config.log.progress", "--config.init_from=y", "--config.seed=-1",
    ]  # fmt: skip


def test_what_cannot_be_compared_is_refused(runs, capsys, tmp_path):
    folders, output, _ = runs
    for arguments, said in (
        ([str(tmp_path / "open"), *folders], "open is not complete"),
        ([folders[0], folders[0]], "need different names"),
        ([*folders, "--metric=eval/reward"], "no eval/reward in"),
    ):
        assert transfer.main([*arguments, f"--output={output}"]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "sums" / "run.json").write_text(json.dumps({"command": ["python", "notebook"]}))
    assert transfer.main([*folders, f"--output={output}"]) == 2
    assert "its command has no --config=FILE" in capsys.readouterr().err


@pytest.fixture
def two_runs(tmp_path):
    """(the folder of a run, a command that writes an evaluation and counts its own starts, their number)."""
    run, out = tmp_path / "run", tmp_path / "out"
    (run / "checkpoints" / "3").mkdir(parents=True)
    (run / "run.json").write_text('{"started": "today"}')
    program = (
        "import pathlib, sys\nout = pathlib.Path(sys.argv[1])\nout.mkdir(exist_ok=True)\n"
        "starts = len(list(out.glob('start_*')))\n(out / f'start_{starts}').touch()\n"
        "(out / 'evaluation.json').write_text('{\"metrics\": {\"n\": %d}}' % starts)\n"
    )
    return run, [sys.executable, "-c", program, str(out)], out


def test_an_evaluation_is_run_once_for_a_run_at_a_step(two_runs):
    """By path, start, step and command: another run of the same name is evaluated anew."""
    run, command, out = two_runs

    def evaluated(words=()):
        return transfer.evaluate([*command, *words], out, transfer.made_of(run, [*command, *words]))["n"]

    assert [evaluated(), evaluated()] == [0, 0]
    (run / "checkpoints" / "12").mkdir()
    assert [evaluated(), evaluated()] == [1, 1]
    assert [evaluated(["--config=b.py"]), evaluated(["--config=b.py"]), evaluated()] == [2, 2, 3]
    (run / "run.json").write_text('{"started": "tomorrow"}')
    assert [evaluated(), evaluated()] == [4, 4]
    run.rename(run.with_name("other")).rename(run)
    assert evaluated() == 4
    (out / transfer.SOURCE).unlink()
    assert evaluated() == 5, "of an older version, which did not say what it had evaluated"


def test_a_failed_or_torn_evaluation_is_named(two_runs, tmp_path):
    run, command, out = two_runs
    source = transfer.made_of(run, command)
    transfer.evaluate(command, out, source)
    (out / "evaluation.json").write_text('{"metrics": {"eval/pa')
    with pytest.raises(ValueError, match=r"out/evaluation\.json: damaged file"):
        transfer.evaluate(command, out, source)
    (out / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match=r"out/evaluation\.json has no field 'metrics': remove it"):
        transfer.evaluate(command, out, source)
    with pytest.raises(RuntimeError, match="false failed"):
        transfer.evaluate(["false"], tmp_path / "new", source)
    with pytest.raises(RuntimeError, match="failed:\nValueError: no model"):
        transfer.evaluate([sys.executable, "-c", "raise ValueError('no model')"], tmp_path / "new", source)
