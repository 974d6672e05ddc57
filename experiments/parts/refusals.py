"""How a program refuses what it is given: a message on standard error and exit status 2, without a traceback.

A refusal is an error that this code raises itself, on purpose, about a config, a command line or data, before the first
step; or a file that is missing or cannot be read. Anything else, a bug included, keeps its traceback and exit status 1.
"""

import contextlib
import dis
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn

import rl_jax
from rl_jax.runs import run_record

STATUS = 2
MEANT = (ValueError, OSError, ImportError, RuntimeError)
OF_FILES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_OF_JAX = "JAX has removed its internal frames"  # jax's note on what was raised while a program was traced
_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
OURS = (pathlib.Path(rl_jax.__file__).resolve().parent, _CHECKOUT / "experiments", _CHECKOUT / "configs")


class Refusal(SystemExit):
    """Ends a program with exit status 2. Its text is the message, which has been printed."""

    def __init__(self, text: str):
        super().__init__(STATUS)
        self.text = text

    def __str__(self) -> str:
        return self.text


def refuse(name: str, text: str) -> NoReturn:
    """Ends the program `name` with a message and exit status 2; the record of a run that it began says why."""
    print(f"{name}: {text}", file=sys.stderr, flush=True)
    run_record.fail(text)
    raise Refusal(f"{name}: {text}") from None


@contextlib.contextmanager
def refusing(name: str) -> Iterator[None]:
    """Inside, an error that is a refusal ends the program `name` with its message; others pass."""
    try:
        yield
    except MEANT as error:
        if not is_refusal(error):
            raise
        refuse(name, said(error))


@contextlib.contextmanager
def naming_fields(group: str, fields: Iterable[str]) -> Iterator[None]:
    """Inside, an error that names an argument of a library function names the config field that the user set.

    test_share=2.0 becomes task.test_share=2.0. A name without an underscore is a common word ("path", "prompt"): it is
    a field's only before "=".

    Args:
      group: the config's, whose fields are the function's arguments, as in "task".
      fields: their names.
    """
    try:
        yield
    except ValueError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (_with_fields(error.args[0], group, fields),)
        raise


def loaded(load: Callable[..., Any], group: str, fields: Mapping[str, Any]) -> Any:
    """A task or preferences, load(**fields), whose errors name the fields of config.`group`, when it is read, too."""
    with naming_fields(group, fields):
        result = load(**fields)
    return result._replace(data_source=result.data_source and naming_fields(group, fields)(result.data_source))


def _with_fields(text: str, group: str, fields: Iterable[str]) -> str:
    if " takes no " in text:  # it lists the function's own keywords
        return text
    known = "|".join(sorted(fields, key=len, reverse=True))
    word = re.compile(rf"(?<![\w.'\"/-])({known})(?![\w.'\"/-])")

    def named(found: re.Match) -> str:
        is_field = "_" in found[1] or text.startswith("=", found.end())
        return f"{group}.{found[1]}" if is_field else found[1]

    return word.sub(named, text)


def is_refusal(error: BaseException) -> bool:
    """Whether an error is a message for the user. In a step (Run.__exit__ notes its number) none is."""
    if not isinstance(error, MEANT) or any(_OF_JAX not in note for note in getattr(error, "__notes__", ())):
        return False
    if isinstance(error, OF_FILES) and error.filename is not None:
        return True
    return _raised_on_purpose(error.__traceback__)


def drop_note_of_jax(error: BaseException) -> None:
    """Takes jax's note on its frames off an error; other notes stay."""
    if hasattr(error, "__notes__"):
        error.__notes__[:] = [note for note in error.__notes__ if _OF_JAX not in note]


def said(error: BaseException) -> str:
    """The message of a refusal."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _raised_on_purpose(trace: TracebackType | None) -> bool:
    """Whether the innermost frame of a traceback is a `raise` in this code, not a call that failed."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if not any(pathlib.Path(code.co_filename).resolve().is_relative_to(folder) for folder in OURS):
        return False
    return dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
