"""Exact arithmetic for answers in mathematics: rationals, radicals, i, pi, variables and fractions of their sums.

A value is top / bottom, each a sum of terms: Fraction coefficients on products of atoms with rational exponents. Primes
with a fractional exponent are atoms ("#2" to the 1/2 is the root of 2), reduced so that their exponents are in [0, 1):
such products are linearly independent over the rationals, so equality of sums of radicals is decided exactly. What has
no rule here (sin(x), 2^n) becomes an atom named after its arguments: equal forms are equal values, though not every two
equal values have equal forms. Sizes and the number of steps are bounded; nothing is ever rounded.
"""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

MAX_BITS = 8192  # of a coefficient; 10^2000 fits
MAX_SUM_BITS = 2048  # of a coefficient in a sum of several terms
MAX_TERMS = 64
MAX_STEPS = 10_000  # products of two terms in one answer
MAX_EXPONENT = 9999
MAX_RADICAND = 10**8  # of what is left of a radicand after its small factors
IMAGINARY = "i"

Monomial = tuple[tuple[str, Fraction], ...]
Sum = dict[Monomial, Fraction]


class AlgebraError(ValueError):
    """The value does not exist (a division by zero), or it is too large to be worked out."""


class Value(NamedTuple):
    """top / bottom; bottom is 1 unless it has several terms."""

    top: Sum
    bottom: Sum


ONE: Sum = {(): Fraction(1)}


def number(value: int | Fraction) -> Value:
    """The value of a rational number."""
    value = Fraction(value)
    _check_bits(value, MAX_BITS)
    return Value({(): value} if value else {}, ONE)


def symbol(name: str) -> Value:
    """A variable, a constant such as pi, or what has no rule here."""
    return Value({((name, Fraction(1)),): Fraction(1)}, ONE)


def as_fraction(value: Value) -> Fraction | None:
    """The rational number that a value is, or None."""
    if value.bottom != ONE or set(value.top) - {()}:
        return None
    return value.top.get((), Fraction(0))


def form(value: Value) -> str:
    """A text that only equal values share, to name what is made of them."""
    text = "+".join(f"{c}*{m}" for m, c in sorted(value.top.items(), key=str))
    return text if value.bottom == ONE else f"({text})/({sorted(value.bottom.items(), key=str)})"


class Algebra:
    """Operations on values; one object per answer, since it counts the steps."""

    def __init__(self, steps: int = MAX_STEPS):
        self._left = steps

    def add(self, left: Value, right: Value) -> Value:
        """left + right."""
        if left.bottom == right.bottom:
            return self._value(_plus(left.top, right.top), left.bottom)
        top = _plus(self._times(left.top, right.bottom), self._times(right.top, left.bottom))
        return self._value(top, self._times(left.bottom, right.bottom))

    def negate(self, value: Value) -> Value:
        """-value."""
        return Value({m: -c for m, c in value.top.items()}, value.bottom)

    def multiply(self, left: Value, right: Value) -> Value:
        """left * right."""
        return self._value(self._times(left.top, right.top), self._times(left.bottom, right.bottom))

    def divide(self, left: Value, right: Value) -> Value:
        """left / right. Raises AlgebraError if right is 0."""
        return self._value(self._times(left.top, right.bottom), self._times(left.bottom, right.top))

    def equal(self, left: Value, right: Value) -> bool:
        """Whether left - right is 0, by cross-multiplication."""
        return self._times(left.top, right.bottom) == self._times(right.top, left.bottom)

    def proportional(self, left: Value, right: Value) -> bool:
        """Whether left = c * right with a rational c that is not 0: two forms of one equation ... = 0."""
        first, second = self._times(left.top, right.bottom), self._times(right.top, left.bottom)
        if set(first) != set(second) or not first:
            return False
        return len({first[m] / second[m] for m in first}) == 1

    def power(self, base: Value, exponent: Value) -> Value:
        """base ^ exponent.

        Raises:
          AlgebraError: for 0^0, 0^-1, or a result that is too large.
        """
        e = as_fraction(exponent)
        if e is None:
            return symbol(f"({form(base)})^({form(exponent)})")
        if not base.top and e <= 0:
            raise AlgebraError("a power of zero")
        if e.denominator == 1:
            return self._integer_power(base, int(e))
        single = len(base.top) == 1 and base.bottom == ONE
        rational = as_fraction(base)
        if rational is not None and rational >= 0 and e.denominator <= 12 and abs(e.numerator) <= MAX_EXPONENT:
            return self.root(self._integer_power(base, e.numerator), e.denominator)
        if single and next(iter(base.top.values())) == 1 and [x for _, x in next(iter(base.top))] == [1]:
            return Value({((next(iter(base.top))[0][0], e),): Fraction(1)}, ONE)
        return symbol(f"({form(base)})^({e})")

    def root(self, value: Value, degree: int) -> Value:
        """The real root of a rational number (i times it for a square root of a negative one); else a symbol."""
        if not 2 <= degree <= 12:
            raise AlgebraError(f"a root of degree {degree}")
        r = as_fraction(value)
        if r is None:
            return self.power(value, number(Fraction(1, degree)))
        if r < 0 and degree == 2:
            return self.multiply(symbol(IMAGINARY), self.root(number(-r), 2))
        if r < 0:
            return self.negate(self.root(number(-r), degree)) if degree % 2 else symbol(f"root {degree} of {r}")
        if r == 0:
            return number(0)
        top, bottom = _factors(r.numerator, degree), _factors(r.denominator, degree)
        if top is None or bottom is None:
            return symbol(f"root {degree} of {r}")
        exponents = {p: Fraction(n, degree) for p, n in top.items()}
        for p, n in bottom.items():
            exponents[p] = exponents.get(p, Fraction(0)) - Fraction(n, degree)
        factor, monomial = _reduced({f"#{p}": e for p, e in exponents.items()})
        return Value({monomial: factor}, ONE)

    def _integer_power(self, base: Value, e: int) -> Value:
        if abs(e) > MAX_EXPONENT:
            raise AlgebraError(f"an exponent over {MAX_EXPONENT}")
        if e < 0:
            return self._integer_power(self.divide(number(1), base), -e)
        if len(base.top) == 1 and base.bottom == ONE:
            ((monomial, c),) = base.top.items()
            if e * max(c.numerator.bit_length(), c.denominator.bit_length()) > MAX_BITS + e:
                raise AlgebraError("a power that is too large")
            factor, monomial = _reduced({atom: x * e for atom, x in monomial})
            return self._value({monomial: c**e * factor}, ONE)
        result = number(1)
        for _ in range(e):
            result = self.multiply(result, base)
        return result

    def _times(self, left: Sum, right: Sum) -> Sum:
        self._left -= len(left) * len(right)
        if self._left < 0:
            raise AlgebraError("too many steps")
        result: Sum = {}
        for m1, c1 in left.items():
            for m2, c2 in right.items():
                exponents = dict(m1)
                for atom, e in m2:
                    exponents[atom] = exponents.get(atom, Fraction(0)) + e
                factor, monomial = _reduced(exponents)
                result[monomial] = result.get(monomial, Fraction(0)) + c1 * c2 * factor
        return _checked({m: c for m, c in result.items() if c})

    def _value(self, top: Sum, bottom: Sum) -> Value:
        if not bottom:
            raise AlgebraError("a division by zero")
        if len(bottom) == 1 and bottom != ONE:
            ((monomial, c),) = bottom.items()
            factor, inverse = _reduced({atom: -e for atom, e in monomial})
            top, bottom = self._times(top, {inverse: factor / c}), ONE
        return Value(_checked(top), bottom)


