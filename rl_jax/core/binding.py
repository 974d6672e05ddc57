"""Functions by name: the module is the registry, the config binds the keywords, a notebook passes its own function."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def public_functions(module: ModuleType) -> dict[str, Callable]:
    """The functions that `module` offers, by name: its own without an underscore, and those a package re-exports."""
    return {
        name: fn
        for name, fn in vars(module).items()
        if inspect.isfunction(fn)
        and f"{fn.__module__}.".startswith(f"{module.__name__}.")
        and not name.startswith("_")
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
    """The keywords that a call of `fn` must give: keyword-only, without a default, not bound yet."""
    parameters = inspect.signature(fn).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}


def supply(fn: Callable, available: Mapping[str, Any]) -> Callable:
    """`fn` with the keywords that it needs bound to what is available under their names.

    available: name -> array or number; None means that it is not there.
    Raises ValueError where `fn` needs something else, and lists what there is.
    """
    wanted = needs(fn)
    there = {name: value for name, value in available.items() if value is not None}
    missing = sorted(wanted - set(there))
    if missing:
        named = fn.func if isinstance(fn, functools.partial) else fn
        raise ValueError(
            f"{getattr(named, '__name__', named)} needs {', '.join(missing)}, which cannot be given to it here; "
            f"what can: {', '.join(sorted(there)) or 'nothing'}"
        )
    return functools.partial(fn, **{name: there[name] for name in wanted}) if wanted else fn
