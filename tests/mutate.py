"""`make mutants`: put one mechanical fault at a time into the objectives and what feeds them; does a test fail?

    python -m tests.mutate                                  every fault of every file below
    python -m tests.mutate rl_jax/losses/kl.py              the faults of one file, or of a folder
    python -m tests.mutate --sample 50 --seed 0             some of them
    python -m tests.mutate --slow --tests tests/rollout/test_beam.py    slow tests, and files that are else left out
    python -m tests.mutate --list rl_jax/losses/kl.py       name them, run nothing

Why a tool of our own: mutmut has none of our faults (dropped stop_gradient, mask, exp) and hides the signatures that
rl_jax.core.binding reads; cosmic-ray edits the working tree and starts a process, so jax, for every fault.

1. The repository is copied, and everything below runs on the copy (`mutation/world.py`: a fork for each fault).
2. Baseline: each fast test is run without a fault, with the functions that it calls. It is kept until a file changes.
3. Each fault runs in the tests that call its function, first those that have killed a neighbour, then the cheap ones;
   of a test with many parameters only some, when a file's tests would take longer than `--budget`. Past a limit of time
   a fault counts as killed. A test that fails without a fault is left out and named.
4. Faults of mutants_equivalent.txt change nothing that anyone can see, each for the reason given there; they are not
   run and count apart. Results are kept (`--work`), so that a run can be stopped and taken up again; survivors.txt
   there has the survivors as paragraphs for mutants_equivalent.txt, without a reason.
"""

import argparse
import ast
import collections
import difflib
import fcntl
import gc
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.mutation import faults
from tests.mutation.plan import Plan, baseline, cache_of, digest, imported, preload, use_cache
from tests.mutation.world import Child, run_all, run_mutant

# What is mutated: the objectives and the recipes, what lies between them and the model, and the programs' own part.
OBJECTIVES = ["losses/**/*.py", "advantages/**/*.py", "token_weights/**/*.py", "credit/*.py", "selection/*.py"]
OBJECTIVES += ["core/masked.py", "core/trackers.py", "grpo.py", "sft.py", "ppo.py"]
MACHINERY = ["rollout/**/*.py", "training/packing.py", "training/step.py", "training/scoring.py"]
_PARTS = ("policy", "policy_steps", "actor_critic", "training", "packers", "trackers")
PROGRAMS = ["grpo.py", "ppo.py", *(f"parts/{name}.py" for name in _PARTS)]
MUTATED = [f"rl_jax/{name}" for name in OBJECTIVES + MACHINERY] + [f"experiments/{name}" for name in PROGRAMS]
# Test files that are never run: slow, or about text, files, processes and models.
UNUSED = ["experiments", "models", "rewards", "tasks", "test_mutants.py", "test_mutate.py", "test_docs.py"]
UNUSED += ["test_packaging.py", "test_layering.py", "tokenizers", "test_readers.py", "test_logging.py"]
UNUSED += ["test_progress.py", "test_checkpoint.py", "test_data.py", "test_sharding.py"]
UNUSED += ["test_oracles.py", "test_notebooks.py", "preferences", "envs", "distributed", "runs", "data"]
# But these are: they hold the programs' part. Of STEP_CHECKS the slow tests are run too (tests/mutation/world.py).
_USED = ("grpo", "ppo", "packed", "trackers", "rollouts", "rlhf", "judges", "policy_wiring")
USED = [f"tests/experiments/test_{name}.py" for name in _USED]
JUNK = ("__pycache__", "*.egg-info", ".pytest_cache", ".ruff_cache")  # not copied, wherever they are
JUNK_ON_TOP = {".git", ".venv", "runs", "build", "dist"}  # only there: rl_jax/runs is a package
EQUIVALENT = "tests/mutants_equivalent.txt"
IMPORTS_BY_NAME = ("tests/core/test_defaults.py",)  # and so reads files that its text does not say


# --- What there is ---------------------------------------------------------------------------------------------------


def mutated_files(root: Path) -> list[str]:
    """The files of MUTATED, relative to the repository."""
    found = {path for pattern in MUTATED for path in root.glob(pattern)}
    return sorted(str(path.relative_to(root)) for path in found)


def test_files(root: Path) -> list[str]:
    """The test files whose fast tests are run."""
    names = (path.relative_to(root) for path in (root / "tests").rglob("test_*.py"))
    return sorted(str(name) for name in names if str(name) in USED or not set(name.parts[1:]) & set(UNUSED))


