"""Static quality of a unit test in Python, read from its syntax tree; nothing is run."""

import ast
import warnings

from rl_jax.rewards import parsing

MAX_CHARS = 20_000
# Score of each property that a test has: what it needs, and what makes a test smell.
WEIGHTS = {
    "syntax": 1.0,
    "assertion": 1.0,
    "focal": 1.0,
    "duplicate": -1.0,
    "condition": -1.0,
    "handler": -1.0,
    "printing": -1.0,
}
_ASSERTS = (
    "assert_",
    "assertEqual",
    "assertTrue",
    "assertFalse",
    "assertRaises",
    "assertIn",
    "assertIs",
    "assertAlmost",
)


def quality(prompt: str, completion: str, info: dict, *, weights: dict[str, float] | None = None) -> dict[str, float]:
    """R = sum_k w_k 1[the test has property k], divided by the sum of the positive weights; 0 for what is no test.

        syntax      it is Python and defines a function test...
        assertion   it asserts something, and not a constant
        focal       it calls info["focal"], the function under test, in an assertion or before one
        duplicate   the same assertion twice
        condition   if, while, for, match or a conditional expression
        handler     try
        printing    a call of print

    Without the syntax nothing else is looked at. Source: the metrics of arXiv 2310.02368 (RLSQM) as we recall them; its
    weights are not known to us, 1 and -1 are our reading.

    Args:
      prompt: not read.
      completion: the test is its last code block, else its <answer>, else all of it.
      info: "focal", the name of the function under test.
      weights: property -> w, instead of WEIGHTS; one property alone is one of the paper's runs.

    Returns:
      reward, and 0 or 1 for each property.

    Raises:
      ValueError: if a weight names no property, none is positive, or info names no function.
    """
    weights = WEIGHTS if weights is None else weights
    if unknown := sorted(set(weights) - set(WEIGHTS)):
        raise ValueError(f"weights names {', '.join(unknown)}; the properties are {', '.join(WEIGHTS)}")
    most = sum(weight for weight in weights.values() if weight > 0)
    if not most:
        raise ValueError("no weight is above 0")
    if not isinstance(info.get("focal"), str) or not info["focal"]:
        raise ValueError('info["focal"] must be the name of the function under test')
    found = dict.fromkeys(WEIGHTS, 0.0)
    tests = _tests(parsing.fenced(parsing.answer(completion)))
    if tests:
        found |= {"syntax": 1.0} | {name: float(value) for name, value in _properties(tests, info["focal"]).items()}
    return {"reward": sum(weight * found[name] for name, weight in weights.items()) / most, **found}


def _tests(text: str) -> list[ast.FunctionDef]:
    """The test functions of a text; [] if it is no Python."""
    if len(text) > MAX_CHARS:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes and the like, in text that a model wrote
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def _properties(tests: list[ast.FunctionDef], focal: str) -> dict[str, bool]:
    nodes = [node for test in tests for node in ast.walk(test)]
    calls = [_name(node.func) for node in nodes if isinstance(node, ast.Call)]
    checks = [node for node in nodes if _is_check(node)]
    dumps = [ast.dump(node) for node in checks]
    branches = (ast.If, ast.While, ast.For, ast.Match, ast.IfExp)
    return {
        "assertion": bool(checks),
        "focal": bool(checks) and focal.rpartition(".")[2] in calls,
        "duplicate": len(set(dumps)) < len(dumps),
        "condition": any(isinstance(node, branches) for node in nodes),
        "handler": any(isinstance(node, ast.Try | ast.TryStar) for node in nodes),
        "printing": "print" in calls,
    }


def _is_check(node: ast.AST) -> bool:
    """Whether a node asserts something that can fail: a name or a call is in it."""
    if isinstance(node, ast.Assert):
        tested = [node.test]
    elif isinstance(node, ast.Call) and _name(node.func).startswith(_ASSERTS):
        tested = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return False
    return any(isinstance(part, ast.Name | ast.Call) for value in tested for part in ast.walk(value))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
