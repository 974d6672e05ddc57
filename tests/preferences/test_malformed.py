"""Every way a record can be wrong is an error that names file, line and field, or is counted and skipped."""

import gzip
import json
import random

import pytest

from rl_jax import preferences
from rl_jax.data import checks, readers
from rl_jax.preferences import records
from rl_jax.preferences.sources import prompt_share

USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Hello"}
GOOD = {
    "pairs": {"prompt": "q{}?", "chosen": " a", "rejected": " b"},
    "rankings": {"prompt": "q{}?", "responses": [" a", " b", " c"]},
    "labels": {"prompt": "q{}?", "completion": " a", "label": True},
    "steps": {"prompt": "q{}?", "steps": ["one", "two"], "labels": [1, 0]},
}
GONE = object()


def change(kind, **fields):
    record = GOOD[kind] | {"prompt": "q?"} | fields
    return {name: value for name, value in record.items() if value is not GONE}


def pair(**fields):
    return change("pairs", **fields)


def ranking(**fields):
    return change("rankings", **fields)


def steps(**fields):
    return change("steps", **fields)


# name: kind, the record or the raw line, the field, what the message says behind the place
BAD = {
    "not JSON": ("pairs", '{"prompt": "q", ', None, "not valid JSON"),
    "not an object": ("pairs", "[1, 2]", None, "expected a JSON object, found list"),
    "bad UTF-8": ("pairs", b'{"prompt": "\xff"}', None, "byte 12 is not UTF-8"),
    "half a surrogate": (
        "pairs",
        '{"prompt": "q", "chosen": "\\ud800", "rejected": "b"}',
        "chosen",
        "character 0 is half",
    ),
    "no chosen": ("pairs", pair(chosen=GONE), "chosen", r"missing \(the record has \['prompt', 'rejected'\]\)"),
    "no rejected": ("pairs", pair(rejected=GONE), "rejected", "missing"),
    "misspelt": ("pairs", pair(chosen=GONE, choosen="a"), "choosen", r"unknown field: did you mean 'chosen'\?"),
    "misspelt optional": ("pairs", pair(margins=1.0), "margins", r"unknown field: did you mean 'margin'\?"),
    "wrong type": ("pairs", pair(chosen=5), "chosen", "expected text, found int"),
    "null": ("pairs", pair(rejected=None), "rejected", "expected text, found null"),
    "empty completion": ("pairs", pair(chosen=""), "chosen", "empty text"),
    "blank completion": ("pairs", pair(rejected=" \n\t"), "rejected", "nothing but whitespace"),
    "empty prompt": ("pairs", pair(prompt=""), "prompt", "empty text"),
    "prompt of a wrong type": ("pairs", pair(prompt=3), "prompt", "expected a text or a list of messages, found int"),
    "identical": ("pairs", pair(rejected=" a"), "rejected", "chosen and rejected are identical"),
    "identical but for space": (
        "pairs",
        pair(rejected="a \n"),
        "rejected",
        "chosen and rejected are identical up to wh",
    ),
    "no shared prompt": ("pairs", pair(prompt=GONE, chosen="x y", rejected="a b"), None, ".* could be the prompt"),
    "one word in common": ("pairs", pair(prompt=GONE, chosen="Ample", rejected="Apt"), None, ".* could be the prompt"),
    "identical dialogues": (
        "pairs",
        pair(prompt=GONE, chosen="q a", rejected="q a"),
        None,
        "chosen and rejected are ide",
    ),
    "a side that is the prompt": ("pairs", pair(prompt=GONE, chosen="q?", rejected="q? no"), "chosen", "empty text"),
    "label_prob too large": ("pairs", pair(label_prob=1.5), "label_prob", r"a probability in \[0, 1\], found 1.5"),
    "label_prob a bool": ("pairs", pair(label_prob=True), "label_prob", "expected a number, found bool"),
    "margin below 0": ("pairs", pair(margin=-1), "margin", "by how much the chosen response is better, found -1"),
    "margin infinite": (
        "pairs",
        '{"prompt": "q", "chosen": "a", "rejected": "b", "margin": Infinity}',
        "margin",
        "not fin",
    ),
    "a margin of 400 digits": ("pairs", pair(margin=10**400), "margin", "not finite: inf"),
    "a number of 5000 digits": ("pairs", '{"margin": 1%s}' % ("0" * 5000), None, "not valid JSON"),
    "misspelt prompt": ("pairs", pair(prompt=GONE, promt="q"), "promt", r"unknown field: did you mean 'prompt'\?"),
    "a tie": ("pairs", pair(chosen_reward=2, rejected_reward=2), "rejected_reward", "a tie: both rewards are 2.0"),
    "one reward": ("pairs", pair(chosen_reward=2), "rejected_reward", "missing"),
    "rewards the other way": (
        "pairs",
        pair(chosen_reward=1, rejected_reward=2),
        "chosen_reward",
        "the rejected response has the higher reward, 2.0 > 1.0",
    ),
    "unknown role": ("pairs", pair(prompt=[{"role": "bot", "content": "x"}]), "prompt[0].role", "unknown role 'bot'"),
    "misspelt content": (
        "pairs",
        pair(prompt=[{"role": "user", "contents": "x"}]),
        "prompt[0].contents",
        "unknown field",
    ),
    "empty message": ("pairs", pair(prompt=[USER | {"content": " "}]), "prompt[0].content", "nothing but whitespace"),
    "no message": ("pairs", pair(prompt=[]), "prompt", "expected a text or a list of messages, found an empty list"),
    "text among messages": ("pairs", pair(prompt=["Hi"]), "prompt[0]", "expected a message with role and content, fou"),
    "system in the middle": (
        "pairs",
        pair(prompt=[USER, {"role": "system", "content": "x"}, USER]),
        "prompt[1].role",
        "a system message must be the first message",
    ),
    "chat ends with the assistant": (
        "pairs",
        pair(prompt=[USER, SAID]),
        "prompt",
        "the prompt must end before an assistant's turn, .* it ends with 'assistant'",
    ),
    "a user's response": (
        "pairs",
        pair(prompt=[USER], chosen=[USER]),
        "chosen",
        "expected a text or one message of the",
    ),
    "two messages": (
        "pairs",
        pair(prompt=[USER], chosen=[SAID, SAID]),
        "chosen",
        "expected a text or one message of th",
    ),
    "a chat behind a text": (
        "pairs",
        pair(chosen=[SAID]),
        "chosen",
        "a list of messages after a prompt that is a text",
    ),
    "chats that do not share": (
        "pairs",
        pair(prompt=GONE, chosen=[USER, SAID], rejected=[USER | {"content": "Ho"}, SAID]),
        None,
        "the two sides do not share a prompt: message 0 differs",
    ),
    "chats without a prompt": (
        "pairs",
        pair(prompt=GONE, chosen=[SAID], rejected=[SAID | {"content": "No"}]),
        "chosen",
        "there is no 'prompt', and no message comes before",
    ),
    "a chat and a text": (
        "pairs",
        pair(prompt=GONE, chosen=[USER, SAID], rejected="x"),
        "rejected",
        "expected a dialogue",
    ),
    "one response": ("rankings", ranking(responses=["a"]), "responses", "a ranking has two responses or more, found 1"),
    "no list": ("rankings", ranking(responses="ab"), "responses", "expected list, found str"),
    "an empty response": ("rankings", ranking(responses=["a", "b", " "]), "responses[2]", "nothing but whitespace"),
    "one twice": ("rankings", ranking(responses=["a", "b", " a"]), "responses[2]", r"the same as responses\[0\]"),
    "too few rewards": ("rankings", ranking(rewards=[1, 0]), "rewards", "2 rewards, but 3 responses"),
    "a reward that is NaN": (
        "rankings",
        '{"prompt": "q", "responses": ["a", "b"], "rewards": [NaN, 1]}',
        "rewards[0]",
        "not finite: nan",
    ),
    "a reward that is text": ("rankings", ranking(rewards=[2, "1", 0]), "rewards[1]", "expected a number, found str"),
    "rising rewards": (
        "rankings",
        ranking(rewards=[3, 1, 2]),
        "rewards[2]",
        "2.0 is above the 1.0 before it, .* sort_by_",
    ),
    "all the same": ("rankings", ranking(rewards=[1, 1, 1]), "rewards", "a tie of all: every reward is 1.0"),
    "misspelt rewards": ("rankings", ranking(reward=[3, 2, 1]), "reward", r"unknown field: did you mean 'rewards'\?"),
    "label not a bool": ("labels", change("labels", label=1), "label", "expected bool, found int"),
    "label as text": ("labels", change("labels", label="true"), "label", "expected bool, found str"),
    "no label": ("labels", change("labels", label=GONE), "label", "missing"),
    "a label's empty text": ("labels", change("labels", completion="\n"), "completion", "nothing but whitespace"),
    "labels of another length": ("steps", steps(labels=[1]), "labels", "1 labels, but 2 steps"),
    "a label of 2": ("steps", steps(labels=[1, 2]), "labels[1]", "expected 1, 0 or null, found 2"),
    "a label of 0.5": ("steps", steps(labels=[1, 0.5]), "labels[1]", "expected 1, 0 or null, found 0.5"),
    "no label at all": ("steps", steps(labels=[None, None]), "labels", "no step has a label"),
    "no steps": ("steps", steps(steps=[], labels=[]), "steps", "no steps"),
    "an empty step": ("steps", steps(steps=["one", ""]), "steps[1]", "empty text"),
    "mistake out of range": (
        "steps",
        steps(labels=GONE, mistake_index=2),
        "mistake_index",
        r"2 is outside of the steps, 0\.\.1",
    ),
    "mistake below 0": ("steps", steps(labels=GONE, mistake_index=-1), "mistake_index", "-1 is outside"),
    "mistake a bool": ("steps", steps(labels=GONE, mistake_index=True), "mistake_index", "expected an integer or null"),
    "both": ("steps", steps(mistake_index=1), "labels", "give either labels or mistake_index, not both"),
    "neither": ("steps", steps(labels=GONE), "labels", "give either labels or mistake_index, not both"),
}


