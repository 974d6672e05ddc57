"""Prompts from a user's own files: what is read, split, mixed and refused, and where the message points."""

import datetime
import json
from collections import Counter

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rl_jax import tasks
from rl_jax.data import checks, readers
from rl_jax.preferences import records as preference_records
from rl_jax.tasks import record_files, records
from rl_jax.tasks.record_files import Columns, parse, parse_paths

CHAT = [{"role": "user", "content": "1+1?"}]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def sums(count, start=0, **more):
    return [{"prompt": f"{i}+1=", "answer": str(i + 1), **more} for i in range(start, start + count)]


@pytest.fixture
def load(tmp_path):
    def function(path="", **fields):
        return tasks.load("records", path=str(path), data_dir=str(tmp_path / "data"), **fields)

    return function


def test_the_first_record_without_an_answer_is_named(tmp_path, load):
    """One in a file of thousands: the task has no reward of its own, and the user does not know why."""
    rows = [*sums(3), {"prompt": "a", "answer": None}, *sums(30, 3), {"prompt": "b"}, {"prompt": "c"}]
    path = write(tmp_path / "some.jsonl", rows)
    for _ in range(2):  # as it is prepared, and as it was
        task = load(path)
        assert task.reward_fn is None
        said = f"{path}, line 4: the record has no 'answer', or null, and 33 others have one (skip_bad_records=True "
        assert task.no_reward.startswith(said)
    task = load(write(tmp_path / "none.jsonl", [{"prompt": f"{i}", "gold": 1, "hard": 2} for i in range(9)]))
    assert task.reward_fn is None and task.no_reward.endswith("with: beside the prompt, one has 'gold', 'hard'")
    assert load(tmp_path / "none.jsonl", answer="gold").no_reward == ""


def test_records_without_an_answer_are_bad_ones_if_others_of_their_source_have_one(tmp_path, load):
    """Red before: with skip_bad_records a single null took the task's reward away."""
    rows = [*sums(9, completion="1"), {"prompt": "a", "answer": None, "completion": "x"}, {"prompt": "b"}]
    path = write(tmp_path / "some.jsonl", rows)
    task = load(path, skip_bad_records=True, test_share=0.3)
    assert task.reward_fn is records.exact_match and task.no_reward == ""
    asked = [row["prompt"] for split in ("train", "test") for row in rows_of(task, split)]
    assert sorted(asked) == sorted(row["prompt"] for row in rows[:9])
    train = task.data_source("train")
    assert train.num_skipped == 2 and train.report["num_answers"] == 9
    assert f"{path}, line 11, field 'answer': missing or null" in "".join(train.report["skipped"])
    learned = {row["prompt"] for row in rows_of(task, "sft_train")}
    assert learned - set(asked) <= {"a"} and learned <= {*asked, "a"}
    # Only a split of its own has none: it is left as it is.
    plain = write(tmp_path / "plain.jsonl", [{"prompt": f"{i}?", "completion": "x"} for i in range(8)])
    apart = load(plain, test_path=str(write(tmp_path / "test.jsonl", sums(4))), skip_bad_records=True)
    assert [len(rows_of(apart, split)) for split in ("train", "test")] == [8, 4]
    # Another source, which a reward of one's own grades, has no answers at all.
    code = write(tmp_path / "code.jsonl", [{"prompt": f"{i}?"} for i in range(9)])
    mixed = load(f"math={path},code={code}", skip_bad_records=True).data_source("train")
    assert mixed.num_skipped == 2 and mixed.report["unanswered"] == [1, 1]


def test_the_name_of_recorded_episodes_is_kept(tmp_path, load):
    """What lies there is learned in place of the completion; `turns`, MT-Bench's name, is a column like others."""
    rows = sums(5, completion="1")
    task = load(write(tmp_path / "a.jsonl", [row | {"turns": ["q", "r"]} for row in rows]))
    assert json.loads(rows_of(task, "sft_train")[0]["info"])["turns"] == ["q", "r"]
    path = write(tmp_path / "b.jsonl", [*rows, rows[0] | {"recorded_turns": ["q"]}])
    with pytest.raises(readers.DataError, match="b.jsonl, line 6, field 'recorded_turns': .*rename the column"):
        load(path)
    with pytest.raises(checks.Problem, match="rename the column"):
        preference_records.parse("pairs", {"prompt": "p", "chosen": "a", "rejected": "b", "recorded_turns": 2})