def all_faults(root: Path, files: list[str]) -> list[faults.Fault]:
    """The faults of these files, in order."""
    tuples = faults.namedtuples(root / "rl_jax") | faults.namedtuples(root / "experiments")
    return [fault for file in files for fault in faults.faults_of(file, root, tuples)]


def equivalents(text: str) -> dict[tuple[str, str, str], str]:
    """Fault.claim -> why, of mutants_equivalent.txt: paragraphs of file::function, `- line`, `+ line`s, reason."""
    found = {}
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line.strip() and not line.startswith("#")]
        if not lines:
            continue
        place, old, *rest = [*lines, ""]
        after = [line[2:] for line in rest if line.startswith("+ ")]
        reason = " ".join(rest[len(after) :]).strip()
        if "::" not in place or not old.startswith("- ") or not after or not reason:
            raise ValueError(f"{EQUIVALENT}: expected file::function, - line, + lines and a reason, found {lines}")
        found |= {(place, old[2:], new): reason for new in after}
    return found


def as_claims(found: list[faults.Fault]) -> str:
    """Paragraphs for mutants_equivalent.txt that only lack their reasons."""
    lines = {}
    for place, before, after in (fault.claim() for fault in found):
        lines.setdefault((place, before), []).append(f"+ {after}")
    return "\n".join(f"{place}\n- {before}\n" + "\n".join(new) + "\n" for (place, before), new in lines.items())


def statements(root: Path, found: list[faults.Fault]) -> Iterator[tuple[faults.Fault, str, str]]:
    """Each fault with its outermost statement's text, without and with it."""
    files = {}
    for fault in found:
        if fault.file not in files:
            text = (root / fault.file).read_bytes()
            ends = [0, *itertools.accumulate(len(line) for line in text.splitlines(keepends=True))]
            files[fault.file] = text, [(ends[node.lineno - 1], ends[node.end_lineno]) for node in ast.parse(text).body]
        text, spans = files[fault.file]
        start, end = next(span for span in spans if span[0] <= fault.start < span[1])
        mutated = text[start : fault.start] + fault.new.encode() + text[fault.end : end]
        yield fault, text[start:end].decode(), mutated.decode()


def fault_keys(root: Path, found: list[faults.Fault]) -> dict[faults.Fault, str]:
    """A name for each fault that holds until its own function is edited."""
    return {fault: digest(fault.file, fault.kind, *texts) for fault, *texts in statements(root, found)}


# --- The run ---------------------------------------------------------------------------------------------------------


