"""The table of the methods: equation, differences from GRPO or DPO, defaults, tests and ablations.

    python -m experiments.tools.methods                                             # both families
    python -m experiments.tools.methods --family=preference                         # one of them
    python -m experiments.tools.methods --method=gspo                               # one method's page
    python -m experiments.tools.methods --html=PATH --markdown=PATH --json=PATH     # the same, written to files

Everything is read from the files of configs/methods, from the signatures of the functions that they name, from the
tests and from configs/papers. Nothing is written by hand, so nothing can be out of date.
"""

import argparse
import ast
import functools
import importlib
import inspect
import json
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jinja2
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.tools.method_families import (
    FAMILIES,
    ROOT,
    Family,
    all_keys,
    bound_functions,
    family_of,
    keys,
    load,
    module_of,
)
from rl_jax.runs.logging import write_atomically


class Said(NamedTuple):
    """The paragraphs of a method file's docstring."""

    title: str
    source: str
    equation: str
    departs: str
    command: str


class Method(NamedTuple):
    """A row of the table.

    Attributes:
      key: the file's name.
      family: a key of FAMILIES.
      title: the method's name.
      source: where it was published.
      papers: arXiv ids.
      equation: the equation, as text.
      departs: how it differs from the baseline.
      command: that runs it.
      changes: slot -> its content, for slots that differ from the family's baseline.
      defaults: function -> its hyper-parameters, for functions that the baseline does not use in the same way.
      tests: files under tests/ that name one of these functions, and the method's own tests.
      ablations: files of configs/papers.
    """

    key: str
    family: str
    title: str
    source: str
    papers: list[str]
    equation: str
    departs: str
    command: str
    changes: dict[str, str]
    defaults: dict[str, dict[str, Any]]
    tests: list[str]
    ablations: list[str]


def read_docstring(text: str, departs: str = FAMILIES["online"].departs) -> Said:
    """Splits a method's docstring: a title line "NAME: SOURCE.", indented blocks, "Departs from GRPO: ...".

    The last indented block is the command, those before it the equation.

    Args:
      text: the docstring.
      departs: the words that begin the differences.

    Raises:
      ValueError: if a part is missing.
    """
    paragraphs = [part.strip("\n") for part in inspect.cleandoc(text).split("\n\n")]
    blocks = [inspect.cleandoc("\n" + part) for part in paragraphs[1:] if part.startswith("    ")]
    said = [part for part in paragraphs if part.startswith(departs)]
    title, colon, source = " ".join(paragraphs[0].split()).partition(": ")
    if not colon or len(said) != 1 or len(blocks) < 2 or not blocks[-1].startswith("python -m "):
        raise ValueError(f'not "NAME: SOURCE.", an equation, "{departs} ..." and a command: {text!r}')
    differs = " ".join(said[0].removeprefix(departs).split())
    return Said(title, source.removesuffix("."), "\n".join(blocks[:-1]), differs, blocks[-1])


