"""experiments.sweep.tune: equal budgets, disjoint seeds, a record of what was tried."""

import json
import shutil

import pytest

from experiments.sweep import points, runner, tune
from rl_jax.runs.run_record import read_json
from tests.paths import REPO_ROOT

FAKE = [
    "--config=tests/experiments/fake_config.py", "--program=tests.experiments.fake_program", "--budget=fake.steps",
    "--space=lr",
]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(REPO_ROOT)


@pytest.fixture
def counted(monkeypatch):
    """Runs that take no time: the fake program's result, without its process. Returns the workdirs that ran."""
    ran = []

    def run(self):
        for task in self._tasks:
            if (task.workdir / "final.json").exists():
                continue
            ran.append(task.workdir)
            fields = dict(part.removeprefix("--config.").split("=", 1) for part in task.command[4:] if "=" in part)
            task.workdir.mkdir(parents=True)
            value = -((float(fields.get("fake.lr", 0.1)) - 0.3) ** 2) + int(fields["seed"]) * 1e-9
            (task.workdir / "metrics.jsonl").write_text(json.dumps({"step": 1, "eval/return": value}) + "\n")
            (task.workdir / "run.json").write_text("{}")
            (task.workdir / "final.json").write_text("{}")
        return 0

    monkeypatch.setattr(runner.Runner, "run", run)
    return ran


def test_tunes_on_tuning_seeds_and_measures_on_test_seeds(counted, tmp_path, capsys):
    assert tune.main([*FAKE, "--trials=12", "--tuning_seeds=2", "--seeds=3", f"--workdir={tmp_path}"]) == 0
    found = read_json(tmp_path / "tuning.json")["only"]
    assert found["trials"] == 12 and found["seeds"] == [10000, 10001] and found["test_seeds"] == [0, 1, 2]
    assert found["budget_per_run"] == {"fake.steps": 3} and found["budget"] == {"fake.steps": 3 * 12 * 2}
    assert abs(found["params"]["fake.lr"] - 0.3) < 0.15
    trials = read_json(tmp_path / "tuning/only/trials.json")["trials"]
    assert found["value"] == max(trial["value"] for trial in trials)
    assert len({trial["params"]["fake.lr"] for trial in trials}) == 12
    tuned = {int(path.name.rpartition("=")[2]) for path in counted if "tuning" in path.parts}
    measured = {int(path.name.rpartition("=")[2]) for path in counted if "tuning" not in path.parts}
    assert tuned == {10000, 10001} and measured == {0, 1, 2}
    points_ = read_json(tmp_path / "sweep.json")["points"]
    assert [point["arm"] for point in points_] == ["only"] * 3
    assert all(point["overrides"]["fake.lr"] == found["params"]["fake.lr"] for point in points_)
    assert "| only | 3 of 3 |" in capsys.readouterr().out


def test_every_arm_gets_the_same_and_a_restart_goes_on(counted, tmp_path, monkeypatch, capsys):
    space = {"fake.lr": ("uniform", 0.0, 1.0)}
    monkeypatch.setattr(tune, "space_of", lambda config, names: space)
    arms = ["--sweep=fail:once/stop", "--trials=3", "--tuning_seeds=1", "--seeds=1"]
    assert tune.main([*FAKE, *arms, f"--workdir={tmp_path / 'whole'}"]) == 0
    whole = read_json(tmp_path / "whole/tuning.json")
    assert {name: (arm["trials"], arm["budget"]) for name, arm in whole.items()} == {
        "fail=once": (3, {"fake.steps": 9}), "fail=stop": (3, {"fake.steps": 9}),
    }
    # Stopped after two trials, started again: the same trials, none twice.
    assert tune.main([*FAKE, *arms, "--trials=2", f"--workdir={tmp_path / 'cut'}"]) == 0
    before = [path for path in counted if "cut" in str(path)]
    for path in (tmp_path / "cut/points").iterdir():
        (path / "final.json").unlink()
        (path / "metrics.jsonl").unlink()
        (path / "run.json").unlink()
        path.rmdir()
    (tmp_path / "cut/sweep.json").unlink()
    assert tune.main([*FAKE, *arms, f"--workdir={tmp_path / 'cut'}"]) == 0
    assert read_json(tmp_path / "cut/tuning.json") == whole
    tuned = [path for path in counted if "cut" in str(path) and "tuning" in path.parts]
    assert len(tuned) == len(set(tuned)) == 6 and len([p for p in before if "tuning" in p.parts]) == 4
    ran = len(counted)
    for changed in ("--seed=1", "--config.fake.steps=4", "--minimize", "--metric=loss"):
        assert tune.main([*FAKE, *arms, changed, f"--workdir={tmp_path / 'cut'}"]) == 2
        assert "trials of another space, other seeds" in capsys.readouterr().err
    space["fake.lr"] = ("uniform", 0.0, 2.0)
    assert tune.main([*FAKE, *arms, f"--workdir={tmp_path / 'cut'}"]) == 2
    assert "trials of another space, other seeds" in capsys.readouterr().err and len(counted) == ran


