"""Mechanical faults of a Python file, read off its syntax tree: each is one piece of text replaced by another.

What is mutated: expressions that compute, defaults, conditions (those of a `raise` and an `assert` too).
What is not: docstrings, annotations, messages, decorators, imports.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OPPOSITE = {"minimum": "maximum", "min": "max", "fmin": "fmax", "nanmin": "nanmax", "argmin": "argmax", "any": "all"}
OPPOSITE |= {"cummin": "cummax", "pmin": "pmax", "segment_min": "segment_max"}
OPPOSITE |= {new: old for old, new in OPPOSITE.items()}
UNWRAPPED = {"exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "square", "abs", "sign"}
UNWRAPPED |= {"sigmoid", "log_sigmoid", "softplus", "tanh", "softmax", "log_softmax", "logsumexp"}
UNWRAPPED |= {"clip", "nan_to_num"}
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*"}
COMPARED = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
COMPARED |= {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
COMPARISONS = {"<": [">"], ">": ["<"], "<=": ["<", ">="], ">=": [">", "<="], "==": ["!="], "!=": ["=="]}
COMPARISONS |= {"is": ["is not"], "is not": ["is"], "in": ["not in"], "not in": ["in"]}
# Functions (x, mask, ...) of rl_jax.core.masked; zero_masked(x, mask) becomes x, the mask of the others becomes all
# true.
MASKED = {"masked_sum", "masked_mean", "masked_max", "masked_var", "masked_whiten", "row_means"}


class Fault(NamedTuple):
    """`new` in place of the bytes start:end of `file`.

    where: the outermost function, Class.method or class around it, "" for the module itself. kind: the operator.
    line: the first line changed. before, after: the changed lines, each as one line of text.
    """

    file: str
    where: str
    kind: str
    line: int
    start: int
    end: int
    new: str
    before: str
    after: str

    def apply(self, source: str) -> str:
        """The mutated source."""
        text = source.encode()
        return (text[: self.start] + self.new.encode() + text[self.end :]).decode()

    def claim(self) -> tuple[str, str, str]:
        """What names this fault in mutants_equivalent.txt, whatever the lines around it do."""
        return f"{self.file}::{self.where}", self.before, self.after


def namedtuples(root: Path) -> set[str]:
    """The names of all NamedTuple classes of the package."""
    return {
        node.name
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(_name(base) == "NamedTuple" for base in node.bases)
    }


def faults_of(file: str, root: Path, tuples: set[str] | None = None) -> list[Fault]:
    """Every fault of root/file, in the order of the text. tuples: `namedtuples` of the package."""
    tuples = namedtuples(root / file.split("/")[0]) if tuples is None else tuples
    found, seen = [], set()
    for fault in _Finder(file, root, tuples).faults():
        if (fault.start, fault.end, fault.new) not in seen:
            seen.add((fault.start, fault.end, fault.new))
            found.append(fault)
    return sorted(found, key=lambda fault: (fault.start, fault.end, fault.new))


def _name(node: ast.AST) -> str:
    """`b` of `b` and of `a.b`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _one_line(text: str) -> str:
    return re.sub(r"([(\[]) | (?=[)\]])", r"\1", " ".join(text.split()))


