"""experiments/tools/control_levels.py: every level is of an environment there is, what it says of runs, and that it
runs."""

import json

import numpy as np
import pytest

from configs.control import environments as configs
from configs.control.levels import LEVELS, Level
from experiments.ablation import once
from experiments.control import ppo as control_ppo
from experiments.parts import control_runs, control_setup
from experiments.report import cli
from experiments.tools import control_levels
from rl_jax.runs.logging import RunLogger
from rl_jax.runs.run_record import write_run_record
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

EACH = Level("cartpole", "CartPole-v1", 475.0, "seeds", "here")
MEAN = EACH._replace(of="mean")


def finished(workdir, values, level=EACH, **fields):
    """A folder as experiments.control.ppo leaves it, of a run that ended with these returns of its seeds."""
    config = configs.get_config(f"{level.word},smoke").to_dict() | fields
    write_run_record(workdir, config=config, command="x", task=level.name, algorithm="control.ppo")
    with RunLogger(workdir, total_steps=2, progress=False, tensorboard=False) as log:
        for step in (1, 2):
            each = {f"runs/{index}": value * step / 2 for index, value in enumerate(values)}
            log.log(step, each | {"eval/return": 1.0, "env_steps": 100 * step, "loss": 0.5}, {"train_s": 1.0})
    (workdir / "final.json").write_text(json.dumps({"step": 2, "metrics": {"eval/return": values}}))
    return workdir


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.word)
def test_every_level_is_of_ten_seeds_of_an_environment_that_there_is(level):
    config = configs.get_config(level.word)
    assert config.env.name == f"gymnax/{level.name}" and config.num_seeds == 10 and level.source
    assert level.of in ("seeds", "mean") and config.eval.num_episodes >= 32
    rows = control_setup.num_updates(config) // config.log_every
    assert 10 <= rows <= 60, "points of the curve"


@pytest.mark.parametrize(
    ("level", "values", "said", "reached"),
    [
        (EACH, [500.0, 480.0, 475.0], "reached", 3),
        (EACH, [500.0, 500.0, 470.0], "not reached", 2),
        (MEAN, [500.0, 501.0, 499.0, 500.0, 470.0, 502.0, 503.0, 500.0], "reached", 7),
        (MEAN, [500.0, 400.0, 540.0], "undecided", 2),
        (MEAN, [400.0, 410.0, 420.0], "not reached", 0),
    ],
)
def test_the_verdict(tmp_path, level, values, said, reached):
    row = control_levels.row_of(level, finished(tmp_path, values))
    assert (row["verdict"], row["reached"], row["worst"], row["steps"]) == (said, reached, min(values), 200)
    assert row["interval"]["mean"] == pytest.approx(sum(values) / len(values))
    text = control_levels.table([row])
    assert f"| {reached} of {len(values)} | {said} | - | `python -m experiments.control.ppo" in text
    assert "475, here" in text


def test_a_run_of_other_settings_is_refused(tmp_path):
    def check(workdir, *overrides):
        asked = control_levels.argument(EACH, smoke=True)
        once.check_same("control.ppo", asked, workdir, overrides, free=control_levels.FREE)

    finished(tmp_path / "a", [1.0, 2.0], mesh="seeds:2", group=2)
    check(tmp_path / "a")
    finished(tmp_path / "b", [1.0, 2.0], sample=dict(num_envs=99, num_steps=128))
    with pytest.raises(ValueError, match="  sample.num_envs: 99 -> 8\nDelete that folder"):
        check(tmp_path / "b")
    check(tmp_path / "b", "--config.sample.num_envs=99")
    with pytest.raises(SystemExit):
        control_levels.main(["cartpol"])


def test_the_report_shows_every_seed_of_a_run(tmp_path):
    text = cli.write_report([finished(tmp_path, [500.0, 480.0, 475.0])]).read_text()
    assert "Every seed" in text and all(f"seed {seed}<span>" in text for seed in range(3))
    assert 'class="band' in text and "runs/0" not in text and "<b>loss" in text


QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def returns(config, updates):
    """The evaluated returns of a config's runs after so many updates."""
    config.log_every = config.checkpoint.every = updates
    program = control_runs.make_program(config)
    return np.asarray(program.advance(program.init())[1]["eval/return"])


@pytest.mark.slow
def test_a_long_corridor_is_walked_where_the_reward_travels_all_the_way_back():
    """25 steps to the only reward, which chance rarely meets: lambda 1 tells every step of it at once,
    lambda 0 the last one. (A seed that does not meet it early has no way to it at any lambda.)"""
    config = configs.get_config("corridor")
    config.update(num_seeds=3, sweep=(("algorithm.advantage.lam", (0.0, 1.0)),))
    config.sample.num_envs, config.train.total_steps = 32, 15 * 32 * 64
    config.train.optimizer.learning_rate = 5e-4
    config.env.length, config.eval.max_steps = 25, 100
    solved = returns(config, 15).reshape(3, 2).sum(axis=0)
    assert solved[0] == 0 and solved[1] >= 2, solved


def test_every_environment_says_where_its_returns_lie():
    assert set(configs.RANGES) == set(configs.ENVIRONMENTS)
    for word, (low, high) in configs.RANGES.items():
        if word == "hdpo":  # it has no critic, and takes no method
            continue
        for method in ("hl_gauss", "two_hot"):
            settings = configs.get_config(f"{word},{method}").algorithm
            assert (settings.value_loss.fn, settings.support.low, settings.support.high) == (method, low, high)


@pytest.mark.slow
def test_a_critic_that_classifies_learns_cartpole():
    """A support that the returns do not fit, such as (-2, -1), leaves it at 10 and 57."""
    config = configs.get_config("cartpole,hl_gauss")
    config.num_seeds, config.train.total_steps = 2, 60 * 1024
    config.eval.num_episodes = 8
    found = returns(config, 60)  # six seeds: 217 to 500
    assert (found > 150).all(), found


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "one_program")
def test_it_runs_and_a_finished_run_is_not_made_again(tmp_path, monkeypatch, capsys):
    """The program of each run in this process; what a run of its own process adds is held by the ablations' tests."""
    made = []

    def run_once(program, config, workdir, overrides, spent, *, free):
        if not (workdir / "final.json").exists():
            found = configs.get_config(config.partition(":")[2])
            found.sample.update(num_envs=4, num_steps=8)
            found.train.total_steps = 256
            found.network.hidden = (8,)
            control_ppo.run(found, workdir)
            made.append((program, config, overrides))

    monkeypatch.setattr(control_levels, "run_once", run_once)
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)
    asked = ["cartpole", "--smoke", f"--workdir={tmp_path}"]
    asked += ["--config.sample.num_envs=4", "--config.sample.num_steps=8", "--config.train.total_steps=256"]
    asked += ["--config.network.hidden=[8]"]
    control_levels.main(asked)
    control_levels.main(asked)
    with pytest.raises(ValueError, match="  sample.num_envs: 4 -> 5"):
        control_levels.main([*asked, "--config.sample.num_envs=5"])
    assert [row[:2] for row in made] == [("control.ppo", "configs/control/environments.py:cartpole,smoke")]
    (row,) = json.loads((tmp_path / "levels.json").read_text())["rows"]
    assert len(row["values"]) == 2 and row["verdict"] == "not judged" and row["steps"] == 256
    assert "CartPole-v1" in (tmp_path / "levels.md").read_text() and "CartPole-v1" in capsys.readouterr().out
    assert (tmp_path / "cartpole" / "report.html").exists()
