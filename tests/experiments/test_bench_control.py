"""experiments/bench/control.py: a row for each number of seeds, from processes of their own, and what it refuses."""

import json

import pytest

from experiments.bench import control


@pytest.mark.slow
def test_a_process_of_its_own_trains(capsys):
    control.main(["--seeds=2", "--steps=2048", "--rounds=1", "--devices=2"])
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["seeds"] == 2 and row["steps_a_seed"] == 2048
    assert row["ours"]["steps_per_s"] > 0 and row["ours"]["return"] > 5 and row["ours"]["compile_s"] > 0


def test_a_row_for_each_number_of_seeds(capsys, monkeypatch):
    """The sides take turns, and a row has the medians of its own sides' rounds and their ratio."""
    taken = []

    class Side:
        def __init__(self, command):
            given = dict(word.removeprefix("--").split("=") for word in command if word.startswith("--"))
            self.name, self.seeds = given["side"], int(given["seeds"])

        def turn(self):
            taken.append((self.seeds, self.name))

        def result(self):
            return {"steps_per_s": 10.0 * self.seeds if self.name == "ours" else 4.0}

    monkeypatch.setattr(control.turns, "Side", Side)
    control.main(["--seeds=1,2", "--rounds=2", "--peer=sb3"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["seeds"], row["ours"]["steps_per_s"], row["ratio_sb3"]) for row in rows] == [(1, 10, 2.5), (2, 20, 5)]
    assert taken == [(seeds, name) for seeds in (1, 2) for name in ("ours", "sb3")] * 2


@pytest.mark.parametrize(
    "peer, said", [("purejaxrl=/nowhere", "with its ppo.py"), ("brax", "expected one of purejaxrl, rejax, sb3")]
)
def test_a_peer_is_known_and_there(peer, said, capsys):
    with pytest.raises(SystemExit):
        control.main([f"--peer={peer}"])
    assert said in capsys.readouterr().err
