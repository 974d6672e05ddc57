"""What each test calls, from one run without a fault, and which tests a fault is therefore run in."""

import ast
import collections
import hashlib
import importlib
import json
import shutil
import time
import warnings
from pathlib import Path

from tests.mutation import faults
from tests.mutation.world import PROJECT, Child, run_all, run_baseline


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


# --- Baseline --------------------------------------------------------------------------------------------------------


def _state(root: Path, files: list[str]) -> str:
    return digest(*(f"{name}\0{(root / name).read_text()}" for name in files if (root / name).exists()))


def imported(root: Path, file: str) -> set[str]:
    """The files of the repository that importing `file` reads, itself among them, as far as its text says."""
    found, waiting = set(), [file]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((root / name).read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            parts = [module.split(".") for module in modules]
            stems = ["/".join(names[: n + 1]) for names in parts if names[0] in PROJECT for n in range(len(names))]
            paths = [f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py")]
            waiting += [path for path in paths if (root / path).exists()]
    return found


def baseline(root: Path, test_files: list[str], work: Path, workers: int, *, slow: bool = False) -> dict[str, dict]:
    """world.run_baseline of every test file, from a file in `work` where nothing has changed since."""
    path = work / ("baseline_slow.json" if slow else "baseline.json")
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept = {name: result for name, result in kept.items() if result["key"] == _state(root, result["files"])}
    known = {name: kept[name] for name in test_files if name in kept}
    missing = [name for name in test_files if name not in known]
    if missing:
        print(f"baseline: {len(missing)} test files without a fault", flush=True)
    jobs = ((name, lambda name=name: _start_baseline(root, work, name, slow)) for name in missing)
    for name, answer in run_all(jobs, workers):
        if "died" in answer:
            print(f"  {name}: {answer['died']}, left out; see {log_of(work, 'baseline', name)}", flush=True)
            continue
        known[name] = answer | {"key": _state(root, answer["files"])}
        path.write_text(json.dumps(kept | known))
        print(f"  {name}: {len(answer['tests'])} tests, {answer['seconds']:.1f} s", flush=True)
        for test, result in answer["tests"].items():
            if result["outcome"] == "failed":
                print(f"    fails without a fault, left out: {test}")
        if answer["code"] not in (0, 1, 5):
            print(f"    pytest ended with {answer['code']}; see {log_of(work, 'baseline', name)}", flush=True)
    return known


def log_of(work: Path, kind: str, name: str) -> Path:
    return work / "logs" / f"{kind}-{name.replace('/', '-')}.txt"


def cache_of(work: Path, test_file: str) -> Path:
    return work / "xla" / test_file.replace("/", "-")


def use_cache(folder: Path, *, write: bool):
    """Compiled programs come from the test file's baseline run; a mutant reads them and leaves nothing behind."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if write else 1e9)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _start_baseline(root, work, name, slow):
    shutil.rmtree(cache_of(work, name), ignore_errors=True)

    def call():
        use_cache(cache_of(work, name), write=True)
        return run_baseline(root, name, slow=slow)

    return Child(call, log_of(work, "baseline", name), limit=1800)


def preload(root: Path, work: Path, known: dict[str, dict]):
    """Import in this process what the tests import and rl_jax has no part in, unless it starts a jax backend."""
    from jax._src import xla_bridge

    names = {}
    for result in known.values():
        names |= dict.fromkeys(name for name in result["modules"] if _is_foreign(root, name))

    def load():
        good = []
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException:
                continue
            if xla_bridge.backends_are_initialized():
                break
            good.append(name)
        return {"good": good}

    child = Child(load, log_of(work, "preload", "all"), limit=600)
    while (answer := child.poll()) is None:
        time.sleep(0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in answer.get("good", []):
            importlib.import_module(name)
    assert not xla_bridge.backends_are_initialized(), "a fork would inherit jax's backend without its threads"


def _is_foreign(root: Path, name: str) -> bool:
    top = name.split(".")[0]
    if top != "tests":
        return top not in PROJECT
    path = root.joinpath(*name.split("."))
    path = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if path.name.startswith(("test_", "conftest")) or not path.exists():
        return False
    ours = [name for name in PROJECT if name != "tests"]
    return not any(f"{word} {name}" in path.read_text() for word in ("import", "from") for name in ours)


# --- Which tests -----------------------------------------------------------------------------------------------------


class Plan:
    """Which tests a fault is run in, and in what order; it learns from what has killed the neighbours.

    budget: seconds of tests in one file. What half the library calls would else run in thousands of them: then some
    parameters of each test are left out, never the whole test.
    """

    def __init__(self, known: dict[str, dict], budget: float = 20.0):
        self.known, self.kills, self.budget = known, collections.Counter(), budget
        self.called = {call for result in known.values() for call in _calls(result)}

    def steps(self, fault: faults.Fault) -> list[tuple[str, list[str], float]]:
        """(test file, its tests in order, their seconds without a fault), the most promising file first."""
        name = f"{fault.file}::{fault.where}"
        is_class = fault.where.lstrip("_")[:1].isupper() and "." not in fault.where
        on_import = not fault.where or (is_class and name not in self.called)
        steps = []
        for test_file, result in self.known.items():
            passed = {test: r for test, r in result["tests"].items() if r["outcome"] == "passed"}
            if on_import:
                tests = passed if fault.file in result["files"] else {}
            else:
                tests = {t: r for t, r in passed.items() if name in result["shared"] or name in r["calls"]}
            if tests:
                order = self._order(name, tests)
                steps.append((test_file, order, sum(tests[test]["seconds"] for test in order)))
        stem = Path(fault.file).stem
        return sorted(steps, key=lambda s: (-self.kills[name, s[0]], stem not in Path(s[0]).stem, s[2]))

    def _order(self, name: str, tests: dict[str, dict]) -> list[str]:
        """Killers first; then one set of parameters of each test, the cheap ones first; then another."""
        file = f"{name.split('::')[0]}::"
        rounds, seen, spent, order = {}, collections.Counter(), 0.0, []
        for test in sorted(tests, key=lambda t: tests[t]["seconds"]):
            function = test.split("[")[0]
            rounds[test], seen[function] = seen[function], seen[function] + 1
        near = {test for test, result in tests.items() if any(call.startswith(file) for call in result["calls"])}
        keys = {t: (-self.kills[name, t], t not in near, rounds[t], tests[t]["seconds"]) for t in tests}
        for test in sorted(tests, key=keys.get):
            spent += tests[test]["seconds"]
            if rounds[test] == 0 or spent <= self.budget or self.kills[name, test]:
                order.append(test)
        return order

    def learn(self, fault: faults.Fault, test_file: str, killer: str):
        name = f"{fault.file}::{fault.where}"
        self.kills[name, killer] += 1
        self.kills[name, test_file] += 1


def _calls(result):
    return set(result["shared"]).union(*(test["calls"] for test in result["tests"].values()))
