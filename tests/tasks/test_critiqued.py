"""tasks/critiqued.py (critique fine-tuning): what a critique says, which candidates there are, its configs."""

import json
import random

import pytest

from configs.tasks import cft_one, wethink
from experiments.parts import check_config
from rl_jax import tasks
from rl_jax.tasks import critiqued


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("critiqued"))
    return dict(name="arithmetic", num_operands=(4, 4), digits=1, num_train=30, num_test=5, data_dir=folder)


def test_a_critique_checks_steps_and_mends_what_is_wrong():
    said = {
        "8=6=13": "3+5=8,8-2=6,6+7=13:R",
        "8=6": "3+5=8,8-2=6:W8=6=13",
        "8=5=12": "3+5=8,8-2=6:W8=6=13",
        "7=6=13": "3+5=8:W8=6=13",
        "x": "3+5=8:W8=6=13",
    }
    for candidate, critique in said.items():
        assert critiqued.sums("3+5-2+7=", candidate, {}) == critique
    assert critiqued.verdict("say a:", "a", {"reference": "a"}) == "1" > critiqued.verdict("", "b", {"answer": "a"})


def test_one_problem_has_many_candidates(of):
    task = tasks.load("rl_jax.tasks.critiqued:load", of=of, candidates=100)
    source, first = task.data_source("sft_train"), tasks.load(**of).data_source("train")[0]
    records = [source[i] for i in range(len(source))]
    assert len(records) == 100 == len({record["prompt"] for record in records})
    assert all(record["prompt"].startswith(first["prompt"]) for record in records)
    assert [record["completion"][-2:] == ":R" for record in records].count(True) == 1
    for record in records:
        text = record["prompt"] + record["completion"]
        assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
        own = record["prompt"].removeprefix(first["prompt"]).removesuffix("?")
        assert record["completion"] == critiqued.sums(first["prompt"], own, {})
    assert task.data_source("test")[0] == tasks.load(**of).data_source("test")[0], "it is asked to solve"
    assert len(critiqued.solutions("1+1=", 3, random.Random(0))) == 3


def test_candidates_may_be_sampled_ones(of, tmp_path):
    prompt = tasks.load(**of).data_source("train")[0]["prompt"]
    path = tmp_path / "rankings.jsonl"
    rows = [{"prompt": "other", "responses": ["1"]}, {"prompt": prompt, "responses": ["1=2", "3"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = tasks.load("rl_jax.tasks.critiqued:load", of=of, path=str(path)).data_source("sft_train")
    assert [source[i]["prompt"] for i in range(2)] == [prompt + "1=2?", prompt + "3?"] and len(source) == 2
    path.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(ValueError, match="no line has a prompt of the 1 problems"):
        tasks.load("rl_jax.tasks.critiqued:load", of=of, path=str(path)).data_source("sft_train")
    for bad, said in ((dict(problems=-1), "problems=-1"), (dict(template="{candidate}"), "must have .prompt.")):
        with pytest.raises(ValueError, match=said):
            tasks.load("rl_jax.tasks.critiqued:load", of=of, **bad)


def test_the_controls_are_plain_fine_tuning(of):
    """The words base and solution: the demonstrations as they are, and the right solution of the same problem."""
    plain = tasks.load(**of)
    for word, split in (("base", "sft_train"), ("solution", "train")):
        config = cft_one.get_config(word).task.to_dict() | {"of": of}
        source, own = tasks.load(**config).data_source("sft_train"), plain.data_source(split)
        assert len(source) == (1 if word == "solution" else len(own))
        assert source[0]["prompt"] == own[0]["prompt"] and source[0]["completion"] == own[0]["completion"]


def test_an_assessor_learns_from_demonstrations_of_any_worth(tmp_path):
    """configs/tasks/wethink.py:assessor: the verdict on each demonstration of an open question."""
    config = wethink.get_config("assessor").task.to_dict()
    config["of"] |= dict(num_train=40, num_test=5, data_dir=str(tmp_path))
    source = tasks.load(**config).data_source("sft_train")
    found = {"0": 0, "1": 0}
    for i in range(len(source)):
        record = source[i]
        question, answer = record["prompt"].removesuffix("=").split("|")
        assert record["completion"] == str(int(question.removeprefix("say ").removesuffix(":") == answer))
        found[record["completion"]] += 1
    assert min(found.values()) > 5


@pytest.mark.parametrize("arg", [None, "base", "many", "solution,smoke"])
def test_its_config_can_run(arg):
    config = cft_one.get_config(arg)
    check_config.check(config)
    assert bool(config.init_from) == (arg != "base")
    with pytest.raises(ValueError, match="choose one of base, solution, many, not base, many"):
        cft_one.get_config("base,many")


@pytest.mark.parametrize("arg", [None, "assessor", "smoke"])
def test_wethink_checks_by_rules_or_by_a_model(arg):
    config = wethink.get_config(arg)
    check_config.check(config)
    if arg != "assessor":
        table = config.reward.compose.table.to_dict()
        judged = {source for source, weights in table.items() if set(weights) & set(config.judge)}
        assert judged == {"echoes"} and set(table) == set(config.task.kinds)
