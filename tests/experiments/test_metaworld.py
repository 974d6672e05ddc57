"""configs/control/metaworld.py: words, and tasks of Meta-World trained and judged by the programs."""

import numpy as np
import pytest

from configs.control import metaworld as configs
from experiments.parts import control_runs, control_setup, replay_runs
from tests.envs.libraries import adapter, foreign
from tests.experiments.test_control_replay import QUICK, trained


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    adapter("metaworld")
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)


def two_tasks(words="mt10,smoke", **fields):
    """The config of ten tasks with two of them."""
    config = configs.get_config(words)
    config.env.name = "metaworld/reach-v3+handle-press-v3"
    config.sample.num_envs, config.eval.num_episodes = 2, 2
    if "replay" in config:
        config.replay.update(capacity=64, warmup=10)
    config.train.total_steps = 4 * 2 * config.sample.num_steps
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.slow
def test_several_tasks_are_trained_and_their_success_is_reported():
    with foreign():
        params, metrics = trained(two_tasks())
    assert params["actor"]["log_temperature"].shape == (1, 2)
    names = {"success", "success/reach-v3", "success/handle-press-v3"}
    assert {name for name in metrics if "success" in name} == {f"{k}/{n}" for k in ("episode", "eval") for n in names}
    assert metrics["eval/length"] == 5.0 and metrics["eval/success"] == 0.0  # nobody reaches in five steps
    assert not np.any(metrics["nonfinite/skipped"])


def test_refusals():
    with pytest.raises(ValueError, match="mt_sac has a temperature for each of several tasks"):
        configs.get_config("reach,mt_sac")
    with pytest.raises(ValueError, match="at most one set of tasks and one method"):
        configs.get_config("mt10,mt50")
    with foreign():
        hidden = two_tasks(env__num_goals=1)
        hidden.env.hidden = True
        env = control_setup.load_env(hidden, 2)
        with pytest.raises(ValueError, match="task_sac needs observations that end with the id"):
            replay_runs.build(hidden, hidden.algorithm.to_dict(), env)
        uneven = two_tasks(eval__num_episodes=3)
        with pytest.raises(ValueError, match="eval.num_episodes=3 is no multiple of the 2 tasks"):
            trained(uneven)


@pytest.mark.parametrize("words", ["reach", "mt10", "mt50", "mt10,ppo", "reach,trpo", "mt50,smoke"])
def test_the_numbers_go_together(words):
    config = configs.get_config(words)
    assert config.program == ("control.ppo" if {"ppo", "trpo"} & {*words.split(",")} else "control.replay")
    assert control_setup.num_updates(config) > 0 and config.eval.num_episodes % config.sample.num_envs in (0, 10)
    if "replay" in config:
        settings = replay_runs.make_settings(config, control_setup.settings_of(config), 1)
        assert settings.slots * config.sample.num_envs == config.replay.capacity
