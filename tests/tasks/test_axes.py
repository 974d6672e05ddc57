"""tasks/axes.py and experiments/tools/sparkle.py: sums asked in five ways, and what the answers tell."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from configs.tasks import sparkle as config_of
from experiments.parts import check_config
from experiments.tools import sparkle
from rl_jax import tasks
from rl_jax.tasks import axes

OF = dict(name="arithmetic", num_operands=(4, 4), digits=1, num_train=20, num_test=10, unfinished_share=0.5)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("axes"))
    return lambda **more: tasks.load("rl_jax.tasks.axes:load", of=dict(OF, data_dir=folder), **more)


def test_the_five_ways_of_asking():
    whole = ("3+5-2+7=", "8=6=13")
    assert axes.ask(*whole, "plain") == whole
    assert axes.ask(*whole, "plan") == ("3,+5,-2,+7:3+5-2+7=", "8=6=13")
    assert axes.ask(*whole, "knowledge") == ("8-2=6,6+7=13,3+5=8:3+5-2+7=", "8=6=13")
    given = [axes.ask(*whole, "partial", fraction=x) for x in (0.0, 0.5, 0.7, 1.0)]
    assert given == [whole, ("3+5-2+7=8=", "6=13"), ("3+5-2+7=8=6=", "13"), ("3+5-2+7=8=6=", "13")]
    assert axes.ask("3+5-2+7=", "8", "partial", fraction=0.7) == ("3+5-2+7=8=6=", "13")  # one that stops early
    assert [axes.ask(*whole, "subproblems", part=k) for k in range(3)] == [("3+5=", "8"), ("8-2=", "6"), ("6+7=", "13")]


def test_each_problem_is_asked_in_each_way(load):
    task = load(test_arms=axes.ARMS, fraction=0.5)
    source, plain = task.data_source("test"), load().data_source("test")
    assert len(source) == 10 * (4 + 3) and len(plain) == 10
    for record in (source[i] for i in range(len(source))):
        info = json.loads(record["info"])
        assert task.tokenizer.decode(task.tokenizer.encode(record["prompt"])) == record["prompt"]
        assert task.reward_fn(record["prompt"], record["completion"], info)["reward"] == 1.0
        question = plain[info["problem"]]["prompt"]
        assert info["arm"] == "subproblems" or question in record["prompt"]
    assert {json.loads(load().data_source("train")[i]["info"])["arm"] for i in range(5)} == {"plain"}
    demonstrations = load().data_source("sft_train")
    assert {json.loads(demonstrations[i]["info"])["arm"] for i in range(7)} == set(axes.ARMS)


def test_what_does_not_exist_is_refused(load):
    with pytest.raises(ValueError, match=r"test_arms=\('song',\) must be of plain, plan"):
        load(test_arms=("song",))
    with pytest.raises(ValueError, match="sft_arms="):
        load(sft_arms=())
    with pytest.raises(ValueError, match="fraction=2"):
        load(fraction=2)


def test_the_report_counts_problems_of_which_all_parts_are_solved():
    rng, problems = np.random.default_rng(0), 30
    answers = {arm: [(i, float(rng.random() < 0.6)) for i in range(problems)] for arm in axes.ARMS[:4]}
    answers["subproblems"] = [(i, float(rng.random() < 0.8)) for i in range(problems) for _ in range(3)]
    found = sparkle.report(answers)
    right = {arm: np.array([x for _, x in rows]) for arm, rows in answers.items()}
    solved = right["subproblems"].reshape(problems, 3).all(axis=1)
    assert found["gain/plan"] == pytest.approx(right["plan"].mean() - right["plain"].mean())
    assert found["subproblems/all"] == pytest.approx(solved.mean())
    assert found["composed"] == pytest.approx(right["plain"][solved].mean())
    answers["subproblems"] = [(i, 0.0) for i, _ in answers["subproblems"]]
    assert np.isnan(sparkle.report(answers)["composed"])
    assert "| gain/plan | " in sparkle.table({"a": found, "b": found})


def test_a_run_is_asked_in_every_way(tmp_path, monkeypatch):
    monkeypatch.setattr(sparkle, "read_config", lambda run: config_of.get_config("smoke"))
    monkeypatch.setattr(sparkle, "load_params", lambda *_: {})
    monkeypatch.setattr(sparkle.best_of_n, "jit_generate", lambda *_: lambda *_: {})
    monkeypatch.setattr(sparkle.best_of_n, "judge", lambda setup, rewards, rollout, records: SimpleNamespace(
        records=records, result=SimpleNamespace(rewards=[1.0] * len(records))
    ))  # fmt: skip
    answers = sparkle.answered(tmp_path, 4)
    parts = len(answers["subproblems"]) // 4
    assert {arm: sorted(rows) for arm, rows in answers.items()} == {
        arm: [(problem, 1.0) for problem in range(4) for _ in range(parts if arm == "subproblems" else 1)]
        for arm in axes.ARMS
    }  # fmt: skip


@pytest.mark.parametrize("arg", [None, "partial,smoke"])
def test_its_config_can_run(arg):
    config = config_of.get_config(arg)
    check_config.check(config)
    assert config.task.train_arms == (("partial",) if arg else ("plain",))
