"""Readers of data files: plain or gzip text, jsonl, Parquet, labelled lines, stories. Ground layer: no jax, no tfds.

Every problem is a `DataError` that names the file, the line (counted from 1), the field and what to do. A bad record
can be skipped and counted (`BadRecords(skip=True)`). A file that cannot be read to its end is never skipped, because
the number of missing records is unknown.
"""
import codecs
import gzip
import hashlib
import json
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping

_SPACE = re.compile(r"[ \t\r\n]*")  # whitespace of JSON
LINES = "a JSON object per line (*.jsonl, *.jsonl.gz)"
FORMATS = f"{LINES}, a *.json with one array of objects, or a *.parquet"
NOT_READ = (".csv", ".tsv", ".xls", ".xlsx", ".ods", ".arrow", ".feather", ".zip", ".tar", ".bz2", ".xz", ".zst")
NUM_REPORTED = 5  # number of skipped records that the report quotes


class DataError(ValueError):
    """A data file or a record in it is wrong; the message names file, line, field and what to do."""


class BadRecords:
    """Policy for bad records: raise (the default), or count them and keep the first few messages.

    Args:
      skip: whether to count them. None raises, and says nothing of skipping: for readers without the option.
    """

    def __init__(self, *, skip: bool | None = None):
        self.skip = skip
        self.num_skipped = 0
        self.first: list[str] = []

    def reject(self, path, line: int | str, problem: str, *, field: str | None = None, cause=None) -> None:
        """Raises DataError for the record at `line` of `path` ("row 3" if it has no lines), or counts it."""
        place = f"{path}, {line if isinstance(line, str) else f'line {line}'}" + (f", field {field!r}" if field else "")
        if not self.skip:
            option = "" if self.skip is None else ", or pass skip_bad_records=True to leave it out"
            raise DataError(f"{place}: {problem}. Correct the record{option}") from cause
        self.num_skipped += 1
        if len(self.first) < NUM_REPORTED:
            self.first.append(f"{place}: {problem}")


def refuse_pipe(path) -> None:
    """Raises DataError if `path` is a pipe, a socket or a device: opening it could wait for good."""
    place = pathlib.Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
        raise DataError(f"{path}: is a pipe or a device, not a file: write its content to a file, which is read twice")


def unique_keys(pairs: list[tuple[str, object]]) -> dict:
    """The object of these pairs (json's object_pairs_hook). Raises ValueError if a key is repeated."""
    result = dict(pairs)
    if len(result) < len(pairs):
        seen = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twice!r} is there twice")
    return result


