"""Runs tests in a forked child whose rl_jax is not the one on disk: with a fault in it, or counting its calls.

The parent has imported jax, numpy, pytest and whatever else the tests import, but nothing of ours and no test, and has
not started a jax backend (its threads would not survive the fork). So a child only pays for rl_jax and one test file.
Nothing here writes a file: a fault lives in the import hook of one child.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import time
from pathlib import Path

import pytest

PROJECT = ("rl_jax", "tests", "configs", "experiments")
PYTEST = ["-q", "--tb=no", "--no-header", "-p", "no:cacheprovider"]
MUTABLE = ("rl_jax", "experiments")  # where faults are put and calls are counted
STEP_CHECKS = "tests/step_checks/"  # whole steps of a program: few and slow, and what holds its wiring


def pytest_options(test_file: str, *, slow: bool = False) -> list[str]:
    """The fast tests of a file; the slow ones, too, if `slow`; of a step check those that compare."""
    chosen = ["-k", "not moves"] if test_file.startswith(STEP_CHECKS) else [] if slow else ["-m", "not slow"]
    return [*PYTEST, *chosen, test_file]


class _Loader(importlib.machinery.SourceFileLoader):
    """A module from a syntax tree or a text instead of its file; the file's name stays, for tracebacks."""

    def __init__(self, name, path, read):
        super().__init__(name, path)
        self.read = read

    def get_code(self, fullname):
        return compile(self.read(Path(self.path)), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Gives the modules that `wants(path)` to `read(path)`, and leaves all others to Python."""

    def __init__(self, wants, read):
        self.wants, self.read = wants, read

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in MUTABLE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or not self.wants(Path(spec.origin)):
            return None
        loader = _Loader(name, spec.origin, self.read)
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


class _Selection:
    """A pytest plugin: keeps the tests of the list, in its order, and remembers the first that failed."""

    def __init__(self, tests=None):
        self.tests, self.killer, self.ran = tests, None, 0

    def pytest_collection_finish(self, session):
        if self.tests is not None:
            names = {item.nodeid: item for item in session.items}
            found = [(name, item) for test in self.tests for name, item in names.items() if name.startswith(test)]
            session.items[:] = [item for name, item in found if {name, name.partition("[")[0]} & set(self.tests)]

    def pytest_collectreport(self, report):
        if report.failed:
            self.killer = self.killer or f"{report.nodeid} (collection)"

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed:
            self.killer = self.killer or report.nodeid


def run_mutant(
    root: Path, file: str, source: str, test_file: str, tests: list[str] | None, *, slow: bool = False
) -> dict:
    """Run `tests` of one file, in that order until one fails, with `source` in the place of root/file.

    tests: None runs all. slow: slow ones are run, too.
    """
    sys.meta_path.insert(0, _Finder(lambda path: path == root / file, lambda path: source))
    selection = _Selection(tests)
    code = pytest.main([*pytest_options(test_file, slow=slow), "-x"], plugins=[selection])
    killer = selection.killer
    if killer is None and code not in (0, 5):
        killer = f"{test_file} (pytest ended with {int(code)})"
    return {"killer": killer, "ran": selection.ran}


# --- The run without a fault: which test calls which function --------------------------------------------------------

_called = set()


class _Marked(ast.NodeTransformer):
    """Each function tells when it runs; inner ones tell the name of the outermost, as Fault.where does."""

    def __init__(self, file):
        self.file, self.where = file, ""

    def visit_ClassDef(self, node):
        if self.where:
            return self.generic_visit(node)
        for child in node.body:
            if isinstance(child, ast.FunctionDef):
                self._mark(child, f"{node.name}.{child.name}")
        if any(getattr(base, "id", "") == "NamedTuple" for base in node.bases):
            node.decorator_list.insert(0, self._call("__mutation_class__", node.name))
        return node

    def visit_FunctionDef(self, node):
        return self._mark(node, self.where or node.name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _mark(self, node, where):
        outer, self.where = self.where, where
        self.generic_visit(node)
        self.where = outer
        first = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body.insert(first, ast.Expr(self._call("__mutation_call__", where)))
        return node

    def _call(self, function, where):
        return ast.Call(ast.Name(function, ast.Load()), [ast.Constant(f"{self.file}::{where}")], [])


def _mark_class(name):
    """The class with a constructor that tells; what a NamedTuple's defaults do, they do there."""

    def decorate(cls):
        original = cls.__new__

        @functools.wraps(original)
        def constructor(cls_, *args, **kwargs):
            _called.add(name)
            return original(cls_, *args, **kwargs)

        cls.__new__ = constructor
        return cls

    return decorate


def _watch_signatures(root: Path):
    """A test that reads a signature depends on the function as one that calls it does."""
    original = inspect.signature

    @functools.wraps(original)
    def signature(obj, **kwargs):
        fn = obj
        while isinstance(fn, functools.partial):
            fn = fn.func
        if getattr(fn, "__module__", None) and fn.__module__.split(".")[0] in MUTABLE:
            module = sys.modules[fn.__module__]
            path = Path(module.__file__).relative_to(root)
            _called.add(f"{path}::{fn.__qualname__.split('.<locals>')[0]}")
        return original(obj, **kwargs)

    inspect.signature = signature


class _Coverage:
    """A pytest plugin: for every test its seconds of CPU, its outcome and the functions of ours that ran in it.

    What runs while a file is collected, or in a fixture that several tests share, belongs to all tests of the file.
    """

    def __init__(self):
        self.tests, self.shared = {}, set()

    def pytest_collection_finish(self, session):
        self.shared |= _called

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        before = set(_called)
        _called.clear()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared |= _called
            _called.update(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        import jax

        jax.clear_caches()  # a function that an earlier test has compiled must be traced again to be seen
        for cached in _caches_of_ours():
            cached.cache_clear()
        _called.clear()
        started = time.process_time()  # a busy machine changes the other clock
        self.tests[item.nodeid] = {"outcome": "passed"}
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] |= {"seconds": time.process_time() - started, "calls": sorted(_called)}

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed":
            self.tests[report.nodeid]["outcome"] = report.outcome


def _caches_of_ours():
    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in PROJECT]
    values = (value for module in modules for value in list(vars(module).values()))
    return [value for value in values if isinstance(value, functools._lru_cache_wrapper)]


