"""experiments.sweep --vmap: the points of a control sweep trained in one program are those that were trained alone."""

import fcntl
import json
import math

import pytest

from experiments.control import ppo as control_ppo
from experiments.parts import control_setup
from experiments.sweep import cli as program
from experiments.sweep import fold, folder, points, runner
from rl_jax.runs import disk
from rl_jax.runs.logging import read_jsonl
from rl_jax.runs.run_record import read_json
from tests.experiments import programs
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

CONFIG = "configs/control/environments.py:matching,smoke"
SWEEP = [f"--config={CONFIG}", "--sweep=lr:1e-3/3e-3,entropy:0.01,seed:2"]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(REPO_ROOT)


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A sweep of 2 x 2 points in one program."""
    workdir = tmp_path_factory.mktemp("folded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPO_ROOT)
        for name, value in programs.environment(tmp_path_factory.mktemp("home")).items():
            patch.setenv(name, value)  # not the user's folder of compiled programs: a link is made for each
        assert program.main([*SWEEP, f"--workdir={workdir}", "--vmap"]) == 0
    return workdir


@pytest.mark.slow
def test_one_process_trains_all_and_each_point_gets_its_run_directory(folded):
    assert len(list((folded / "folded").iterdir())) == 1
    run = next((folded / "folded").iterdir())
    assert len(read_json(run / "config.json")["runs"]) == 4
    found = folder.table(folded)
    assert [row["state"] for row in found["points"]] == ["complete"] * 4 and found["metric"] == "eval/return"
    place = folded / "points/lr=0.003,entropy=0.01,seed=1"
    config = read_json(place / "config.json")
    assert (config["train"]["optimizer"]["learning_rate"], config["seed"], config["num_seeds"]) == (0.003, 1, 1)
    record = read_json(place / "run.json")
    assert record["seed"] == 1 and record["folded"] == f"folded/{run.name}" and record["index"] == 3
    assert "--config.train.optimizer.learning_rate=0.003" in record["command"]
    assert (place / "metrics.parquet").exists() and len(read_jsonl(place / "metrics.jsonl")) == 2
    rows = [read_jsonl(path / "metrics.jsonl") for path in sorted((folded / "points").iterdir())]
    assert len({row[0]["loss"] for row in rows}) == 4, "two points are one run"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_point_is_what_it_is_alone(folded, tmp_path):
    name = "lr=0.003,entropy=0.01,seed=1"
    fields = {"train.optimizer.learning_rate": 0.003, "algorithm.entropy_coef": 0.01, "seed": 1, "num_seeds": 1}
    control_ppo.run(points.set_fields(points.load_config(CONFIG), fields), tmp_path)
    alone = read_jsonl(tmp_path / "metrics.jsonl")
    together = read_jsonl(folded / "points" / name / "metrics.jsonl")
    for mine, other in zip(together, alone, strict=True):
        assert set(other) - set(mine) == {"env_steps"}
        # Swept numbers are float32 arguments there and constants here.
        assert mine == pytest.approx({key: other[key] for key in mine}, rel=1e-3, abs=1e-4)


def test_a_started_fold_is_kept_and_a_complete_one_is_only_unfolded_again(folded, tmp_path):
    points_ = points.expand(CONFIG, "lr:1e-3/3e-3,entropy:0.01,seed:2")
    assert fold.folded_tasks(folded, points_) == []
    place = folded / "points" / points_[2].name
    before = (place / "metrics.jsonl").read_bytes()
    for path in place.iterdir():
        path.unlink()
    (task,) = fold.folded_tasks(folded, points_)  # all four again, in the folder that is there
    assert folder.is_complete(task.workdir) and len(task.points) == 4
    kept = (folded / "points" / points_[0].name / "final.json").stat().st_mtime_ns
    task.finish()
    assert (place / "metrics.jsonl").read_bytes() == before and folder.is_complete(place)
    assert (folded / "points" / points_[0].name / "final.json").stat().st_mtime_ns == kept


@pytest.mark.slow
def test_what_one_program_can_train(tmp_path, monkeypatch):
    made = points.expand(CONFIG, "lr,clip,seed:16", fixed=["group=8"])
    (task,) = fold.folded_tasks(tmp_path, made)
    assert len(task.points) == 3 * 3 * 16 and "--config.group=8" in task.command
    (runs,) = [text for text in task.command if text.startswith("--config.runs=")]
    assert len(runs) < 32 * 1024, "of four times as many it would be longer than an argument may be"
    monkeypatch.setattr(fold, "MAX_ARGUMENT", 12_500)
    parts = fold.folded_tasks(tmp_path / "two", made)
    assert [name for task in parts for name in task.points] == task.points and len(parts) == 2
    assert all(len(text) < 12_600 for task in parts for text in task.command)
    tasks = fold.folded_tasks(tmp_path, points.expand(CONFIG, "method:ppo/a2c,lr,seed:2"))
    assert sorted(len(task.points) for task in tasks) == [6, 6]
    with pytest.raises(ValueError, match="add seed to --sweep"):
        fold.folded_tasks(tmp_path, points.expand(CONFIG, "lr"))


def test_runs_of_a_config():
    config = points.load_config("configs/control/environments.py:matching").copy_and_resolve_references()
    config.runs = ((3, (("algorithm.entropy_coef", 0.5),)), (4, (("algorithm.kl_coef", 0.5),)))
    with pytest.raises(ValueError, match="each run must set the same fields"):
        control_setup.runs_of(config)
    config.runs = ((3, (("algorithm.entropy_coef", 0.5),)), (4, (("algorithm.entropy_coef", 0.25),)))
    keys, values = control_setup.runs_of(config)
    assert keys.shape == (2,) and values["algorithm.entropy_coef"].tolist() == [0.5, 0.25]
    config.update(runs=(), seed=4, num_seeds=1)
    assert control_setup.runs_of(config)[0][0] == keys[1]


def test_numbers_that_are_not_finite_come_back():
    row = {"step": 3, "loss": [0.5, None, 0.25], "nonfinite": {"loss[1]": "nan"}}
    assert fold._row_of(row, 0) == {"step": 3, "loss": 0.5} and fold._row_of(row, 2) == {"step": 3, "loss": 0.25}
    assert math.isnan(fold._row_of(row, 1)["loss"])


def begun_alone(folder, name):
    """The folder of a point that an ordinary run has begun."""
    place = folder / "points" / name
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({"algorithm": "control.ppo"}))
    (place / "metrics.jsonl").write_text('{"step": 4}\n')
    return place


@pytest.mark.parametrize("sign", ["run", "lock"])
def test_a_point_that_was_begun_alone_goes_on_alone(tmp_path, sign):
    """It would be trained twice, and its folder be overwritten under the process that writes there."""
    made = points.expand(CONFIG, "lr:1e-3/3e-3/1e-2,entropy:0.01", fixed=["num_seeds=1"])
    (tmp_path / "locks").mkdir()
    with open(tmp_path / "locks" / made[1].name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if sign == "run":
            fcntl.flock(lock, fcntl.LOCK_UN)
            begun_alone(tmp_path, made[1].name)
        alone, folded = fold.folded_tasks(tmp_path, made)
        held = runner.Runner(tmp_path, [], [])._is_held(alone)
    assert alone == program.tasks_of(tmp_path, made, vmap=False)[1] and held == (sign == "lock")
    assert folded.points == [made[0].name, made[2].name] and "0.003" not in " ".join(folded.command)


def test_an_earlier_fold_leaves_a_point_that_was_begun_alone_since(tmp_path):
    made = points.expand(CONFIG, "lr:1e-3/3e-3,entropy:0.01", fixed=["num_seeds=1"])
    (before,) = fold.folded_tasks(tmp_path, made)
    place = begun_alone(tmp_path, made[0].name)
    alone, folded = fold.folded_tasks(tmp_path, made)
    assert (alone.name, folded.workdir, folded.points) == (made[0].name, before.workdir, [made[1].name])
    row = {"step": 4, "loss": [0.5, 0.25]}
    (folded.workdir / "runs.jsonl").write_text(json.dumps(row) + "\n")
    (folded.workdir / "timing.jsonl").touch()
    (folded.workdir / "run.json").write_text("{}")
    disk.lock(tmp_path / "points" / made[1].name)
    before.finish()  # of the plan before
    assert read_jsonl(place / "metrics.jsonl") == [{"step": 4}] and not folder.is_complete(place)
    assert read_jsonl(tmp_path / "points" / made[1].name / "metrics.jsonl") == [{"step": 4, "loss": 0.25}]


def test_a_sweep_goes_on_without_vmap_only_where_no_fold_is_left(tmp_path):
    """One that outlives its killed sweep, or came to its end after it: each point would be trained twice."""
    made = points.expand(CONFIG, "lr:1e-3/3e-3,entropy:0.01", fixed=["num_seeds=1"])
    (task,) = fold.folded_tasks(tmp_path, made)
    assert len(program.tasks_of(tmp_path, made, vmap=False)) == 2, "nothing of the fold has run"
    (tmp_path / "locks").mkdir(exist_ok=True)
    with open(tmp_path / "locks" / task.name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=f"{task.name}, .* is training 2 of these points: add --vmap, which waits"):
            program.tasks_of(tmp_path, made, vmap=False)
    (task.workdir / "final.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{task.name}, .* has trained 2 of these points: add --vmap, which takes"):
        program.tasks_of(tmp_path, made, vmap=False)
    for point in made:
        begun_alone(tmp_path, point.name)
    assert len(program.tasks_of(tmp_path, made, vmap=False)) == 2


def test_a_point_is_not_unfolded_where_a_run_goes_on(tmp_path, monkeypatch):
    (task,) = fold.folded_tasks(tmp_path, points.expand(CONFIG, "lr:1e-3/3e-3,entropy:0.01", fixed=["num_seeds=1"]))
    for name, text in (("runs.jsonl", '{"step": 4, "loss": [1, 2]}\n'), ("timing.jsonl", ""), ("run.json", "{}")):
        (task.workdir / name).write_text(text)

    def refuse(place):
        raise disk.InUseError(f"{place} belongs to a run that is going on")

    monkeypatch.setattr(disk, "lock", refuse)
    with pytest.raises(disk.InUseError, match=task.points[0]):
        task.finish()
    assert not list((tmp_path / "points").glob("*/*.json"))
