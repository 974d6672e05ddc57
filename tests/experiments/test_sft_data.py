"""What supervised fine-tuning learns of records: whose completions, and what is said of those it cuts or leaves out."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from ml_collections import ConfigDict

from experiments import online_dpo
from experiments.parts import encoding, preference_data, prompt_limits, warm_start
from experiments.parts.prompts import make_prompts
from rl_jax.data import readers
from rl_jax.preferences import mixed
from rl_jax.tokenizers import CharTokenizer


def setup_of(*, completion_length=6, long_prompts="stop", **more):
    """A setup of characters, with prompts of at most 4 tokens, BOS included."""
    rollout = dict(prompt_buckets=(2, 4), completion_length=completion_length, long_prompts=long_prompts)
    config = ConfigDict(dict(rollout=rollout, log=dict(progress=True)) | more)
    return SimpleNamespace(config=config, task=SimpleNamespace(tokenizer=CharTokenizer("abcxyz")))


def learned(setup, record) -> str:
    """The text that is in the loss."""
    batch, mask = encoding.encode_sft(setup, [record])
    return setup.task.tokenizer.decode(batch.tokens[0, -mask.shape[1] :][mask[0]].tolist())


@pytest.mark.parametrize("turns", [["b", "c"], "bc", 2])
def test_a_column_named_turns_is_not_learned(turns):
    record = {"prompt": "a", "completion": "xyz", "info": json.dumps({"turns": turns})}
    assert learned(setup_of(), record) == "xyz"
    record["info"] = json.dumps({"recorded_turns": ["x", "b", "y"]})
    assert learned(setup_of(), record) == "xy"


def pairs_of(*prompts):
    """Preferences whose source has skipped two bad records."""
    source = [{"prompt": prompt, "responses": ["x", "y"], "rewards": [1.0, 0.0]} for prompt in prompts]

    class Source(list):
        num_skipped = 2

    return SimpleNamespace(data_source=lambda split: Source(source))


IDS = {"ids": [1, 1, 2, 2, 3, 3]}


def replaceable(**fields):
    """setup_of, whose task has no records of its own."""
    setup = setup_of(**fields)
    task = setup.task
    task._replace = lambda **more: SimpleNamespace(**(vars(task) | more))  # as of a NamedTuple
    setup._replace = lambda **more: SimpleNamespace(config=setup.config, **more)
    task.data_source = None
    return setup


def demonstrated(pairs, **fields):
    """(the setup of SFT on pairs, its records)."""
    setup = replaceable(**fields)
    found = preference_data.for_sft(setup, pairs)
    source = found.task.data_source("sft_train")
    return found, source


@pytest.mark.parametrize(
    ("long_prompts", "encode", "done", "said"),
    [
        ("stop", None, "stop", "set rollout.long_prompts to drop"),
        ("drop", None, "drop", "rollout.long_prompts=drop: 2 of 3 prompts of sft_train"),
        ("cut", None, "cut", "rollout.long_prompts=cut: 2 of 3 prompts of sft_train"),
        ("stop", "refuse", "stop", "set encode.truncate to drop .* or left"),
        ("drop", "refuse", "drop", "rollout.long_prompts=drop: "),
        ("stop", "drop", "drop", "encode.truncate=drop: "),
        ("stop", "left", "cut", "encode.truncate=left: "),
        ("cut", "drop", "drop", "encode.truncate=drop: "),
    ],
)
@pytest.mark.parametrize("long", ["abcaax", IDS])
def test_long_prompts_of_preferences_are_refused_cut_or_dropped(capsys, long_prompts, encode, done, said, long):
    pairs = pairs_of(long, "ab" if long is not IDS else {"ids": [1, 2, 3]}, long)
    fields = {} if encode is None else {"encode": dict(truncate=encode)}

    if done == "stop":
        with pytest.raises(readers.DataError, match=f"2 of 3 prompts .*The first is record 0, .*{said}"):
            demonstrated(pairs, long_prompts=long_prompts, **fields)
        return
    setup, source = demonstrated(pairs, long_prompts=long_prompts, **fields)
    assert setup.task.data_source("sft_train") is source, "said once"
    assert capsys.readouterr().out.count(said) == 1
    assert len(source) == {"drop": 1, "cut": 3}[done] and source.num_skipped == {"drop": 4, "cut": 2}[done]
    batch, mask = encoding.encode_sft(setup, [source[index] for index in range(len(source))])
    assert mask.sum() == 2 * len(source)
    asked = np.asarray(batch.tokens[0, : -mask.shape[1]])[
        np.asarray(batch.segment_ids[0, : -mask.shape[1]]) > 0
    ].tolist()
    whole = long["ids"] if long is IDS else setup.task.tokenizer.encode(long, bos=True)
    assert done == "drop" or asked[-3:] == whole[-3:]


@pytest.mark.parametrize("choice", ["stop", "drop", "cut"])
def test_long_prompts_of_preferences_that_are_sampled_for(monkeypatch, capsys, choice):
    """Of online_dpo's sample.pairs, and of an evaluation on preferences. Red before: only SFT obeyed the rule."""
    pairs = pairs_of("abcaax", "ab")
    setup = replaceable(long_prompts=choice)
    config = ConfigDict(setup.config.to_dict() | dict(sample=dict(data="pairs", pairs=dict())))
    monkeypatch.setattr(online_dpo, "load_pairs", lambda group, fields: pairs)
    source_of = online_dpo.make_source(config)
    if choice == "stop":
        with pytest.raises(
            readers.DataError, match="1 of 2 prompts of sample.pairs .* The first is record 0, 7 tokens"
        ):
            source_of(setup.task)
        return
    source = source_of(setup.task)
    assert f"rollout.long_prompts={choice}: 1 of 2 prompts of sample.pairs" in capsys.readouterr().out
    assert (len(source), source.num_skipped) == {"drop": (1, 3), "cut": (2, 2)}[choice]
    tested = preference_data.for_sft(setup, pairs).task.data_source("test")
    assert len(tested) == len(source)
    encoding.encode_prompts(setup, [tested[index] for index in range(len(tested))])


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match="encode.truncate='trim' is none of refuse, left, drop"):
        demonstrated(pairs_of("a"), encode=dict(truncate="trim"))