def write(tmp_path, kind, bad, name="data.jsonl"):
    lines = [json.dumps(GOOD[kind] | {"prompt": f"q{place}?"}).encode() for place in range(2)]
    lines.insert(1, bad if isinstance(bad, bytes) else (bad if isinstance(bad, str) else json.dumps(bad)).encode())
    path, raw = tmp_path / name, b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    return path


def load(path, kind, tmp_path, **settings):
    return preferences.load("jsonl", path=path, kind=kind, test_share=0.0, data_dir=str(tmp_path / "tfds"), **settings)


def test_there_are_enough():
    assert len(BAD) >= 24 and {kind for kind, *_ in BAD.values()} == set(preferences.KINDS)


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_record_is_named_or_skipped(tmp_path, name):
    kind, bad, field, problem = BAD[name]
    path = write(tmp_path, kind, bad)
    place = f"{path}, line 2" + (f", field {field!r}" if field else "") + ": "
    with pytest.raises(readers.DataError, match=problem) as caught:
        load(path, kind, tmp_path)
    text = str(caught.value)
    assert text.startswith(place) and text.endswith("or pass skip_bad_records=True to leave it out"), text
    source = load(path, kind, tmp_path, skip_bad_records=True).data_source("train")
    assert [record["prompt"] for record in source] == ["q0?", "q1?"]
    assert source.num_skipped == 1 and source.report["skipped"][0].startswith(place)


