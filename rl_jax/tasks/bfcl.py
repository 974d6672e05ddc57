"""The single-turn questions of the Berkeley function-calling leaderboard (BFCL v4), with their functions and calls.

Files bfcl_v4_NAME.json.gz and bfcl_v4_NAME.answers.json.gz, JSON lines as in the leaderboard's repository; without
answers (irrelevance) no call is right.
"""

import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from rl_jax.data import readers
from rl_jax.rewards import tools
from rl_jax.tasks import base
from rl_jax.tokenizers import ByteTokenizer

NAMES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
TEST_IN = 10  # of so many questions, one is held out


def load(
    *,
    path: str,
    names: Sequence[str] = NAMES,
    max_characters: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task of questions and the calls that answer them.

    Args:
      path: the folder of the files.
      names: of the files; a record's source is its file's.
      max_characters: leaves out longer prompts. 0: none.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task, whose reward is tools.exact. A prompt is the functions, as JSON, and the question; the completion a right
      answer in ToolRL's layout, with its thinking left empty, or "No function fits." A tenth is held out.

    Raises:
      ValueError: if a name is unknown.
      readers.DataError: if a file is missing or not of this form.
    """
    names = [names] if isinstance(names, str) else list(names)
    if unknown := sorted(set(names) - set(NAMES)):
        raise ValueError(f"no file {', '.join(unknown)}; the names are {', '.join(NAMES)}")
    folder = pathlib.Path(path).expanduser()
    files = {name: [folder / f"bfcl_v4_{name}.json.gz", folder / f"bfcl_v4_{name}.answers.json.gz"] for name in names}
    present = [file for pair in files.values() for file in pair if "irrelevance.answers" not in file.name]
    for file in present:
        if not file.is_file():
            raise readers.DataError(f"{file} is missing: task.path is the folder of the bfcl_v4 files")

    def make():
        splits: dict[str, list[dict]] = {"train": [], "test": []}
        for name, (questions, answers) in files.items():
            for record in read(questions, answers if answers in present else None, name):
                if 0 < max_characters < len(record["prompt"]):
                    continue
                held_out = hashlib.sha256(record["prompt"].encode()).digest()[0] % TEST_IN == 0
                splits["test" if held_out else "train"].append(record)
        return splits, {}

    arguments = {"names": names, "max_characters": int(max_characters)}
    code = [__file__, tools.__file__]
    stored = base.record_splits("bfcl", make, arguments=arguments, sources=present, code=code, data_dir=data_dir)
    return base.Task("bfcl", ByteTokenizer(), stored, tools.exact)


def read(questions: pathlib.Path, answers: pathlib.Path | None, name: str) -> list[dict]:
    """The records of one file.

    Raises:
      readers.DataError: if a line is not of the leaderboard's form, or a question has no answer.
    """
    answered = _rows(answers, {"id": str, "ground_truth": list}) if answers else []
    truths = {row["id"]: row["ground_truth"] for row in answered}
    records = []
    for row in _rows(questions, {"id": str, "question": list, "function": list}):
        if answers and row["id"] not in truths:
            raise readers.DataError(f"{answers}: there is no answer to {row['id']}")
        calls = truths.get(row["id"], [])
        text = "\n".join(message["content"] for message in row["question"][0] if message["role"] == "user")
        prompt = f"{json.dumps(row['function'])}\n{text}\n"
        info = {"calls": calls, "functions": row["function"], "source": name}
        tools.read_truth(info)
        records.append({"prompt": prompt, "completion": _written(calls), "info": json.dumps(info)})
    return records


def first_right(options: list) -> Any:
    """The first value that is allowed, in which objects hold lists of allowed values of their own."""
    value = options[0] if options else ""
    if isinstance(value, dict):
        return {key: first_right(inner) if isinstance(inner, list) else inner for key, inner in value.items()}
    return [first_right([inner]) for inner in value] if isinstance(value, list) else value


def _written(calls: list[dict]) -> str:
    lines = []
    for call in calls:
        for name, allowed in call.items():
            values = {key: first_right(options) for key, options in allowed.items()}
            given = {key: value for key, value in values.items() if value != ""}
            lines.append(json.dumps({"name": name, "parameters": given}))
    return "<think></think>\n<tool_call>\n" + "\n".join(lines) + "\n</tool_call>" if lines else "No function fits."


def _rows(path: pathlib.Path, fields: dict[str, type]) -> list[dict]:
    return [row for _, row in readers.read_jsonl(path, fields, readers.BadRecords())]
