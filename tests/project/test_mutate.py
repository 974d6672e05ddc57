"""The mutation tool: the faults that it sees, the tests it runs them in, and its list of equivalents, up to date."""

import ast
import functools
import shutil
import subprocess
import sys

import pytest

from tests import mutate
from tests.mutation import faults, planted, world
from tests.mutation.plan import imported
from tests.paths import REPO_ROOT

EXAMPLE = '''"""A docstring with 1 < 2."""
from typing import NamedTuple

import jax
import jax.numpy as jnp

LIMIT = 3


class Pair(NamedTuple):
    left: int = 4
    right: str | None = None


def f(x, y, mask, *, eps: float = 1e-8, mode: str = "a", flag=True):
    """y / 2."""
    if eps <= 0 and not flag:
        raise ValueError(f"eps is {1 + 1}" + "!")
    y = jax.lax.stop_gradient(zero_masked(y, mask))
    # ( * is not an operator here
    z = -x * (  # nor is - here
        jnp.minimum(jnp.exp(x), 1.0)
    )
    w = jnp.where(mask & (x < y), z, 0.0) + jnp.std(x, axis=1, ddof=1)
    return Pair(masked_sum(w, mask), right=y if mode == "a" else -1), w
'''
EXPECTED = [
    ("LIMIT = 3", "LIMIT = 0"),
    ("LIMIT = 3", "LIMIT = 4"),
    ("left: int = 4", "left: int = 5"),
    ("eps: float = 1e-8", "eps: float = 1.1e-08"),
    ('mode: str = "a"', "mode: str = 'a_'"),
    ("flag=True", "flag=False"),
    ("if eps <= 0 and not flag:", "if eps < 0 and not flag:"),
    ("if eps <= 0 and not flag:", "if eps >= 0 and not flag:"),
    ("if eps <= 0 and not flag:", "if eps <= 1 and not flag:"),
    ("if eps <= 0 and not flag:", "if eps <= 0 or not flag:"),
    ("if eps <= 0 and not flag:", "if eps <= 0 and flag:"),
    ("jax.lax.stop_gradient(zero_masked(y, mask))", "zero_masked(y, mask)"),
    ("jax.lax.stop_gradient(zero_masked(y, mask))", "jax.lax.stop_gradient(y)"),
    ("-x * (  # nor", "x * (  # nor"),
    ("-x * (  # nor", "-x / (  # nor"),
    ("minimum", "maximum"),
    ("jnp.exp(x)", "x"),
    ("1.0", "1.1"),
    ("1.0", "2.0"),
    ("1.0)", "0.0)"),
    ("mask & (x < y)", "mask"),
    ("mask & (x < y)", "(x < y)"),
    ("(x < y)", "(x > y)"),
    ("z, 0.0)", "0.0, z)"),
    ("z, 0.0)", "z, 1.0)"),
    ("0.0) + jnp", "0.0) - jnp"),
    ("axis=1", "axis=0"),
    ("axis=1", "axis=None"),
    ("ddof=1", "ddof=0"),
    ("ddof=1", "ddof=2"),
    ("masked_sum(w, mask)", "masked_sum(w, (mask | True))"),
    ('masked_sum(w, mask), right=y if mode == "a" else -1', 'y if mode == "a" else -1, right=masked_sum(w, mask)'),
    ('y if mode == "a" else -1', '((-1) if (mode == "a") else y)'),
    ('mode == "a"', 'mode != "a"'),
    ("-1", "1"),
    ("-1", "-2"),
    ('masked_sum(w, mask), right=y if mode == "a" else -1), w', "w, MOVED"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    root = tmp_path_factory.mktemp("example")
    (root / "rl_jax").mkdir()
    (root / "rl_jax" / "f.py").write_text(EXAMPLE)
    return faults.faults_of("rl_jax/f.py", root)


def test_every_kind_of_fault_is_found_once_and_nothing_else(example):
    mutated = sorted(fault.apply(EXAMPLE) for fault in example)
    whole = 'Pair(masked_sum(w, mask), right=y if mode == "a" else -1)'
    expected = []
    for old, new in EXPECTED[:-1]:
        assert EXAMPLE.count(old) == 1 or old in ("-1", "1.0"), old
        expected.append(EXAMPLE.replace(old, new))
    expected.append(EXAMPLE.replace(f"return {whole}, w", f"return w, {whole}"))
    assert [m for m in mutated if m not in expected] == []
    assert [e for e in expected if e not in mutated] == []
    assert len(mutated) == len(expected)


def test_a_fault_knows_its_place(example):
    by_text = {(fault.before, fault.after): fault for fault in example}
    fault = by_text["LIMIT = 3", "LIMIT = 4"]
    assert (fault.where, fault.line, fault.claim()[0]) == ("", 7, "rl_jax/f.py::")
    assert {fault.where for fault in example} == {"", "Pair", "f"}
    assert next(f for f in example if f.kind == "stop_gradient dropped").line == 19


def test_a_default_that_is_a_function_becomes_another_one():
    found = faults.faults_of("rl_jax/grpo.py", REPO_ROOT)
    moved = [fault.new for fault in found if fault.kind == "default" and fault.before.startswith("kl: Callable")]
    assert len(moved) == 1 and moved[0].startswith("kl_estimators.") and moved[0] != "kl_estimators.k3"


@pytest.mark.slow
def test_every_fault_of_the_objectives_is_another_program():
    files = mutate.mutated_files(REPO_ROOT)
    assert {"rl_jax/core/masked.py", "rl_jax/losses/kl.py", "rl_jax/grpo.py", "rl_jax/advantages/groups.py"} <= set(
        files
    )
    original = functools.cache(lambda text: ast.dump(ast.parse(text)))
    for fault, before, after in mutate.statements(REPO_ROOT, mutate.all_faults(REPO_ROOT, files)[::4]):
        assert ast.dump(ast.parse(after)) != original(before), fault


def test_keys_are_different_and_outlive_edits_elsewhere(tmp_path):
    (tmp_path / "rl_jax").mkdir()
    path = tmp_path / "rl_jax" / "f.py"

    def keys():
        return mutate.fault_keys(tmp_path, faults.faults_of("rl_jax/f.py", tmp_path))

    path.write_text(EXAMPLE)
    before = keys()
    assert len(set(before.values())) == len(before)
    path.write_text(EXAMPLE.replace("LIMIT = 3", "# a new line\nLIMIT = 5"))
    after = keys()
    same = set(before.values()) & set(after.values())
    assert {key for fault, key in before.items() if fault.where} == same


def test_the_list_of_equivalents_is_read():
    text = "# a comment\n\na.py::f\n- x = 1\n+ x = 2\n+ x = 0\nno one can tell\nhere\n"
    expected = {("a.py::f", "x = 1", new): "no one can tell here" for new in ("x = 2", "x = 0")}
    assert mutate.equivalents(text) == expected
    with pytest.raises(ValueError, match="a reason"):
        mutate.equivalents("a.py::f\n- x = 1\n+ x = 2\n")


def test_survivors_are_written_as_the_list_wants_them(example):
    paragraphs = mutate.as_claims(example).split("\n\n")
    text = "\n\n".join(f"{paragraph.strip()}\na reason" for paragraph in paragraphs)
    assert set(mutate.equivalents(text)) == {fault.claim() for fault in example}


def test_every_equivalent_is_a_fault_that_there_is():
    """A line that was edited since: say anew why its fault changes nothing, or take the paragraph out."""
    path = REPO_ROOT / mutate.EQUIVALENT
    claims = set(mutate.equivalents(path.read_text())) if path.exists() else set()
    files = {claim[0].split("::")[0] for claim in claims}
    assert claims - {fault.claim() for fault in mutate.all_faults(REPO_ROOT, sorted(files))} == set()


def test_what_is_run_and_what_is_not():
    tests = mutate.test_files(REPO_ROOT)
    assert {"tests/recipes/test_laws.py", "tests/losses/test_kl.py", "tests/core/test_masked.py"} <= set(tests)
    assert not [name for name in tests if "mutat" in name or name.startswith("tests/models")]
    assert set(mutate.USED) <= set(tests) and "tests/step_checks/test_ppo_step.py" in tests
    assert "tests/experiments/test_chaos.py" not in tests


def test_every_planted_fault_is_one_that_there_is():
    """A line that was edited since: plant the fault in the new line, and see that its test still notices it."""
    assert planted.problems() == []


def test_every_pattern_names_a_file():
    files = mutate.mutated_files(REPO_ROOT)
    assert [name for name in mutate.MUTATED if not list(REPO_ROOT.glob(name))] == []
    assert {"rl_jax/credit/ensembles.py", "rl_jax/rollout/lm/engine.py", "rl_jax/training/packing.py"} <= set(files)
    assert {"experiments/ppo.py", "experiments/parts/policy.py", "rl_jax/selection/rows.py"} <= set(files)


def test_a_step_check_runs_with_its_slow_tests_and_without_its_ablations():
    assert world.pytest_options("tests/losses/test_kl.py")[-3:] == ["-m", "not slow", "tests/losses/test_kl.py"]
    slow = world.pytest_options("tests/losses/test_kl.py", slow=True)
    assert slow[len(world.PYTEST) :] == ["tests/losses/test_kl.py"]
    assert "slow" not in " ".join(world.pytest_options("tests/step_checks/test_grpo_step.py")).replace("slow_code", "")


def test_the_files_that_a_test_reads():
    files = imported(REPO_ROOT, "tests/losses/test_kl.py")
    assert {
        "tests/losses/test_kl.py",
        "rl_jax/losses/kl.py",
        "rl_jax/core/masked.py",
        "tests/numpy_loops/kl.py",
    } <= files
    assert "rl_jax/__init__.py" in files and "rl_jax/models/hf/loading.py" not in files


def _result(outcome, seconds, *calls):
    return {"outcome": outcome, "seconds": seconds, "calls": list(calls)}


def test_the_plan_runs_what_calls_the_function_and_learns(example):
    known = {
        "tests/test_a.py": {
            "tests": {
                "a1": _result("passed", 2.0, "rl_jax/f.py::f"),
                "a2": _result("passed", 1.0, "rl_jax/f.py::f"),
                "a3": _result("failed", 0.1, "rl_jax/f.py::f"),
                "a4": _result("passed", 0.1, "rl_jax/g.py::g"),
            },
            "shared": [],
            "files": ["rl_jax/f.py"],
        },
        "tests/test_b.py": {
            "tests": {"b1": _result("passed", 0.5), "b2": _result("skipped", 0.0)},
            "shared": ["rl_jax/f.py::f"],
            "files": ["rl_jax/f.py"],
        },
    }
    plan = mutate.Plan(known)
    fault = next(fault for fault in example if fault.where == "f")
    assert plan.steps(fault) == [("tests/test_b.py", ["b1"], 0.5), ("tests/test_a.py", ["a2", "a1"], 3.0)]
    plan.learn(fault, "tests/test_a.py", "a1")
    assert plan.steps(fault)[0] == ("tests/test_a.py", ["a1", "a2"], 3.0)
    plan = mutate.Plan(known, budget=2.4)
    assert plan.steps(fault)[1][1] == ["a2", "a1"]  # no test is left out for its price,
    names = {f"a2[{n}]": _result("passed", 0.1 * n, "rl_jax/f.py::f") for n in (3, 2, 1)}
    known["tests/test_a.py"]["tests"] |= names
    assert plan.steps(fault)[1][1] == ["a2[1]", "a1", "a2[2]"]  # but some of its parameters are
    known["tests/test_a.py"]["tests"] = {t: r for t, r in known["tests/test_a.py"]["tests"].items() if t not in names}
    constant = next(fault for fault in example if fault.where == "")
    assert {test for _, tests, _ in plan.steps(constant) for test in tests} == {"a1", "a2", "a4", "b1"}


def _totals(done):
    return next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))


