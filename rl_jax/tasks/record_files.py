"""Your own files of prompts: how they are named, and how a line becomes a record. No jax.

    prompts.jsonl                                        one file
    part-*.jsonl,more.parquet                            several: globs, commas, folders
    math=math/*.jsonl@2,code=code.jsonl                  several sources, each with a name and a weight

A line of a file is a JSON object. Its prompt is a text or a chat, messages {"role", "content", ...}; a chat that ends
with the assistant's message has that one as its completion. What is in no named column goes to `info`.
"""

import glob
import hashlib
import json
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl_jax.data import readers
from rl_jax.data.checks import Problem, check_chat, check_names, check_text, kind_of, refuse_recorded
from rl_jax.tokenizers import plain_text

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")  # the files of a folder that are read
_ITEM = re.compile(r"(?:(?P<name>[A-Za-z_][\w-]*)=)?(?P<path>[^=@]+?)(?:@(?P<weight>\d+\.?\d*|\.\d+))?")

# The beginnings of names of files that hold a split: train-00000-of-00002.parquet, test_sft.jsonl.
_TRAIN = re.compile(r"train(ing)?(?![a-z])", re.IGNORECASE)
_HELD_OUT = re.compile(r"(test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)


class Columns(NamedTuple):
    """The names of the columns of a file. A column with its default name may be missing, apart from the prompt.

    Attributes:
      prompt: a text or a chat. The default stands for "messages", too, where there is no "prompt".
      answer: what a verifier compares with, any JSON value; it is info["answer"].
      completion: a text, or one message of the assistant: the target of supervised fine-tuning.
      source: the name of the record's source, if the file has several.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    completion: str = "completion"
    source: str = "source"


class Source(NamedTuple):
    """Files of one kind.

    Attributes:
      name: "" if the files have no name of their own.
      paths: at least one.
      columns: of the files.
    """

    name: str
    paths: tuple[pathlib.Path, ...]
    columns: Columns


def parse_paths(text: str) -> dict[str, tuple[list[str], float | None]]:
    """The sources of a text such as "math=a.jsonl@2,code=b/*.jsonl".

    Returns:
      name -> (paths, weight or None). The name is "" if none is given.

    Raises:
      ValueError: if some items have a name and others do not, or a weight has no name or is given twice.
    """
    result: dict[str, tuple[list[str], float | None]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = None if pathlib.Path(item).exists() else _ITEM.fullmatch(item)
        name, path, weight = match.group("name", "path", "weight") if match else (None, item, None)
        if weight and not name:
            raise ValueError(f"{item!r}: only a source with a name has a weight: NAME={path}@{weight}")
        paths, known = result.setdefault(name or "", ([], None))
        if weight and known is not None:
            raise ValueError(f"source {name!r} has two weights, {known} and {weight}: give one")
        result[name or ""] = ([*paths, path], float(weight) if weight else known)
    if "" in result and len(result) > 1:
        named = ", ".join(name for name in result if name)
        raise ValueError(f"{result[''][0][0]!r} has no name, but others have ({named}): write NAME={result[''][0][0]}")
    return result


def find_files(paths: Sequence[str]) -> tuple[pathlib.Path, ...]:
    """The files of paths, globs and folders, in the given order; those of a glob or a folder are sorted.

    Raises:
      readers.DataError: if there are none, or if a folder has files of tests beside those of training.
    """
    result = []
    for path in paths:
        place = pathlib.Path(path).expanduser()
        if place.is_dir():
            found = sorted(file for file in place.iterdir() if file.name.endswith(SUFFIXES))
            if not found:
                deeper = {file.parent for file in place.rglob("*") if file.name.endswith(SUFFIXES)}
                there = f", but {min(deeper)} has: give that" if deeper else ""
                raise readers.DataError(f"{path}: the folder has no file of {', '.join(SUFFIXES)}{there}")
            _refuse_splits(path, found)
        elif glob.has_magic(str(place)) and not place.exists():
            found = sorted(map(pathlib.Path, glob.glob(str(place), recursive=True)))
            if not found:
                raise readers.DataError(f"{path}: no file has such a name: give files that exist")
        else:
            found = [place]
        result += found
    return tuple(dict.fromkeys(result))


def read_source(source: Source, bad: readers.BadRecords, *, system: str = "") -> Iterator[dict[str, Any]]:
    """The records of a source, file by file; those that are wrong go to `bad`.

    Args:
      source: the files.
      bad: what to do with bad records.
      system: a system message to put before each prompt; a chat's own one stays.

    Yields:
      What `parse` returns, and its "place", [path, line].

    Raises:
      readers.DataError: if a file has no record, or as `bad` says.
    """
    for path in source.paths:
        count = 0
        for line, raw in readers.read_records(path, bad):
            try:
                record = parse(raw, source.columns, name=source.name, system=system)
            except Problem as problem:
                bad.reject(path, line, problem.text, field=problem.field, cause=problem)
                continue
            count += 1
            yield record | {"place": [path, line]}
        if not count:
            first = f" ({bad.num_skipped} bad ones skipped, the first: {bad.first[0]})" if bad.first else ""
            raise readers.DataError(f"{path}: it has no record{first}. Give {readers.FORMATS}")


def parse(raw: Mapping, columns: Columns, *, name: str = "", system: str = "") -> dict[str, Any]:
    """A record from a JSON object.

    Args:
      raw: the object.
      columns: the names of its fields.
      name: of its source; "": what its column `source` says, if it has one.
      system: a system message to put before the prompt.

    Returns:
      {"prompt": text, "messages": a chat or None, "completion": text or "", "source": text or "", "id": text or "",
      "info": dict, "key": what the prompt is known by, for splitting}. The prompt of a chat is its question: the last
      message if there is no earlier turn, else the dialogue as plain text.

    Raises:
      Problem: if it is not valid; names the field.
    """
    default = Columns()
    where = columns.prompt
    if where not in raw and where == default.prompt and "messages" in raw:
        where = "messages"
    if where not in raw:
        if where == default.prompt:  # else the name in the config may be the misspelt one
            check_names(raw, [where])
        raise Problem(f"missing (the record has {sorted(raw)}): name the column of the prompt, prompt=COLUMN", where)
    prompt, completion = raw[where], _completion(raw, columns)
    messages = None
    if isinstance(prompt, list) and len(prompt) > 1 and not completion and _role(prompt[-1]) == "assistant":
        completion = check_text(prompt[-1].get("content"), f"{where}[{len(prompt) - 1}].content")
        prompt = prompt[:-1]
    if isinstance(prompt, str):
        prompt = check_text(prompt, where)
        if system:
            messages = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, list):
        messages = check_chat(prompt, where)
    else:
        raise Problem(f"expected a text or a list of messages, found {kind_of(prompt)}", where)
    refuse_recorded(raw)
    asked = messages or prompt
    if system and _role(messages[0]) != "system":
        messages = [{"role": "system", "content": system}, *messages]
    of_file = _named(raw, columns)
    info = {key: value for key, value in raw.items() if key not in (where, columns.completion, columns.answer)}
    if columns.answer in raw and raw[columns.answer] is not None:
        info["answer"] = _answer(raw[columns.answer], columns.answer)
    elif columns.answer != default.answer:
        raise Problem(f"missing (the record has {sorted(raw)})", columns.answer)
    source = name or of_file
    info |= {"source": source} if source else {}
    info |= {"messages": messages} if messages else {}
    return {
        "prompt": asked if isinstance(asked, str) else _question(asked),
        "messages": messages,
        "completion": completion,
        "source": source,
        "id": str(raw["id"]) if raw.get("id") is not None else "",
        "info": info,
        "key": " ".join((asked if isinstance(asked, str) else json.dumps(asked)).split()),
    }


def share_of(key: str) -> float:
    """A number in [0, 1) that is a pure function of a record's key, for splitting by prompt."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:6], "big") / 2**48


def held_out(keys: Collection[str], test_share: float) -> set[str]:
    """The keys with the smallest `share_of`, whatever their order: at least one and never all, none of fewer than two.

    Args:
      keys: of the records; equal ones are one.
      test_share: what is held out, in [0, 1], as far as the hashes are even.
    """
    shares = {key: share_of(key) for key in keys}
    if len(shares) < 2:
        return set()
    bounds = sorted(shares.values())
    bound = min(max(test_share, bounds[1]), bounds[-1])
    return {key for key, share in shares.items() if share < bound}


def hold_out(records: list[dict], test_share: float, source: Source) -> tuple[list[dict], list[dict]]:
    """(train, test): the prompts with the smallest hashes are held out, at least one, and never all."""
    keys = {record["key"] for record in records}
    chosen = held_out(keys, test_share)
    if not chosen:
        raise readers.DataError(
            f"{source.paths[0]}: {len(records)} records with {len(keys)} distinct prompt, of which none can be held "
            "out for the evaluation: give test_path"
        )
    return [r for r in records if r["key"] not in chosen], [r for r in records if r["key"] in chosen]


def with_answers(ordered: Mapping[str, list[dict]], bad: readers.BadRecords) -> dict[str, list[dict]]:
    """The records of each split without those that have no answer where others of their source in it have one."""
    kept = {split: [] for split in ordered}
    for split, records in ordered.items():
        answered = {record["source"] for record in records if "answer" in record["info"]}
        for record in records:
            if record["source"] not in answered or "answer" in record["info"]:
                kept[split].append(record)
            else:  # `parse` refuses it under any other name of the column
                bad.reject(*record["place"], "missing or null, and other records have one", field=Columns().answer)
    return kept


def _refuse_splits(folder: str, files: Sequence[pathlib.Path]) -> None:
    """Raises DataError if files of tests lie beside those of training, as in data sets of Hugging Face."""
    train, held_out = ([file.name for file in files if pattern.match(file.name)] for pattern in (_TRAIN, _HELD_OUT))
    if train and held_out:
        suffix = next(suffix for suffix in SUFFIXES if train[0].endswith(suffix))
        raise readers.DataError(
            f"{folder}: the folder has files of several splits, {held_out[0]} beside {train[0]}, and all would be "
            f"trained on: give those of training by a pattern, path={folder}/train*{suffix} (and the others as "
            "test_path, which tasks of prompts have)"
        )


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _question(messages: Sequence[Mapping]) -> str:
    """The text of a chat for rewards and for people."""
    turns = [message for message in messages if message["role"] != "system"]
    if len(turns) == 1:
        return turns[0].get("content") or ""
    return plain_text(turns)


def _completion(raw: Mapping, columns: Columns) -> str:
    value = raw.get(columns.completion)
    if value is None:
        if columns.completion != Columns().completion:
            raise Problem(f"missing (the record has {sorted(raw)})", columns.completion)
        return ""
    if isinstance(value, list) and len(value) == 1 and _role(value[0]) == "assistant":
        return check_text(value[0].get("content"), f"{columns.completion}[0].content")
    return check_text(value, columns.completion)


def _named(raw: Mapping, columns: Columns) -> str:
    """The source that a record names."""
    value = raw.get(columns.source)
    if value is None or (columns.source == Columns().source and not isinstance(value, str)):
        if columns.source != Columns().source:
            raise Problem(f"missing (the record has {sorted(raw)})", columns.source)
        return ""
    return check_text(value, columns.source)


def _answer(value: Any, field: str) -> Any:
    if value == "" or value == []:
        raise Problem("an empty answer", field)
    return value