def test_a_column_of_another_name_is_told_how_to_be_named(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "q", "better": "a", "worse": "b"}) + "\n")
    said = r"field 'chosen': missing .*'better'.*: name its column, data.columns={'chosen': COLUMN}\."
    with pytest.raises(readers.DataError, match=said):
        load(path, "pairs", tmp_path)


@pytest.mark.parametrize("skip", [False, True])
def test_a_cut_gzip_is_never_skipped(tmp_path, skip):
    lines = [json.dumps(GOOD["pairs"] | {"prompt": f"{place * place}"}) for place in range(3000)]
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-500])
    with pytest.raises(readers.DataError, match=r"data.jsonl.gz, after line \d+: the gzip stream is cut"):
        load(path, "pairs", tmp_path, skip_bad_records=skip)


def test_gzip_lines_are_counted_the_same(tmp_path):
    path = write(tmp_path, "pairs", pair(chosen=""), "data.jsonl.gz")
    with pytest.raises(readers.DataError, match="data.jsonl.gz, line 2, field 'chosen'"):
        load(path, "pairs", tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"prompt": "q"}\n{}\n'])
def test_a_file_without_a_record(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(readers.DataError, match="data.jsonl: no record that can be used .*: give a file of pairs"):
        load(path, "pairs", tmp_path, skip_bad_records=True)


def test_a_missing_file(tmp_path):
    with pytest.raises(readers.DataError, match="gone.jsonl: cannot be opened"):
        load(tmp_path / "gone.jsonl", "pairs", tmp_path)


@pytest.mark.parametrize(
    ("chosen", "field", "message"),
    [
        (
            "Human: a Assistant: x Human: y Assistant: z",
            None,
            "the two sides do not share a prompt up to the last 'Assi",
        ),
        ("Human: a", "chosen", "lacks the marker 'Assistant:', after which the response begins"),
    ],
)
def test_dialogues_share_what_stands_before_the_last_marker(tmp_path, chosen, field, message):
    path = write(tmp_path, "pairs", {"chosen": chosen, "rejected": "Human: a Assistant: b"})
    with pytest.raises(readers.DataError, match=message) as caught:
        load(path, "pairs", tmp_path, marker="Assistant:")
    assert str(caught.value).startswith(f"{path}, line 2" + (f", field {field!r}" if field else "") + ": ")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("hhh", {}, r"unknown preferences 'hhh'; the names are .*jsonl, hh"),
        ("hh", {"paht": "x"}, r"preferences 'hh' take no paht; they take path"),
        ("jsonl", {}, "preferences 'jsonl' need path"),
        ("jsonl", {"path": "x", "kind": "pair"}, "unknown kind 'pair'; the kinds are pairs, rankings"),
        ("jsonl", {"path": "x", "test_share": 2}, r"test_share must lie in \[0, 1\], got 2"),
        ("llmbar", {"path": "x", "subsets": ["easy"]}, r"unknown subsets \['easy'\]; the subsets are natural"),
        ("gsm8k_solutions", {"path": "x", "kind": "steps"}, "has kind labels, pairs or rankings, not 'steps'"),
        ("openr", {"path": "x", "layout": "prm"}, "unknown layout 'prm'; the layouts are prm800k, math-shepherd"),
    ],
)
def test_wrong_settings(name, settings, message):
    with pytest.raises(ValueError, match=message):
        preferences.load(name, **settings)


