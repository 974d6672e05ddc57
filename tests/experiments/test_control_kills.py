"""experiments.tools.control_kills: what it kills, compares and says; test_control_async.py starts its processes."""

import json

import pytest

from experiments.tools import async_kills, control_kills


class Process:
    """A process that is done at once."""

    def __init__(self, log, name):
        self._log, self._name = log, name

    def wait(self, limit=None):
        return 0

    def kill(self):
        self._log.append(self._name)


@pytest.mark.parametrize("same", [True, False])
def test_what_is_killed_and_compared(monkeypatch, capsys, same):
    ended = []

    def start(self, name):
        self.workdir.mkdir(exist_ok=True)
        row = '{"loss": 1}\n' if same or self.workdir.name == "one" else '{"loss": 2}\n'
        (self.workdir / "metrics.jsonl").write_text(row * 100)
        return Process(ended, name)

    monkeypatch.setattr(control_kills.Sides, "start", start)
    monkeypatch.setattr(async_kills.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(control_kills.compilation, "use_cache", lambda folder: None)
    real = control_kills.chaos.results_of
    monkeypatch.setattr(control_kills.chaos, "results_of", lambda folder: real(folder) | {"final.json": "the same"})
    assert control_kills.main(["--kills=4", "--policies=2", "--actors=1"]) == (0 if same else 1)
    said = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert said["killed"] == ended[:4] == ["actor 1 0", "actor 0 0", "policy 1", "policy 0"]
    assert sorted(ended[4:]) == ["actor 0 0", "actor 1 0", "policy 0", "policy 1", "trainer 0"], "at the end, all"
    assert said["differ"] == ([] if same else ["metrics.jsonl"])


def test_processes_can_be_told_to_another_process(tmp_path):
    sides = control_kills.Sides(tmp_path, tmp_path / "run", control_kills.config_of(2, 3, updates=5))
    again = control_kills.Sides.of_json(sides.to_json())
    assert again.to_json() == sides.to_json() and again.names() == sides.names() and len(sides.names()) == 1 + 2 + 6
    assert control_kills.config_of(2, 3, updates=5).train.total_steps == 5 * 64
