"""Linear temporal logic on finite traces, by progression: a formula, a letter, and what is left to do.

    prog(X f) = f        prog(F f) = prog(f) | F f        prog(G f) = prog(f) & G f        prog(f U g) = prog(g) |
    prog(f) & f U g

Operators: ! not, & and, | or, X next, F eventually, G always, f U g until; true, false, names, brackets.
Source: Bacchus and Kabanza, 1998. A state is accepting if what is left is true, and failed if it is false. Texts may
come from a language model: a formula that is too deep or too large, or grows too large, is refused.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

# ("name", p), ("true",), ("false",), ("!", f), ("&", {f, ...}), ("|", {f, ...}), ("X" | "F" | "G", f), ("U", f, g)
Formula = tuple
TRUE, FALSE = ("true",), ("false",)
MAX_DEPTH = 64  # of brackets, operators and parts inside each other: the parser calls itself
MAX_SIZE = 500  # operators and names, parts in their places: a part that is named twice doubles all below it
MAX_LEFT = 1000  # of what is left to do, whose size can double with each letter
MAX_LEFT_DEPTH = 4 * MAX_DEPTH  # of the same: `progress` calls itself


def parse(text: str, parts: Mapping[str, str] = {}) -> Formula:
    """The formula that a text says. parts: name -> formula, put in its place.

    Raises:
      ValueError: if the text is malformed, a part contains itself, or the whole is too deep or too large.
    """
    return _parsed(text, parts, (), 0, itertools.count(1))


def _parsed(text: str, parts: Mapping[str, str], open_: tuple[str, ...], above: int, counter: Iterator[int]) -> Formula:
    """`parse` inside of the parts `open_`, at the depth `above`; `counter` counts through all of them."""
    tokens = re.findall(r"[A-Za-z_]\w*|[!&|()]|\S", text)
    place = 0

    def take() -> str:
        nonlocal place
        if place == len(tokens):
            raise ValueError(f"ltl: {text!r} ends too early")
        place += 1
        return tokens[place - 1]

    def unary(depth: int) -> Formula:
        if next(counter) > MAX_SIZE:
            raise ValueError(f"ltl: more than {MAX_SIZE} operators and names with the parts; write a smaller formula")
        if depth > MAX_DEPTH:
            raise ValueError(f"ltl: nested deeper than {MAX_DEPTH} in {text!r:.80}; write a smaller formula")
        token = take()
        if token == "(":
            inside = until(depth + 1)
            if place == len(tokens) or take() != ")":
                raise ValueError(f"ltl: {text!r} lacks a closing bracket")
            return inside
        if token == "!":
            return negated(unary(depth + 1))
        if token in ("X", "F", "G"):
            return (token, unary(depth + 1))
        if token in ("true", "false"):
            return (token,)
        if token in open_:
            raise ValueError(f"ltl: part {token!r} contains itself")
        if token in parts:
            return _parsed(parts[token], parts, (*open_, token), depth + 1, counter)
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise ValueError(f"ltl: {token!r} in {text!r} is no formula")
        return ("name", token)

    def binary(operator: str, inner, join):
        found = [inner()]
        while place < len(tokens) and tokens[place] == operator:
            take()
            found.append(inner())
        return join(found)

    def disjunction(depth: int) -> Formula:
        return binary("|", lambda: binary("&", lambda: unary(depth), conjoin), disjoin)

    def until(depth: int) -> Formula:
        left = disjunction(depth)
        if place < len(tokens) and tokens[place] == "U":
            take()
            return ("U", left, until(depth + 1))
        return left

    result = until(above)
    if place != len(tokens):
        raise ValueError(f"ltl: {text!r} goes on after a whole formula, at {tokens[place]!r}")
    return result


def negated(f: Formula) -> Formula:
    """!f, with the double negation and the constants removed."""
    return {TRUE: FALSE, FALSE: TRUE}.get(f) or (f[1] if f[0] == "!" else ("!", f))


def conjoin(formulas: Sequence[Formula]) -> Formula:
    """f & g & ..., flat, without duplicates; false absorbs."""
    return _joined(formulas, "&", TRUE, FALSE)


def disjoin(formulas: Sequence[Formula]) -> Formula:
    """f | g | ..., flat, without duplicates; true absorbs."""
    return _joined(formulas, "|", FALSE, TRUE)


def _joined(formulas: Sequence[Formula], operator: str, neutral: Formula, absorbing: Formula) -> Formula:
    inside = set()
    for f in formulas:
        inside |= f[1] if f[0] == operator else {f}
    inside -= {neutral}
    if absorbing in inside or any(negated(f) in inside for f in inside):
        return absorbing
    # a | (a & b) is a, and the same with the operators exchanged: the states stay few.
    other = "|" if operator == "&" else "&"
    inside = {f for f in inside if not (f[0] == other and f[1] & inside)}
    return neutral if not inside else next(iter(inside)) if len(inside) == 1 else (operator, frozenset(inside))


def progress(f: Formula, letter: frozenset[str]) -> Formula:
    """What is left of f after one letter, the set of names that hold."""
    kind = f[0]
    if kind in ("true", "false"):
        return f
    if kind == "name":
        return TRUE if f[1] in letter else FALSE
    if kind == "!":
        return negated(progress(f[1], letter))
    if kind in ("&", "|"):
        return (conjoin if kind == "&" else disjoin)([progress(g, letter) for g in f[1]])
    if kind == "X":
        return f[1]
    if kind == "F":
        return disjoin([progress(f[1], letter), f])
    if kind == "G":
        return conjoin([progress(f[1], letter), f])
    return disjoin([progress(f[2], letter), conjoin([progress(f[1], letter), f])])


def _bounded(f: Formula) -> Formula:
    """f itself. Raises ValueError if it is larger than MAX_LEFT or deeper than MAX_LEFT_DEPTH."""
    size, layer = 0, [f]
    for _ in range(MAX_LEFT_DEPTH):
        size += len(layer)
        if not layer or size > MAX_LEFT:
            break
        inside = [part for g in layer for part in g[1:] if not isinstance(part, str)]
        layer = [g for part in inside for g in ([part] if isinstance(part, tuple) else part)]
    if layer:
        limits = f"{MAX_LEFT} operators and names, or nested deeper than {MAX_LEFT_DEPTH}"
        raise ValueError(f"ltl: what is left to do becomes more than {limits}; write a smaller formula")
    return f


def automaton(
    f: Formula, letters: Sequence[frozenset[str]], *, most: int = 256
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states that progression reaches.

    Args:
      f: of `parse`.
      letters: the sets of names that can hold, L of them.
      most: states at most.

    Returns:
      (transitions int [U, L] from state 0, accepting bool [U], failed bool [U]).

    Raises:
      ValueError: if there are more states, or what is left to do becomes too large.
    """
    states, moves = [f], []
    for state in states:  # grows
        row = []
        for letter in letters:
            target = _bounded(progress(state, letter))
            if target not in states:
                states.append(target)
            row.append(states.index(target))
        moves.append(row)
        if len(states) > most:
            raise ValueError(f"ltl: more than {most} states; write a smaller formula")
    return np.array(moves), np.array([s == TRUE for s in states]), np.array([s == FALSE for s in states])
