"""parts/plan_memory.py: what an A* over plans remembers of other tasks, and what it has the model imagine."""

import types

import pyarrow.parquet
import pytest

from configs import agents_papers, agents_rows
from experiments.parts import plan_memory, players
from experiments.parts.plan_memory import PlanMemory
from rl_jax.experience import a_star, trajectory
from tests.experience.test_a_star import episode, plan


def recorded(folder, *steps):
    for number, episodes in enumerate(steps, 1):
        pyarrow.parquet.write_table(trajectory.to_table(episodes), folder / f"{number:08d}.parquet")


def test_memory_begins_with_demonstrations_and_grows_by_what_was_solved(tmp_path):
    solved = [episode(0, [1, 2], 1.0), episode(1, [1, 3], 0.5), episode(2, [4, 4], 1.0, status="error")]
    recorded(tmp_path, solved, [episode(0, [5], 1.0), episode(1, [1, 2], 1.0), episode(2, [7], 0.9)])
    memory = PlanMemory(tmp_path, [plan(9)], above=0.5)
    assert memory.of(0) == [plan(9)] and memory.of(1) == [plan(9), plan(1, 2)]
    assert memory.of(2) == [plan(9), plan(1, 2), plan(5), plan(7)], "each once, whatever was failed or raised left out"
    assert PlanMemory(tmp_path, [plan(9)], above=0.5).of(2) == memory.of(2), "a resumed run remembers the same"
    assert PlanMemory(None, [plan(9)], above=0.5).of(2) == [plan(9)]
    played = [episode(0, [3, 3], 0.0), episode(1, [1, 2], 0.25), episode(0, [3, 3], 0.75), episode(1, [3, 3], 0.0)]
    assert memory.metrics(played, 2) == {"episode/plans_known": 4.0, "episode/plan_reward": (0.25 + 0.75) / 2}


def test_the_demonstrations_are_those_that_were_rewarded_as_the_policy_would_say_them(tmp_path):
    config = agents_papers.get_config("toolchain_star,smoke")
    assert plan_memory.asked(config) == {"memory", "imagined"} and plan_memory.problems(config) == []
    assert plan_memory.asked(agents_rows.get_config("itool")) == set()
    turns = [["s eli", "4\n", "c4*7", "28\n", "=28"], ["=9"], ["c2*2", "4\n", "=4"]]
    earned = ([0, 0, 1.1], [0.0], [0, 1])
    rows = [{"info": {"recorded_turns": said, "turn_rewards": paid}} for said, paid in zip(turns, earned, strict=True)]
    codes = types.SimpleNamespace(encode_continuation=lambda text, eos: [*map(ord, text), 0] if eos else None)
    task = types.SimpleNamespace(tokenizer=codes, data_source=lambda split: rows if split == "sft_train" else None)
    setup = types.SimpleNamespace(config=config, task=task)
    said = [[[*map(ord, text), 0] for text in texts[::2]] for texts in turns]
    assert plan_memory.demonstrated(setup, 8, 0.5) == [plan(*said[0]), plan(*said[2])]
    assert plan_memory.demonstrated(setup, 1, 0.5) == [plan(*said[0])]
    found = plan_memory.memory_of(setup, tmp_path).of(0)
    assert found == [plan(*said[0]), plan(*said[2])] and a_star.called(found[1], 1) == plan(*map(ord, "c="))
    assert plan_memory.memory_of(types.SimpleNamespace(config=agents_rows.get_config("itool")), tmp_path) is None
    config.agent.record = False
    with pytest.raises(ValueError, match="by_a_star' remembers recorded episodes: set agent.record=True"):
        players.check(config)


def test_each_plan_that_can_be_gone_on_from_is_imagined_once():
    groups = [[episode(0, [1, 2, 3]), episode(1, [1, 4])], [episode(0, [5]), episode(1, [6, 6], status="error")]]
    asked = plan_memory.to_imagine(["p", "q"], [11, 12], groups, [{plan(1, 2): 3}, {}], group_size=4)
    assert [(ask.group, ask.after, ask.seed, ask.record, of) for ask, of in asked] == [(0, (0, 1), 11, "p", plan(1))]
    asked = plan_memory.to_imagine(["q", "p"], [11, 12], groups[::-1], [{}, {}], group_size=4)
    assert [(ask.group, ask.after, of) for ask, of in asked] == [(1, (4, 1), plan(1)), (1, (4, 2), plan(1, 2))]
    assert len({ask.number for ask, _ in asked}) == 2 and min(ask.number for ask, _ in asked) >= plan_memory.ROOM


def test_a_player_imagines_in_copies_that_it_drops():
    """What the rule is told: the length of each imagined plan; one whose world failed is not told."""
    played, dropped = [], []

    def run(params, asks, key, kept, *, keep):
        played.append(([ask.after for ask in asks], keep))
        failed = episode(0, [], status="error")
        return [episode(0, [1] * 3) if ask.after[1] == 1 else failed for ask in asks]

    player = object.__new__(players.Player)
    vars(player).update(
        _config=types.SimpleNamespace(sample=types.SimpleNamespace(group_size=2)), _seeds=[7], _slots=1, _moments=None,
        _asked={"memory", "imagined"}, _entropies=None, plans=[plan(9)], _run=run,
        envs=types.SimpleNamespace(drop=dropped.append),
    )  # fmt: skip
    rests = [{}]
    player._imagine(None, ["p"], [[episode(0, [1, 2, 3])]], rests, None)
    assert rests == [{plan(1): 3}] and played == [([(0, 1)], False), ([(0, 2)], False)]
    assert dropped == [plan_memory.ROOM, plan_memory.ROOM + 1]
    assert player._told(None, [[]], rests) == [{"memory": [plan(9)], "imagined": {plan(1): 3}}]
    terms = dict(above=1.0, alpha=0.5, beta=0.0) | player._told(None, [[]], rests)[0]
    assert a_star.estimates([episode(0, [1, 2])], [plan(1, 2)], **terms)[plan(1)] == pytest.approx(1 - 1 / 3)
