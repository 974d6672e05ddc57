"""configs/control/guides.py: PPO learns to act on goals in words, from every seed."""

import jax
import numpy as np
import pytest

from configs.control import guides as configs
from experiments.parts import control_runs, control_setup
from tests.experiments.test_control_replay import QUICK


@pytest.mark.slow
def test_the_policy_learns_to_follow_the_words(monkeypatch):
    """16 is the best return. Without the words it is 4 at most, without the adapter 10: the rest needs both."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)
    config = configs.get_config("camp")
    config.update(num_seeds=2, log_every=16)
    config.checkpoint.every = 16
    config.sample.update(num_envs=16, num_steps=16)
    config.train.update(total_steps=16 * 256)
    config.train.optimizer.learning_rate = 0.01
    program = control_runs.make_program(config)
    metrics = jax.device_get(program.advance(program.init())[1])
    assert metrics["eval/return"].shape == (2,) and (metrics["eval/return"] > 13.0).all(), metrics["eval/return"]
    assert (metrics["episode/understood"] > 0.5).all() and not np.any(metrics["nonfinite/skipped"])


def test_words_and_their_fields():
    adapted, alone = configs.get_config("camp"), configs.get_config("unadapted")
    assert (adapted.env.guide.adapter, alone.env.guide.adapter) == ("translated", None)
    env = control_setup.load_env(adapted, 2)
    assert env.observation_space.shape == (12,)  # the time and eleven words: not the needs
    crafter = configs.get_config("crafter")
    assert crafter.env.name == "craftax/Craftax-Classic-Symbolic-v1" and crafter.env.guide.interval == 100
    with pytest.raises(ValueError, match="env.guide lacks record: add"):
        adapted.env.guide = dict(fn="camp", interval=4)
        control_setup.load_env(adapted, 2)
    with pytest.raises(ValueError, match="choose camp or crafter, not both"):
        configs.get_config("camp,crafter")
