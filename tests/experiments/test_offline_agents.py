"""tools/offline_agents.py: rewards of recorded episodes on their tokens, and all four baselines through the program."""

import json
import os
import signal

import numpy as np
import pytest

from configs import agents_worlds
from experiments.parts import stops
from experiments.tools import offline_agents
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


def test_a_turns_reward_is_on_its_last_token():
    mask = np.array([[1, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0]], bool)
    records = [{"info": json.dumps({"turn_rewards": rewards})} for rewards in ([-1.0, 2.0], [3.0])]
    found = offline_agents.token_rewards(mask, records)
    np.testing.assert_array_equal(found, [[0, -1, 0, 0, 2, 0], [3, 0, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match="an episode of 1 turns does not fit 6 tokens"):
        offline_agents.token_rewards(mask, [records[1], records[1]])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--world=errands,smoke"], "begins its history anew"),
        (["--methods=bc,dqn"], "--methods: dqn is none of bc, filtered_bc, mc, ilql"),
        (["--top=0"], "--top above 0"),
    ],
)
def test_what_cannot_be_done_is_refused_before_work(arguments, says, tmp_path, capsys):
    assert offline_agents.main([f"--workdir={tmp_path / 'run'}", *arguments]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "run").exists()


def small(tmp_path):
    """A maze's episodes and the smallest model."""
    config = agents_worlds.get_config("lmrl_maze,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=40, num_test=8)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.update(steps=0)
    config.eval.update(num_prompts=8, batch_size=8)
    config.log.update(progress=False, tensorboard=False)
    return config


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("when", ["bc", "warm start"])
def test_a_signal_between_two_stages_is_not_lost(tmp_path, monkeypatch, capsys, when):
    def now(name):
        if name == when:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"eval/reward": -3.0}

    config = small(tmp_path)
    monkeypatch.setattr(offline_agents.agents_worlds, "get_config", lambda *_: config)
    monkeypatch.setattr(offline_agents, "warm_start", lambda *_: now("warm start"))
    monkeypatch.setattr(offline_agents, "played", lambda *_: now("bc"))
    monkeypatch.setattr(offline_agents, "sft_run", lambda *_: pytest.fail("a stage after the signal"))
    assert offline_agents.main([f"--workdir={tmp_path / 'run'}", "--methods=bc,filtered_bc"]) == stops.STOPPED
    assert (tmp_path / "run/bc/result.json").exists() == (when == "bc")
    assert "the same command goes on" in capsys.readouterr().out


@pytest.mark.usefixtures("kept_signals")
def test_filtered_bc_clones_the_best_episodes(tmp_path, monkeypatch):
    """And what it found is not taken for that of another share, or of another config."""
    cloned = []
    monkeypatch.setattr(
        offline_agents, "fine_tune", lambda setup, loop: bool(cloned.append(setup.task.data_source)) or 1
    )
    monkeypatch.setattr(offline_agents, "sft_run", lambda *_: None)
    monkeypatch.setattr(offline_agents, "load_params", lambda *_: None)
    monkeypatch.setattr(offline_agents, "played", lambda *_: {"eval/reward": -3.0})
    options = offline_agents.parser().parse_args(
        [f"--workdir={tmp_path / 'run'}", "--top=0.25", "--methods=filtered_bc"]
    )
    found = offline_agents.compare(tmp_path / "run", options, small(tmp_path))["filtered_bc"]
    best = cloned[0]("sft_train")
    returns = offline_agents.returns_of(best)
    every = offline_agents.returns_of(best._data)
    assert len(best) == found["episodes"] == 10 and sorted(every)[-10:] == sorted(returns)
    options.steps = 9  # of other methods
    assert offline_agents.compare(tmp_path / "run", options, small(tmp_path))["filtered_bc"] == found
    other = small(tmp_path)
    other.eval.num_prompts, options.top = 4, 0.5
    with pytest.raises(ValueError, match="settings.json: made with other settings") as error:
        offline_agents.compare(tmp_path / "run", options, other)
    assert sorted(str(error.value).splitlines()[1:-1]) == ["  --top: 0.25 -> 0.5", "  eval.num_prompts: 8 -> 4"]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_values_of_tokens_are_learned_and_played(tmp_path):
    """ILQL's loss falls and its network plays; what is done is not done again."""
    run, said = tmp_path / "run", ["--steps=8", "--batch_size=8", "--learning_rate=0.01", "--target_rate=0.5"]
    options = offline_agents.parser().parse_args([f"--workdir={run}", "--methods=ilql", *said])
    found = offline_agents.compare(run, options, small(tmp_path))
    assert list(found) == ["ilql"] and found["ilql"]["last_loss"] < found["ilql"]["first_loss"]
    ends = json.loads((run / "offline.json").read_text())["data"]
    assert ends["low"] < ends["mean"] < ends["high"] <= 0
    assert "| ilql |" in offline_agents.table(found)
    (run / "ilql/checkpoints").rename(tmp_path / "away")
    assert offline_agents.compare(run, options, small(tmp_path)) == found and not (run / "ilql/checkpoints").exists()
