"""experiments.tools.kills: runs as forks, what it counts and says; a real run of it is in the slow tests."""

import json
import os
import signal
import subprocess

import pytest

from experiments.tools import chaos, flat_memory, kills


def test_a_fork_says_how_it_ended(tmp_path):
    output = tmp_path / "output.txt"
    ended = kills.Fork(lambda: print("hello", flush=True), output)
    assert ended.wait() == 0 == ended.poll() and output.read_text() == "hello\n"

    def fail():
        raise ValueError("no")

    assert kills.Fork(fail, output).wait() == 1 and output.read_text().endswith("ValueError: no\n")
    reading, writing = os.pipe()
    waits = kills.Fork(lambda: os.read(reading, 1), output)
    with pytest.raises(subprocess.TimeoutExpired):
        waits.wait(0.0)
    assert waits.poll() is None
    waits.send_signal(signal.SIGKILL)
    assert waits.wait() == -signal.SIGKILL
    waits.kill()  # it has ended: nothing else gets the signal
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("same", [True, False])
def test_what_was_killed_is_compared_with_what_was_not(tmp_path, monkeypatch, same):
    """Three kills, two of them in time, one inside a save."""
    wheres = iter(["inside the save of step 4", "between saves"])
    clock = iter([0.0, 1.0, 9.0])

    def to_the_end(self, workdir):
        workdir.mkdir(exist_ok=True)
        (workdir / "metrics.jsonl").write_text('{"loss": 1}\n' * 20)
        (workdir / "final.json").write_text("1" if same or workdir.name == "undisturbed" else "2")
        return 1.0

    monkeypatch.setattr(kills.Forks, "to_the_end", to_the_end)
    monkeypatch.setattr(kills.Forks, "kill_at", lambda self, workdir, moment: next(wheres))
    monkeypatch.setattr(kills.time, "monotonic", lambda: next(clock))
    found = kills.check("grpo", 3, tmp_path / "grpo", seed=0, until=5.0)
    assert found == dict(program="grpo", kills=2, in_save=1, restored=0, equal=same,
                         differ=[] if same else ["final.json"], files=2)  # fmt: skip
    assert ("| grpo | 2 | 1 | 0 | 2 | equal |" in kills.table([found])) == same
    assert ("DIFFERS: final.json" in kills.table([found])) != same


def test_the_command_shares_the_kills_and_says_the_verdict(monkeypatch, capsys):
    asked = []

    def check(program, number, folder, *, seed, until):
        asked.append((program, number, seed))
        return dict(program=program, kills=number, in_save=1, restored=1, equal=program != "ppo", differ=[], files=3)

    monkeypatch.setattr(kills, "check", check)
    monkeypatch.setattr(kills.compilation, "use_cache", lambda folder: None)
    monkeypatch.setattr(kills.importlib, "import_module", lambda name: None)
    assert kills.main(["--kills=70"]) == 1
    assert asked == [(program, 10, place) for place, program in enumerate(kills.PROGRAMS)]
    said = capsys.readouterr().out
    assert "70 kills over 7 programs, 7 inside a save" in said and "NOT EQUAL: ppo" in said
    assert kills.main(["dpo", "--kills=4"]) == 0 and asked[-1] == ("dpo", 4, 0)
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["rows"][0]["kills"] == 4
    with pytest.raises(SystemExit):
        kills.main(["nothing"])


def test_half_of_the_moments_are_inside_of_saves():
    moments = chaos.draw_moments(10, kills.STEPS, in_save=kills.IN_SAVE, in_start=kills.IN_START, seed=0)
    assert sum(moment.kind == "save" for moment in moments) == 5
    assert kills.STEPS % kills.SAVES == 0 and set(kills.PROGRAMS) <= set(flat_memory.PROGRAMS)
