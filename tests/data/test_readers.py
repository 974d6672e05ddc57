"""Bad records: each is named by file, line and field, or counted; a file that breaks off always raises."""
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.data import readers

GOOD = json.dumps({"question": "1 2 3 4", "answer": []})
FIELDS = {"question": str, "answer": list}


def write(tmp_path, lines, name="data.jsonl.gz"):
    path = tmp_path / name
    raw = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n"
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def read(path, skip=False):
    bad = readers.BadRecords(skip=skip)
    return list(readers.read_jsonl(path, FIELDS, bad)), bad


@pytest.mark.parametrize("line, field, problem", [
    ('{"question": ', None, "not valid JSON"), ("[" * 100_000, None, "not valid JSON"),
    ("[1, 2]", None, "expected a JSON object"),
    ('{"question": "1"}', "answer", "missing"),
    ('{"question": "1", "answer": "x"}', "answer", "expected list, found str"),
    ('{"question": 5, "answer": []}', "question", "expected str, found int"),
    ('{"question": " ", "answer": []}', "question", "empty text"),
    (b'{"question": "\xff", "answer": []}', None, "not UTF-8")])
@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.jsonl"])
def test_bad_json_record(tmp_path, line, field, problem, name):
    path = write(tmp_path, [GOOD, line, GOOD], name)
    with pytest.raises(readers.DataError, match=problem) as caught:
        read(path)
    assert f"{path}, line 2" in str(caught.value) and "skip_bad_records=True" in str(caught.value)
    assert field is None or f"field {field!r}" in str(caught.value)
    records, bad = read(path, skip=True)
    assert [number for number, _ in records] == [1, 3] and bad.num_skipped == 1 and "line 2" in bad.first[0]


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.jsonl"])
def test_blank_lines_and_a_byte_order_mark_are_no_records(tmp_path, name):
    path = write(tmp_path, ["\ufeff" + GOOD, "", GOOD, " \t", "\r", ""], name)
    records, bad = read(path, skip=True)
    assert [number for number, _ in records] == [1, 3] and bad.num_skipped == 0
    assert [record for _, record in read(path)[0]] == [json.loads(GOOD)] * 2
    whole = write(tmp_path, ["\ufeff[", GOOD, "]"], "data.json")
    assert list(readers.read_records(whole, readers.BadRecords())) == [(2, json.loads(GOOD))]


def test_bytes_of_parquet_are_utf8_texts_or_bad_records(tmp_path):
    """Polars and databases write texts as binary; what is no text is an image, say."""
    columns = {"prompt": ["hé".encode(), b"b", b"c"], "more": [[b"x"], [b"\x89PNG\xff"], []], "n": [1, 2, 3]}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(readers.DataError, match="a.parquet, row 2, field 'more': byte 0 is not UTF-8, .* skip_bad"):
        list(readers.read_records(path, readers.BadRecords(skip=False)))
    bad = readers.BadRecords(skip=True)
    assert list(readers.read_records(path, bad)) == [
        ("row 1", {"prompt": "hé", "more": ["x"], "n": 1}),
        ("row 3", {"prompt": "c", "more": [], "n": 3}),
    ]
    assert bad.num_skipped == 1


@pytest.mark.parametrize("name", ["pairs.csv", "Pairs.TSV", "pairs.csv.gz"])
def test_a_table_is_refused_with_the_formats_that_are_read(tmp_path, name):
    path = write(tmp_path, ["prompt,chosen,rejected", "a,b,c"], name)
    with pytest.raises(readers.DataError, match=r"airs\.\w+.*not read here.*\*\.jsonl.*\*\.json .*\*\.parquet"):
        list(readers.read_records(path, readers.BadRecords(skip=True)))


def array(path, skip=False):
    bad = readers.BadRecords(skip=skip)
    return list(readers.read_json_list(path, bad)), bad


@pytest.mark.parametrize("name", ["data.json.gz", "data.json"])
def test_an_array_of_objects_is_read_with_their_lines(tmp_path, name):
    lines = [" [", '{"a": 1}, {"a": "[]",', '  "b": {"c": 2}}', ",", "", '5, {"é": null}', "]", ""]
    path = write(tmp_path, lines, name)
    with pytest.raises(readers.DataError, match="line 6: expected a JSON object, found int"):
        array(path)
    records, bad = array(path, skip=True)
    expected = [(2, {"a": 1}), (2, {"a": "[]", "b": {"c": 2}}), (6, {"é": None})]
    assert records == expected and bad.num_skipped == 1
    assert [record for _, record in records] == [x for x in json.loads("\n".join(lines)) if x != 5]
    assert array(write(tmp_path, ["[ ]"]))[0] == []