class _Finder:
    def __init__(self, file: str, root: Path, tuples: set[str]):
        self.file, self.root, self.tuples = file, root, tuples
        self.text = (root / file).read_bytes()
        self.tree = ast.parse(self.text)
        self.offsets = [0]
        for line in self.text.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))

    def faults(self) -> Iterator[Fault]:
        for where, kind, start, end, new in self._body(self.tree.body, ""):
            first = self.text.rfind(b"\n", 0, start) + 1
            last = self.text.find(b"\n", end)
            last = len(self.text) if last < 0 else last
            before = self.text[first:last].decode()
            after = (self.text[first:start] + new.encode() + self.text[end:last]).decode()
            line = self.text.count(b"\n", 0, start) + 1
            yield Fault(self.file, where, kind, line, start, end, new, _one_line(before), _one_line(after))

    # --- Text --------------------------------------------------------------------------------------------------------

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self.offsets[node.lineno - 1] + node.col_offset
        return start, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def _piece(self, node: ast.AST) -> str:
        """The text of an expression, safe to put in another's place."""
        start, end = self._span(node)
        text = self.text[start:end].decode()
        atoms = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict)
        return text if isinstance(node, atoms) else f"({text})"

    def _between(self, left: ast.AST, right: ast.AST, token: str) -> tuple[int, int]:
        """Where the operator `token` stands between two operands: there are only brackets, spaces and comments."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.text[start:end])
        found = re.search(rb"\s+".join(re.escape(word).encode() for word in token.split()), gap)
        return start + found.start(), start + found.end()

    # --- Statements --------------------------------------------------------------------------------------------------

    def _body(self, statements, where):
        for statement in statements:
            yield from self._statement(statement, where)

    def _statement(self, node, where):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self._function(node, where)
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.AnnAssign) and child.value is not None:
                    yield from self._default(child.value, where or node.name)
                else:
                    method = f"{node.name}.{child.name}" if isinstance(child, ast.FunctionDef) else node.name
                    yield from self._statement(child, where or method)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self._expression(node.value, where)
        elif isinstance(node, ast.Assert):
            yield from self._condition(node.test, where)
        elif isinstance(node, (ast.If, ast.While)):
            yield from self._condition(node.test, where)
            yield from self._body(node.body + node.orelse, where)
        elif isinstance(node, ast.AugAssign):
            yield from self._augmented(node, where)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from self._exchanged("returned values exchanged", node.value.elts, where)
            yield from self._expression(node.value, where)
        elif not isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
            names = [_name(target) for target in getattr(node, "targets", [])]
            if names != ["__all__"]:
                yield from self._children(node, where)

    def _function(self, node, where):
        where = where or node.name
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                yield from self._default(default, where)
        yield from self._body(node.body, where)

    def _augmented(self, node, where):
        op = OPERATORS.get(type(node.op))
        if op:
            start, end = self._between(node.target, node.value, f"{op}=")
            yield where, f"{op}= to {ARITHMETIC[op]}=", start, end, f"{ARITHMETIC[op]}="
        yield from self._expression(node.value, where)

    def _children(self, node, where):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._statement(child, where)
            elif isinstance(child, ast.expr):
                yield from self._expression(child, where)
            elif not isinstance(child, (ast.expr_context, ast.arguments)):
                yield from self._children(child, where)  # keywords, comprehensions, handlers, with-items, cases

    # --- Expressions -------------------------------------------------------------------------------------------------

    def _expression(self, node, where):
        if isinstance(node, ast.Constant):
            yield from self._constant(node, where, "constant")
            return
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_int(node.operand):
            yield where, "constant", *self._span(node), f"-{node.operand.value + 1}"  # an index or a -1 of reshape
            yield where, "minus dropped", *self._span(node), f"{node.operand.value}"
            return
        kind = type(node).__name__.lower()
        yield from getattr(self, f"_{kind}", lambda node, where: ())(node, where)
        if isinstance(node, ast.IfExp):
            yield from self._expression(node.body, where)
            yield from self._expression(node.orelse, where)
            yield from self._condition(node.test, where, negate=False)  # exchanging the branches is the same fault
        elif isinstance(node, ast.Call):
            yield from self._arguments(node, where)
        elif isinstance(node, ast.Lambda):
            yield from self._expression(node.body, where)
        else:
            yield from self._children(node, where)

    def _constant(self, node, where, kind):
        value, (start, end) = node.value, self._span(node)
        if isinstance(value, bool):
            yield where, kind, start, end, str(not value)
        elif isinstance(value, int):
            yield where, kind, start, end, str(value + 1)
            if value and kind == "constant":
                yield where, kind, start, end, "0"
        elif isinstance(value, float):
            yield where, kind, start, end, f"{value * 1.1:.6g}" if value else "1.0"
            if value and kind == "constant":
                if value + 1.0 != value:  # a number like 1e30 stays what it is
                    yield where, kind, start, end, repr(value + 1.0)
                yield where, kind, start, end, "0.0"

    def _default(self, node, where):
        """One move of a default: numbers, booleans, names given as strings, inf, functions of our modules."""
        kind, (start, end) = "default", self._span(node)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield where, kind, start, end, repr(f"{node.value}_")
            yield from self._constant(node, where, kind)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            yield from self._constant(node.operand, where, kind)
        elif _name(node) == "inf":
            yield where, kind, start, end, "2.0"
        elif isinstance(node, ast.Attribute) and (other := self._neighbour(node)):
            yield where, kind, start, end, f"{self._piece(node.value)}.{other}"
        else:
            yield from self._expression(node, where)

    def _neighbour(self, node) -> str | None:
        """Another public function of the module that `module.function` names, when that is one of ours."""
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == _name(node.value):
                        stem = self.root.joinpath(*f"{statement.module}.{alias.name}".split("."))
                        path = stem.with_suffix(".py") if stem.with_suffix(".py").exists() else stem / "__init__.py"
                        names = self._offered(path) if path.exists() else []
                        if node.attr in names and len(names) > 1:
                            return names[(names.index(node.attr) + 1) % len(names)]
        return None

    @staticmethod
    def _offered(path: Path) -> list[str]:
        body = ast.parse(path.read_text()).body
        names = [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
        if path.name == "__init__.py":
            imports = [alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
            names += [name for name in imports if name.islower() and not name.startswith("_")]
        return names

    def _condition(self, node, where, negate=True):
        """A test: comparisons and and/or have faults of their own, anything else is negated."""
        compares = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)
        if negate and not isinstance(node, compares):
            yield where, "condition negated", *self._span(node), f"(not {self._piece(node)})"
        yield from self._expression(node, where)

    def _exchanged(self, kind, nodes, where):
        """Neighbours exchanged, one pair at a time."""
        for left, right in zip(nodes, nodes[1:], strict=False):
            (start, middle), (after, end) = self._span(left), self._span(right)
            texts = [self.text[a:b].decode() for a, b in ((start, middle), (middle, after), (after, end))]
            if texts[0] != texts[2] and not any(isinstance(node, ast.Starred) for node in (left, right)):
                yield where, kind, start, end, texts[2] + texts[1] + texts[0]

    def _unaryop(self, node, where):
        if isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
            kind = {ast.USub: "minus dropped", ast.Not: "not dropped", ast.Invert: "~ dropped"}[type(node.op)]
            yield where, kind, *self._span(node), self._piece(node.operand)

    def _binop(self, node, where):
        op, sides = OPERATORS.get(type(node.op)), (node.left, node.right)
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            for side in sides:
                yield where, "one side of & or |", *self._span(node), self._piece(side)
        texts = [isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", None), str) for x in sides]
        if op and not any(texts):
            yield where, f"{op} to {ARITHMETIC[op]}", *self._between(*sides, op), ARITHMETIC[op]

    def _boolop(self, node, where):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield where, f"{old} to {new}", *self._between(left, right, old), new

    def _compare(self, node, where):
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            token = COMPARED[type(op)]
            for new in COMPARISONS[token]:
                yield where, f"{token} to {new}", *self._between(left, right, token), new

    def _ifexp(self, node, where):
        new = f"({self._piece(node.orelse)} if {self._piece(node.test)} else {self._piece(node.body)})"
        yield where, "branches exchanged", *self._span(node), new

    def _call(self, node, where):
        name, span = _name(node.func), self._span(node)
        if name in OPPOSITE:
            _, end = self._span(node.func)
            yield where, f"{name} to {OPPOSITE[name]}", end - len(name), end, OPPOSITE[name]
        if name == "stop_gradient" and node.args:
            yield where, "stop_gradient dropped", *span, self._piece(node.args[0])
        if name in UNWRAPPED and node.args:
            yield where, f"{name} dropped", *span, self._piece(node.args[0])
        if name in ("where", "select") and len(node.args) == 3:
            yield from self._exchanged("branches exchanged", node.args[1:], where)
            if "mask" in _name(node.args[0]):
                yield where, "mask dropped", *span, self._piece(node.args[1])
        if name == "zero_masked" and len(node.args) == 2:
            yield where, "mask dropped", *span, self._piece(node.args[0])
        if name in MASKED and len(node.args) >= 2:
            mask = self._piece(node.args[1])
            yield where, "mask dropped", *self._span(node.args[1]), f"({mask} | True)"
        if name in self.tuples:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            yield from self._exchanged("fields exchanged", values, where)

    def _arguments(self, node, where):
        if not isinstance(node.func, ast.Name):
            yield from self._expression(node.func, where)
        for argument in node.args:
            yield from self._expression(argument, where)
        for keyword in node.keywords:
            if keyword.arg == "axis":
                yield from self._axis(keyword.value, where)
            elif keyword.arg == "where":
                yield where, "mask dropped", *self._span(keyword.value), f"({self._piece(keyword.value)} | True)"
                yield from self._expression(keyword.value, where)
            elif keyword.arg != "custom_message":
                if keyword.arg == "ddof" and not isinstance(keyword.value, ast.Constant):
                    yield where, "ddof changed", *self._span(keyword.value), f"({self._piece(keyword.value)} + 1)"
                yield from self._expression(keyword.value, where)

    def _axis(self, node, where):
        text = self.text[slice(*self._span(node))].decode()
        for new in ("0", "1" if text in ("0", "-2") else "None", "None"):
            if new != text:
                yield where, "axis changed", *self._span(node), new
