"""What a record becomes: the normal form of each kind, the prompt that dialogues share, splits, round trips."""

import json

import pytest

from rl_jax import preferences
from rl_jax.data import pipeline
from rl_jax.preferences import records
from rl_jax.preferences.sources import prompt_share

USER, SAID = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


def test_a_pair_with_nothing_but_an_order():
    found = records.parse("pairs", {"prompt": "q", "chosen": " a", "rejected": " b", "id": 7})
    assert found == {
        "prompt": "q",
        "responses": [" a", " b"],
        "rewards": [1.0, 0.0],
        "label_prob": 1.0,
        "margin": 0.0,
        "info": {"id": 7},
    }


def test_a_pair_with_all_its_numbers():
    raw = {"prompt": "q", "chosen": "a", "rejected": "b", "label_prob": 0, "margin": 2}
    found = records.parse("pairs", raw | {"chosen_reward": 3, "rejected_reward": -1.5})
    assert (found["label_prob"], found["margin"], found["rewards"]) == (0.0, 2.0, [3.0, -1.5])


def test_null_in_an_optional_field_is_as_if_it_were_missing():
    """Each row of a Parquet file has all columns."""
    raw = {"prompt": "q", "chosen": "a", "rejected": "b", "id": None}
    none = dict.fromkeys(("label_prob", "margin", "chosen_reward", "rejected_reward"))
    assert records.parse("pairs", raw | none) == records.parse("pairs", raw)
    dialogues = {"chosen": [USER, SAID], "rejected": [USER, SAID | {"content": "No"}]}
    assert records.parse("pairs", dialogues | {"prompt": None}) == records.parse("pairs", dialogues)
    ranking = {"prompt": "q", "responses": ["a", "b"]}
    assert records.parse("rankings", ranking | {"rewards": None}) == records.parse("rankings", ranking)
    with pytest.raises(records.Problem) as error:
        records.parse("pairs", raw | none | {"chosen_reward": 1.0})
    assert error.value.field == "rejected_reward" and error.value.text.startswith("missing")
    with pytest.raises(records.Problem, match="found null"):
        records.parse("rankings", ranking | {"prompt": None})


def test_a_text_that_whole_dialogues_repeat_is_no_other_prompt():
    """UltraFeedback's binarised pairs and Tulu 3's mixture: prompt beside chosen and rejected, which begin with it."""
    said = {"role": "assistant", "content": "No"}
    found = records.parse("pairs", {"prompt": "Hi", "chosen": [USER, SAID], "rejected": [USER, said], "id": 1})
    assert (found["prompt"], found["responses"], found["info"]) == ([USER], ["Hello", "No"], {"id": 1})
    with pytest.raises(records.Problem, match="leave 'prompt' out"):
        records.parse("pairs", {"prompt": "Bye", "chosen": [USER, SAID], "rejected": [USER, said]})


def test_the_responses_of_a_chat_may_be_messages():
    said = [{"role": "assistant", "content": "No"}]
    found = records.parse("pairs", {"prompt": [USER], "chosen": [SAID], "rejected": said})
    assert found["prompt"] == [USER] and found["responses"] == ["Hello", "No"]
    # TRL's implicit prompt: whole dialogues; earlier turns of the assistant's belong to the prompt
    dialogue = [{"role": "system", "content": "s"}, USER, SAID, USER]
    implicit = {"chosen": [*dialogue, SAID], "rejected": [*dialogue, *said]}
    found = records.parse("pairs", implicit)
    assert found["prompt"] == dialogue and found["responses"] == ["Hello", "No"]
    tool = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "tool", "content": "4", "name": "f"},
    ]
    assert records.parse("labels", {"prompt": tool, "completion": [SAID], "label": False})["rewards"] == [0.0]


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("The sky is blue", "The sky is green", "The sky is"),  # the space goes to the responses
        ("Q: 2+2=4", "Q: 2+2=5", "Q: 2+2="),
        ("A: It is.", "A: I think.", "A:"),  # not "A: I", which TRL's extract_prompt takes
        ("x\n\nAssistant: Yes", "x\n\nAssistant: No", "x\n\nAssistant:"),
        ("12 and 345", "12 and 346", "12 and"),
        ("well. But", "well, But", "well"),
    ],
)
def test_the_prompt_is_what_both_share(chosen, rejected, prompt):
    assert records.split_pair(chosen, rejected) == (prompt, chosen[len(prompt) :], rejected[len(prompt) :])


def test_a_marker_splits_where_responses_begin_alike():
    sides = [f"\n\nHuman: a\n\nAssistant: So {word}" for word in ("yes", "no")]
    marked = records.split_pair(*sides, "\n\nAssistant:")
    assert marked == ("\n\nHuman: a\n\nAssistant:", " So yes", " So no")
    assert records.split_pair(*sides)[0] == "\n\nHuman: a\n\nAssistant: So"


def test_rankings():
    raw = {"prompt": "q", "responses": ["a", "b", "c"]}
    assert records.parse("rankings", raw)["rewards"] == [2.0, 1.0, 0.0]
    assert records.parse("rankings", raw | {"rewards": [3, 3, 1]})["rewards"] == [3.0, 3.0, 1.0]
    found = records.parse("rankings", raw | {"rewards": [1, 5, 1]}, sort_by_reward=True)
    assert found["responses"] == ["b", "a", "c"] and found["rewards"] == [5.0, 1.0, 1.0]


