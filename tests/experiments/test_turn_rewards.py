"""parts/turn_rewards.py: a process reward model of turns, from recorded successes to the rewards of PPO's turns."""

import json
import re

import numpy as np
import pytest

from configs import agents_papers
from configs.preferences import vla_rl
from experiments import ppo, reward_model
from experiments.parts import players, turn_rewards
from experiments.parts.judging import Judged
from experiments.parts.setup import make_setup
from rl_jax.preferences import milestones
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.runs.logging import read_jsonl
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures
from tests.preferences.test_milestones import recorded, write

TINY = dict(embed_dim=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)


def test_a_turn_is_read_where_its_answer_ends():
    numbers = np.int32([[0, 0, -1, -1, 1, -1, 2, 2, -1], [-1] * 9, [0, 0, 0, 1, 1, -1, -1, -1, -1]])
    ends, reads = turn_rewards.places(numbers, 4)
    assert ends.tolist() == [[1, 4, 7, -1], [-1] * 4, [2, 4, -1, -1]]
    assert reads.tolist() == [[3, 5, 7, -1], [-1] * 4, [2, 4, -1, -1]]


def test_an_episode_is_paid_for_its_first_key_states_and_for_no_more():
    loop = np.float32([[1, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0], [0.5, 0.75, 0.5, 0.5, 0.5, 0]])
    paid = turn_rewards.at_most(loop, 2)
    assert paid.tolist() == [[1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0.5, 0.75, 0.5, 0.25, 0, 0]]
    assert paid.dtype == np.float32 and (turn_rewards.at_most(loop, float("inf")) == loop).all()


def test_the_limit_is_as_many_key_states_as_the_shortest_success_has():
    counts = [sum(milestones.labelled_steps(one)["labels"]) for one in recorded(50)]
    assert set(counts) == {agents_papers.get_config("vla_rl").agent.turn_rewards.most}


def test_what_does_not_go_with_it_is_refused():
    config = agents_papers.get_config("vla_rl,smoke")
    players.check(config)
    config.agent.turn_rewards.update(fn="proces", weight=0.0)
    with pytest.raises(
        ValueError, match="fn='proces' is none of '', 'process'(.|\n)*a path, and a weight and a most above 0"
    ):
        players.check(config)
    config.agent.turn_rewards.update(fn="process", weight=0.1, most=0)
    with pytest.raises(ValueError, match="most above 0"):
        players.check(config)
    with config.unlocked():
        del config.agent.turn_rewards.most  # a run of before there was a limit
    players.check(config)
    config = agents_papers.get_config("vla_rl,alone,smoke")
    config.agent.turn_rewards = dict(fn="process", path="runs/x", weight=0.1, hard=True)
    config.algorithm.advantage = dict(fn="rl_jax.advantages.turn_critics:vine")
    config.agent.state_rollouts = 2
    with pytest.raises(ValueError, match="fresh episodes of algorithm.advantage=.*vine' are paid without it"):
        players.check(config)


@pytest.mark.parametrize("smoke", ["", "smoke_"])
def test_without_its_model_the_command_that_trains_it_is_named(tmp_path, smoke):
    folder = tmp_path / f"{smoke}vla_rl_reward"
    config = "configs/preferences/vla_rl.py" + (":smoke" if smoke else "")
    said = f"train a reward model with python -m experiments.reward_model --config={config} --workdir={folder}"
    with pytest.raises(FileNotFoundError, match=re.escape(said) + "$"):
        turn_rewards.TurnRewards(None, path=str(folder), weight=0.1, hard=True, most=2)
    asks = agents_papers.get_config("vla_rl,smoke" if smoke else "vla_rl").agent.turn_rewards.path
    assert asks == f"runs/{folder.name}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a model that has read 300 recorded successes."""
    folder = tmp_path_factory.mktemp("reward")
    config = vla_rl.get_config()
    config.data.path, config.init_from = str(write(folder / "played", recorded(300, share=0.8))), ""
    config.task.update(data_dir=str(folder / "data"), num_train=20, num_test=4)
    config.model.update(TINY)
    config.train.update(steps=60)
    config.train.optimizer.update(learning_rate=1e-2, warmup_steps=5)
    config.eval.update(every=60, num_prompts=32, batch_size=32)
    config.checkpoint.every = 60
    config.log.update(progress=False, tensorboard=False)
    reward_model.run(config.lock(), folder / "reward")
    return folder / "reward"