def _plus(left: Sum, right: Sum) -> Sum:
    result = dict(left)
    for monomial, c in right.items():
        result[monomial] = result.get(monomial, Fraction(0)) + c
    return {m: c for m, c in result.items() if c}


def _reduced(exponents: dict[str, Fraction]) -> tuple[Fraction, Monomial]:
    """(factor, monomial): whole powers of primes and of i^2 go into the factor."""
    factor, kept = Fraction(1), []
    for atom, e in exponents.items():
        if atom.startswith("#"):
            whole = math.floor(e)
            prime = int(atom[1:])
            if abs(whole) * prime.bit_length() > MAX_BITS:
                raise AlgebraError("a power that is too large")
            factor *= Fraction(prime) ** whole
            e -= whole
        elif atom == IMAGINARY and e.denominator == 1:
            factor *= (1, 1, -1, -1)[int(e) % 4]
            e = Fraction(int(e) % 2)
        if abs(e) > MAX_EXPONENT:
            raise AlgebraError(f"an exponent over {MAX_EXPONENT}")
        if e:
            kept.append((atom, e))
    return factor, tuple(sorted(kept))


def _checked(terms: Sum) -> Sum:
    if len(terms) > MAX_TERMS:
        raise AlgebraError(f"over {MAX_TERMS} terms")
    for c in terms.values():
        _check_bits(c, MAX_BITS if len(terms) == 1 else MAX_SUM_BITS)
    return terms


def _check_bits(value: Fraction, limit: int) -> None:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > limit:
        raise AlgebraError(f"a number of over {limit} bits")


@functools.lru_cache(maxsize=1024)
def _factors(n: int, degree: int) -> dict[int, int] | None:
    """{prime: exponent} of n > 0; None if a cofactor is over MAX_RADICAND and no power of the degree."""
    result: dict[int, int] = {}
    p = 2
    while p * p <= n and p < math.isqrt(MAX_RADICAND):
        while n % p == 0:
            result[p] = result.get(p, 0) + 1
            n //= p
        p += 1 if p == 2 else 2
    times = 1
    if n > MAX_RADICAND:
        base = _whole_root(n, degree)
        if base is None or base > MAX_RADICAND:
            return None
        n, times = base, degree
    if n > 1:
        result[n] = result.get(n, 0) + times
    return result


def _whole_root(n: int, degree: int) -> int | None:
    """The integer b with b^degree = n, or None."""
    low, high = 1, 1 << (n.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= n else (low, middle - 1)
    return low if low**degree == n else None