def describe(value: Any) -> str:
    """A setting as text: a function with its keywords as a call, a number without superfluous digits."""
    if isinstance(value, ConfigDict):
        value = value.to_dict()
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={describe(v)}" for name, v in value.items() if name != "fn")
        return f"{value['fn']}({arguments})" if arguments and "fn" in value else value.get("fn", arguments) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings(config: ConfigDict, family: Family, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value of every field that defines a method; a group with a function in it is one value."""
    result = {}
    for name, value in config.items():
        dotted = prefix + name
        if isinstance(value, ConfigDict) and "fn" not in value and dotted != "algorithm.reference":
            result |= settings(value, family, f"{dotted}.")
        elif dotted.startswith(family.groups) and not dotted.startswith(family.of_the_task):
            result[dotted] = value
    return result


def changes(config: ConfigDict, baseline: ConfigDict, family: Family) -> dict[str, str]:
    """Slot -> its content in `config`, for slots in which `baseline` differs.

    For a group that the baseline lacks (GRPO has no critic): the fields that differ from the usual ones, and the
    family's own fields.
    """
    ours, theirs = settings(config, family), settings(baseline, family)
    for group, usual in family.usual.items():
        theirs |= settings(ConfigDict({group: usual()}), family)
    theirs = {name: value for name, value in theirs.items() if name not in family.own}
    return {
        name.removeprefix("algorithm."): describe(value)
        for name, value in ours.items()
        if name not in theirs or describe(theirs[name]) != describe(value)
    }


def unwrapped(fn: Callable) -> Callable:
    """The function without its bound keywords."""
    return fn.func if isinstance(fn, functools.partial) else fn


def defaults(fn: Callable) -> dict[str, Any]:
    """The hyper-parameters of a function and their defaults, from its signature."""
    parameters = inspect.signature(unwrapped(fn)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


@functools.cache
def _loaded(key: str) -> ConfigDict:
    """The config of a method, read once: not to be changed."""
    return load(key)


@functools.cache
def own_functions(key: str) -> tuple[Callable, ...]:
    """The functions of the slots in which a method differs from its baseline; all functions for a baseline."""
    family = family_of(key)
    config, baseline = _loaded(key), _loaded(family.baseline)
    changed = changes(config, baseline, family)
    result = [unwrapped(fn) for slot, fn in bound_functions(config).items() if slot in changed]
    return tuple(dict.fromkeys(result or (unwrapped(fn) for fn in bound_functions(baseline).values())))


class Named(NamedTuple):
    """The names that occur in a test file.

    Attributes:
      modules: local name -> module.
      attributes: (local name, attribute).
      imported: (module, name).
      strings: string constants, which include function names in configs and test parameters.
      names: all but the modules, without where they come from: most files name few functions.
    """

    modules: dict[str, str]
    attributes: set[tuple[str, str]]
    imported: set[tuple[str, str]]
    strings: set[str]
    names: set[str]

    @classmethod
    def of(cls, tree: ast.AST) -> "Named":
        """The names in a syntax tree."""
        result = cls({}, set(), set(), set(), set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                result.imported.update((node.module or "", alias.name) for alias in node.names)
                result.modules.update(
                    (alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names
                )
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                result.attributes.add((node.value.id, node.attr))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                result.strings.add(node.value)
        result.names.update(
            result.strings, *((name for _, name in pairs) for pairs in (result.attributes, result.imported))
        )
        return result

    def has(self, fn: Callable) -> bool:
        """Whether it names `fn`: imported, as an attribute of its module, or as a string next to that module."""
        if fn.__name__ not in self.names:
            return False
        parts = fn.__module__.split(".")
        homes = {".".join(parts[:count]) for count in range(2, len(parts) + 1)}  # re-exported by its packages
        local = {name for name, module in self.modules.items() if module in homes}
        sources = local | {module for module, _ in self.imported if module in homes}
        return (
            any((home, fn.__name__) in self.imported for home in homes)
            or any((name, fn.__name__) in self.attributes for name in local)
            or (fn.__name__ in self.strings and bool(sources))
        )


@functools.cache
def test_files() -> dict[str, Named]:
    """Test file -> the names in it."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {p.relative_to(ROOT).as_posix(): Named.of(ast.parse(p.read_text(encoding="utf-8"))) for p in paths}


def tests_of(key: str, functions: Iterable[Callable]) -> list[str]:
    """The test files that name one of the functions, and the method's own tests."""
    functions, own = list(functions), family_of(key).test
    tests = {family.test for family in FAMILIES.values()}
    named = [file for file, said in test_files().items() if file not in tests and any(said.has(fn) for fn in functions)]
    return [*named, f"{own}[{key}]"]


@functools.cache
def ablated() -> dict[str, list[str]]:
    """Config file -> the ablations of configs/papers that have it as an arm."""
    result: dict[str, list[str]] = {}
    for path in sorted((ROOT / "configs" / "papers").glob("*.py")):
        module = importlib.import_module(f"configs.papers.{path.stem}")
        # An ablation that is a study has no configs as arms.
        arms = module.get_ablation().get("arms", {}) if hasattr(module, "get_ablation") else {}
        for file in sorted({arm.partition(":")[0] for arm in arms.values()}):
            result.setdefault(file, []).append(path.relative_to(ROOT).as_posix())
    return result


def method(key: str) -> Method:
    """The row of one method."""
    family, functions = family_of(key), own_functions(key)
    said = read_docstring(module_of(key).__doc__ or "", family.departs)
    file = (family.folder / f"{key}.py").relative_to(ROOT).as_posix()
    return Method(
        key=key,
        family=family.name,
        papers=re.findall(r"arXiv (\d{4}\.\d{5})", said.source),
        **said._asdict(),
        changes=changes(_loaded(key), _loaded(family.baseline), family),
        defaults={fn.__name__: values for fn in functions if (values := defaults(fn))},
        tests=tests_of(key, functions),
        ablations=ablated().get(file, []),
    )


def fields(row: Method) -> dict[str, str]:
    """The text fields of a method's page below the title; empty fields are left out."""
    family = FAMILIES[row.family]
    parts = {
        "Equation": row.equation,
        family.departs.removesuffix(":"): row.departs,
        f"Against {family.baseline.upper()}": "\n".join(f"{slot} = {value}" for slot, value in row.changes.items()),
        "Defaults": "\n".join(f"{name}({describe(values)})" for name, values in row.defaults.items()),
        "Tests": "\n".join(row.tests),
        "Ablations": "\n".join(row.ablations),
        "Run": row.command,
    }
    return {name: text for name, text in parts.items() if text}


def tables(rows: list[Method]) -> list[tuple[str, str, list[Method]]]:
    """(title, name of the baseline, rows) for each family that occurs."""
    result = []
    for family in FAMILIES.values():
        if chosen := [row for row in rows if row.family == family.name]:
            result.append((f"{len(chosen)} {family.name} methods", family.baseline.upper(), chosen))
    return result


def terminal(title: str, against: str, rows: list[Method]) -> Table:
    """The table of one family for a terminal."""
    table = Table(show_lines=True, expand=True, title=title, title_justify="left")
    for name, ratio in (
        ("method", 3),
        (f"equation, and what is not as in {against}", 6),
        ("defaults", 3),
        ("tests", 3),
    ):
        table.add_column(name, ratio=ratio, overflow="fold")
    for row in rows:
        said = fields(row)
        # Text, not str: rich would read [B, T] as markup.
        name = Text.assemble((row.key, "bold"), f"\n{row.title}\n{row.source}", *(f"\n{a}" for a in row.ablations))
        changed = said.get(f"Against {against}")
        tests = [file.removeprefix("tests/").removesuffix(".py") for file in row.tests]
        equation = Text(row.equation) + (Text("\n" + changed, "dim") if changed else Text())
        table.add_row(name, equation, Text(said.get("Defaults", "")), Text(", ".join(tests)))
    return table


def page(row: Method) -> Text:
    """One method, for a terminal."""
    text = Text.assemble((row.key, "bold"), f"  {row.title}: {row.source}\n")
    for name, body in fields(row).items():
        text.append(f"\n{name}\n", "bold")
        text.append("\n".join(f"    {line}" for line in body.splitlines()) + "\n")
    return text


def markdown(rows: list[Method]) -> str:
    """An overview and one section per method."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", "<br>")

    lines = ["# Methods", "", "Written by `python -m experiments.tools.methods`; do not edit."]
    for title, against, chosen in tables(rows):
        lines += ["", f"## {title}", "", f"| method | name | source | against {against} |", "|---|---|---|---|"]
        for row in chosen:
            said = fields(row).get(f"Against {against}", "")
            lines.append(f"| [{row.key}](#{row.key}) | {cell(row.title)} | {cell(row.source)} | {cell(said)} |")
    for row in rows:
        lines += ["", f"## {row.key}", "", f"{row.title}: {row.source}."]
        for name, body in fields(row).items():
            lines += ["", f"{name}:", "", *(f"    {line}" for line in body.splitlines())]
    return "\n".join(lines) + "\n"


def html(rows: list[Method]) -> str:
    """One page without scripts or requests."""
    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parents[1] / "report" / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("methods.html").render(tables=tables(rows), fields=fields)


def as_json(rows: list[Method]) -> str:
    """A list of objects with the fields of Method; numbers that JSON lacks are written as text."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(v) for name, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        finite = isinstance(value, int | float) and abs(value) != float("inf")
        return value if finite or value is None or isinstance(value, str) else str(value)

    return json.dumps([plain(row._asdict()) for row in rows], indent=2, allow_nan=False) + "\n"


def main() -> None:
    """Parses the arguments, and writes or prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--method", choices=all_keys(), metavar="KEY", help="show only this method")
    parser.add_argument("--family", choices=FAMILIES, help="show only the methods of this family")
    writers = {"html": html, "markdown": markdown, "json": as_json}
    for name in writers:
        parser.add_argument(f"--{name}", type=pathlib.Path, metavar="PATH", help=f"write {name} to this file")
    arguments = parser.parse_args()
    chosen = keys(arguments.family) if arguments.family else all_keys()
    rows = [method(key) for key in ([arguments.method] if arguments.method else chosen)]
    outputs = {name: path for name in writers if (path := getattr(arguments, name))}
    for name, path in outputs.items():
        write_atomically(path, writers[name](rows).encode())
    if not outputs:
        Console().print(*([page(rows[0])] if arguments.method else (terminal(*table) for table in tables(rows))))


if __name__ == "__main__":
    main()
