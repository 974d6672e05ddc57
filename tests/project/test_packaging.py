"""What pip is told agrees with what the code imports and with what the tests ran on."""

import ast
import importlib.metadata
import itertools
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.envs import libraries  # noqa: F401  whose folder of libraries is on sys.path from here on
from tests.paths import REPO_ROOT
from tests.project.test_layering import FILES, MAX_LINES, imports_of, module_name

PROJECT = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())


def requirements(name: str) -> list[tuple[Requirement, str]]:
    """(requirement, its reason) of each line of a requirements file that is neither a comment nor another file (-r)."""
    lines = [line for line in (REPO_ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r "))]
    return [(Requirement(text.strip()), reason.strip()) for text, _, reason in (line.partition("#") for line in lines)]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-docs.txt", "requirements-dev.txt"])
def test_each_requirement_has_a_range_a_reason_and_holds_what_is_installed(name):
    for requirement, reason in requirements(name):
        assert {spec.operator for spec in requirement.specifier} in ({">=", "<"}, {"=="}), requirement
        assert reason, f"{requirement} does not say what it is for"
        installed = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(installed), f"{requirement} excludes the tested {installed}"


def test_every_package_that_is_imported_is_required():
    required = {requirement.name.lower().replace("_", "-") for requirement, _ in requirements("requirements.txt")}
    known = importlib.metadata.packages_distributions()
    known = {package: {name.lower().replace("_", "-") for name in names} for package, names in known.items()}
    extras = itertools.chain(*PROJECT["project"]["optional-dependencies"].values())  # imported where they are used
    optional = {Requirement(text).name.lower().replace("_", "-") for text in extras}
    provided = required | optional | {"markupsafe"}  # which comes with jinja2, whose public interface it is part of
    missing = {
        f"{module_name(path)} imports {package}"
        for path in FILES
        if path.parent.name != "peers"  # each is run by a Python that has its library
        for package in {name.split(".")[0] for name in imports_of(ast.parse(path.read_text()))}
        if package not in sys.stdlib_module_names and package not in MAX_LINES and not known[package] & provided
    }
    assert missing == set()


def test_the_package_installs_itself_only_and_reads_the_requirements():
    setuptools = PROJECT["tool"]["setuptools"]
    assert setuptools["packages"]["find"]["include"] == ["rl_jax*"]
    assert setuptools["dynamic"]["dependencies"] == {"file": ["requirements.txt"]}
    assert {"tpu", "cuda", "control"} <= set(PROJECT["project"]["optional-dependencies"])


def test_the_licence_is_the_one_that_is_declared():
    licence = (REPO_ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert re.match(r"\s+Apache License\s+Version 2\.0", licence) and "END OF TERMS AND CONDITIONS" in licence
