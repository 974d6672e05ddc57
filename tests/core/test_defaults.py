"""Defaults of the arguments of objectives, samplers and train steps, held to a table: a change needs a line of diff.

Papers and presets name only what they set. The rest is what a default says, so that another default is another method.

    python -m tests.core.test_defaults      # writes defaults.tsv again, after a change that is meant
"""

import importlib
import inspect
import types
from pathlib import Path

import pytest

from tests.paths import REPO_ROOT

TABLE = Path(__file__).with_name("defaults.tsv")
PLACES = ["losses/**/*.py", "advantages/**/*.py", "token_weights/**/*.py", "credit/*.py", "selection/*.py"]
PLACES += ["core/*.py", "rollout/**/*.py", "training/*.py", "ppo.py", "grpo.py", "sft.py"]
FILES = sorted({path.relative_to(REPO_ROOT) for place in PLACES for path in (REPO_ROOT / "rl_jax").glob(place)})


def written(value) -> str:
    """A default as text that is the same in every process."""
    if hasattr(value, "_asdict"):
        return f"{type(value).__name__}({joined(value._asdict())})"
    return f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def joined(fields) -> str:
    return ", ".join(f"{name}={written(value)}" for name, value in fields.items())


def functions(module: types.ModuleType):
    """(name, function) of what is defined in a module, methods too; (name, {field: default}) of NamedTuples."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(inspect.unwrap(value)):
            yield name, inspect.unwrap(value)
        elif inspect.isclass(value):
            if fields := getattr(value, "_field_defaults", None):
                yield name, fields
            own = ((key, getattr(method, "__func__", method)) for key, method in vars(value).items())
            yield from ((f"{name}.{key}", method) for key, method in own if inspect.isfunction(method))


def module_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def lines_of(file: Path) -> list[str]:
    """A line for each function with defaults: its module, its name, what each argument is if it is not given."""
    name, lines = module_of(file), []
    for function, fn in functions(importlib.import_module(name)):
        if isinstance(fn, dict):  # a NamedTuple's fields
            lines.append(f"{name}\t{function}\t{joined(fn)}")
            continue
        if not fn.__code__.co_filename.endswith(str(file)):
            continue  # a NamedTuple's own methods, a decorator's
        parameters = inspect.signature(fn).parameters.values()
        if given := {p.name: p.default for p in parameters if p.default is not p.empty}:
            lines.append(f"{name}\t{function}\t{joined(given)}")
    return lines


def table() -> dict[str, list[str]]:
    found = {}
    for line in TABLE.read_text().splitlines():
        found.setdefault(line.partition("\t")[0], []).append(line)
    return found


@pytest.mark.parametrize("file", FILES, ids=str)
def test_defaults_are_those_of_the_table(file):
    found, expected = lines_of(file), table().get(module_of(file), [])
    assert found == expected, "another default is another method: if it is meant, python -m tests.core.test_defaults"


def test_the_table_names_no_module_that_is_gone():
    assert set(table()) <= set(map(module_of, FILES))


if __name__ == "__main__":
    TABLE.write_text("".join(f"{line}\n" for file in FILES for line in lines_of(file)))