def _open(path: pathlib.Path):
    refuse_pipe(path)
    try:
        with open(path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if is_gzip else open(path, "rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}): give the path of an existing "
                        "readable file") from error


def content_hash(paths) -> str:
    """sha256 (hex) over the contents of the files, in the given order; names and locations do not matter."""
    digest = hashlib.sha256()
    for path in paths:
        refuse_pipe(path)
        try:
            digest.update(hashlib.sha256(pathlib.Path(path).read_bytes()).digest())
        except OSError as error:
            raise DataError(f"{path}: cannot be opened ({error.strerror}): give the path of an existing "
                            "readable file") from error
    return digest.hexdigest()


def text_hash(text: str) -> str:
    """sha256 (hex) of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def read_byte_lines(path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, line without its newline); a UTF-8 byte-order mark before the first is left out.

    Raises:
      DataError: if a gzip stream is damaged.
    """
    path, line = pathlib.Path(path), 0
    with _open(path) as file:
        try:
            for line, text in enumerate(file, start=1):
                yield line, (text.removeprefix(codecs.BOM_UTF8) if line == 1 else text).rstrip(b"\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}, after line {line}: the gzip stream is cut or damaged ({error}): "
                            "fetch the file again (this is not skipped: what is missing is unknown)") from error


def read_lines(path, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for every line that is UTF-8; others go to `bad`."""
    for line, raw in read_byte_lines(path):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            bad.reject(path, line, f"byte {error.start} is not UTF-8", cause=error)
            continue
        yield line, text


def read_filled_lines(path, bad: BadRecords) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) for every line that is not blank, as pyarrow and `datasets` read JSON lines."""
    yield from ((line, text) for line, text in read_lines(path, bad) if text.strip())


def _refuse_table(path: pathlib.Path, formats: str) -> None:
    if path.name.lower().removesuffix(".gz").endswith(NOT_READ):
        raise DataError(f"{path}: a {path.suffix} file is not read here. Give {formats}; of a table, "
                        "pandas.read_csv(FILE).to_json(NEW, orient='records', lines=True) makes JSON lines")


def read_objects(path, bad: BadRecords) -> Iterator[tuple[int, dict]]:
    """Yields (line number, object) for every line that is a JSON object; others go to `bad`, blank ones nowhere.

    Raises:
      DataError: if the file's name is that of a table or an archive.
    """
    _refuse_table(pathlib.Path(path), LINES)
    for line, text in read_filled_lines(path, bad):
        try:
            record = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
            bad.reject(path, line, f"not valid JSON ({error})", cause=error)
            continue
        if not isinstance(record, dict):
            bad.reject(path, line, f"expected a JSON object, found {type(record).__name__}")
            continue
        yield line, record


def read_json_list(path, bad: BadRecords) -> Iterator[tuple[int, dict]]:
    """Yields (line where it starts, object) for every object of a file that is one JSON array.

    An entry that is not an object goes to `bad`.

    Raises:
      DataError: if the file is not JSON, skipping or not: the start of the next entry is then unknown.
    """
    path, decoder = pathlib.Path(path), json.JSONDecoder(object_pairs_hook=unique_keys)
    try:
        text = b"\n".join(raw for _, raw in read_byte_lines(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 ({error.reason}): fetch the file again") from error

    def behind_space(place):
        return _SPACE.match(text, place).end()

    place, line, counted = behind_space(0), 1, 0

    def fail(problem):
        at = text.count("\n", 0, place) + 1
        return DataError(f"{path}, line {at}: {problem}; the file must be one JSON array of objects")

    if text[place : place + 1] != "[":
        raise fail("expected [")
    place = behind_space(place + 1)
    while text[place : place + 1] != "]":
        line, counted = line + text.count("\n", counted, place), place
        try:
            record, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            place = getattr(error, "pos", place)
            raise fail(f"not valid JSON ({getattr(error, 'msg', error)})") from error
        if isinstance(record, dict):
            yield line, record
        else:
            bad.reject(path, line, f"expected a JSON object, found {type(record).__name__}")
        place = behind_space(end)
        if text[place : place + 1] == ",":
            place = behind_space(place + 1)
            if text[place : place + 1] == "]":
                raise fail("a comma before ]")
        elif text[place : place + 1] != "]":
            raise fail("expected , or ]")
    place = behind_space(place + 1)
    if place < len(text):
        raise fail("text after the array")


def _as_text(value) -> str:
    """A value that JSON has not, as a text: bytes as UTF-8 (else a UnicodeDecodeError), times as they print."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def read_parquet(path, bad: BadRecords) -> Iterator[tuple[str, dict]]:
    """Yields ("row 1", record), ... of a Parquet file: values as JSON has them, times and bytes as texts.

    A record with bytes that are not UTF-8 goes to `bad`.

    Raises:
      DataError: if the file is not Parquet, or damaged.
    """
    import pyarrow  # slow to import
    import pyarrow.parquet

    path, row = pathlib.Path(path), 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                row, values, name = row + 1, {}, None
                try:
                    for name, value in record.items():
                        values[name] = json.loads(json.dumps(value, default=_as_text))
                except UnicodeDecodeError as error:
                    problem = f"byte {error.start} is not UTF-8, which a column of bytes must be: decode or remove it"
                    bad.reject(path, f"row {row}", problem, field=name, cause=error)
                    continue
                yield f"row {row}", values
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}, after row {row}: not a readable Parquet file ({error}): write or fetch it "
                        "again") from error


def read_records(path, bad: BadRecords) -> Iterator[tuple[int | str, dict]]:
    """Yields (line or row, object) of a file: *.parquet, *.json with one array, or else a JSON object per line.

    Raises:
      DataError: if the file's name is that of a table or an archive; names the formats that are read.
    """
    path = pathlib.Path(path)
    _refuse_table(path, FORMATS)
    if path.suffix == ".parquet":
        yield from read_parquet(path, bad)
    elif path.suffix == ".json" and next((text[:1] for _, text in read_byte_lines(path) if text.strip()), b"") == b"[":
        yield from read_json_list(path, bad)
    else:
        yield from read_objects(path, bad)


def read_jsonl(path, fields: Mapping[str, type], bad: BadRecords) -> Iterator[tuple[int, dict]]:
    """Yields (line number, object) for every line that is a JSON object with `fields` of these types."""
    for line, record in read_objects(path, bad):
        for name, kind in fields.items():
            if name not in record:
                bad.reject(path, line, f"missing (the record has {sorted(record)})", field=name)
                break
            # bool is an int in Python, but not valid in an integer field
            wrong_bool = isinstance(record[name], bool) and kind is not bool
            if wrong_bool or not isinstance(record[name], kind):
                bad.reject(path, line, f"expected {kind.__name__}, found {type(record[name]).__name__}",
                           field=name)
                break
            if kind is str and not record[name].strip():
                bad.reject(path, line, "empty text", field=name)
                break
        else:
            yield line, record


def read_labelled(path, bad: BadRecords, *, labels=("0", "1")) -> Iterator[tuple[int, int, str]]:
    """Yields (line number, label index, text) from lines of the form "<label> <text>"."""
    for line, text in read_lines(path, bad):
        label, _, sentence = text.partition(" ")
        if label not in labels:
            bad.reject(path, line, f"expected one of {list(labels)} before the first space, found {label!r:.40}",
                       field="label")
        elif not sentence.strip():
            bad.reject(path, line, "empty text", field="text")
        else:
            yield line, labels.index(label), sentence.strip()


def read_stories(path, bad: BadRecords, *, separator: str = "<|endoftext|>") -> Iterator[tuple[int, str]]:
    """Yields (line where it starts, text) of every story that ends with the separator.

    Text after the last separator is a story cut off by the end of the file, and is left out.
    """
    mark, pieces, start = separator.encode(), [], 1
    for line, raw in read_byte_lines(path):
        while mark in raw:
            head, _, raw = raw.partition(mark)
            pieces.append(head)
            try:
                story = b"\n".join(pieces).decode("utf-8").strip()
                if story:
                    yield start, story
                else:
                    bad.reject(path, start, f"empty text before {separator}", field="story")
            except UnicodeDecodeError as error:
                bad.reject(path, start, f"the story that starts here is not UTF-8 ({error.reason})",
                           field="story", cause=error)
            pieces, start = [], line
        if pieces or raw:
            pieces.append(raw)
        else:
            start = line + 1
