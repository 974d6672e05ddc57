"""preferences/judge_task.py: what a judge is asked and what it has to say, on generated preferences."""

import json

import pytest

from rl_jax import tasks
from rl_jax.preferences import judge_task

TASK = "rl_jax.preferences.judge_task:load"


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("judge"))

    def made(form, kind="pairs", **more):
        data = dict(name="generated", kind=kind, num_prompts=12, data_dir=folder)
        if kind == "steps":
            data["equations"] = False
        return tasks.load(TASK, data=data, form=form, **more)

    return made


def reward(task, record, completion):
    return task.reward_fn(record["prompt"], completion, json.loads(record["info"]))["reward"]


def test_each_pair_is_asked_about_in_both_orders(load):
    task = load("letter")
    source = task.data_source("sft_train")
    assert len(source) == 2 * len(load("letter").data_source("train")._source) and source.num_skipped == 0
    first, second = source[0], source[1]
    assert (first["completion"], second["completion"]) == ("A", "B")
    answers = [[part.partition("\n\n")[0] for part in r["prompt"].split("Answer ")[1:3]] for r in (first, second)]
    assert [x[3:] for x in answers[0]] == [x[3:] for x in answers[1][::-1]] and answers[0] != answers[1]
    assert reward(task, first, " A, surely") == 1.0 and reward(task, first, "B") == reward(task, first, "?") == -1.0
    assert task.reward_fn("", "?", {"form": "letter", "answer": "A"})["parsed"] == 0.0
    ids = task.tokenizer.encode(first["prompt"])
    assert task.tokenizer.decode(ids) == first["prompt"]
    assert not {r["prompt"] for r in (source[i] for i in range(4))} & {
        r["prompt"] for r in (task.data_source("test")[i] for i in range(2))
    }


def test_a_grade_has_to_put_the_better_answer_above(load):
    task = load("scores")
    first, second = (task.data_source("train")[i] for i in (0, 1))
    assert (first["completion"], second["completion"]) == ("8 3", "3 8")
    for record in (first, second):
        assert reward(task, record, record["completion"]) == 1.0
        assert [reward(task, record, text) for text in ("5 5", "7", "", record["completion"][::-1])] == [-1.0] * 4


def test_a_choice_has_to_follow_from_its_reasons(load):
    """R1-Reward's rule, .5 format + right (1 + .5 consistent), case by case."""
    task = load("reasoned")
    first, second = (task.data_source("train")[i] for i in (0, 1))
    assert first["completion"] == "<think>8 3</think><answer>1</answer>"
    assert second["completion"] == "<think>3 8</think><answer>2</answer>"
    cases = {
        "<think>8 3</think><answer>1</answer>": (2.0, 0.5),
        "<think>3 8</think><answer>1</answer>": (1.0, 0.5),  # right in spite of its grades
        "<think>5 5</think><answer>1</answer>": (1.0, 0.5),
        "<think>good</think><answer> 1 </answer>": (1.0, 0.5),
        "so <think>8 3</think><answer>1</answer>": (1.5, 0.0),
        "<think>8 3</think><answer>1</answer><answer>2</answer>": (1.5, 0.0),
        "<think>8 3</think> <answer>1</answer>": (0.0, 0.0),
        "1": (0.0, 0.0),
        "<think>8 3</think><answer>A</answer>": (0.5, 0.5),
    }
    for said, (if_first, if_second) in cases.items():
        assert (reward(task, first, said), reward(task, second, said)) == (if_first, if_second), said
    parts = judge_task.consistent_verdict("<think>3 8</think><answer>1</answer>", "A")
    assert parts == {"reward": 1.0, "right": 1.0, "consistent": -1.0, "format": 1.0, "parsed": 1.0}


def test_steps_become_quotations(load):
    task = load("spans", kind="steps", separator="=")
    source = task.data_source("train")
    records = [source[i] for i in range(len(source))]
    said = [record["completion"].split("\n") for record in records]
    assert any(lines[-1].startswith("POOR: ") for lines in said)
    for record, lines in zip(records, said, strict=True):
        answer = record["prompt"].split("Answer:\n")[1].partition("\n")[0].split("=")
        assert [line.partition(": ")[2] for line in lines] == answer[: len(lines)]
        assert all(line.startswith("GOOD: ") for line in lines[:-1])
        assert reward(task, record, record["completion"]) == 1.0 and reward(task, record, "GOOD: x") == -1.0


def test_a_user_says_next_whether_the_answer_was_right(load):
    task = load("follow_up", not_satisfied="No.")
    first, second = (task.data_source("train")[i] for i in (0, 1))
    assert first["completion"] == judge_task.SATISFIED and second["completion"] == "No."
    assert first["prompt"].endswith("\n") and first["prompt"] != second["prompt"]


def test_a_form_needs_its_kind_of_preferences(load):
    with pytest.raises(ValueError, match="form='spans' is made of steps, and generated are pairs"):
        load("spans")
    with pytest.raises(ValueError, match="form='essay' is none of letter, scores, reasoned, spans, follow_up"):
        load("essay")


def test_a_chat_is_asked_about_by_its_texts(tmp_path):
    data = dict(name="generated", chat=True, num_prompts=4, data_dir=str(tmp_path))
    record = tasks.load(TASK, data=data).data_source("train")[0]
    assert "role" not in record["prompt"] and "Question:\n" in record["prompt"]


def test_both_answers_are_rewritten_as_the_better_one(load):
    task = load("rewrite", alphabet="0123456789+-=")
    source = task.data_source("train")
    for place in range(0, len(source), 2):
        pair = source._source[place // 2]
        identity, correction = source[place], source[place + 1]
        better, worse = pair["responses"]
        assert identity["prompt"] == pair["prompt"] + better + "==" and correction["prompt"] == (
            pair["prompt"] + worse + "=="
        )
        assert identity["completion"] == correction["completion"] == better
        assert reward(task, correction, better) == 1.0 and reward(task, correction, worse) == -1.0
