"""Recursive descent over the tokens of one number or expression, to its exact value (rl_jax.rewards.algebra)."""

import math
from fractions import Fraction

from rl_jax.rewards import algebra
from rl_jax.rewards.algebra import Algebra, Value

MAX_DEPTH = 20  # of brackets
FUNCTIONS = {  # of one argument
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp",
}  # fmt: skip
GREEK = {
    "alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "omega", "phi", "pi", "infty", "tau", "sigma", "rho",
}  # fmt: skip


class ExpressionError(ValueError):
    """The text is no answer that this parser knows, or it has no value; the message says why."""


class Reader:
    """Reads sums, products and powers by recursive descent.

        sum := product (+- product)*;   product := factor (* factor | / factor | factor)*;   factor := atom, "!", ^ atom
    """

    def __init__(self, tokens: list[str]):
        self.tokens, self.place, self.depth, self.algebra = tokens, 0, 0, Algebra()

    def peek(self) -> str:
        """The next token, or ""."""
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        """The next token, which must be the expected one."""
        token = self.peek()
        if not token or expected and token != expected:
            raise ExpressionError(f"expected {expected or 'more'!r}, found {token or 'the end'!r}")
        self.place += 1
        return token

    def sum(self) -> Value:
        """A sum of products, each with a sign."""
        self.depth += 1
        if self.depth > 2 * MAX_DEPTH:
            raise ExpressionError("nested too deep")
        total = None
        while total is None or self.peek() in ("+", "-"):
            negative = self.peek() in ("+", "-") and self.take() == "-"
            term = self.product()
            term = self.algebra.negate(term) if negative else term
            total = term if total is None else self.algebra.add(total, term)
        self.depth -= 1
        return total

    def product(self) -> Value:
        """A product of factors, with or without signs between them."""
        total = self.factor()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                negative = self.peek() == "-" and self.take() == "-"
                factor = self.factor()
                factor = self.algebra.negate(factor) if negative else factor
                total = self.algebra.multiply(total, factor) if token == "*" else self.algebra.divide(total, factor)
            elif token and (token.isalpha() or token in "([{" or token[0] == "\\" and token != r"\}"):
                total = self.algebra.multiply(total, self.factor())
            else:
                return total

    def factor(self) -> Value:
        """An atom with its factorial and its exponent."""
        value = self.atom()
        if self.peek() == "!":
            self.take()
            n = algebra.as_fraction(value)
            known = n is not None and n.denominator == 1 and 0 <= n <= 100
            value = algebra.number(math.factorial(int(n))) if known else algebra.symbol(f"({algebra.form(value)})!")
        if self.peek() == "^":
            self.take()
            value = self.algebra.power(value, self.exponent())
        return value

    def exponent(self) -> Value:
        """What stands behind "^": a group, or one atom with a sign."""
        negative = self.peek() == "-" and self.take() == "-"
        value = self.atom()
        if self.peek() == "^":
            raise ExpressionError("a tower of exponents")
        return self.algebra.negate(value) if negative else value

    def group(self, opening: str = "{", closing: str = "}") -> Value:
        """A sum in brackets."""
        self.take(opening)
        value = self.sum()
        self.take(closing)
        return value

    def argument(self) -> Value:
        """A group in braces, or a single digit or letter, as in \\sqrt3."""
        if self.peek() == "{":
            return self.group()
        token = self.take()
        if len(token) == 1 and token.isalnum():
            return algebra.number(int(token)) if token.isdigit() else algebra.symbol(token)
        if token == r"\pi":
            return algebra.symbol(token)
        raise ExpressionError(f"unexpected {token!r}")

    def atom(self) -> Value:
        """A number, a letter, a group or a command."""
        token = self.peek()
        if token and (token[0].isdigit() or token[0] == "."):
            return self.literal()
        if token and token in "([{":
            return self.group(token, {"(": ")", "[": "]", "{": "}"}[token])
        if token == "|":
            return self.absolute()
        self.take()
        if token.isalpha():
            return algebra.symbol(token + self.subscript())
        if token[0] != "\\":
            raise ExpressionError(f"unexpected {token!r}")
        return self.command(token[1:])

    def literal(self) -> Value:
        """A number; "2 1/2" and "2\\frac{1}{2}" are mixed numbers; a subscript is the base of its digits."""
        digits = self.take()
        base = self.subscript()
        if base:
            return algebra.symbol(digits + base)
        value = Fraction(digits)
        following = self.tokens[self.place : self.place + 3]
        fraction = len(following) == 3 and following[1] == "/" and all(x.isdigit() for x in following[::2])
        if digits.isdigit() and fraction:
            self.place += 3
            if int(following[2]) == 0:
                raise ExpressionError("a division by zero")
            return algebra.number(value + Fraction(int(following[0]), int(following[2])))
        if digits.isdigit() and self.peek() == r"\frac":
            self.take()
            top, bottom = algebra.as_fraction(self.argument()), algebra.as_fraction(self.argument())
            if top is None or not bottom or top < 0 or bottom < 0:
                raise ExpressionError("a number before a fraction")
            return algebra.number(value + top / bottom)
        return algebra.number(value)

    def subscript(self) -> str:
        """"_1" of a name, or ""."""
        if self.peek() != "_":
            return ""
        self.take()
        text = self.take()
        if text == "{":
            text = ""
            while self.peek() != "}":
                text += self.take()
            self.take("}")
        if not text.isalnum():
            raise ExpressionError("a subscript that is no name")
        return "_" + text

    def absolute(self) -> Value:
        """|x|, exact for rational numbers."""
        value = self.group("|", "|")
        known = algebra.as_fraction(value)
        return algebra.symbol(f"|{algebra.form(value)}|") if known is None else algebra.number(abs(known))

    def command(self, name: str) -> Value:
        """What follows a backslash."""
        if name == "frac":
            top = self.argument()
            return self.algebra.divide(top, self.argument())
        if name == "sqrt":
            degree = 2
            if self.peek() == "[":
                found = algebra.as_fraction(self.group("[", "]"))
                if found is None or found.denominator != 1 or not 2 <= found <= 12:
                    raise ExpressionError("a root of that degree")
                degree = int(found)
            return self.algebra.root(self.group("(", ")") if self.peek() == "(" else self.argument(), degree)
        if name == "binom":
            top = self.argument()
            n, k = algebra.as_fraction(top), algebra.as_fraction(self.argument())
            if n is None or k is None or n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n <= 1000:
                raise ExpressionError("a binomial coefficient of that")
            return algebra.number(math.comb(int(n), int(k)))
        if name in GREEK:
            return algebra.symbol("\\" + name + self.subscript())
        if name in FUNCTIONS:
            return self.function(name)
        raise ExpressionError(f"unknown command \\{name}")

    def function(self, name: str) -> Value:
        """f x, f(x), f^2 x, \\log_2 x: an atom named after its argument."""
        name += self.subscript()
        exponent = None
        if self.peek() == "^":
            self.take()
            exponent = self.exponent()
        if self.peek() in ("(", "{"):
            argument = self.atom()
        else:  # sin 2x: a number and letters
            argument = self.factor()
            while self.peek().isalpha() or self.peek() == r"\pi":
                argument = self.algebra.multiply(argument, self.factor())
        value = algebra.symbol(f"{name}({algebra.form(argument)})")
        return value if exponent is None else self.algebra.power(value, exponent)
