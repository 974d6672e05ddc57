"""Rewards as text: assignments of arithmetic, read with `ast` and made of jax functions. No text is ever executed.

    near = exp(-abs(next_position - 0.5) / 0.3)
    fast = clip(abs(next_velocity), 0.0, 0.07)
    reward = near + 10.0 * fast

The last line assigns the reward; a single expression is one, too. What is assigned before it are its components, whose
means are reported (Eureka's dictionary of components). Allowed are numbers, known names, NAME[i] of known vectors with
i a number, + - * / // % **, comparisons, and, or, not, `a if c else b`, and FUNCTIONS. Every value is a float per step:
a comparison is 1.0 or 0.0. All else (attributes, imports, loops, strings, other calls) is refused, with the line and
what is allowed. Source: arXiv 2310.12931 (Eureka), 2309.11489 (Text2Reward), where a language model writes Python.
Departs: a small language of arithmetic in place of Python, so that a text may come from anywhere.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax.numpy as jnp

REWARD = "reward"
MAX_CHARACTERS = 4000
MAX_ASSIGNMENTS = 24
MAX_NODES = 400  # values of the whole text: each is computed once, so this bounds the work per step
MAX_DEPTH = 32
MAX_NAME = 60  # characters: names become metrics
LARGEST = 3e38  # of a number, float32


def _truth(x: chex.Array) -> chex.Array:
    return x.astype(jnp.float32)


def _folded(fn: Callable) -> Callable:
    def fold(*values: chex.Array) -> chex.Array:
        result = values[0]
        for value in values[1:]:
            result = fn(result, value)
        return result

    return fold


# name -> (function of float arrays, fewest arguments, most arguments)
FUNCTIONS: dict[str, tuple[Callable, int, int]] = {
    **{name: (getattr(jnp, name), 1, 1) for name in ("exp", "log", "sqrt", "abs", "sign", "square", "floor")},
    **{name: (getattr(jnp, name), 1, 1) for name in ("sin", "cos", "tanh", "log1p")},
    "arctan2": (jnp.arctan2, 2, 2),
    "minimum": (jnp.minimum, 2, 2),
    "maximum": (jnp.maximum, 2, 2),
    "min": (_folded(jnp.minimum), 2, 8),
    "max": (_folded(jnp.maximum), 2, 8),
    "clip": (lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high), 3, 3),
    "where": (lambda chosen, x, y: jnp.where(chosen != 0, x, y), 3, 3),
}
BINARY = {
    ast.Add: jnp.add,
    ast.Sub: jnp.subtract,
    ast.Mult: jnp.multiply,
    ast.Div: jnp.divide,
    ast.FloorDiv: jnp.floor_divide,
    ast.Mod: jnp.mod,
    ast.Pow: jnp.power,
}
UNARY = {ast.USub: jnp.negative, ast.UAdd: lambda x: x, ast.Not: lambda x: _truth(x == 0)}
COMPARED = {
    ast.Lt: jnp.less,
    ast.LtE: jnp.less_equal,
    ast.Gt: jnp.greater,
    ast.GtE: jnp.greater_equal,
    ast.Eq: jnp.equal,
    ast.NotEq: jnp.not_equal,
}
JOINED = {ast.And: jnp.logical_and, ast.Or: jnp.logical_or}


class Known(NamedTuple):
    """What a text may read.

    Attributes:
      scalars: names of one number per step.
      vectors: name -> entries; a text reads them one by one.
      reserved: names that may be neither read nor assigned.
    """

    scalars: tuple[str, ...]
    vectors: Mapping[str, int] = {}
    reserved: tuple[str, ...] = ()

    def describe(self) -> str:
        """What is allowed, in a line."""
        vectors = ", ".join(f"{name}[0] to {name}[{size - 1}]" for name, size in self.vectors.items())
        return (
            f"names {', '.join(self.scalars) or 'none'}; vectors {vectors or 'none'}; functions "
            f"{', '.join(FUNCTIONS)}; numbers, + - * / // % **, comparisons, and, or, not, a if c else b"
        )


class Code(NamedTuple):
    """A text that was read.

    Attributes:
      text: as it was written.
      steps: (name, {name: value} -> value) in order; the last is the reward.
      components: names of the steps before the last that depend on what is known, in order.
    """

    text: str
    steps: tuple[tuple[str, Callable], ...]
    components: tuple[str, ...]


class _Value(NamedTuple):
    """A value of the syntax tree: how it is computed, and whether it depends on a known name."""

    compute: Callable
    varies: bool


class _Reader:
    """Reads one text. Errors name `label`, the line and what is allowed."""

    def __init__(self, known: Known, label: str):
        self.known, self.label = known, label
        self.assigned: dict[str, bool] = {}  # name -> whether it varies

    def refuse(self, line: int, what: str) -> ValueError:
        """The error to raise."""
        assigned = f"; assigned above: {', '.join(self.assigned)}" if self.assigned else ""
        return ValueError(f"{self.label}, line {line}: {what}. Allowed: {self.known.describe()}{assigned}")

    def value(self, node: ast.expr, depth: int = 0) -> _Value:
        """The value of an expression."""
        if depth > MAX_DEPTH:
            raise self.refuse(node.lineno, f"an expression is nested deeper than {MAX_DEPTH}: assign parts of it")
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return self._number(node, number)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as index)):
                return self._entry(node, name, index)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return self._apply(BINARY[type(op)], (left, right), depth)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return self._apply(UNARY[type(op)], (operand,), depth)
            case ast.BoolOp(op=op, values=values):
                joined = JOINED[type(op)]
                fold = _folded(lambda x, y: _truth(joined(x != 0, y != 0)))
                return self._apply(fold, values, depth)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARED for op in ops):
                return self._apply(_chain([COMPARED[type(op)] for op in ops]), (left, *others), depth)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._apply(FUNCTIONS["where"][0], (test, body, other), depth)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                fn, fewest, most = FUNCTIONS[name]
                if not fewest <= len(args) <= most:
                    count = fewest if fewest == most else f"{fewest} to {most}"
                    raise self.refuse(node.lineno, f"{name} takes {count} arguments, not {len(args)}")
                return self._apply(fn, args, depth)
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                raise self.refuse(node.lineno, f"{name} takes its arguments without names")
            case ast.Call():
                raise self.refuse(node.lineno, f"{_quoted(node.func)} is no function that may be called")
        raise self.refuse(node.lineno, f"{_quoted(node)} ({type(node).__name__}) is not allowed")

    def _apply(self, fn: Callable, nodes: Sequence[ast.expr], depth: int) -> _Value:
        parts = [self.value(node, depth + 1) for node in nodes]
        computes = [part.compute for part in parts]
        return _Value(lambda found: fn(*(compute(found) for compute in computes)), any(part.varies for part in parts))

    def _number(self, node: ast.expr, number: float) -> _Value:
        if abs(number) > LARGEST:
            raise self.refuse(node.lineno, f"a number is above {LARGEST}")
        return _Value(lambda found: jnp.float32(number), False)

    def _name(self, node: ast.expr, name: str) -> _Value:
        if name in self.assigned:
            return _Value(lambda found: found[name], self.assigned[name])
        if name in self.known.vectors:
            raise self.refuse(node.lineno, f"{name} is a vector: read an entry of it, {name}[0]")
        if name in self.known.scalars:
            return _Value(lambda found: found[name], True)
        kind = "a function: give it arguments" if name in FUNCTIONS else "an unknown name"
        raise self.refuse(node.lineno, f"{name[:60]} is {kind}")

    def _entry(self, node: ast.expr, name: str, index: int) -> _Value:
        size = self.known.vectors.get(name)
        if size is None or isinstance(index, bool) or not 0 <= index < size:
            entry = _quoted(node.slice).strip("'")
            what = f"{name[:60]} is no vector" if size is None else f"{name} has entries 0 to {size - 1}, not {entry}"
            raise self.refuse(node.lineno, what)
        return _Value(lambda found: found[name][..., index], True)

    def assign(self, name: str, node: ast.expr, line: int) -> Callable:
        """Reads `name = node`."""
        if len(name) > MAX_NAME:
            raise self.refuse(line, f"{name[:20]}... is a name of {len(name)} characters, at most {MAX_NAME} are read")
        taken = {*self.known.scalars, *self.known.vectors, *self.known.reserved, *FUNCTIONS}
        if name in taken or name in self.assigned:
            what = "is assigned twice" if name in self.assigned else "has a meaning already"
            raise self.refuse(line, f"{name[:60]} {what}: assign to a new name")
        found = self.value(node)
        self.assigned[name] = found.varies
        return found.compute


def _chain(comparisons: Sequence[Callable]) -> Callable:
    def compare(*values: chex.Array) -> chex.Array:
        result = jnp.bool_(True)
        for fn, left, right in zip(comparisons, values[:-1], values[1:], strict=True):
            result = result & fn(left, right)
        return _truth(result)

    return compare


def _quoted(node: ast.AST) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        return "a deeply nested expression"
    except ValueError:  # 0xfff...: Python writes no number of more than 4300 digits
        return "an expression with a huge number"
    return repr(text if len(text) <= 60 else text[:57] + "...")


def parse(text: str, known: Known, *, label: str = "reward") -> Code:
    """The Code of a text.

    Args:
      text: of assignments, the last of `reward`; or one expression.
      known: what it may read.
      label: names the text in errors.

    Raises:
      ValueError: if the text is too long, is malformed or uses anything that is not allowed. Names the line.
    """
    reader = _Reader(known, label)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{label}: {len(text)} characters, at most {MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise reader.refuse(line, f"the text is no Python ({getattr(error, 'msg', None) or error})") from None
    body = tree.body
    if sum(isinstance(node, ast.expr) for node in ast.walk(tree)) > MAX_NODES:
        raise reader.refuse(1, f"more than {MAX_NODES} operations, names and numbers")
    if not body or len(body) > MAX_ASSIGNMENTS:
        raise reader.refuse(1, f"{len(body)} lines of code; 1 to {MAX_ASSIGNMENTS} are read")
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return Code(text, ((REWARD, reader.assign(REWARD, body[0].value, body[0].lineno)),), ())
    steps = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                steps.append((name, reader.assign(name, value, statement.lineno)))
            case _:
                kind = type(statement).__name__
                raise reader.refuse(statement.lineno, f"a line must be `name = expression`, not {kind}")
    if steps[-1][0] != REWARD:
        raise reader.refuse(body[-1].lineno, f"the last line must assign {REWARD}, not {steps[-1][0][:60]}")
    return Code(text, tuple(steps), tuple(name for name, _ in steps[:-1] if reader.assigned[name]))


def evaluate(code: Code, values: Mapping[str, chex.Array], shape: tuple[int, ...]) -> dict[str, chex.Array]:
    """Its components and its reward.

    Args:
      code: of `parse`.
      values: name -> float32 [*shape], all that `parse` knew; vectors have their entries last.
      shape: of a scalar's values.

    Returns:
      {name: float32 [*shape]} of the components and of `reward`.
    """
    found = dict(values)
    for name, compute in code.steps:
        found[name] = compute(found)
    return {name: jnp.broadcast_to(found[name], shape) for name in (*code.components, REWARD)}