@pytest.mark.parametrize("text, place, problem", [
    ("", 1, "expected \\["), ('{"a": 1}', 1, "expected \\["), ('[{"a": 1}\n{"b": 2}]', 2, "expected , or \\]"),
    ('[{"a": 1},\n\n]', 3, "a comma before \\]"), ('[{"a": 1}]\n[]', 2, "text after the array"),
    ('[\n{"a": }]', 2, "not valid JSON"), ('[{"a": 1}', 1, "expected , or \\]"),
    ("[" * 100_000, 1, "not valid JSON"), (b'[\n"\xff"]', 2, "not UTF-8")])
def test_what_is_no_array_is_never_skipped(tmp_path, text, place, problem):
    path = write(tmp_path, [text])
    with pytest.raises(readers.DataError, match=f"line {place}: {problem}"):
        array(path, skip=True)


def test_a_bool_is_not_an_int(tmp_path):
    path = write(tmp_path, ['{"n": true}'])
    with pytest.raises(readers.DataError, match="expected int, found bool"):
        list(readers.read_jsonl(path, {"n": int}, readers.BadRecords()))


@pytest.mark.parametrize(("skip", "advised"), [(None, False), (False, True)])
def test_a_reader_without_the_option_does_not_advise_it(tmp_path, skip, advised):
    path = write(tmp_path, ["{"])
    with pytest.raises(readers.DataError, match="Correct the record") as caught:
        list(readers.read_objects(path, readers.BadRecords(skip=skip)))
    assert ("skip_bad_records=True" in str(caught.value)) is advised


@pytest.mark.parametrize("skip", [False, True])
def test_a_cut_gzip_always_raises(tmp_path, skip):
    path = write(tmp_path, [json.dumps({"question": f"{i * i}", "answer": []}) for i in range(5000)])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(readers.DataError, match=r"after line \d+: the gzip stream is cut"):
        read(path, skip)


def test_a_damaged_gzip_and_a_missing_file(tmp_path):
    path = write(tmp_path, [GOOD] * 100)
    raw = bytearray(path.read_bytes())
    raw[20:30] = b"\xff" * 10
    path.write_bytes(bytes(raw))
    with pytest.raises(readers.DataError, match="gzip"):
        read(path, skip=True)
    for function in (lambda p: read(p), lambda p: readers.content_hash([p])):
        with pytest.raises(readers.DataError, match="no_such_file.*cannot be opened"):
            function(tmp_path / "no_such_file")


def test_many_bad_records_are_counted_and_few_reported(tmp_path):
    path = write(tmp_path, [GOOD] + ["{"] * 20)
    records, bad = read(path, skip=True)
    assert len(records) == 1 and bad.num_skipped == 20 and len(bad.first) == readers.NUM_REPORTED


@pytest.mark.parametrize("line, field", [("2 fine", "label"), ("good", "label"), ("", "label"), ("1 ", "text"),
                                         ("1", "text")])
def test_labelled_lines(tmp_path, line, field):
    path = write(tmp_path, ["1 a good one", line, "0 a bad one"])
    with pytest.raises(readers.DataError, match=f"line 2, field '{field}'"):
        list(readers.read_labelled(path, readers.BadRecords()))
    bad = readers.BadRecords(skip=True)
    assert list(readers.read_labelled(path, bad)) == [(1, 1, "a good one"), (3, 0, "a bad one")]
    assert bad.num_skipped == 1


def test_stories_and_the_cut_last_one(tmp_path):
    mark = "<|endoftext|>"
    path = write(tmp_path, ["One.", "Two.", mark, "Three." + mark + "Four.", mark, "Cut off in the mid"])
    assert list(readers.read_stories(path, readers.BadRecords())) == [(1, "One.\nTwo."), (4, "Three."), (4, "Four.")]


def test_bad_stories(tmp_path):
    mark = "<|endoftext|>"
    for wrong, problem in ((b"\xff\xfe", "not UTF-8"), (b"  ", "empty text")):
        path = write(tmp_path, ["One.", mark, wrong, mark, "Three.", mark])
        with pytest.raises(readers.DataError, match=f"line 3, field 'story': .*{problem}"):
            list(readers.read_stories(path, readers.BadRecords()))
        bad = readers.BadRecords(skip=True)
        assert [text for _, text in readers.read_stories(path, bad)] == ["One.", "Three."] and bad.num_skipped == 1


def test_content_hash_sees_contents_not_names(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("x")
    assert readers.content_hash([first]) == readers.content_hash([second])
    second.write_text("y")
    assert readers.content_hash([first]) != readers.content_hash([second])
    assert readers.content_hash([first, second]) != readers.content_hash([second, first])
