"""Shared by the readers of published datasets: the form of prompts and responses, and the loader of their files.

A plain prompt is "\\n\\nHuman: {text}\\n\\nAssistant:" and a response " {text}", as in HH's dialogues. A chat is a list
of messages, which the template of a chat model formats.
"""

import pathlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rl_jax.data import readers
from rl_jax.data.checks import Problem, check_text, kind_of, need
from rl_jax.preferences import sources
from rl_jax.preferences.records import parse

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


def ask(text: str, *, chat: bool):
    """The prompt that consists of one user message."""
    return [{"role": "user", "content": text}] if chat else f"{HUMAN} {text}{ASSISTANT}"


def answer(text: str, *, chat: bool) -> str:
    """The response to it."""
    return text.strip() if chat else " " + text.lstrip()


def pair(prompt, chosen: str, rejected: str, *, chat: bool, fields: Sequence[str], **more) -> dict:
    """The record of a pair of answers. fields: the file's names of the chosen and the rejected one, for errors."""
    for value, field in zip((chosen, rejected), fields, strict=True):
        check_text(value, field)
    raw = {"prompt": prompt, "chosen": answer(chosen, chat=chat), "rejected": answer(rejected, chat=chat), **more}
    try:
        return parse("pairs", raw)
    except Problem as problem:
        raise Problem(problem.text, dict(zip(("chosen", "rejected"), fields, strict=True)).get(problem.field)) from None


def one_of(raw: Mapping, field: str, values: Sequence):
    """Reads a field with a fixed set of values, e.g. numbers, which excludes bools.

    Raises:
      Problem: if raw[field] is missing or not among `values`.
    """
    value = need(raw, field)
    if type(value) not in {type(x) for x in values} or value not in values:
        raise Problem(f"expected one of {list(values)}, found {value!r:.40}", field)
    return value


def list_of(raw: Mapping, field: str, kind: type) -> list:
    """Reads a field that is a list.

    Raises:
      Problem: if raw[field] is missing or not a list of `kind`.
    """
    value = need(raw, field)
    if not isinstance(value, list):
        raise Problem(f"expected a list of {kind.__name__}, found {kind_of(value)}", field)
    for place, item in enumerate(value):
        if not isinstance(item, kind):
            raise Problem(f"expected {kind.__name__}, found {kind_of(item)}", f"{field}[{place}]")
    return value


def subset_paths(folder: str, pattern: str, subsets: Sequence[str], known: Sequence[str]) -> list[pathlib.Path]:
    """The files of `subsets` in a folder.

    Raises:
      ValueError: if a subset is unknown, or there is none.
    """
    unknown = sorted(set(subsets) - set(known))
    if unknown or not len(subsets):
        raise ValueError(f"unknown subsets {unknown}; the subsets are {', '.join(known)}")
    return [pathlib.Path(folder) / pattern.format(name) for name in subsets]


def load_files(
    name: str,
    kind: str,
    paths: Sequence[pathlib.Path],
    make: Callable[[dict, Counter], list[dict]],
    *,
    read: Callable = readers.read_objects,
    arguments: Mapping,
    code: str,
    test_share: float,
    skip_bad_records: bool,
    data_dir: str,
) -> sources.Preferences:
    """The dataset of `paths`.

    Args:
      name: of the dataset.
      kind: one of records.KINDS.
      paths: the files.
      make: (object, counts) -> its records. It adds what it leaves out to `counts`.
      read: readers.read_objects for a file with one object per line, read_json_list for a file that is one array.
      arguments: JSON values that determine the records.
      code: the file that `make` is defined in.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences.
    """

    def records_of(path, bad, counts):
        for record in sources.convert(path, read(path, bad), lambda raw: make(raw, counts), bad):
            record["info"]["file"] = path.name
            yield record

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    files = [__file__, code]
    paths = [pathlib.Path(path) for path in paths]
    # Names are in the records; contents are in the digest of the dataset.
    arguments = {**arguments, "files": [path.name for path in paths]}
    return sources.prepare(name, kind, paths, records_of, arguments=arguments, code=files, **settings)
