"""rl_jax/tasks/preferences.py: the tokenizer of a preference run without a model's folder, on a user's own pairs."""

import json

import pytest

from configs.preferences import given
from experiments.parts.preference_data import Best
from rl_jax import preferences, tasks
from rl_jax.preferences import records

CHAT = [{"role": "user", "content": "1+1?"}]


def pairs(folder, *lines):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return preferences.load("given", path=str(path), data_dir=str(folder / "data"), test_share=0.0)


def pair(number, **more):
    return dict(prompt=f"{number}+1=", chosen=f"{number + 1}", rejected="no") | more


def encoded(tokenizer, source):
    return preferences.encode_preferences(tokenizer, list(source), prompt_buckets=(32,), completion_length=8)


def test_chats_are_encoded_as_plain_text(tmp_path):
    tokenizer = tasks.load("preferences", alphabet=given.PRINTABLE).tokenizer
    source = pairs(tmp_path, *(pair(n, prompt=CHAT, chosen=f"{n}") for n in range(3))).data_source("train")
    ids = tokenizer.encode("User: 1+1?\n\nAssistant:", bos=True)
    assert tokenizer.encode(CHAT, bos=True) == tokenizer.encode_messages(CHAT) == ids
    tokens = encoded(tokenizer, source)[0]["tokens"]
    assert tokens[0, 0, 32 - len(ids) : 32].tolist() == ids
    best = Best(source, tokenizer)
    assert len(best) == len(source) and best[0]["messages"] == CHAT


@pytest.mark.parametrize("field", ["prompt", "chosen", "rejected"])
def test_a_character_without_an_id_is_refused_with_its_place_and_the_ways_out(tmp_path, field):
    source = pairs(tmp_path, *map(pair, range(3)), pair(3, **{field: "für"}), *map(pair, range(4, 8)))
    source = source.data_source("train")
    tokenizer = tasks.load("preferences", alphabet=given.PRINTABLE).tokenizer
    said = (
        r"pairs.jsonl, line 4: character 'ü' at place 1 of 'für' is not in the alphabet .*task.alphabet= .*model.path"
    )
    with pytest.raises(ValueError, match=said):
        encoded(tokenizer, source)
    if field != "rejected":
        with pytest.raises(ValueError, match=said):
            Best(source, tokenizer)


def test_an_empty_alphabet_is_that_of_bytes(tmp_path):
    tokenizer = tasks.load("preferences", alphabet="").tokenizer
    assert tokenizer.decode(tokenizer.encode("für")) == "für"
    source = pairs(tmp_path, *(pair(n, chosen=f"ü{n}") for n in range(3))).data_source("train")
    assert encoded(tokenizer, source)[1]["num_kept"] == len(source)
    with pytest.raises(ValueError, match="character 'ü'"):
        encoded(tasks.load("preferences", alphabet=given.PRINTABLE).tokenizer, source)


def test_steps_are_refused_with_their_place_too():
    tokenizer = tasks.load("preferences", alphabet=given.PRINTABLE).tokenizer
    record = records.parse("steps", dict(prompt="a", steps=["b", "ü"], labels=[1, 0]))
    with pytest.raises(ValueError, match="record 0: character 'ü' .*task.alphabet="):
        preferences.encode_steps(tokenizer, [record], prompt_buckets=(32,), completion_length=8)
