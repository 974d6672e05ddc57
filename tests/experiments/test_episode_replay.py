"""parts/episode_replay.py: which groups get a success, which one, with which log-probs; a run does it and resumes."""

import shutil

import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_rows
from experiments import agents
from experiments.parts import players
from experiments.parts.episode_replay import Successes, same
from rl_jax.experience import trajectory
from rl_jax.experience.trajectory import Span, Trajectory, Turn
from rl_jax.runs.logging import read_jsonl
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


def episode(prompt, reward, token, sample=0, group=0, status="done"):
    said = np.array([token], np.int32)
    floats = np.array([-0.1 * token], np.float32)
    spans = (Span("prompt", np.array([1], np.int32)), Span("sampled", said, floats, floats, said * 0))
    return Trajectory(prompt, group, sample, (spans,), (Turn(reward),), status)


def buffer(folder, steps, **settings):
    """The buffer after steps of recorded episodes."""
    for number, episodes in enumerate(steps, 1):
        pyarrow.parquet.write_table(trajectory.to_table(episodes), folder / f"{number:08d}.parquet")
    return Successes(folder, **(dict(size=2, above=0.1, std=0.05, mean=0.2) | settings))


def tokens(found):
    return [int(one.sampled()[0].ids[0]) for one in found]


def test_the_last_different_successes_of_a_prompt_are_kept(tmp_path):
    steps = [[episode("a", 1.0, 5), episode("a", 0.1, 6), episode("b", 1.0, 7)]]
    steps += [
        [episode("a", 0.5, 8), episode("a", 1.0, 5), episode("a", 1.0, 4, status="error")],
        [episode("a", 1.0, 9)],
    ]
    kept = buffer(tmp_path, steps)
    assert tokens(kept.of("a", 1)) == [5] and tokens(kept.of("a", 2)) == [5, 8]
    assert tokens(kept.of("a", 3)) == [8, 9] and tokens(kept.of("b", 3)) == [7] and kept.of("c", 3) == []


def test_only_a_failed_group_gets_a_success_and_its_own_log_probs(tmp_path):
    kept = buffer(tmp_path, [[episode("a", 1.0, 5), episode("b", 1.0, 7)]])
    failed = [episode("a", reward, 2, sample) for sample, reward in enumerate((0.01, 0.0))]
    mixed = [episode("b", reward, 2, sample, group=1) for sample, reward in enumerate((0.0, 1.0))]
    unknown = [episode("c", 0.0, 2, sample, group=2) for sample in range(2)]
    same_and_good = [episode("b", 0.5, 2, sample, group=3) for sample in range(2)]
    played = failed + mixed + unknown + same_and_good
    found, places = kept.fill(played, 2, step=2)
    assert places == [1] and [one is two for one, two in zip(found, played, strict=True)] == [True, False, *[True] * 6]
    new = found[1]
    assert same(new, episode("a", 1.0, 5)) and (new.group, new.sample, new.reward) == (0, 1, 1.0)
    np.testing.assert_allclose(new.sampled()[0].log_probs, [-0.5])
    assert Successes(tmp_path, size=2, above=0.1, std=0.05, mean=0.2).fill(played, 2, step=1) == (played, [])  # earlier


def test_what_does_not_go_with_it_is_refused():
    config = agents_rows.get_config("arpo_gui,smoke")
    config.agent.record = False
    config.agent.state_rollouts = 2
    config.agent.replay.size = 0
    with pytest.raises(
        ValueError,
        match="and size 1 or more\n.*set agent.record=True\nagent.state_rollouts=2 does not go with agent.replay",
    ):
        players.check(config)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_replays_and_a_resumed_one_replays_the_same(tmp_path):
    """Every group counts as failed, so from the second step on each of the two prompts gets one of its episodes."""
    config = agents_rows.get_config("arpo_gui,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=2, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.steps = 0
    config.agent.replay.update(above=-1.0, std=9.0, mean=9.0)
    config.train.steps = 3
    config.sample.update(prompts_per_step=2, group_size=2)
    config.eval.update(every=3, num_prompts=4, batch_size=4)
    config.checkpoint.every = 2
    config.log.update(progress=False, tensorboard=False)
    agents.run(config.lock(), tmp_path / "run")
    replayed = [row["episode/replayed"] for row in read_jsonl(tmp_path / "run/metrics.jsonl") if row["step"]]
    assert replayed == [0.0, 0.5, 0.5]
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/3")
    (tmp_path / "again/final.json").unlink()
    agents.run(config, tmp_path / "again")
    for name in ("final.json", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
