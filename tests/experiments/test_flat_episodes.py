"""experiments.tools.flat_episodes: many episodes of eight turns at once on a model leave nothing behind."""

import json

import pytest

from experiments.tools import flat_episodes, flat_memory

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.mark.slow
def test_many_episodes_at_once_compile_once_and_leave_nothing(tmp_path):
    """None lost or doubled (play_round raises), no program after the first round, no array after the second."""
    readings, told = flat_episodes.watch(tmp_path, 8, 3)
    assert told["episodes"] == 24 and told["full"] > 0.9 and 7 < told["turns"] <= 8
    assert len({reading.programs for reading in readings}) == 1, readings
    assert len({reading.arrays for reading in readings[1:]}) == 1, readings


def test_the_command_says_what_grows(capsys, monkeypatch):
    readings = [flat_memory.Reading(n, 100.0, 10, 20, 30 + (n > 7), 40) for n in range(1, 11)]
    told = dict(episodes=16, turns=8.0, full=1.0, tokens=40.0, seconds=0.1, compile_count=3)
    monkeypatch.setattr(flat_episodes, "watch", lambda *_: (readings, told))
    assert flat_episodes.main(["--episodes=16"]) == 1
    *said, last = capsys.readouterr().out.strip().splitlines()
    grown = "programs grow from 30 to 31 (from step 8 on)"
    assert json.loads(last)["problems"] == [grown] and said[-1].endswith(grown)
    readings[:] = readings[:5] * 2
    assert flat_episodes.main([]) == 0


def test_whole_groups_only(capsys):
    with pytest.raises(SystemExit):
        flat_episodes.main(["--episodes=12"])
    assert "--episodes=12 must be a multiple of 8" in capsys.readouterr().err
