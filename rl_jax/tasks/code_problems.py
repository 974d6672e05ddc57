"""Functions to write, with hidden tests: HumanEval and MBPP (sanitized, in the layout of CodeT).

HumanEval.jsonl.gz and mbpp_sanitized_codet.jsonl.gz, JSON lines {"task_id", "prompt", "entry_point",
"canonical_solution", "test"}. Their tests are programs; here they are read, not run: each assertion becomes one call,
its arguments and what it returns, which rl_jax.rewards.code compares outside the sandbox. A problem with a statement
of another form (a loop, a helper), or whose solution does not parse, is left out and counted.
"""

import ast
import hashlib
import json
import pathlib
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

from rl_jax.data import readers
from rl_jax.rewards import code
from rl_jax.tasks import base
from rl_jax.tokenizers import ByteTokenizer

FILES = {"humaneval": "HumanEval.jsonl.gz", "mbpp": "mbpp_sanitized_codet.jsonl.gz"}
FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
TEST_IN = 10  # of so many problems, one is held out
_ARITHMETIC = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
_MADE = {"set": set, "tuple": tuple, "list": list, "sorted": sorted, "frozenset": frozenset}


class _Unread(Exception):
    """A statement that is no call with literal arguments and a literal value."""


def load(
    *,
    path: str,
    names: Sequence[str] = ("humaneval", "mbpp"),
    max_characters: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task of functions to write.

    Args:
      path: the folder of the files.
      names: of FILES; a record's source is its file's.
      max_characters: leaves out longer prompts and solutions. 0: none.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task, whose reward is code.score. A prompt is the beginning of the program with its docstring, the completion the
      file's own solution. A tenth is held out. Its report counts what was left out.

    Raises:
      ValueError: if a name is unknown.
      readers.DataError: if a file is missing or not of this form.
    """
    names = [names] if isinstance(names, str) else list(names)
    if unknown := sorted(set(names) - set(FILES)):
        raise ValueError(f"no file {', '.join(unknown)}; the names are {', '.join(FILES)}")
    files = {name: pathlib.Path(path).expanduser() / FILES[name] for name in names}
    for file in files.values():
        if not file.is_file():
            raise readers.DataError(f"{file} is missing: task.path is the folder of {', '.join(FILES.values())}")

    def make():
        splits: dict[str, list[dict]] = {"train": [], "test": []}
        report = {"num_unread": 0, "num_long": 0}
        for name, file in files.items():
            records, unread = read(file, name)
            report["num_unread"] += len(unread)
            for record in records:
                if 0 < max_characters < max(len(record["prompt"]), len(record["completion"])):
                    report["num_long"] += 1
                    continue
                held_out = hashlib.sha256(record["prompt"].encode()).digest()[0] % TEST_IN == 0
                splits["test" if held_out else "train"].append(record)
        return splits, report

    arguments = {"names": names, "max_characters": int(max_characters)}
    stored = base.record_splits(
        "code_problems", make, arguments=arguments, sources=list(files.values()), code=[__file__], data_dir=data_dir
    )
    return base.Task("code_problems", ByteTokenizer(), stored, code.score)


def read(path: pathlib.Path, name: str) -> tuple[list[dict], dict[str, str]]:
    """(the records of one file, task_id -> why it was left out).

    Raises:
      readers.DataError: if a line is not of this form.
    """
    records, unread = [], {}
    for _, row in readers.read_jsonl(path, dict.fromkeys(FIELDS, str), readers.BadRecords()):
        try:
            completion = _completion(row["prompt"], row["canonical_solution"])
            tests = read_tests(row["test"], row["entry_point"])
        except (_Unread, SyntaxError) as error:
            unread[row["task_id"]] = str(error)
            continue
        info = {"tests": tests, "before": row["prompt"], "source": name, "task_id": row["task_id"]}
        records.append({"prompt": row["prompt"], "completion": completion, "info": json.dumps(info)})
    return records, unread


def _completion(prompt: str, solution: str) -> str:
    """The solution, indented as the docstring of the prompt if it does not follow it as it is."""
    for text in (solution, textwrap.indent(textwrap.dedent(solution), "    ")):
        try:
            _parsed(f"{prompt}\n{text}")
            return text
        except SyntaxError as error:
            last = error
    raise last


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes
        return ast.parse(text)


def read_tests(source: str, entry: str) -> list[dict]:
    """The tests of rl_jax.rewards.code in the assertions of `def check(candidate): ...`.

    Raises:
      _Unread: if a statement is no assertion about one call with literal arguments.
    """
    checks = [node for node in _parsed(source).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    tests = []
    for statement in checks[-1].body if checks else ():
        if isinstance(statement, ast.Expr | ast.Import | ast.ImportFrom | ast.Pass):
            continue
        if not isinstance(statement, ast.Assert):
            raise _Unread(ast.unparse(statement)[:80])
        if isinstance(statement.test, ast.Constant) and statement.test.value:
            continue  # assert True, "a remark"
        tests.append({"call": entry} | _test(statement.test, {entry, "candidate"}))
    if not tests:
        raise _Unread("no assertion")
    return tests


def _test(node: ast.expr, names: set[str]) -> dict:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _call(node.operand, names) | {"expected": False, "apply": "bool"}
    if isinstance(node, ast.Call) and _is(node, "isclose"):
        options = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
        expected = _value(node.args[1])
        tolerance = max(abs(expected) * options.get("rel_tol", 1e-9), options.get("abs_tol", 0.0))
        return _call(node.args[0], names) | {"expected": expected, "tolerance": tolerance}
    if isinstance(node, ast.Call):
        return _call(node, names) | {"expected": True, "apply": "bool"}
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise _Unread(ast.unparse(node)[:80])
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.Lt) and isinstance(left, ast.Call) and _is(left, "abs"):
        inner = left.args[0]
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            expected = code_value(_value(inner.right))
            return _call(inner.left, names) | {"expected": expected, "tolerance": _value(right)}
    if not isinstance(node.ops[0], ast.Eq | ast.Is):
        raise _Unread(ast.unparse(node)[:80])
    expected = code_value(_value(right))
    applied = left.func.id if isinstance(left, ast.Call) and isinstance(left.func, ast.Name) else ""
    if applied in code.APPLIED and applied not in names and len(left.args) == 1:
        return _call(left.args[0], names) | {"expected": expected, "apply": applied}
    return _call(left, names) | {"expected": expected}


def _is(node: ast.Call, name: str) -> bool:
    return (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == name


def _call(node: ast.expr, names: set[str]) -> dict:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    if not named or node.keywords:
        raise _Unread(ast.unparse(node)[:80])
    return {"args": [code_value(_value(argument)) for argument in node.args]}


def _value(node: ast.expr) -> Any:
    """The value of a literal, or of simple arithmetic and constructors of literals."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _MADE and len(node.args) <= 1:
        return _MADE[node.func.id](*map(_value, node.args))
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    raise _Unread(ast.unparse(node)[:80])


def code_value(value: Any) -> Any:
    """A Python value as JSON; what JSON has no word for as rl_jax.rewards.code.value_of reads it."""
    if isinstance(value, list):
        return [code_value(item) for item in value]
    if isinstance(value, tuple | set | frozenset):
        items = sorted(value, key=repr) if not isinstance(value, tuple) else value
        return {f"__{type(value).__name__}__": [code_value(item) for item in items]}
    if isinstance(value, dict):
        return {"__dict__": [[code_value(key), code_value(item)] for key, item in value.items()]}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"__bytes__": value.hex()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"__float__": str(value)}
    return value
