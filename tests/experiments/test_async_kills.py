"""experiments.tools.async_kills: what it kills, compares and says; a real run of it is a command."""

import json

import pytest

from experiments.parts.async_flow import LOG
from experiments.tools import async_kills


class Process:
    """A process that is done at once."""

    def __init__(self, log, role):
        self._log, self._role = log, role

    def wait(self, limit=None):
        return 0

    def kill(self):
        self._log.append(self._role)


@pytest.mark.parametrize("same", [True, False])
def test_what_is_killed_and_compared(tmp_path, monkeypatch, capsys, same):
    ended = []

    def start(self, role):
        self.workdir.mkdir(parents=True, exist_ok=True)
        folder = self.workdir / ("sampler" if role == "sampler" else "")
        folder.mkdir(exist_ok=True)
        if role != "trainer":
            (folder / LOG).write_text("{}\n")
        rows = '{"loss": 1}\n' if same or self.workdir.name != "killed" else '{"loss": 2}\n'
        (self.workdir / "metrics.jsonl").write_text(rows * 100)
        return Process(ended, role)

    def to_the_end(sides, kills, seed, real=async_kills.to_the_end):
        killed = real(sides, kills, seed)
        (sides.workdir / "final.json").write_text("1")
        return killed

    monkeypatch.setattr(async_kills.Sides, "start", start)
    monkeypatch.setattr(async_kills, "to_the_end", to_the_end)
    monkeypatch.setattr(async_kills.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(async_kills.compilation, "use_cache", lambda folder: None)
    real = async_kills.chaos.results_of
    monkeypatch.setattr(async_kills.chaos, "results_of", lambda folder: real(folder) | {"final.json": "the same"})
    assert async_kills.main(["--kills=5"]) == (0 if same else 1)
    said = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert sum(said["kills"].values()) == 5
    assert said["differ"] == {"slow": [], "killed": [] if same else ["metrics.jsonl"]}
    assert len(ended) == 5 + 4, "those that were killed, and two of each run at its end"


def test_a_smallest_run_is_a_config():
    config = async_kills.config_of(async_kills.pathlib.Path("unused"))
    assert config.program == "grpo_async" and config.flow.schedule == "counted" and config.flow.eta == 2