def config_of(folder, trained, **settings):
    """The smallest run of the policy's config, with the model."""
    config = agents_papers.get_config("vla_rl,smoke")
    config.task.update(data_dir=str(folder / "data"), num_train=20, num_test=4)
    config.model.update(TINY)
    config.agent.turn_rewards = dict(fn="process", path=str(trained), weight=0.25, hard=True, most=2) | settings
    config.log.update(progress=False, tensorboard=False)
    return config


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_key_states_of_unseen_episodes_are_rewarded_on_their_turns(trained, tmp_path):
    """Against the pseudo labels of episodes with other tasks; one column to the left it does not know them."""
    episodes = recorded(64, seed=1, share=0.8)
    config = config_of(tmp_path, trained)
    config.sample.group_size = 4
    setup = make_setup(config.lock())
    rollout = as_rollout(episodes, prompt_length=11, completion_length=80, pad_id=0, counts=("gripper", "speed"))
    own = np.float32([one.reward for one in episodes])
    result = RewardResult(own, {}, 0, 0, None, own > 9)
    judged = Judged(rollout, [{"episode": one} for one in episodes], [""] * 64, result)
    model = turn_rewards.TurnRewards(setup, path=str(trained), weight=0.25, hard=True, most=float("inf"))
    found = model(judged)
    added = found.rollout.turns.rewards - rollout.turns.rewards
    ends, _ = turn_rewards.places(rollout.turns.numbers, 8)
    right = total = 0
    for row, one in enumerate(episodes):
        gripper, still = ([turn.numbers[name] for turn in one.turns] for name in ("gripper", "speed"))
        before = [0, *gripper[:-1]]
        labels = [float(g != b or v == 0) for g, b, v in zip(gripper, before, still, strict=True)]
        said = added[row, ends[row, : len(labels)]] / 0.25
        right, total = right + np.sum(said == labels), total + len(labels)
    assert right / total > 0.85, right / total  # .90; one column to the left .76, before the answer .42
    assert set(np.unique(added)) == {0.0, 0.25} and not added[rollout.turns.numbers < 0].any()
    np.testing.assert_allclose(found.result.rewards, own + added.sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.result.components["process/turns"], added.sum(axis=1) / 0.25, rtol=1e-6)
    assert rollout.turns.rewards.sum() == own.sum()  # what was recorded stays
    limited = turn_rewards.make_turn_rewards(setup)(judged)
    turns, seen = (limited.result.components[f"process/{name}"] for name in ("turns", "seen"))
    assert (
        seen.max() > 2
        and (turns == np.minimum(seen, 2)).all()
        and (found.result.components["process/seen"] == seen).all()
    )
    np.testing.assert_allclose(limited.result.rewards, own + 0.25 * turns, rtol=1e-6)
    np.testing.assert_allclose(limited.rollout.turns.rewards.sum(axis=1), limited.result.rewards, rtol=1e-6)
    judged.records[0] = {"episode": episodes[0]._replace(status="error")}  # whose row has no part in what is added
    rewards = model(judged).result.rewards
    assert rewards[0] == pytest.approx(rewards[1:4].mean(), rel=1e-5) != found.result.rewards[0]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_ppo_is_paid_by_it(trained, tmp_path):
    config = config_of(tmp_path, trained, weight=0.5, hard=False)
    config.sft.steps = 0
    config.train.steps = 1
    config.model.update(embed_dim=16, num_layers=1, head_dim=8, mlp_dim=32)  # the reward model has a size of its own
    config.agent.max_turns = 2
    config.rollout.completion_length = 24
    config.critic.warmup_steps = 0
    config.sample.update(prompts_per_step=4, group_size=1)
    config.agent.record = True
    ppo.run(config.lock(), tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run/metrics.jsonl")[1:]
    assert 0 < row["reward/mean"] == pytest.approx(0.5 * row["reward/process/turns"], rel=1e-5)  # untrained: no success
    assert row["returns/mean"] > 0 and json.loads((tmp_path / "run/final.json").read_text())