class Run:
    """All faults through their tests, `workers` at a time. results: key -> {"status": killed | survived | ..., ...}."""

    def __init__(self, root: Path, work: Path, plan: Plan, results: Path, *, slow: bool = False):
        self.root, self.work, self.plan, self.path, self.slow = root, work, plan, results, slow
        self.results = {}

    def load(self, *others: Path):
        """What earlier runs have found. others: of `others` only the faults that were killed."""
        for path in (*others, self.path):
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    result = json.loads(line)
                except ValueError:
                    continue  # a line cut short when the run was stopped
                if path == self.path or result["status"] == "killed":
                    self.results[result["key"]] = result

    def state(self, fault: faults.Fault) -> str:
        """What a survivor's result depends on besides its own function: the tests that it has passed."""
        return digest(*(f"{step[0]}{self.plan.known[step[0]]['key']}" for step in sorted(self.plan.steps(fault))))

    def is_known(self, fault: faults.Fault, key: str) -> bool:
        result = self.results.get(key)
        return result is not None and (result["status"] == "killed" or result["state"] == self.state(fault))

    def run(self, keys: dict[faults.Fault, str], workers: int):
        """Run the faults that have no result yet, and append each result to the file."""
        waiting = collections.deque((fault, 0, 0.0, 0) for fault in keys if not self.is_known(fault, keys[fault]))
        total, ended, started = len(waiting), 0, time.monotonic()
        orders = {}

        def jobs():
            while waiting:
                task = waiting.popleft()
                fault = task[0]
                if task[1] == 0:
                    orders[fault] = self.plan.steps(fault)
                if not orders[fault]:
                    self._keep(fault, keys[fault], {"status": "survived", "why": "no test calls it"})
                    continue
                yield task, lambda task=task, step=orders[fault][task[1]]: self._start(task, step)

        with self.path.open("a") as self.file:
            for (fault, number, seconds, ran), answer in run_all(_Refilled(jobs), workers):
                step = orders[fault][number]
                seconds += answer.get("seconds_run", 0.0)
                ran += answer.get("ran", 0)
                killer = answer.get("killer") or answer.get("died")
                if killer is None and number + 1 < len(orders[fault]):
                    waiting.appendleft((fault, number + 1, seconds, ran))
                    continue
                result = {"status": "killed" if killer else "survived", "seconds": round(seconds, 1), "ran": ran}
                if killer:
                    self.plan.learn(fault, step[0], killer)
                    result["killer"] = killer
                self._keep(fault, keys[fault], result)
                ended += 1
                if not killer or ended % 20 == 0:
                    rate = (time.monotonic() - started) / ended
                    verb = "survived" if not killer else "killed"
                    print(
                        f"[{ended}/{total}, {rate:.1f} s each] {fault.file}:{fault.line} {fault.where} {fault.kind}: "
                        f"{verb} ({ran} tests, {seconds:.1f} s)",
                        flush=True,
                    )

    def _start(self, task, step):
        fault, (test_file, tests, seconds) = task[0], step
        source = fault.apply((self.root / fault.file).read_text())

        def call():
            use_cache(cache_of(self.work, test_file), write=False)
            return run_mutant(self.root, fault.file, source, test_file, tests, slow=self.slow)

        log = self.work / "logs" / f"mutant-{digest(*map(str, fault))}.txt"
        return Child(call, log, limit=120 + 20 * seconds)

    def _keep(self, fault, key, result):
        result |= {"key": key, "state": self.state(fault), "file": fault.file, "line": fault.line}
        result |= {"where": fault.where, "kind": fault.kind, "before": fault.before, "after": fault.after}
        self.results[key] = result
        self.file.write(json.dumps(result) + "\n")
        self.file.flush()


