"""What pip is told agrees with what the code imports and with what the tests ran on."""

import ast
import email
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement

import rl_jax
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


@pytest.mark.slow
def test_every_package_that_is_imported_is_required():
    required = {requirement.name.lower().replace("_", "-") for requirement, _ in requirements("requirements.txt")}
    known = importlib.metadata.packages_distributions()
    known = {package: {name.lower().replace("_", "-") for name in names} for package, names in known.items()}
    extras = itertools.chain(*PROJECT["project"]["optional-dependencies"].values())  # imported where they are used
    optional = {Requirement(text).name.lower().replace("_", "-") for text in extras}
    provided = required | optional | {"markupsafe"}  # which comes with jinja2, whose public interface it is part of

    def distributions(package: str) -> set[str]:
        absent = {"openenv": "openenv-core"}.get(package, package)  # an extra that is not installed here
        return known.get(package, {absent.lower().replace("_", "-")})

    missing = {
        f"{module_name(path)} imports {package}"
        for path in FILES
        if path.parent.name != "peers"  # each is run by a Python that has its library
        for package in {name.split(".")[0] for name in imports_of(ast.parse(path.read_text()))}
        if package not in sys.stdlib_module_names and package not in MAX_LINES and not distributions(package) & provided
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


# The wheel: the library, typed, which needs nothing of the checkout.

LIBRARY_FILES = sorted(path.relative_to(REPO_ROOT) for path in (REPO_ROOT / "rl_jax").rglob("*.py"))
# What a user's machine need not have: the tests' own packages, and the checkout beside the wheel.
ABSENT = ("pytest", "_pytest", "torch", "brax", "rlax", "distrax", "transformers", "gymnax", "gymnasium", "matplotlib")
ABSENT += ("ml_collections", "experiments", "configs", "tests")
HELD = """
import inspect, jax, pathlib, sys, rl_jax
assert isinstance(loss, rl_jax.Mean) and loss.value() != 0, loss
own = [fn for fn in list(globals().values()) if inspect.isfunction(fn) and fn.__module__ == "__main__"]
for fn in own:
    # A number times PPO's loss is a loss, too: on-policy its gradient need not be -A.
    testing.check_surrogate(fn, on_policy=False)
    testing.learns(fn)
testing.check_kl(rl_jax.losses.kl.k3)
testing.check_aggregate(rl_jax.losses.aggregate.token_mean)
testing.check_advantage(rl_jax.advantages.leave_one_out)
testing.learns_preferences(rl_jax.dpo.Objective())
assert jax.device_count() == 1
assert pathlib.Path(rl_jax.__file__).is_relative_to(sys.path[0]), rl_jax.__file__
print("held", *(fn.__name__ for fn in own))
"""
# Refuses the imports of ABSENT, and the checkout wherever a path names it.
CLEAN = f"""
import sys
exec({(REPO_ROOT / "tests" / "started" / "sitecustomize.py").read_text()!r}, {{"__name__": "quicker"}})

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel, built from a copy of what `pip wheel .` reads, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt"):
        shutil.copy(REPO_ROOT / name, folder)
    shutil.copytree(REPO_ROOT / "rl_jax", folder / "rl_jax", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    done = subprocess.run([*command, "-w", "dist", "."], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "dist").glob("rl_jax-*.whl")
    with zipfile.ZipFile(path) as file:
        yield file


def test_the_wheel_has_the_library_and_nothing_else(wheel):
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(name for name in names if name.endswith(".py")) == sorted(path.as_posix() for path in LIBRARY_FILES)
    tables = {"rl_jax/models/transformer/splash_blocks.json"}
    assert {"rl_jax/py.typed", "rl_jax/__init__.pyi"} | tables <= set(names)
    assert {name.partition("/")[0] for name in names} == {"rl_jax"}
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(wheel.read(path))
    assert said["Summary"] == PROJECT["project"]["description"] and said["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in said.get_all("Classifier")
    required = {Requirement(text).name for text in said.get_all("Requires-Dist") if "extra ==" not in text}
    assert required == {requirement.name for requirement, _ in requirements("requirements.txt")}


def readme_snippet() -> str:
    """The first Python block of the README."""
    return re.search(r"^```python\n(.*?)^```", (REPO_ROOT / "README.md").read_text(), flags=re.M | re.S)[1]


def entry_page_snippet() -> str:
    """The indented code of rl_jax's docstring, which is at its head."""
    head = rl_jax.__doc__.partition("Recipes, one module each:")[0]
    return textwrap.dedent("".join(line for line in head.splitlines(True) if line.startswith("    ") or line == "\n"))


@pytest.mark.slow
def test_the_wheel_runs_the_readme_and_the_entry_page_and_holds_a_loss_to_the_laws(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["XLA_FLAGS"] = os.environ["XLA_FLAGS"]  # conftest's: compiled once, run once
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([CLEAN, readme_snippet(), entry_page_snippet(), HELD])],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and done.stdout.endswith("held leaky_clip\n"), done.stdout + done.stderr[-3000:]


# import rl_jax.


def test_every_public_name_is_there_and_the_stub_tells_the_same():
    stub = ast.parse((REPO_ROOT / "rl_jax" / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    told = {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert set(told) == set(rl_jax.__all__) and rl_jax.__all__ == sorted(rl_jax.__all__)
    for name, place in told.items():
        found = getattr(rl_jax, name)
        module, _, member = place.rpartition(".")
        expected = sys.modules.get(place) or getattr(sys.modules[module], member)
        assert found is expected, name
        assert name in rl_jax.__doc__, f"{name} is not on the entry page"
    assert set(rl_jax.__all__) <= set(dir(rl_jax))
    with pytest.raises(AttributeError, match="'rl_jax' has no attribute 'gropo'"):
        rl_jax.gropo  # noqa: B018


def test_importing_the_package_loads_no_jax():
    program = "import sys, rl_jax; dir(rl_jax); rl_jax.bind; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPO_ROOT, timeout=120).returncode == 0
