"""configs/control/guides.py: PPO learns to act on goals in words, from every seed."""

import jax
import numpy as np
import pytest

from configs.control import guides as configs
from experiments.parts import control_runs, control_setup, guides
from rl_jax.envs import speakers
from tests.experiments.loopback import speaking
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


def test_language_models_speak_over_a_server():
    """The goals and analyses of a reset are those that two servers gave, each text asked once."""

    def analysed(text):
        return "it wants water" if "parched" in text or "thirsty" in text else "it is fine"

    def decided(text):
        assert text.startswith("Player sees: <a tent>.") and "Analysis: <" in text
        return "Drink water, or: drink water" if "wants water" in text else "sleep"

    with speaking(analysed) as small, speaking(decided) as large:
        config = configs.get_config("served,smoke")
        assert config.env.guide.adapter.system == configs.ANALYST
        config.env.guide.adapter.url, config.env.guide.decide.url = small.url, large.url
        env = control_setup.load_env(config, 16)
        worlds, observations = env.reset(jax.random.key(0))
        assert 1 < len(small.texts) <= 8 and len(small.texts) == len(set(small.texts))
        assert len(large.texts) == len(small.texts)
        assert small.seen[0][2]["messages"][0] == {"role": "system", "content": configs.ANALYST}
    goals = speakers.camp().goals
    state = worlds
    while not hasattr(state, "goals"):
        state = state.state
    said = np.asarray(state.goals)
    thirsty = said[:, goals.index("drink water")]
    assert 0 < thirsty.sum() < 16 and (said.sum(1) == 1).all() and said[~thirsty][:, goals.index("sleep")].all()
    assert observations.shape == (16, 12)


def test_who_speaks_is_said_in_the_config():
    served = guides.served(world="camp", adapter="scripted", decide="scripted")
    own = speakers.camp()
    assert (
        served.adapter("Player status: <parched>.")
        == own.adapter("Player status: <parched>.")
        == ("parched means thirsty")
    )
    assert guides.served(world="camp", adapter=None, decide="scripted").adapter is None
    with pytest.raises(ValueError, match="somebody has to name the goals"):
        guides.served(world="camp", adapter=None, decide=None)
    with pytest.raises(ValueError, match="has no function 'nobody'"):
        guides.served(world="camp", adapter=dict(fn="nobody"), decide="scripted")