def run_baseline(root: Path, test_file: str, *, slow: bool = False) -> dict:
    """Run one test file without a fault.

    Returns tests: node id -> outcome, seconds, calls ("file::where"); shared: the calls that belong to all of them;
    modules: what was imported; files: the files of this repository among it.
    """
    import builtins

    builtins.__mutation_call__, builtins.__mutation_class__ = _called.add, _mark_class

    def marked(path):
        tree = _Marked(str(path.relative_to(root))).visit(ast.parse(path.read_text()))
        return ast.fix_missing_locations(tree)

    sys.meta_path.insert(0, _Finder(lambda path: True, marked))
    _watch_signatures(root)
    before, coverage, started = set(sys.modules), _Coverage(), time.perf_counter()
    code = pytest.main(pytest_options(test_file, slow=slow), plugins=[coverage])
    modules = [name for name in sys.modules if name not in before]
    paths = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    files = sorted(str(Path(path).relative_to(root)) for path in paths if path.startswith(f"{root}/"))
    files = [file for file in files if not file.startswith("tests/mutat")]
    return {
        "code": int(code),
        "seconds": time.perf_counter() - started,
        "tests": coverage.tests,
        "shared": sorted(coverage.shared),
        "modules": modules,
        "files": files,
    }


# --- Processes -------------------------------------------------------------------------------------------------------


class Child:
    """`call()` in a forked process with its own session; its answer is JSON, its output goes to `log`."""

    def __init__(self, call, log: Path, limit: float):
        self.answer, self.log, self.started = log.with_suffix(".json"), log, time.monotonic()
        self.deadline = self.started + limit
        self.answer.unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                self.answer.write_text(json.dumps(call()))
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(0)  # no atexit: it would delete what belongs to the parent

    def poll(self) -> dict | None:
        """The answer when there is one; {"died": why} after a crash or past the limit; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            if self.answer.exists():
                return json.loads(self.answer.read_text()) | {"seconds_run": time.monotonic() - self.started}
            return {"died": f"no answer, wait status {status}"}
        if time.monotonic() > self.deadline:
            self.stop()
            return {"died": "timeout"}
        return None

    def stop(self):
        """Kill it with its own children."""
        try:
            os.killpg(self.pid, 9)
        except ProcessLookupError:
            os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def run_all(jobs, workers: int):
    """Run an iterable of (tag, Child factory), `workers` at a time; yields (tag, answer) as they end."""
    jobs, running = iter(jobs), {}
    try:
        while True:
            while len(running) < workers and (job := next(jobs, None)) is not None:
                running[job[0]] = job[1]()
            if not running:
                return
            for tag, child in list(running.items()):
                if (answer := child.poll()) is not None:
                    del running[tag]
                    yield tag, answer
            time.sleep(0.01)
    finally:
        for child in running.values():
            child.stop()
