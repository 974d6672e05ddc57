"""The data functions of TRL beside ours: extract_prompt and unpairing of 1.16.0, PRM rows of 0.28.0 (dropped since)."""

import logging
import types

import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.preferences import records
from rl_jax.tokenizers import CharTokenizer
from tests.oracles.loading import Package


@pytest.fixture(scope="module")
def data_utils():
    package = Package("trl", "1.16.0", bare=(), stand_ins=("datasets", "transformers", "pyarrow"))
    return package.load("trl.data_utils")


@pytest.fixture(scope="module")
def prm_trainer():
    stand_ins = ("accelerate", "datasets", "transformers", "trl.trainer.base_trainer", "trl.trainer.utils")
    stand_ins += ("trl.experimental.utils", "trl.experimental.prm.prm_config", "peft", "packaging")
    bare = ("trl.trainer", "trl.experimental", "trl.experimental.prm")
    package = Package("trl", "0.28.0", bare=bare, stand_ins=stand_ins, folder="oracles-trl-0.28")
    package.provide("accelerate", logging=types.SimpleNamespace(get_logger=logging.getLogger))
    return package.load("trl.experimental.prm.prm_trainer").PRMTrainer


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [
        ("The sky is blue.", "The sky is green."),
        ("Q: what?\n\nA: yes", "Q: what?\n\nA: no"),
        ("1 + 1 =2", "1 + 1 =3"),
    ],
)
def test_the_shared_prompt_of_texts(data_utils, chosen, rejected):
    theirs = data_utils.extract_prompt({"chosen": chosen, "rejected": rejected})
    found = dict(zip(("prompt", "chosen", "rejected"), records.split_pair(chosen, rejected), strict=True))
    assert found == theirs


def test_where_we_depart_from_it(data_utils):
    """A word that both begin with and end differently is TRL's prompt in part, and none of ours."""
    theirs = data_utils.extract_prompt({"chosen": "Say: It is", "rejected": "Say: If so"})
    assert theirs == {"prompt": "Say: I", "chosen": "t is", "rejected": "f so"}
    assert records.split_pair("Say: It is", "Say: If so") == ("Say:", " It is", " If so")


def test_the_shared_prompt_of_chats(data_utils):
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "Sure?")]
    prompt = [{"role": role, "content": text} for role, text in turns]
    sides = {name: [*prompt, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    theirs, found = data_utils.extract_prompt(sides), records.parse("pairs", sides)
    assert found["prompt"] == theirs["prompt"]
    assert found["responses"] == [theirs[name][0]["content"] for name in ("chosen", "rejected")]


def test_pairs_as_labels_stand_in_the_same_order(data_utils):
    columns = {"prompt": ["a", "b"], "chosen": ["c", "d"], "rejected": ["e", "f"]}
    theirs = data_utils._unpair_row(columns)
    pairs = [records.parse("pairs", {name: column[i] for name, column in columns.items()}) for i in range(2)]
    found = preferences.unpair(pairs)
    assert [record["prompt"] for record in found] == theirs["prompt"]
    assert [record["responses"] for record in found] == [[text] for text in theirs["completion"]]
    assert [record["rewards"] == [1.0] for record in found] == theirs["label"]


@pytest.mark.parametrize("length", [30, 11, 9])
def test_rows_of_steps(prm_trainer, length):
    ours = CharTokenizer("abcdefg. \n")

    class Theirs:
        bos_token_id = ours.bos_id

        def __call__(self, text, add_special_tokens):
            return {"input_ids": ours.encode(text)}

        def encode(self, text, add_special_tokens):
            return ours.encode(text)

    record = {"prompt": "a bad", "steps": ["cab", "a bee.", "dad"], "labels": [1, 0, 1], "info": {}}
    features = {"prompt": record["prompt"], "completions": record["steps"], "labels": [True, False, True]}
    theirs = types.SimpleNamespace(
        **prm_trainer.tokenize_row(
            features, Theirs(), ". \n", None, length, train_on_last_step_only=False, is_eval=False
        )
    )
    settings = {"prompt_buckets": (8,), "completion_length": length, "separator": ". \n"}
    arrays, _ = preferences.encode_steps(ours, [record], **settings)
    real = arrays["segment_ids"][0] == 1
    assert list(arrays["tokens"][0][real]) == theirs.input_ids
    labels = np.full(length, -100)
    ends, values = arrays["step_ends"][0], arrays["step_labels"][0]
    labels[ends[ends >= 0]] = values[ends >= 0]
    assert list(labels[arrays["completion_mask"][0]]) == theirs.labels[-int(arrays["completion_mask"].sum()) :]
