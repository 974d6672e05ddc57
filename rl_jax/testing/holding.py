"""How laws are applied: each raises AssertionError that names the function, the law and the argument at fault."""

import difflib
import functools
from collections.abc import Callable, Collection, Mapping

import numpy as np


def law(fn: Callable) -> Callable:
    """Decorator of a law, a function (case, ...) that asserts: its AssertionErrors start with the case and the law."""

    @functools.wraps(fn)
    def held(case, *arguments, **keywords):
        try:
            fn(case, *arguments, **keywords)
        except AssertionError as error:
            raise AssertionError(f"{case.name} breaks the law {title(fn)!r}: {error}") from error

    return held


def title(fn: Callable) -> str:
    """The name of a law in words."""
    return fn.__name__.replace("_", " ")


def same(result, expected, *, argument: str, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    """Asserts that two (value, gradient) agree. argument: what was changed between them, for the message."""
    for what, left, right in zip(("value", "gradient"), result, expected, strict=True):
        left, right = np.asarray(left), np.asarray(right)
        detail = f"{argument}: another {what}"
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol, err_msg=detail)


def broken(case, laws: Mapping[str, Callable]) -> dict[str, str]:
    """What does not hold: {name of the law: what it says}, in the order of `laws`; empty if all hold."""
    result = {}
    for name, fn in laws.items():
        try:
            fn(case)
        except AssertionError as error:
            result[name] = str(error)
    return result


def check(case, laws: Mapping[str, Callable], *, except_for: Collection[str] = ()) -> None:
    """Holds a case to all laws, apart from those that it breaks on purpose.

    Args:
      case: what the laws take; it has a `name`.
      laws: name -> law.
      except_for: names of laws that are not asked for.
    Raises:
      AssertionError: if laws are broken; it names the case, each of these laws and the argument at fault.
      ValueError: if `except_for` names a law that there is not.
    """
    for name in except_for:
        if name not in laws:
            near = difflib.get_close_matches(name, laws, n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no law {name!r}; near it: {near}. The laws are: {', '.join(laws)}")
    asked = {name: fn for name, fn in laws.items() if name not in except_for}
    result = broken(case, asked)
    if result:
        listed = "\n\n".join(result.values())
        names = ", ".join(result)
        raise AssertionError(f"{case.name} breaks {len(result)} of {len(asked)} laws ({names}).\n\n{listed}")


def name_of(fn: Callable) -> str:
    """What a function is called in messages; that of a functools.partial is its function's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", repr(fn))
