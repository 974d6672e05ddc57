"""Reward of an input by how near a program's run on it comes to a target line: R1-Fuzz, arXiv 2509.20384.

The program is the user's and runs traced in the sandbox; the model writes its input only. Which lines were run comes
out, and the distance is worked out here, on the program's graph of statements.
"""

import ast
import functools
from collections import deque
from collections.abc import Mapping

from rl_jax.rewards import parsing
from rl_jax.rewards.sandbox import start
from rl_jax.rewards.sandbox.protocol import Limits

MAX_INPUT = 100_000  # characters
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Runs in the sandbox: program.py on the rest of stdin; the lines that it ran go out, whatever became of it.
TRACER = """
import atexit, json, os, sys

answers = os.dup(1)
os.dup2(2, 1)
lines = set()

def trace(frame, event, argument):
    if frame.f_code.co_filename != "program.py":
        return None
    if event == "line":
        lines.add(frame.f_lineno)
    return trace

def tell():
    sys.settrace(None)
    os.write(answers, json.dumps(sorted(lines)).encode())

with open("program.py") as file:
    code = compile(file.read(), "program.py", "exec")
atexit.register(tell)
sys.settrace(trace)
exec(code, {"__name__": "__main__"})
"""


def distance(
    prompt: str,
    completion: str,
    info: Mapping,
    *,
    sandbox: str = "",
    cpu_s: float = 2.0,
    wall_s: float = 20.0,
    memory_mb: int = 512,
) -> dict[str, float]:
    """1 / (1 + d), d the fewest statements between one that was run and the target; 0 if no way leads there.

    R1-Fuzz compares the distance of a run with that of the input it starts from; here it is that of the run alone.

    Args:
      prompt: not read.
      completion: the program's stdin is its last code block, else its <answer>, else all of it.
      info: "program", Python source; "target", a line of it.
      sandbox: a backend of sandbox.start.make; "": the first that holds.
      cpu_s: seconds of CPU.
      wall_s: seconds of the clock.
      memory_mb: MiB.

    Returns:
      reward; hit: 1 if the target was run; distance: d, -1 if no way leads there or nothing came out; lines: how many
      were run.

    Raises:
      ValueError: if the program does not parse, or has no statement on the target's line.
      SandboxError: if there is no sandbox, or it failed.
    """
    source, target = info["program"], info["target"]
    far = distances(source, target)
    text = parsing.fenced(parsing.answer(completion))
    ran: list = []
    if len(text) <= MAX_INPUT:
        limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
        files = {"main.py": TRACER, "program.py": source}
        stdin = text.encode("utf-8", "surrogatepass")
        result = start.kept(sandbox).run(files, stdin=stdin, limits=limits)
        found = parsing.read_json(result.stdout.decode("utf-8", "replace"))
        ran = found if isinstance(found, list) else []
    steps = min((far[line] for line in ran if line in far), default=None)
    return {
        "reward": 0.0 if steps is None else 1 / (1 + steps),
        "hit": float(steps == 0),
        "distance": -1.0 if steps is None else float(steps),
        "lines": float(len(ran)),
    }


distance.prepare = lambda sandbox="", **_: start.kept(sandbox)


@functools.lru_cache(maxsize=256)
def distances(source: str, target: int) -> dict[int, int]:
    """line -> the fewest statements from it to the target; without those from which no way leads there.

    Raises:
      ValueError: if the program does not parse, or has no statement on that line.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"info[program] does not parse: {error}") from error
    edges = _Edges(tree).edges
    if target not in edges:
        raise ValueError(f"info[target]={target!r} is no line on which a statement of the program begins")
    before: dict[int, set[int]] = {}
    for line, followers in edges.items():
        for follower in followers:
            before.setdefault(follower, set()).add(line)
    result, waiting = {target: 0}, deque([target])
    while waiting:
        line = waiting.popleft()
        for earlier in before.get(line, ()):
            if earlier not in result:
                result[earlier] = result[line] + 1
                waiting.append(earlier)
    return result


class _Edges:
    """line of a statement -> lines that may be run next. A call by name leads into the function, too."""

    def __init__(self, tree: ast.Module):
        self.edges: dict[int, set[int]] = {}
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)}
        self.block(tree.body, set(), None)

    def block(self, statements: list[ast.stmt], after: set[int], loop: tuple[int, set[int]] | None) -> None:
        """Adds statements, the last of which is followed by `after`. loop: its head, and what follows it."""
        for number, statement in enumerate(statements):
            following = {statements[number + 1].lineno} if number + 1 < len(statements) else after
            self.one(statement, following, loop)

    def one(self, node: ast.stmt, after: set[int], loop: tuple[int, set[int]] | None) -> None:
        """Adds a statement and those in it."""
        line, followers = node.lineno, set(after)
        if isinstance(node, FUNCTIONS):
            self.block(node.body, set(), None)
        elif isinstance(node, ast.If):
            followers = {node.body[0].lineno} | ({node.orelse[0].lineno} if node.orelse else after)
            self.block(node.body, after, loop)
            self.block(node.orelse, after, loop)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            followers = {node.body[0].lineno} | ({node.orelse[0].lineno} if node.orelse else after)
            self.block(node.body, {line}, (line, after))
            self.block(node.orelse, after, loop)
        elif isinstance(node, ast.Try | ast.TryStar):
            handlers = {handler.body[0].lineno for handler in node.handlers}
            last = {node.finalbody[0].lineno} if node.finalbody else after
            rest = {node.orelse[0].lineno} if node.orelse else last
            followers = {node.body[0].lineno} | handlers
            self.block(node.body, rest | handlers, loop)
            for handler in node.handlers:
                self.block(handler.body, last, loop)
            self.block(node.orelse, last, loop)
            self.block(node.finalbody, after, loop)
        elif isinstance(node, ast.Match):
            followers = {case.body[0].lineno for case in node.cases} | after
            for case in node.cases:
                self.block(case.body, after, loop)
        elif isinstance(node, ast.With | ast.AsyncWith):
            followers = {node.body[0].lineno}
            self.block(node.body, after, loop)
        elif isinstance(node, ast.ClassDef):
            followers = {node.body[0].lineno}
            self.block(node.body, after, None)
        elif isinstance(node, ast.Return | ast.Raise):
            followers = set()
        elif isinstance(node, ast.Break | ast.Continue) and loop:
            followers = loop[1] if isinstance(node, ast.Break) else {loop[0]}
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and part.lineno <= line]
            called = [self.functions[_name(call.func)] for call in calls if _name(call.func) in self.functions]
            followers |= {function.body[0].lineno for function in called}
        self.edges.setdefault(line, set()).update(followers - {line})


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
