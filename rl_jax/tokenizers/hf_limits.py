"""Refuses a tokenizer.json whose steps blow up a text, and turns the tokenizers package's panics into errors.

A step that replaces each character by two, forty times over, makes 10^12 of one: the package then takes all memory, and
ends the process. How much a step can lengthen a text is in its description, so this is known before any text is read.
A regular expression that backtracks without end is refused (hf_patterns.py); one that gets through is stopped by the
package's own limit, as a panic.
"""

import contextlib
from collections.abc import Iterator, Mapping

from rl_jax.data.readers import DataError

MAX_GROWTH = 4096  # of a text by all steps together; real tokenizers stay below 10
MAX_PART = 1000  # characters of a text that a step inserts
_LISTS = ("normalizers", "pretokenizers", "decoders")


def check(description: Mapping, path: str) -> None:
    """Checks normalizer, pre-tokenizer and decoder.

    Raises:
      DataError: if they could lengthen a text more than MAX_GROWTH times, or are nested too deep.
    """
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        try:
            growth = _growth(description.get(name), f"{path}, field {name!r}")
        except RecursionError as error:
            raise DataError(f"{path}, field {name!r}: its steps are nested too deep") from error
        if growth > MAX_GROWTH:
            raise DataError(
                f"{path}, field {name!r}: its steps could make a text {growth:.3g} times longer, over {MAX_GROWTH}: "
                "such a file is made to exhaust memory"
            )


def _growth(step, place: str) -> float:
    """How many times longer a step can make a text of one character."""
    if not isinstance(step, Mapping):
        return 1.0
    result = 1.0
    for name in _LISTS:
        for part in step.get(name) or []:
            result = min(result * _growth(part, place), 1e300)
    inserted = step.get("prepend") if step.get("type") == "Prepend" else step.get("content")
    if step.get("type") not in ("Replace", "Prepend") or not isinstance(inserted, str):
        return result
    if len(inserted) > MAX_PART:
        raise DataError(f"{place}: a step inserts {len(inserted)} characters, over {MAX_PART}")
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if isinstance(text, str) and text:
        return result * max(1.0, len(inserted) / len(text))
    return result * (1.0 + len(inserted))  # a Prepend, or an expression that may match nothing, at every place


@contextlib.contextmanager
def panics(path: str, doing: str) -> Iterator[None]:
    """Raises the package's panics, which are no Exceptions, as DataError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"{path}: the tokenizers package gave up {doing} ({error}): an expression of the file backtracks too long"
        ) from error