def test_more_trials_do_not_change_what_the_final_runs_were_chosen_from(counted, tmp_path, capsys):
    arguments = [*FAKE, "--tuning_seeds=1", "--seeds=1", f"--workdir={tmp_path}"]
    assert tune.main([*arguments, "--trials=2"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    ran = len(counted)
    assert tune.main([*arguments, "--trials=9"]) == 2
    assert "final runs of the arm only, chosen from 2 trials: of 9 another may be" in capsys.readouterr().err
    assert len(counted) == ran and {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    # Another is the best now, as of fewer trials it may be: both records stay as they were.
    chosen, path = read_json(tmp_path / "tuning.json"), tmp_path / "tuning/only/trials.json"
    record = read_json(path)
    for trial in record["trials"]:
        trial["value"] = float(trial["params"] != chosen["only"]["params"])
    path.write_text(json.dumps(record))
    assert tune.main([*arguments, "--trials=2"]) == 2
    assert "already has a different point only,seed=0" in capsys.readouterr().err
    assert read_json(tmp_path / "tuning.json") == chosen
    shutil.rmtree(tmp_path / "points")
    (tmp_path / "sweep.json").unlink()
    assert tune.main([*arguments, "--trials=9"]) == 0
    assert read_json(tmp_path / "tuning.json")["only"]["trials"] == 9


def test_trials_of_an_edited_config_are_refused(counted, tmp_path, capsys):
    arguments = [*FAKE, "--trials=2", "--tuning_seeds=1", "--seeds=1", f"--workdir={tmp_path}"]
    assert tune.main(arguments) == 0
    place = next((tmp_path / "tuning/only/points").iterdir())
    config = points.load_config(FAKE[0].removeprefix("--config=")).to_dict()
    config["fake"]["steps"] = 99
    (place / "config.json").write_text(json.dumps(config))
    assert tune.main(arguments) == 2
    assert "  fake.steps: 99 -> 3\n" in capsys.readouterr().err


def test_a_loss_is_not_maximized(counted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tune, "result_of", lambda row: "eval/loss")
    monkeypatch.setattr(tune.folder, "last_metrics", lambda place: {"eval/loss": 1.0})
    arguments = [*FAKE, "--trials=1", "--tuning_seeds=1", "--seeds=1", f"--workdir={tmp_path}"]
    assert tune.main(arguments) == 2
    assert "lower is better for eval/loss: give --minimize" in capsys.readouterr().err
    assert tune.main([*arguments, "--minimize"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds=10001/10002"], "are tuning seeds, not test seeds"),
        (["--tuning_seeds=5/6"], "are test seeds, not tuning seeds"),
        (["--space=lrr"], "has no space 'lrr'; it has: lr"),
        (["--sweep=seed:2"], "--sweep may not set seeds"),
        (["--sweep=lr"], "fake.lr is both tuned and set by the arm lr=0.1"),
        (["--budget=fake.stepz"], "the config has no field fake.stepz"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_refused(arguments, said, counted, tmp_path, capsys):
    assert tune.main([*FAKE, "--trials=2", f"--workdir={tmp_path}", *arguments]) == 2
    assert said in capsys.readouterr().err and not counted


def test_unequal_budgets_are_refused():
    arms = [
        points.make_point(
            "configs/control/environments.py:matching", {"train.total_steps": steps}, name=str(steps), arm="x"
        )
        for steps in (1000, 2000)
    ]
    with pytest.raises(ValueError, match=r"have different budgets: 1000 \{'env_steps': 1000\}, 2000"):
        tune.equal_budget(arms, None)
    assert tune.equal_budget(arms, "sample.num_envs") == {"sample.num_envs": 16}
    assert tune.equal_budget(arms[:1], None) == {"env_steps": 1000}


def test_a_parameter_may_not_change_the_budget(counted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tune, "space_of", lambda config, names: {"fake.steps": ("int", 4, 9)})
    assert tune.main([*FAKE, "--trials=1", f"--workdir={tmp_path}"]) == 2
    assert "may not change the budget" in capsys.readouterr().err and not counted


def test_proposals_follow_from_the_trials_and_learn():
    space = {"x": ("log_uniform", 1e-4, 1.0), "n": ("int", 1, 8), "kind": ("choice", ["a", "b"])}
    trials = []
    for _ in range(40):
        params = tune.propose(space, trials, seed=1, maximize=False)
        assert 1e-4 <= params["x"] <= 1.0 and params["n"] in range(1, 9) and params["kind"] in "ab"
        failed = len(trials) == 3
        value = None if failed else abs(params["x"] - 0.01) + abs(params["n"] - 6) + (params["kind"] == "b")
        trials.append({"params": params, "value": value})
    assert tune.propose(space, trials[:7], seed=1, maximize=False) == trials[7]["params"]
    assert tune.propose(space, trials[:7], seed=2, maximize=False) != trials[7]["params"]
    assert tune.chosen(trials, minimize=True)["params"]["n"] in (5, 6, 7)
    late = [trial["value"] for trial in trials[20:]]
    early = [trial["value"] for trial in trials[:10] if trial["value"] is not None]
    assert sum(late) / len(late) < sum(early) / len(early)
    with pytest.raises(ValueError, match="every trial has failed"):
        tune.chosen([trials[3]], minimize=True)