class _Refilled:
    """An iterator that may go on after it has ended: a step of a fault is queued when the step before it is over."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.make())


def diff(root: Path, fault: faults.Fault) -> str:
    """The fault as a diff with a line of context."""
    old = (root / fault.file).read_text()
    lines = difflib.unified_diff(old.splitlines(), fault.apply(old).splitlines(), n=1, lineterm="")
    return "\n".join(f"    {line}" for line in list(lines)[3:])


def report(root: Path, work: Path, keys: dict[faults.Fault, str], results: dict[str, dict], excused: set) -> float:
    """Print the survivors and the shares; the share killed of what is not equivalent (`excused`)."""
    survivors = [f for f in keys if f not in excused and results[keys[f]]["status"] != "killed"]
    for fault in survivors:
        result = results[keys[fault]]
        why = result.get("why") or f"{result['ran']} tests passed"
        print(f"\n{fault.file}:{fault.line} {fault.where} [{fault.kind}] survived: {why}\n{diff(root, fault)}")
    (work / "survivors.txt").write_text(as_claims(survivors))
    print(f"\n{'file':44} {'faults':>7} {'killed':>7} {'survive':>8} {'equivalent':>11} {'share':>7}")
    rows = {file: [fault for fault in keys if fault.file == file] for file in sorted({fault.file for fault in keys})}
    share = 1.0
    for name, group in [*rows.items(), ("all", list(keys))]:
        same, alive = sum(f in excused for f in group), sum(f in survivors for f in group)
        killed = len(group) - same - alive
        share = killed / max(killed + alive, 1)
        print(f"{name:44} {len(group):7} {killed:7} {alive:8} {same:11} {share:7.1%}")
    killers = [results[keys[f]].get("killer") or "" for f in keys if f not in excused]
    tabled = sum(killer.startswith(IMPORTS_BY_NAME) for killer in killers)
    print(f"killed by the limit of time: {killers.count('timeout')}; by the table of defaults, perhaps alone: {tabled}")
    print(f"survivors are also in {work / 'survivors.txt'}")
    return share


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="files or folders of the repository; all of MUTATED if there is none")
    parser.add_argument("--tests", nargs="+", help="only these test files, whichever they are")
    parser.add_argument("--slow", action="store_true", help="their slow tests, too")
    parser.add_argument("--sample", type=int, help="run so many faults only, drawn with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/mutants"), help="where results are kept")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--check-equivalent", action="store_true", help="run the faults of mutants_equivalent.txt too")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests in one test file, for a fault")
    parser.add_argument("--minimum", type=float, default=0.97, help="a smaller share killed is an error")
    parser.add_argument("--list", action="store_true", help="name the faults and run nothing")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # this process has the copy
    options = parser.parse_args(argv)
    options.work = options.work.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whoever is running below is stopped too
    if not options.inside and not options.list:
        return _in_a_copy(options, sys.argv[1:] if argv is None else argv)
    return _run(options)


def copy_repository(root: Path, copy: Path) -> None:
    """Copies what the tests need of the repository."""
    anywhere = shutil.ignore_patterns(*JUNK)

    def ignored(folder: str, names: list[str]) -> set[str]:
        return anywhere(folder, names) | (JUNK_ON_TOP if Path(folder) == root else set())

    shutil.copytree(root, copy, ignore=ignored)


def _in_a_copy(options, argv) -> int:
    """This program again, on a copy of the repository: nothing that is edited meanwhile changes the run."""
    root = Path(__file__).resolve().parents[1]
    (options.work / "logs").mkdir(parents=True, exist_ok=True)
    lock = (options.work / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another run is using {options.work}: give this one its own --work", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="rl_jax-mutants-") as folder:
        copy = Path(folder).resolve() / "main"
        copy_repository(root, copy)
        if (root.parent / "shared").exists():
            (copy.parent / "shared").symlink_to(root.parent / "shared")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        environment |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "tests.mutate", "--inside", *argv, "--work", str(options.work)]
        child = subprocess.Popen(command, cwd=copy, env=environment)
        try:
            return child.wait()
        finally:
            child.terminate()
            child.wait()


def _run(options) -> int:
    root = Path(__file__).resolve().parents[1]
    names = [str(Path(name)) for name in options.files]
    files = [f for f in mutated_files(root) if not names or any(f == n or f.startswith(f"{n}/") for n in names)]
    found = all_faults(root, files)
    text = (root / EQUIVALENT).read_text() if (root / EQUIVALENT).exists() else ""
    claims = equivalents(text)
    if options.sample is not None:
        chosen = set(random.Random(options.seed).sample(range(len(found)), min(options.sample, len(found))))
        found = [fault for number, fault in enumerate(found) if number in chosen]
    if options.list:
        print(f"{as_claims(found)}\n{len(found)} faults")
        return 0
    excused = {fault for fault in found if fault.claim() in claims}
    _warm()
    mutated = {fault.file for fault in found}
    asked = options.tests or test_files(root)
    tests = [name for name in asked if name in IMPORTS_BY_NAME or imported(root, name) & mutated]
    known = baseline(root, tests, options.work, options.jobs, slow=options.slow)
    if unread := [name for name, result in known.items() if result["code"] not in (0, 1, 5)]:
        print(f"these files cannot be collected without a fault: {', '.join(unread)}", file=sys.stderr)
        return 2
    preload(root, options.work, known)
    usual = options.work / "results.jsonl"
    # What other tests kill is known to runs of other tests alone: the share of a plain run is that of the plain tests.
    results = options.work / "results_other.jsonl" if options.slow or options.tests else usual
    if options.fresh:
        results.unlink(missing_ok=True)
    run = Run(root, options.work, Plan(known, options.budget), results, slow=options.slow)
    keys = fault_keys(root, found)
    run.load(*([] if results == usual else [usual]))
    run.run({f: k for f, k in keys.items() if options.check_equivalent or f not in excused}, options.jobs)
    if options.check_equivalent:
        wrong = {fault for fault in excused if run.results[keys[fault]]["status"] == "killed"}
        for fault in wrong:
            print(f"not equivalent: {fault.file}:{fault.line} {fault.after}: {run.results[keys[fault]]['killer']}")
        excused -= wrong
    share = report(root, options.work, keys, run.results, excused)
    failed = sum(r["outcome"] == "failed" for result in known.values() for r in result["tests"].values())
    if failed or len(known) < len(tests):
        print(f"left out: {failed} tests and {len(tests) - len(known)} test files that fail without a fault")
    return 0 if share >= options.minimum else 1


def _warm():
    """What every child needs; conftest first, since it sets up jax and refuses to come second."""
    for name in ("tests.conftest", "jax.numpy", "chex", "numpy", "pytest"):
        importlib.import_module(name)
    warnings.filterwarnings("ignore", message=".*os.fork")
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
