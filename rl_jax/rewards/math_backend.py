"""Math-Verify behind the exact comparison: asked only if it says no, and believed only if 60 digits confirm it.

The library is an optional extra, `pip install -e '.[math]'`. It accepts some answers that are wrong (1/2004! for
1/2006!, .1000004 for .1), so both answers are evaluated here, and only numbers within 1e-12 of each other count.
"""

import importlib
import re
import threading

MAX_LENGTH = 400  # characters: the library parses by backtracking
DIGITS = 60
TOLERANCE = "1e-12"  # relative

# Of lists it may read a part only.
_ONE_NUMBER = re.compile(r"(?!.*(?:\.\.|dots|\d\s*_))[A-Za-z0-9\\{}()\[\]^_+\-*/!|. ]+", re.ASCII)
_TOO_LARGE = re.compile(r"\^\s*\{?-?\d{5,}|\^[^^]{1,20}\^|\d{3,}\s*!|!\s*!")  # would take minutes to work out


def confirmed(gold: str, given: str, *, time_limit_s: int = 5) -> bool:
    """Whether Math-Verify takes the two for equal and their numbers agree to 12 digits.

    Args:
      gold: the right answer, normalised.
      given: the answer to judge, normalised.
      time_limit_s: the library's own, by an alarm on the main thread; elsewhere it has none, and the reward pool's
        time limit ends it.

    Raises:
      ImportError: if the library is not installed; the message says what to do.
    """
    for text in (gold, given):
        if len(text) > MAX_LENGTH or _TOO_LARGE.search(text) or not _ONE_NUMBER.fullmatch(text):
            return False
    library = _library()
    limit = time_limit_s if threading.current_thread() is threading.main_thread() else None
    first, second = (library.parse(f"${text}$", parsing_timeout=limit, raise_on_error=False) for text in (gold, given))
    if not first or not second:
        return False
    equal = library.verify(first, second, timeout_seconds=limit, raise_on_error=False)
    return equal and _agree(first[0], second[0])


def _agree(first, second) -> bool:
    """Whether two expressions of sympy are numbers that agree."""
    import sympy

    try:
        a, b = (sympy.N(x, DIGITS) for x in (first, second))
        if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
            return False
        return bool(sympy.Abs(a - b) <= sympy.Float(TOLERANCE, DIGITS) * sympy.Max(sympy.Abs(a), sympy.Abs(b)))
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return False


def _library():
    try:
        return importlib.import_module("math_verify")
    except ImportError as error:
        raise ImportError('backend="math_verify" needs Math-Verify: pip install -e ".[math]"; the exact comparison, '
                          'backend="exact", needs nothing') from error  # fmt: skip