def test_whatever_stands_in_a_record_is_a_problem_with_a_name():
    """Random JSON in random places of good records: read, or refused with words, and never another exception."""
    rng = random.Random(0)
    values = [None, True, 0, -1, 1.5, 10**400, float("nan"), "", " ", "x", "\ud800", [], [1], ["a", "b"], [None], {}]
    values += [{"a": 1}, [USER], [SAID], [USER, SAID], [{"role": ["user"], "content": 1}], [{"role": None}], "a b c"]
    kept = 0
    for kind, good in GOOD.items():
        for _ in range(500):
            raw = dict(good)
            for _ in range(rng.randint(1, 2)):
                raw[rng.choice(records.FIELDS[kind])] = rng.choice(values)
            if rng.random() < 0.3:
                raw.pop(rng.choice(sorted(raw)))
            try:
                found = records.parse(kind, raw)
            except checks.Problem as problem:
                assert problem.text and (problem.field is None or isinstance(problem.field, str))
                continue
            kept += 1
            json.dumps(found, ensure_ascii=False).encode("utf-8")
            assert 0 <= prompt_share(found["prompt"]) < 1
    assert 50 < kept < 1500


def test_columns_of_other_names_files_and_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"question": f"q{i}?", "better": " a", "worse": " b", "prompt": "not this", "level": i} for i in range(8)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[5:]), tmp_path / "b.parquet")
    columns = dict(prompt="question", chosen="better", rejected="worse")
    settings = dict(data_dir=str(tmp_path / "data"), test_share=0.0, columns=columns)
    for path in (f"{tmp_path}/a.jsonl,{tmp_path}/b.parquet", f"{tmp_path}/[ab].*"):
        source = preferences.load("given", path=path, **settings).data_source("train")
        assert [source[i]["prompt"] for i in range(len(source))] == [f"q{i}?" for i in range(8)]
        assert source[7]["responses"] == [" a", " b"] and source[7]["info"] == {"level": 7}
    with pytest.raises(readers.DataError, match=r"a.jsonl, line 1, field 'best': missing \(the record has "):
        preferences.load("given", path=f"{tmp_path}/a.jsonl", **settings | {"columns": {"chosen": "best"}})
    with pytest.raises(ValueError, match="columns: pairs have no field 'choice'; they have prompt, chosen, rejected"):
        preferences.load("given", path=f"{tmp_path}/a.jsonl", **settings | {"columns": {"choice": "best"}})
