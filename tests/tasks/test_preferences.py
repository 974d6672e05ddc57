"""rl_jax/tasks/preferences.py: the tokenizer of a preference run without a model's folder, on a user's own pairs."""

import json

from configs.preferences import given
from experiments.parts.preference_data import Best
from rl_jax import preferences, tasks

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
    best = Best(source, tokenizer, 32)
    assert len(best) == len(source) and best[0]["messages"] == CHAT
