"""experiments/bench/replay.py: a row for each method and number of seeds, the peers' work, and what it refuses."""

import json

import pytest

from experiments.bench import replay, turns


@pytest.mark.parametrize("name", ["zoo", "defaults"])
@pytest.mark.parametrize("method", ["sac", "dqn"])
def test_every_side_does_the_same_work(method, name):
    config = replay.make_config(method, steps=1024, work=name, hidden="8,8", batch_size=16)
    work = replay.work_of(config, method)
    parts = {("sac", "zoo"): 1020, ("sac", "defaults"): 1020, ("dqn", "zoo"): 1024, ("dqn", "defaults"): 1000}
    assert work["steps"] == config.train.total_steps == parts[method, name]  # ten equal parts, or four
    assert work["hidden"] == [8, 8] and work["batch_size"] == 16
    # One copy per so many gradient steps, in the peers' unit.
    per_gradient_step = work["envs"] * work["every"] / work["gradient_steps"]
    assert work["target_every"] == config.algorithm.target_every * per_gradient_step


def test_the_defaults_are_those_of_stable_baselines3():
    """As its 2.9.2 has them in the signatures of SAC and DQN and in their MlpPolicy."""
    both = {"envs": 1, "capacity": 1_000_000, "warmup": 100, "discount": 0.99, "gradient_steps": 1}
    sac = {"every": 1, "batch_size": 256, "rate": 3e-4, "tau": 0.005, "hidden": [256, 256], "target_every": 1}
    dqn = {"every": 4, "batch_size": 32, "rate": 1e-4, "tau": 1.0, "hidden": [64, 64], "target_every": 10_000}
    explore = {"exploration": {"initial": 1.0, "final": 0.05, "fraction": 0.1}}
    for method, wanted in (("sac", both | sac), ("dqn", both | dqn | explore)):
        config = replay.make_config(method, steps=1000, work="defaults")
        work = replay.work_of(config, method)
        assert {name: work[name] for name in wanted} == wanted
    assert config.train.max_grad_norm == 10  # Stable-Baselines3's default of DQN; sbx does not clip


@pytest.mark.slow
def test_a_training_of_ours_returns_each_seeds_return():
    config = replay.make_config("sac", steps=200, hidden="4", batch_size=4)
    config.replay.update(capacity=256, warmup=32)
    seconds, train, steps = replay.ours(config, seeds=2, devices=1)
    assert seconds > 0 and steps == 200 and train().shape == (2,)


def test_a_row_for_each_method_and_number_of_seeds(capsys, monkeypatch):
    """The sides take turns; a peer has one seed, and its rate is compared with ours of every number of them."""
    taken = []

    class Side:
        def __init__(self, command):
            own = command[-1].startswith("--side=")
            self.name = int(command[-1].removeprefix("--side=")) if own else command[-2]
            self.method = command[3].removeprefix("--method=") if own else json.loads(command[-1])["method"]

        def turn(self):
            taken.append((self.method, self.name))

        def result(self):
            return {"steps_per_s": 4.0 if self.name == "sbx" else 10.0 * self.name}

    monkeypatch.setattr(turns, "Side", Side)
    replay.main(["--seeds=1,2", "--rounds=2", "--peer=sbx=python"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(row["method"], row["seeds"], row["ours"]["steps_per_s"], row["ratio_sbx"]) for row in rows]
    assert found == [(method, seeds, 10 * seeds, 2.5 * seeds) for method in ("sac", "dqn") for seeds in (1, 2)]
    assert taken == [(method, name) for method in ("sac", "dqn") for _ in range(2) for name in (1, 2, "sbx")]


@pytest.mark.parametrize(
    "words, said",
    [(["--peer=brax=python"], "is none of sb3, sbx"), (["--method=td3"], "is none of sac, dqn")],
)
def test_what_it_does_not_know(words, said, capsys):
    with pytest.raises(SystemExit):
        replay.main(words)
    assert said in capsys.readouterr().err
