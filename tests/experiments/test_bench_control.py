"""experiments/bench/control.py: a row for each number of seeds, from processes of their own, and what it refuses."""

import json

import pytest

from experiments.bench import control


@pytest.mark.slow
def test_a_row_for_each_number_of_seeds(capsys):
    control.main(["--seeds=1,2", "--steps=2048", "--rounds=1", "--devices=2"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["seeds"] for row in rows] == [1, 2]
    for row in rows:
        assert row["ours"]["steps_per_s"] > 0 and row["ours"]["return"] > 5 and row["ours"]["compile_s"] > 0


@pytest.mark.parametrize(
    "peer, said", [("purejaxrl=/nowhere", "with its ppo.py"), ("brax", "expected one of purejaxrl, rejax, sb3")]
)
def test_a_peer_is_known_and_there(peer, said, capsys):
    with pytest.raises(SystemExit):
        control.main([f"--peer={peer}"])
    assert said in capsys.readouterr().err
