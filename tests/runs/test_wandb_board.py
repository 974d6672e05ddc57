"""runs/wandb_board.py with a stub in wandb's place: the package itself is not installed for the tests."""

import json
import sys

import pytest

from rl_jax.runs.logging import RunLogger
from rl_jax.runs.wandb_board import WandbBoard

STUB = '''
import json, pathlib
class Run:
    def __init__(self, folder):
        self._folder = folder
    def _write(self, row):
        with open(self._folder / "stub.log", "a") as file:
            file.write(json.dumps(row) + "\\n")
    def log(self, values, step):
        self._write({"step": step, "values": values})
    def finish(self):
        self._write("finished")
def init(**keywords):
    run = Run(pathlib.Path(keywords["dir"]))
    run._write(keywords)
    return run
'''


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A module wandb on sys.path that writes what it is told into the run's folder."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "wandb.py").write_text(STUB)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield
    sys.modules.pop("wandb", None)


def logged(run):
    return [json.loads(line) for line in (run / "stub.log").read_text().splitlines()]


def test_metrics_go_there_too_and_a_resumed_run_is_the_same_one(tmp_path, stub):
    run = tmp_path / "run"
    asked = {"project": "mine", "mode": "offline", "config": {"seed": 3}}
    options = dict(total_steps=3, progress=False, tensorboard=False, wandb=asked)
    with RunLogger(run, **options) as log:
        log.log(1, {"loss": 0.5, "bad": float("nan")}, {"step_s": 2.0})
        log.close()
    with RunLogger(run, resume_step=1, **options) as log:
        log.log(2, {"loss": 0.25})
    first, row, end, second, later, _ = logged(run)
    assert first == second and first["id"] == json.loads((run / "wandb.json").read_text())["id"]
    assert {**first, "id": ""} == dict(
        project="mine", name="run", id="", resume="allow", dir=str(run), mode="offline", config={"seed": 3}
    )
    assert row == {"step": 1, "values": {"loss": 0.5, "timing/step_s": 2.0}} and end == "finished"
    assert later == {"step": 2, "values": {"loss": 0.25}}
    with RunLogger(tmp_path / "other", **options):
        pass
    assert logged(tmp_path / "other")[0]["id"] != first["id"]


def test_it_is_imported_only_if_asked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with RunLogger(tmp_path / "run", total_steps=1, progress=False, tensorboard=False) as log:
        log.log(1, {"loss": 1.0})
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '.\[wandb\]'"):
        WandbBoard(tmp_path, project="x", mode="offline", config={})
    with pytest.raises(ValueError, match="log.wandb.mode='loud' is none of offline, online, disabled"):
        WandbBoard(tmp_path, project="x", mode="loud", config={})