def test_what_info_holds_per_response_is_sorted_with_the_responses():
    """Another response's numbers would be trained on: bad/good/mid with 10/20/30 is good/mid/bad with 20/30/10."""
    raw = {"prompt": "q", "responses": ["bad", "good", "mid"], "rewards": [0, 2, 1]}
    info = {"other_rewards": [10, 20, 30], "attribute_targets": [[1], [2], [3]], "ids": [7, 8], "source": "abc"}
    found = records.parse("rankings", raw | info, sort_by_reward=True)
    assert found["responses"] == ["good", "mid", "bad"] and found["rewards"] == [2.0, 1.0, 0.0]
    assert found["info"] == info | {"other_rewards": [20, 30, 10], "attribute_targets": [[2], [3], [1]]}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({"labels": [1, True, 0, None]}, [1, 1, 0, None]),
        ({"mistake_index": 1}, [1, 0, None, None]),
        ({"mistake_index": 0}, [0, None, None, None]),
        ({"mistake_index": 3}, [1, 1, 1, 0]),
        ({"mistake_index": None}, [1, 1, 1, 1]),
    ],
)
def test_steps(given, labels):
    found = records.parse("steps", {"prompt": "q", "steps": ["a", "b", "c", "d"]} | given)
    assert found["labels"] == labels and all(type(label) in (int, type(None)) for label in found["labels"])


def test_records_come_back_as_they_went_in_and_prompts_stay_on_one_side(tmp_path):
    texts = [f"é {place // 3}?" for place in range(120)]  # three pairs a prompt
    chats = [[{"role": "user", "content": text}] for text in texts]
    path = tmp_path / "data.jsonl"
    raws = [{"prompt": p, "chosen": f"a{i}", "rejected": f"b{i}", "n": i} for i, p in enumerate(texts + chats)]
    path.write_text("".join(json.dumps(raw) + "\n" for raw in raws))
    prefs = preferences.load("jsonl", path=str(path), test_share=0.3, data_dir=str(tmp_path / "tfds"))
    assert (prefs.name, prefs.kind) == ("jsonl", "pairs")
    splits = {name: list(prefs.data_source(name)) for name in ("train", "test")}
    found = sorted(splits["train"] + splits["test"], key=lambda record: record["info"]["n"])
    assert found == [records.parse("pairs", raw) for raw in raws]
    sides = {name: {json.dumps(record["prompt"]) for record in rows} for name, rows in splits.items()}
    assert not sides["train"] & sides["test"]
    assert 0.15 < len(sides["test"]) / 80 < 0.45
    assert repr(prefs.data_source("test")).startswith("PreferenceSource('jsonl', 'test', ")
    batches = pipeline.train_iterator(prefs.data_source("train"), batch_size=4, seed=0)
    assert len(next(batches)) == 4


def test_the_split_does_not_see_whitespace_or_the_form_of_the_prompt():
    chat = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    plain = "\n\nHuman: a b\n\nAssistant: c\n\nHuman: d\n\nAssistant:"
    assert prompt_share("a  b\n") == prompt_share(" a b") != prompt_share("ab")
    assert prompt_share(plain) == prompt_share(chat) != prompt_share(chat[:1])
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
    assert prompt_share([*chat, call]) == prompt_share([*chat, call | {"content": None}]) != prompt_share(chat)
    shares = [prompt_share(str(number)) for number in range(2000)]
    assert 0 <= min(shares) and max(shares) < 1 and 0.26 < sum(share < 0.3 for share in shares) / 2000 < 0.34


def test_one_split_alone(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "q", "chosen": "a", "rejected": "b"}) + "\n")
    prefs = preferences.load("jsonl", path=str(path), test_share=1.0, data_dir=str(tmp_path / "tfds"))
    assert len(prefs.data_source("test")) == 1
    with pytest.raises(ValueError, match=r"jsonl has no split 'train'; it has \['test'\]"):
        prefs.data_source("train")
    with pytest.raises(ValueError, match="of 1 records test_share=0.9+ puts none in the train split"):
        preferences.load("jsonl", path=str(path), test_share=1 - 1e-9, data_dir=str(tmp_path / "tfds"))


def test_changed_settings_are_another_dataset(tmp_path):
    path = tmp_path / "data.jsonl"
    raw = {"prompt": "q", "responses": ["a", "b"], "rewards": [1, 2]}
    path.write_text(json.dumps(raw) + "\n")
    settings = {"path": str(path), "kind": "rankings", "test_share": 0.0, "data_dir": str(tmp_path / "tfds")}
    first = preferences.load("jsonl", sort_by_reward=True, **settings).data_source("train")[0]
    path.write_text(json.dumps(raw | {"rewards": [2, 1]}) + "\n")
    second = preferences.load("jsonl", sort_by_reward=True, **settings).data_source("train")[0]
    third = preferences.load("jsonl", **settings).data_source("train")[0]
    assert first["responses"] == ["b", "a"] and second["responses"] == third["responses"] == ["a", "b"]