@pytest.mark.slow
def test_faults_are_killed_and_survive_in_a_small_repository(tmp_path):
    """The whole program: a baseline, a kill, a survivor, a fault excused, and nothing run twice."""
    root = tmp_path / "main"
    (root / "rl_jax" / "core").mkdir(parents=True)
    for name in ("mutation", "started"):
        shutil.copytree(REPO_ROOT / "tests" / name, root / "tests" / name)
    for name in ("mutate.py", "conftest.py", "single_operations.py", "random_bits.py", "threefry.c"):
        shutil.copy(REPO_ROOT / "tests" / name, root / "tests" / name)
    shutil.copy(REPO_ROOT / "pyproject.toml", root)
    (root / "rl_jax" / "__init__.py").write_text("")
    (root / "rl_jax" / "core" / "__init__.py").write_text("")
    (root / "rl_jax" / "core" / "masked.py").write_text(
        "import jax.numpy as jnp\n\n\n"
        "def f(x, *, scale=2.0):\n    return jnp.maximum(x, 0.5) * scale\n\n\n"
        "def unused(x):\n    return -x\n"
    )
    (root / "tests" / "test_f.py").write_text(
        "import jax.numpy as jnp\n\nfrom rl_jax.core import masked\n\n\n"
        "def test_f():\n    assert masked.f(jnp.ones(())) == 2\n\n\n"
        "def test_that_fails_anyway():\n    assert masked.f(jnp.ones(())) == 3\n"
    )
    (root / "tests" / "mutants_equivalent.txt").write_text(
        "rl_jax/core/masked.py::f\n- return jnp.maximum(x, 0.5) * scale\n+ return jnp.maximum(x, 0.55) * scale"
        "\na test\n"
    )

    def run(*arguments):
        command = [sys.executable, "-m", "tests.mutate", "--work", str(tmp_path / "work"), *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)

    done = run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_that_fails_anyway" in done.stdout
    survivors = done.stdout.split("] survived: ")
    assert len(survivors) == 3, done.stdout  # 0.5 -> 0.0 is not seen, and nobody calls unused
    assert "+    return jnp.maximum(x, 0.0) * scale" in done.stdout
    assert "no test calls it" in done.stdout and "+    return x" in done.stdout
    assert _totals(done) == ["all", "7", "4", "2", "1", "66.7%"]
    again = run("--minimum", "0.5")
    assert again.returncode == 0 and "baseline" not in again.stdout and "[1/" not in again.stdout
    assert _totals(again) == _totals(done)


def test_the_makefile_runs_it():
    assert "-m tests.mutate" in (REPO_ROOT / "Makefile").read_text()


def test_the_copy_has_every_package(tmp_path):
    mutate.copy_repository(REPO_ROOT, tmp_path / "copy")
    packages = {path.parent.relative_to(REPO_ROOT) for path in (REPO_ROOT / "rl_jax").rglob("__init__.py")}
    assert all((tmp_path / "copy" / package / "__init__.py").is_file() for package in packages)
