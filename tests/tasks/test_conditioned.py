"""tasks/conditioned.py (LeTI): which demonstrations are marked as good, what the bad ones are told, what is graded."""

import json

import pytest

from configs.tasks import leti
from experiments.parts import check_config
from rl_jax import tasks
from rl_jax.core.binding import resolve


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("leti")


def load(folder, **more):
    of = dict(name="arithmetic", num_operands=(4, 4), digits=1, num_train=60, num_test=10, unfinished_share=0.6)
    return tasks.load("rl_jax.tasks.conditioned:load", of=of | dict(data_dir=str(folder)), **more)


def test_a_demonstration_is_marked_by_what_the_verifier_says(folder):
    task = load(folder)
    source = task.data_source("sft_train")
    kinds = {"+": 0, "-": 0}
    for i in range(len(source)):
        record = source[i]
        info, mark = json.loads(record["info"]), record["prompt"][0]
        answer, plus, told = record["completion"].partition("+")
        kinds[mark] += 1
        right = answer.split("=")[-1] == str(info["answer"])  # most stop too early
        assert (mark == "+") == right == (not plus)
        if mark == "-":
            assert told == str(info["answer"])
        assert task.tokenizer.decode(task.tokenizer.encode(record["prompt"] + record["completion"]))
    assert min(kinds.values()) > 10
    for split in ("train", "test"):
        asked = task.data_source(split)[0]
        assert asked["prompt"].startswith("+") and "+" not in asked["completion"]


def test_what_follows_the_separator_is_not_graded(folder):
    task = load(folder)
    record = task.data_source("test")[0]
    prompt, info = record["prompt"], json.loads(record["info"])

    def reward(completion):
        return task.reward_fn(prompt, completion, info, **task.reward_kwargs)["reward"]

    assert reward(record["completion"]) == reward(record["completion"] + "+99") == 1.0
    assert reward("0=0=0+" + record["completion"]) < 1.0
    assert json.loads(json.dumps(task.reward_kwargs)) and resolve(task.reward_kwargs["of"])


def test_sampled_answers_are_marked_in_the_next_round(folder):
    train = load(folder).data_source("train")
    prompt, right = train[0]["prompt"][1:], train[0]["completion"]
    path = folder / "rankings.jsonl"
    path.write_text(json.dumps({"prompt": prompt, "responses": [right, "1=1=1"], "rewards": [1.0, 0.0]}) + "\n")
    source = load(folder, path=str(path), feedback="").data_source("sft_train")
    assert [source[i]["prompt"][0] for i in range(2)] == ["+", "-"] and len(source) == 2
    assert source[1]["completion"] == "1=1=1"
    path.write_text(json.dumps({"prompt": "9+9=", "responses": ["18"]}) + "\n")
    with pytest.raises(ValueError, match="line 1, field 'prompt': '9.9=' is no training prompt"):
        load(folder, path=str(path)).data_source("sft_train")


def test_marks_have_to_differ(folder):
    with pytest.raises(ValueError, match="good='.' and bad='.' must differ"):
        load(folder, good="-")


@pytest.mark.parametrize("arg", [None, "plain", "smoke"])
def test_its_config_can_run(arg):
    config = leti.get_config(arg)
    check_config.check(config)
    assert (config.task.name == "arithmetic") == (arg == "plain")
