"""Functions by name: the module is the registry, the config binds the keywords, a notebook passes its own function."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rl_jax.core.names import NAMES, describe


def public_functions(module: ModuleType) -> dict[str, Callable]:
    """The functions that `module` offers, by name: its own without an underscore, and those a package re-exports."""
    return {
        name: fn
        for name, fn in vars(module).items()
        if inspect.isfunction(fn) and f"{fn.__module__}.".startswith(f"{module.__name__}.") and not name.startswith("_")
    }


def bind(spec: str | Callable | Mapping, module: ModuleType, **defaults) -> Callable:
    """The function that `spec` names, with its keywords bound.

    spec: a name in `module`; a mapping {"fn": name or function, **keywords}; or a function, taken as it is.
    defaults: keywords that the program knows (group_size, max_length); a function that does not name one goes
        without, and the spec's own keywords win, those of a functools.partial included.
    Raises ValueError for an unknown function or keyword, and lists the known ones.
    """
    keywords = dict(spec) if isinstance(spec, Mapping) else {"fn": spec}
    fn = keywords.pop("fn", None)
    if not callable(fn):
        known = public_functions(module)
        if fn not in known:
            raise ValueError(f"{module.__name__} has no function {fn!r}; it has: {', '.join(sorted(known))}")
        fn = known[fn]
    parameters = inspect.signature(fn).parameters.values()
    accepted = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    unknown = sorted(set(keywords) - accepted)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"{getattr(fn, '__name__', fn)} takes no keyword {', '.join(map(repr, unknown))}; "
            f"it takes: {', '.join(sorted(accepted)) or 'none'}"
        )
    already_bound = fn.keywords if isinstance(fn, functools.partial) else {}
    bound = {n: v for n, v in defaults.items() if n in accepted and n not in already_bound} | keywords
    return functools.partial(fn, **bound) if bound else fn


def needs(fn: Callable) -> set[str]:
    """The arrays that `fn` asks for: keyword-only arguments without a default that are not bound yet.

    Raises:
      ValueError: if `fn` gives a default to a name of rl_jax.core.names.NAMES, which would then never be supplied.
    """
    parameters = [p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unbound, bound = fn, set()
    while isinstance(unbound, functools.partial):  # its signature shows a bound keyword as a default
        unbound, bound = unbound.func, bound | set(unbound.keywords)
    ignored = sorted(p.name for p in parameters if p.name in NAMES and p.default is not p.empty and p.name not in bound)
    if ignored:
        raise ValueError(
            f"{_name_of(fn)} has a default for {', '.join(ignored)}: only required keywords are supplied by name, "
            "so it would never get one; remove the default"
        )
    return {p.name for p in parameters if p.default is p.empty}


def supply(fn: Callable, available: Mapping[str, Any]) -> Callable:
    """`fn` with the arrays that it asks for by name bound to it (rl_jax.core.names.NAMES lists them).

    Args:
      fn: any function; `needs(fn)` are the names that it asks for.
      available: name -> array or number; None counts as missing.

    Returns:
      `fn` itself if it asks for nothing, a functools.partial otherwise.

    Raises:
      ValueError: if `fn` needs something that is not available. The message lists what is, and says what supplies the
        missing ones.
    """
    wanted = needs(fn)
    given = {name: value for name, value in available.items() if value is not None}
    missing = sorted(wanted - set(given))
    if missing:
        known = [f"; {describe(name)}" for name in missing if name in NAMES]
        raise ValueError(
            f"{_name_of(fn)} needs {', '.join(missing)}, which cannot be given to it here; "
            f"what can: {', '.join(sorted(given)) or 'nothing'}" + "".join(known)
        )
    return functools.partial(fn, **{name: given[name] for name in wanted}) if wanted else fn


def _name_of(fn: Callable) -> str:
    named = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(named, "__name__", str(named))
