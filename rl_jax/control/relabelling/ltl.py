"""Linear temporal logic on finite traces, by progression: a formula, a letter, and what is left to do.

    prog(X f) = f        prog(F f) = prog(f) | F f        prog(G f) = prog(f) & G f        prog(f U g) = prog(g) |
    prog(f) & f U g

Operators: ! not, & and, | or, X next, F eventually, G always, f U g until; true, false, names, brackets.
Source: Bacchus and Kabanza, 1998. A state is accepting if what is left is true, and failed if it is false.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

# ("name", p), ("true",), ("false",), ("!", f), ("&", {f, ...}), ("|", {f, ...}), ("X" | "F" | "G", f), ("U", f, g)
Formula = tuple
TRUE, FALSE = ("true",), ("false",)


def parse(text: str, parts: Mapping[str, str] = {}, _open: tuple[str, ...] = ()) -> Formula:
    """The formula that a text says. parts: name -> formula, put in its place.

    Raises:
      ValueError: if the text is malformed, or a part contains itself.
    """
    tokens = re.findall(r"[A-Za-z_]\w*|[!&|()]|\S", text)
    place = 0

    def take() -> str:
        nonlocal place
        if place == len(tokens):
            raise ValueError(f"ltl: {text!r} ends too early")
        place += 1
        return tokens[place - 1]

    def unary() -> Formula:
        token = take()
        if token == "(":
            inside = until()
            if place == len(tokens) or take() != ")":
                raise ValueError(f"ltl: {text!r} lacks a closing bracket")
            return inside
        if token == "!":
            return negated(unary())
        if token in ("X", "F", "G"):
            return (token, unary())
        if token in ("true", "false"):
            return (token,)
        if token in _open:
            raise ValueError(f"ltl: part {token!r} contains itself")
        if token in parts:
            return parse(parts[token], parts, (*_open, token))
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            raise ValueError(f"ltl: {token!r} in {text!r} is no formula")
        return ("name", token)

    def binary(operator: str, inner, join):
        found = [inner()]
        while place < len(tokens) and tokens[place] == operator:
            take()
            found.append(inner())
        return join(found)

    def disjunction() -> Formula:
        return binary("|", lambda: binary("&", unary, conjoin), disjoin)

    def until() -> Formula:
        left = disjunction()
        if place < len(tokens) and tokens[place] == "U":
            take()
            return ("U", left, until())
        return left

    result = until()
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
    inside = {f for f in inside if not (f[0] == other and f[1] & (inside - {f}))}
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
      ValueError: if there are more states.
    """
    states, moves = [f], []
    for state in states:  # grows
        row = []
        for letter in letters:
            target = progress(state, letter)
            if target not in states:
                states.append(target)
            row.append(states.index(target))
        moves.append(row)
        if len(states) > most:
            raise ValueError(f"ltl: more than {most} states; write a smaller formula")
    return np.array(moves), np.array([s == TRUE for s in states]), np.array([s == FALSE for s in states])