def test_cut_completions_are_counted_and_said_once():
    """Of 6 tokens, the EOS included; of an episode all turns count; of token ids they are as they are."""
    setup, told = setup_of(), []
    texts = ["xyzxy", "xyzxyz", "x", "xyzxyzabc"]
    records = [{"prompt": "a", "completion": text, "info": "{}"} for text in texts]
    episodes = [["x", "aa", "y"], ["xy", "a", "z"], ["xy", "aa", "z"]]  # 6, 6 and 7 tokens
    records += [{"prompt": "a", "completion": "", "info": json.dumps({"recorded_turns": one})} for one in episodes]
    assert warm_start.left_out(setup, records, told.append) == {"num_responses_cut": 3, "skipped_records": 0}
    assert len(told) == 1 and told[0].startswith("3 of 7 completions have over 6 tokens, EOS included, and are cut: ")
    batch, mask = encoding.encode_sft(setup, records)
    whole = [encoding.completion_length(setup, record) for record in records]
    assert [min(length, 6) for length in whole] == (batch.segment_ids[:, -6:] > 0).sum(axis=1).tolist()
    sampled = [{"prompt": "", "completion": "", "info": "{}", "ids": ([1], [2] * n)} for n in (6, 7)]
    assert warm_start.left_out(setup, sampled, told.append)["num_responses_cut"] == 1
    assert warm_start.left_out(setup, records[:1], told.append)["num_responses_cut"] == 0 and len(told) == 2


def test_a_large_split_is_counted_by_a_part(monkeypatch):
    monkeypatch.setattr(warm_start, "MEASURED", 4)
    records, told = [{"prompt": "a", "completion": "xyzxyz" if n % 2 else "x", "info": "{}"} for n in range(10)], []
    assert warm_start.left_out(setup_of(), records, told.append)["num_responses_cut"] == 5
    assert told[0].startswith("about 5 of 10 completions have over 6 tokens")


def test_skipped_records_are_counted_and_the_first_is_said():
    class Source(list):
        num_skipped, report = 3, {"skipped": ["a.jsonl, line 7: empty text", "b"]}

    told, source = [], Source([{"prompt": "a", "completion": "x", "info": "{}"}])
    assert warm_start.left_out(setup_of(), source, told.append)["skipped_records"] == 3
    assert told == ["3 records were left out, the first bad one: a.jsonl, line 7: empty text"]
    pairs = Source([{"prompt": "a", "responses": ["x", "y"]}])
    source = preference_data.Best(pairs, setup_of().task.tokenizer)
    assert source.report["skipped"] and warm_start.left_out(setup_of(), source, told.append)["skipped_records"] == 3
    assert told[0] == told[1]


def test_prompts_that_are_sampled_for_say_what_is_left_out(capsys):
    """Red before: only SFT named the file and the line."""

    class Source(list):
        num_skipped, report = 3, {"skipped": ["a.jsonl, line 7: empty text", "b"]}

    config = ConfigDict(dict(log=dict(progress=True), seed=0))
    config.sample = dict(prompts=dict(fn="shuffled"), memory=dict(on=False, last=False))
    setup = SimpleNamespace(config=config, mesh=Mesh(np.array(jax.devices()[:1]), "data"))
    make_prompts(setup, Source([{"prompt": "a", "info": "{}"}] * 2), batch_size=1)
    said = "3 records were left out, the first bad one: a.jsonl, line 7: empty text"
    assert capsys.readouterr().out == said + "\n"
    assert prompt_limits.say_skipped(config, [1]) == 0 and not capsys.readouterr().out, "a source of a user's own"
    parts = {name: Source() for name in "xy"}
    for part in parts.values():
        part.kind = "pairs"
    assert prompt_limits.told_of_skipped(mixed.Mixed("train", parts)) == said.replace("3", "6")
