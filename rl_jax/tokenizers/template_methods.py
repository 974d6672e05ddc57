"""The methods, filters and tests that a chat template may call, each with what it takes."""

import functools
from collections.abc import Callable

import jinja2
import jinja2.filters
import jinja2.tests

from rl_jax.tokenizers.template_limits import PLAIN, ChatTemplateError, compared, meter, percent


def _replaced(state, text, old, new, count=None):
    text, old, new = str(text), str(old), str(new)
    state.search(text, old)
    found = text.count(old) if old else len(text) + 1
    state.room(len(text) + (found if count is None or count < 0 else min(found, count)) * len(new))


def _joined(state, separator, values):
    values = state.listed(values)
    if isinstance(values, (str, dict, list, tuple, set)):
        state.room(state.weigh(values) + len(separator) * len(values))
    return (values,)


def _strip(state, text, chars=None):
    state.width(len(chars or ""))


def _forwards(state, text, sep=None, *_, **__):
    state.search(text, sep)


def _backwards(state, text, sep=None, *_, **__):
    state.search(text, sep, backwards=True)


def _padded(state, text, width, *_):
    state.width(width)


def _expanded(state, text, tabsize=8):
    state.room(len(text) + text.count("\t") * max(tabsize, 0))


def _free(state, *_, **__):
    pass


def _deep(state, values, *rest, **__):
    state.spend(state.weigh(values) + sum(map(state.weigh, rest)))


# Method -> what it takes, from the same arguments; it may give other arguments in place of them.
_TEXT = {name: _free for name in "upper lower title capitalize casefold swapcase startswith endswith".split()}
_TEXT |= {name: _free for name in "removeprefix removesuffix splitlines".split()}
_TEXT |= {name: _free for name in dir(str) if name.startswith("is")}
_TEXT |= {name: _forwards for name in "split partition find index count".split()}
_TEXT |= {name: _backwards for name in "rsplit rpartition rfind rindex".split()}
_TEXT |= {name: _padded for name in "center ljust rjust zfill".split()}
_TEXT |= {"strip": _strip, "lstrip": _strip, "rstrip": _strip, "replace": _replaced, "join": _joined}
_TEXT |= {"expandtabs": _expanded}
METHODS = {
    str: _TEXT,
    dict: {name: _free for name in ("items", "keys", "values", "get", "copy")},
    list: {"index": _deep, "count": _deep, "copy": _free},
    tuple: {"index": _deep, "count": _deep},
    float: {"is_integer": _free},
}


def check_method(function: Callable, args: tuple, kwargs: dict) -> tuple:
    """The arguments to call a value's method with. Raises ChatTemplateError if a template may not call it so."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, PLAIN):
        return args
    methods = next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), {})
    check = methods.get(function.__name__)
    if check is None:
        kind = type(owner).__name__
        raise ChatTemplateError(f"it calls {function.__name__!r} of a {kind}, which a chat template may not")
    state = meter()
    state.touch(owner, *args)
    for value in args:
        if isinstance(value, tuple):  # compared, or hashed with all that is in it
            state.spend(state.weigh(value))
    return check(state, owner, *args, **kwargs) or args


def _filter_replace(state, value, old, new, count=None):
    _replaced(state, value, old, new, count)


def _filter_join(state, value, d="", attribute=None):
    return _joined(state, str(d), value)[0]


def _filter_indent(state, value, width=4, first=False, blank=False):
    text = str(value)
    state.room(len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))


def _filter_format(state, value, *args, **kwargs):
    percent(str(value), kwargs or args)


def _filter_parts(state, value, count, fill_with=None):
    state.width(count)
    return state.listed(value)


def _filter_round(state, value, precision=0, method="common"):
    state.width(abs(precision) * 10)


def _filter_sum(state, iterable, attribute=None, start=0):
    if not isinstance(start, (int, float)):
        raise ChatTemplateError("it sums up something else than numbers")
    return state.listed(iterable)


def _filter_int(state, value, default=0, base=10):
    state.width(len(value) if isinstance(value, str) else 0)


def _filter_listed(state, value, *_, **__):
    value = state.listed(value)
    state.spend(state.weigh(value))
    return value


# Filter -> what it takes. Those of jinja that are not here, a chat template has no use for.
_FILTERS: dict[str, Callable] = {
    name: _free
    for name in "abs attr capitalize count d default first float items last length list lower map reject rejectattr "
    "reverse safe select selectattr title truncate upper wordcount".split()
}
_FILTERS |= {name: _deep for name in ("string", "e", "escape", "dictsort")}
_FILTERS |= {name: _filter_listed for name in ("groupby", "list", "max", "min", "sort", "unique")}
_FILTERS |= {
    "batch": _filter_parts,
    "slice": _filter_parts,
    "center": lambda state, value, width=80: state.width(width),
}
_FILTERS |= {"replace": _filter_replace, "join": _filter_join, "indent": _filter_indent, "format": _filter_format}
_FILTERS |= {"round": _filter_round, "sum": _filter_sum, "int": _filter_int, "trim": _strip}


def filters(more: dict[str, Callable]) -> dict[str, Callable]:
    """jinja's filters that a chat template may use, and `more`, each with its limits."""
    known = {name: (jinja2.filters.FILTERS[name], check) for name, check in _FILTERS.items()}
    known |= {name: (function, _free) for name, function in more.items()}
    return {name: limited(function, check) for name, (function, check) in known.items()}


def tests() -> dict[str, Callable]:
    """jinja's tests, each with what it takes."""
    return {
        name: limited(function, lambda state, *values, name=name: compared(*values, searched=name == "in"))
        for name, function in jinja2.tests.TESTS.items()
    }


def limited(function: Callable, check: Callable = _free) -> Callable:
    """A filter or test that says first what it takes.

    It gets the context, so that jinja does not run it when it compiles, where nothing is counted.
    """
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    extra = {
        "context": lambda context: (context,),
        "eval_context": lambda context: (context.eval_ctx,),
        "environment": lambda context: (context.environment,),
        None: lambda context: (),
    }[wanted]

    @jinja2.pass_context
    def measured(context, value, *args, **kwargs):
        state = meter()
        state.touch(value, *args)
        changed = check(state, value, *args, **kwargs)
        value = value if changed is None else changed
        return state.made(function(*extra(context), value, *args, **kwargs))

    return functools.update_wrapper(measured, function, assigned=("__name__", "__doc__"), updated=())
