"""configs/fields.py describes each field of each shipped config, says nothing about others, and fits on a line."""

import importlib
import pathlib
import re

import pytest
from ml_collections import ConfigDict

from configs import fields
from tests.paths import REPO_ROOT

FILES = sorted(
    path.relative_to(REPO_ROOT)
    for path in (REPO_ROOT / "configs").rglob("*.py")
    if path.name != "__init__.py" and "def get_config" in path.read_text(encoding="utf-8")
)


def configs_of(path: pathlib.Path) -> list[ConfigDict]:
    """The config of a file, and those of the words in back-quotes after "Argument" in its docstring."""
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    words = re.findall(r"`(\w+)`", (module.__doc__ or "").partition("Argument")[2])
    return [module.get_config(word) for word in (None, *words)]


def leaves(config: ConfigDict, prefix: str = "") -> set[str]:
    """The dotted names of the fields: a group with `fn`, or without fields, is one."""
    found = set()
    for name, value in config.items():
        inside = isinstance(value, ConfigDict) and len(value) and "fn" not in value
        found |= leaves(value, f"{prefix}{name}.") if inside else {prefix + name}
    return found


def is_open(name: str) -> bool:
    """Whether a field belongs to what its group's name selects."""
    return any(name == group or name.startswith(f"{group}.") for group in fields.OPEN)


@pytest.fixture(scope="module")
def shipped() -> dict[str, set[str]]:
    """config file -> the fields that it has with one of its words."""
    return {str(path): set().union(*map(leaves, configs_of(path))) for path in FILES}


def test_every_field_is_described(shipped):
    every = set().union(*shipped.values())
    assert {"train.optimizer.learning_rate", "algorithm.surrogate", "segments.label"} <= every
    missing = {name for name in every if name not in fields.FIELDS and not is_open(name)}
    assert missing == set(), "add them to configs/fields.py"
    assert all(fields.describe(name) for name in every)


def test_no_entry_is_left_over(shipped):
    every = set().union(*shipped.values())
    known = every | {group for group in fields.OPEN if any(name.startswith(f"{group}.") for name in every)}
    assert set(fields.FIELDS) - known == set(), "no shipped config has them: remove them from configs/fields.py"
    assert set(fields.OPEN) <= known


def test_a_keyword_of_a_function_has_the_text_of_its_group():
    assert fields.describe("algorithm.surrogate.clip_high") == fields.FIELDS["algorithm.surrogate"]
    assert fields.describe("task.my_own_field") == fields.FIELDS["task"]
    assert fields.describe("no.such.field") is None and fields.summary("no.such.field") == ""


def test_a_description_is_one_line():
    for name, text in fields.FIELDS.items():
        assert text.endswith(".") and "\n" not in text and "  " not in text and len(text) < 220, name
        assert 2 < len(fields.summary(name)) < 110 and not fields.summary(name).endswith("."), name


def test_modules_that_are_named_exist():
    text = " ".join([*fields.FIELDS.values(), *fields.OPEN.values()])
    named = {match.rstrip(".") for match in re.findall(r"rl_jax(?:\.\w+)+", text)}
    assert len(named) > 20
    for name in sorted(named):
        assert _exists(name), name


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        stem = REPO_ROOT.joinpath(*parts[:length])
        if stem.with_suffix(".py").exists() or (stem / "__init__.py").exists():
            rest = parts[length:]
            found = importlib.import_module(".".join(parts[:length])) if rest else None
            for part in rest:
                if not hasattr(found, part) and part not in getattr(found, "_fields", ()):
                    return False
                found = getattr(found, part, None)
            return True
    return False
