"""Functions by name: the module is the registry, the config binds the keywords, a notebook passes its own function.

A function of anybody's own is named by its import path, "my_losses:my_surrogate".
"""

import difflib
import functools
import importlib
import inspect
import re
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

    Args:
      spec: a name in `module`; an import path "module:function" ("my_losses:my_surrogate", from anywhere on sys.path);
        a mapping {"fn": one of these, **keywords}; or a function, taken as it is.
      module: where plain names are looked up.
      defaults: keywords that the program knows (group_size, max_length); a function that does not name one goes
        without, and the spec's own keywords win, those of a functools.partial included.
    Returns:
      The function, or a functools.partial of it.
    Raises:
      ValueError: for an unknown module, function or keyword; it lists the known ones, or names the nearest.
    """
    keywords = dict(spec) if isinstance(spec, Mapping) else {"fn": spec}
    fn = given = keywords.pop("fn", None)
    if isinstance(fn, str) and ":" in fn:
        fn = resolve(fn)
    elif not callable(fn):
        known = public_functions(module)
        if fn not in known:
            near = difflib.get_close_matches(str(fn), known, n=1, cutoff=0.5)
            raise ValueError(
                f"{module.__name__} has no function {fn!r}; it has: {', '.join(sorted(known))}"
                + (f"; nearest: {near[0]!r}. " if near else ". ")
                + 'To use your own, write "module:function"'
            )
        fn = known[fn]
    parameters = inspect.signature(fn).parameters.values()
    accepted = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    unknown = sorted(set(keywords) - accepted)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        own = ""
        if isinstance(given, str) and ":" in given:
            own = f". The config still has keywords of the function it replaces: set dict(fn={given!r})"
        near = difflib.get_close_matches(unknown[0], sorted(accepted), n=1, cutoff=0.5)
        raise ValueError(
            f"{getattr(fn, '__name__', fn)} takes no keyword {', '.join(map(repr, unknown))}; "
            f"it takes: {', '.join(sorted(accepted)) or 'none'}" + (f"; nearest: {near[0]!r}" if near else own)
        )
    already_bound = fn.keywords if isinstance(fn, functools.partial) else {}
    bound = {n: v for n, v in defaults.items() if n in accepted and n not in already_bound} | keywords
    return functools.partial(fn, **bound) if bound else fn


def resolve(path: str) -> Callable:
    """The function of an import path "module:function", or "module:Class.function".

    Raises:
      ValueError: if the path is not of that form, if there is no such module on sys.path, if importing it fails because
        it imports a module that is missing, if it has no such function (it names the nearest), or if that is not
        callable.
    """
    name, _, qualname = path.partition(":")
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) or not qualname:
        raise ValueError(f'{path!r} is not an import path: write "module:function", as in "my_losses:my_surrogate"')
    try:
        result = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{path!r}: there is no module {error.name!r} on sys.path; put its folder there "
                "(PYTHONPATH=FOLDER), or put the file beside your config: a config's folder is on sys.path"
            ) from error
        raise ValueError(f"{path!r}: importing {name!r} fails: {error}") from error
    for part in qualname.split("."):
        if not hasattr(result, part):
            members = vars(result) if hasattr(result, "__dict__") else {}
            known = [key for key, value in members.items() if callable(value)]
            near = difflib.get_close_matches(part, known, n=1, cutoff=0.0)
            raise ValueError(f"{path!r}: {name} has no {part!r}" + (f"; nearest: {near[0]!r}" if near else ""))
        result = getattr(result, part)
    if not callable(result):
        raise ValueError(f"{path!r} is a {type(result).__name__}, not a function")
    return result


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
            "so it would never be given; remove the default"
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
    names = needs(fn)
    given = {name: value for name, value in available.items() if value is not None}
    missing = sorted(names - set(given))
    if missing:
        descriptions = [f"; {describe(name)}" for name in missing if name in NAMES]
        raise ValueError(
            f"{_name_of(fn)} needs {', '.join(missing)}, which is not available here; "
            f"available: {', '.join(sorted(given)) or 'nothing'}" + "".join(descriptions)
        )
    return functools.partial(fn, **{name: given[name] for name in names}) if names else fn


def _name_of(fn: Callable) -> str:
    named = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(named, "__name__", str(named))