def rows_of(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def test_columns_go_where_they_are_named(load, tmp_path):
    rows = [{"question": f"{i}+1=", "solution": i + 1, "steps": f"{i + 1}", "level": i % 3, "id": i} for i in range(20)]
    path = write(tmp_path / "a.jsonl", rows)
    task = load(path, prompt="question", answer="solution", completion="steps")
    found = {row["prompt"]: row for split in ("train", "test") for row in rows_of(task, split)}
    assert len(found) == 20
    record = found["7+1="]
    assert record["completion"] == "8" and record["id"] == "7" and "messages" not in record and "source" not in record
    assert json.loads(record["info"]) == {"answer": 8, "level": 1, "id": 7}
    assert task.reward_fn("7+1=", " 8\n", json.loads(record["info"])) == {"reward": 1.0, "correct": 1.0}
    assert task.reward_fn("7+1=", "9", json.loads(record["info"])) == {"reward": 0.0, "correct": 0.0}
    assert task.tokenizer.decode(task.tokenizer.encode("é=", bos=True)) == "é="


def test_chats_system_messages_and_targets(load, tmp_path):
    done = [*CHAT, {"role": "assistant", "content": "2"}]
    longer = [*done, {"role": "user", "content": "And 2+2?"}]
    rows = [{"messages": done}, {"prompt": longer, "completion": [{"role": "assistant", "content": "4"}]}]
    task = load(write(tmp_path / "a.jsonl", rows), system="Add.")
    first, second = sorted((*rows_of(task, "train"), *rows_of(task, "test")), key=lambda row: row["completion"])
    system = {"role": "system", "content": "Add."}
    assert (first["messages"], first["prompt"], first["completion"]) == ([system, *CHAT], "1+1?", "2")
    assert (second["messages"], second["completion"]) == ([system, *longer], "4")
    assert second["prompt"] == "User: 1+1?\n\nAssistant: 2\n\nUser: And 2+2?\n\nAssistant:"
    assert json.loads(first["info"]) == {"messages": [system, *CHAT]}
    text = task.tokenizer.decode(task.tokenizer.encode(first["messages"], bos=True))
    assert text == "System: Add.\n\nUser: 1+1?\n\nAssistant:"
    assert task.reward_fn is None  # there is no answer to compare with
    assert "no record has a column 'answer' to compare a completion with" in task.no_reward
    assert parse({"prompt": [system, *CHAT]}, Columns(), system="Another.")["messages"] == [system, *CHAT]
    assert parse({"prompt": "1+1?"}, Columns(), system="Add.")["messages"] == [system, *CHAT]


def test_the_held_out_part_is_a_function_of_the_prompt(load, tmp_path):
    rows = sums(300) + [{"prompt": " 7+1= ", "answer": "again"}]
    path = write(tmp_path / "a.jsonl", rows)
    task = load(path, test_share=0.2)
    train, test = ({row["prompt"].strip() for row in rows_of(task, split)} for split in ("train", "test"))
    assert not train & test and len(train | test) == 300 and 40 < len(test) < 80
    expected = {f"{i}+1=" for i in range(300) if record_files.share_of(f"{i}+1=") < 0.2}
    assert test == expected
    more = load(write(tmp_path / "b.jsonl", rows[:100] + sums(50, 1000)), test_share=0.2)
    kept = {row["prompt"].strip() for row in rows_of(more, "test")}
    assert kept & {row["prompt"].strip() for row in rows[:100]} == test & {row["prompt"].strip() for row in rows[:100]}
    few = load(write(tmp_path / "c.jsonl", sums(2)), test_share=0.001)
    assert len(rows_of(few, "train")) == len(rows_of(few, "test")) == 1


@pytest.mark.slow
def test_parquet_gzip_lists_globs_and_folders(load, tmp_path):
    import gzip

    part = tmp_path / "parts"
    write(part / "a.jsonl", sums(3))
    (part / "b.json").write_text(json.dumps(sums(3, 10)))
    (part / "c.jsonl.gz").write_bytes(gzip.compress((json.dumps(sums(1, 20)[0]) + "\n").encode()))
    columns = {"prompt": [CHAT, CHAT[:1]], "answer": ["2", "2"], "when": [datetime.datetime(2020, 1, 1)] * 2}
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(table, part / "d.parquet")
    (part / "notes.txt").write_text("no record")
    tests = write(tmp_path / "test.jsonl", sums(1, 50))
    found = {}
    for path in (part, f"{part}/a.jsonl,{part}/b.json,{part}/c*.gz, {part}/d.parquet", f"{part}/[a-d].*"):
        found[path] = [row["prompt"] for row in rows_of(load(path, test_path=str(tests)), "train")]
    assert list(map(len, found.values())) == [9, 9, 9] and len(set(map(str, found.values()))) == 1
    last = rows_of(load(part / "d.parquet", test_path=str(tests)), "train")[0]
    assert last["messages"] == CHAT and json.loads(last["info"])["when"].startswith("2020-01-01")


@pytest.mark.parametrize("other", ["test-00000-of-00001.jsonl", "validation.jsonl", "test_sft-0.jsonl", "dev.jsonl"])
def test_a_folder_of_several_splits_is_refused(load, tmp_path, other):
    """As Hugging Face lays out a data set: its files of tests would be trained on."""
    train = write(tmp_path / "data" / "train-00000-of-00001.jsonl", sums(3))
    held_out = write(tmp_path / "data" / other, sums(3, 50))
    with pytest.raises(readers.DataError) as error:
        load(train.parent)
    said = f"{train.parent}: the folder has files of several splits, {held_out.name} beside {train.name}"
    assert str(error.value).startswith(said) and f"path={train.parent}/train*.jsonl" in str(error.value)
    found = load(f"{train.parent}/train*.jsonl", test_path=f"{train.parent}/{other[:3]}*.jsonl")
    assert len(rows_of(found, "train")) == len(rows_of(found, "test")) == 3


def test_a_folder_of_files_that_are_no_splits_is_read_whole(load, tmp_path):
    for place, name in enumerate(("train.jsonl", "testimony.jsonl", "training_2.jsonl")):
        write(tmp_path / "a" / name, sums(3, 10 * place))
    write(tmp_path / "b" / "test.jsonl", sums(3, 50))
    assert len(rows_of(load(tmp_path / "a", test_path=str(tmp_path / "b")), "train")) == 9


def test_sources_have_names_and_weights(load, tmp_path):
    a = write(tmp_path / "a.jsonl", sums(1, id=1) + sums(39, 1))
    b = write(tmp_path / "b.jsonl", sums(10, 100))
    tests = write(tmp_path / "t.jsonl", sums(4, 200))
    task = load(f"math={a}@3,code={b}", test_path=f"math={tests},code={tests}")
    rows = rows_of(task, "train")
    counts = Counter(row["source"] for row in rows)
    assert counts == {"math": 40, "code": 13} and len({row["prompt"] for row in rows}) == 50  # all of them are there
    assert [row["source"] for row in rows_of(task, "test")] == ["code", "math"] * 4
    assert {json.loads(row["info"])["source"] for row in rows} == {"math", "code"}
    assert [row["id"] for row in rows if "id" in row] == ["math/1"]
    assert Counter(row["source"] for row in rows[:16]) == {"math": 12, "code": 4}  # evenly, at any place
    table = {"math": {"path": str(a), "weight": 3.0}, "code": {"path": str(b), "prompt": "prompt"}}
    assert rows_of(load(sources=table, test_path=f"math={tests},code={tests}"), "train") == rows
    plain = load(f"math={a},code={b}", test_path=f"math={tests},code={tests}")
    assert len(rows_of(plain, "train")) == 50
    # Sources that the records name themselves.
    mixed = write(tmp_path / "m.jsonl", sums(30, source="x") + sums(30, 100, source="y"))
    found = rows_of(load(mixed, sources={"x": {"weight": 0.0}}), "train")
    assert {row["source"] for row in found} == {"y"} and len(found) > 20


def test_weights_are_those_of_demonstrations_too(load, tmp_path):
    """Whether all records have a completion, or some: a source of weight 0 is not trained on."""
    worked = [
        write(tmp_path / f"{name}.jsonl", sums(30, start, completion="1")) for name, start in (("a", 0), ("b", 50))
    ]
    asked = write(tmp_path / "c.jsonl", [*sums(20, 100, completion="1"), *sums(20, 200)])
    for names, weights in (("ab", (3, 0)), ("ac", (3, 0)), ("ac", (0, 3)), ("ab", (3, 1)), ("ac", (3, 1))):
        files = {"a": worked[0], "b": worked[1], "c": asked}
        path = ",".join(f"{name}={files[name]}@{weight}" for name, weight in zip(names, weights, strict=True))
        rows = rows_of(load(path), "sft_train")
        found = Counter(row["source"] for row in rows)
        shares = [found[name] / len(rows) for name in names]
        np.testing.assert_allclose(shares, np.array(weights) / sum(weights), atol=0.02)
        assert all(row["completion"] for row in rows)
    bare = write(tmp_path / "d.jsonl", sums(20, 300))
    with pytest.raises(readers.DataError, match="all sources with completions have weight 0"):
        load(f"a={worked[0]}@0,d={bare}").data_source("sft_train")


@pytest.mark.parametrize(
    ("counts", "weights", "expected"),
    [
        ((3,), None, [0, 1, 2]),
        ((2, 2), None, [0, 2, 1, 3]),
        ((1, 4), (1.0, 1.0), [0, 1, 0, 2, 0, 3, 0, 4]),
        ((2, 4), (0.0, 5.0), [2, 3, 4, 5]),
    ],
)
def test_the_order_of_a_mixture(counts, weights, expected):
    assert records.mixture_order(counts, weights).tolist() == expected


def test_a_mixture_has_the_shares_of_its_weights():
    counts, weights = (1_000, 37, 5), (1.0, 2.0, 0.5)
    order = records.mixture_order(counts, weights)
    found = np.histogram(order, bins=[0, 1000, 1037, 1042])[0]
    np.testing.assert_allclose(found / len(order), np.array(weights) / 3.5, atol=1e-3)
    assert len(set(order.tolist())) == 1042


def test_sft_targets(load, tmp_path):
    every = load("EXAMPLE")
    assert rows_of(every, "sft_train") == rows_of(every, "train") and rows_of(every, "train")[0]["completion"]
    some = load(write(tmp_path / "a.jsonl", sums(20, completion="x") + sums(20, 100)))
    assert 0 < len(rows_of(some, "sft_train")) < len(rows_of(some, "train"))
    assert all(row["completion"] for row in rows_of(some, "sft_train"))
    none = load(write(tmp_path / "b.jsonl", sums(20)))
    with pytest.raises(readers.DataError, match="fine-tuning needs a completion.*completion=COLUMN"):
        none.data_source("sft_train")


@pytest.mark.parametrize(
    ("raw", "columns", "field", "message"),
    [
        ({"promt": "x"}, {}, "promt", "did you mean 'prompt'"),
        ({"text": "x"}, {}, "prompt", r"missing \(the record has \['text'\]\): name the column .* prompt=COLUMN"),
        ({"prompt": "x"}, {"answer": "gold"}, "gold", r"missing \(the record has \['prompt'\]\)"),
        ({"prompt": "x"}, {"completion": "y"}, "y", "missing"),
        ({"prompt": "x"}, {"source": "y"}, "y", "missing"),
        ({"prompt": ""}, {}, "prompt", "empty text"),
        ({"prompt": " \n"}, {}, "prompt", "nothing but whitespace"),
        ({"prompt": 3}, {}, "prompt", "expected a text or a list of messages, found int"),
        ({"prompt": None}, {}, "prompt", "found null"),
        ({"prompt": []}, {}, "prompt", "found an empty list"),
        ({"prompt": [{"role": "boss", "content": "x"}]}, {}, r"prompt\[0\].role", "unknown role 'boss'"),
        ({"prompt": [{"role": "user", "content": ""}]}, {}, r"prompt\[0\].content", "empty text"),
        ({"prompt": [{"role": "system", "content": "x"}]}, {}, "prompt", "must end before an assistant's turn"),
        ({"prompt": "x", "answer": ""}, {}, "answer", "an empty answer"),
        ({"prompt": "x", "completion": 3}, {}, "completion", "expected text, found int"),
        ({"prompt": "\ud800"}, {}, "prompt", "half of a surrogate pair"),
    ],
)
def test_a_bad_record_is_named_or_counted(load, tmp_path, raw, columns, field, message):
    with pytest.raises(checks.Problem, match=message):
        parse(raw, Columns(**columns))
    good = {"prompt": "y", "gold": "z", "y": "z"}
    path = write(tmp_path / "a.jsonl", [good, good | {"prompt": "z"}, raw])
    with pytest.raises(readers.DataError, match=f"a.jsonl, line 3, field '{field}': .*{message}"):
        load(path, **columns)
    task = load(path, skip_bad_records=True, **columns)
    assert task.data_source("train").num_skipped == 1 and "line 3" in task.data_source("train").report["skipped"][0]


def test_a_misspelt_column_is_not_blamed_on_the_record():
    with pytest.raises(checks.Problem, match=r"missing .*'question'.*name the column .* prompt=COLUMN"):
        parse({"question": "x"}, Columns(prompt="qestion"))


def test_a_record_says_where_it_comes_from_although_the_prepared_data_were_made_elsewhere(load, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        train = write(tmp_path / name / "train.jsonl", sums(3))
        task = load(train, test_path=str(write(tmp_path / name / "test.jsonl", sums(4)[3:])))
        places = [task.data_source("train").place_of(i) for i in range(3)]
        assert places == [f"{train}, line {i}" for i in (1, 2, 3)]
        assert task.data_source("test").place_of(0) == f"{tmp_path / name / 'test.jsonl'}, line 1"
        assert "place" not in task.data_source("train")[0]


def test_files_that_cannot_be_read(load, tmp_path):
    path = write(tmp_path / "a.jsonl", [sums(1)[0], "{not json"])
    with pytest.raises(readers.DataError, match=r"a.jsonl, line 2: not valid JSON .*skip_bad_records=True"):
        load(path)
    with pytest.raises(readers.DataError, match=r"a.jsonl, line 2: expected a JSON object, found list"):
        load(write(path, [sums(1)[0], "[1]"]))
    with pytest.raises(readers.DataError, match=r"b.jsonl: it has no record. Give a JSON object per line"):
        load(write(tmp_path / "b.jsonl", []))
    with pytest.raises(readers.DataError, match=r"c.jsonl: it has no record \(1 bad ones skipped, the first: .*line 1"):
        load(write(tmp_path / "c.jsonl", ["x"]), skip_bad_records=True)
    with pytest.raises(readers.DataError, match="nothing.jsonl: cannot be opened"):
        load(tmp_path / "nothing.jsonl")
    with pytest.raises(readers.DataError, match=r"\*.jsonl: no file has such a name"):
        load(tmp_path / "x" / "*.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(readers.DataError, match="the folder has no file of .jsonl"):
        load(tmp_path / "empty")
    write(tmp_path / "outer" / "data" / "a.jsonl", sums(3))
    with pytest.raises(readers.DataError, match="outer: the folder has no file .*, but .*/outer/data has: give that"):
        load(tmp_path / "outer")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(readers.DataError, match="d.parquet, after row 0: not a readable Parquet file"):
        load(tmp_path / "d.parquet")
    table = pyarrow.table({"prompt": ["a", "", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "e.parquet")
    with pytest.raises(readers.DataError, match="e.parquet, row 2, field 'prompt': empty text"):
        load(tmp_path / "e.parquet")
    with pytest.raises(readers.DataError, match="1 records with 1 distinct prompt.*give test_path"):
        load(write(tmp_path / "f.jsonl", sums(1)))
    with pytest.raises(readers.DataError, match="the id '7' is of two prompts, '0.1=' and '1.1='"):
        load(write(tmp_path / "g.jsonl", sums(5, id=7)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no file: give path=PROMPTS.jsonl, a JSON object per line with `prompt`"),
        ({"path": "A", "test_share": 1.0}, "test_share must lie between 0 and 1, got 1.0"),
        ({"path": "a=A,B"}, r"has no name, but others have \(a\): write NAME="),
        ({"path": "a=A@2,a=B@3"}, "source 'a' has two weights, 2.0 and 3:"),
        ({"path": "A@2"}, "only a source with a name has a weight: NAME=.*@2"),
        ({"path": "a=A,b=B", "test_path": "c=A"}, "test_path has the unknown source 'c'; the sources are a, b"),
        ({"path": "a=A,b=B", "test_path": "A"}, "has no name, but the sources have"),
        ({"path": "a=A", "test_path": "a=A@2"}, "weights are for training"),
        ({"path": "a=A", "sources": {"b": {"weight": 2.0}}}, "unknown source 'b'; the sources of the records are a"),
        ({"path": "a=A", "sources": {"a": {"weight": 2.0}}}, "'a' is in path and in sources: name it once"),
        ({"sources": {"a": {"path": "A", "wait": 2.0}}}, "source 'a' takes no wait; it takes path, test_path, weight"),
        ({"sources": {"a": {"path": "b=A"}}}, "names sources again; give files only"),
        ({"sources": {"a": {"path": "A", "weight": -1.0}}}, "its weight must be 0 or more, got -1.0"),
        ({"path": "a=A@0"}, "every source has the weight 0"),
    ],
)
def test_arguments_that_cannot_be(load, tmp_path, fields, message):
    a, b = write(tmp_path / "a.jsonl", sums(5)), write(tmp_path / "b.jsonl", sums(5, 100))

    def filled(value):
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return value.replace("A", str(a)).replace("B", str(b)) if isinstance(value, str) else value

    with pytest.raises(ValueError, match=message):
        load(**filled(fields))


def test_the_grammar_of_paths(tmp_path):
    assert parse_paths("") == {} and parse_paths("a.jsonl, b/*.jsonl") == {"": (["a.jsonl", "b/*.jsonl"], None)}
    assert parse_paths("m-1=a.jsonl@.5,m-1=b,c=d") == {"m-1": (["a.jsonl", "b"], 0.5), "c": (["d"], None)}
    odd = tmp_path / "x=1@2.jsonl"  # a file that is there is a file
    odd.write_text("")
    assert parse_paths(str(odd)) == {"": ([str(odd)], None)}
