"""What a run's folder may hold, and what of a damaged one can be shown: the rows that fit. The others are named."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_jax.core.visible import visible
from rl_jax.runs.logging import GROUP_VIEW_FILE, METRICS_FILE, SAMPLES_FILE, TIMING_FILE

MARKS = ("run.json", "config.json", METRICS_FILE, TIMING_FILE, SAMPLES_FILE, GROUP_VIEW_FILE)  # one of them is a run's
HEAD, TAIL = 12_000, 4_000  # characters shown of a longer text
TOKEN_LENGTH = 200  # characters shown of a longer token
# What a section raises on values of other kinds than the programs write.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError)


def check_run(workdir: Path) -> None:
    """Checks that a folder is a run's.

    Raises:
      FileNotFoundError: if there is no folder, or none of a run's files in it.
    """
    if not workdir.is_dir():
        raise FileNotFoundError(f"no run at {workdir}: name the --workdir of a program under experiments/")
    found = {name for name in MARKS if (workdir / name).exists()}
    if found <= {"config.json"} and any(workdir.glob("*.safetensors")):
        raise FileNotFoundError(
            f"no run at {workdir}: the folder holds a model, *.safetensors, and no metrics: name the --workdir of "
            "the run that trained it"
        )
    if not found:
        raise FileNotFoundError(
            f"no run at {workdir}: the folder has none of {', '.join(MARKS)}: name the --workdir of a program under "
            "experiments/"
        )


def shown(text: str) -> str:
    """A text of a model or a record for the page: hidden characters as escapes, the middle of a long one left out."""
    if not isinstance(text, str):
        raise TypeError(f"expected a text, found {text!r:.60}")
    if len(text) > HEAD + TAIL:
        left_out = len(text) - HEAD - TAIL
        text = f"{text[:HEAD]}\n[... {left_out} of {len(text)} characters are not shown ...]\n{text[-TAIL:]}"
    return visible(text)


def number_rows(name: str, rows: Sequence[Mapping[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """The rows of metrics or timings as the programs write them: a step, and numbers or None under names.

    Args:
      name: of the file.
      rows: as read.
      notes: gets a line about what was left out.
    """
    kept, odd = [], {}
    for index, row in enumerate(rows):
        if not _is_number(row.get("step")):
            odd.setdefault(f"row {index + 1} has no step", row.get("step"))
            continue
        kept.append({field: value for field, value in row.items() if _fits(field, value)})
        odd.update((f"{field} is no number", value) for field, value in row.items() if not _fits(field, value))
    for what, value in list(odd.items())[:4]:
        notes.append(f"{name}: {what} ({value!r:.60}): left out")
    return kept


def step_rows(name: str, rows: Sequence[Mapping[str, Any]], notes: list[str]) -> list[Mapping[str, Any]]:
    """The rows that have a step. The arguments are those of `number_rows`."""
    kept = [row for row in rows if _is_number(row.get("step"))]
    if len(kept) < len(rows):
        notes.append(f"{name}: {len(rows) - len(kept)} rows without a step: left out")
    return kept


def head(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the head of a page says of a run.json: every field is there, as text; {} for an empty record."""
    if not record:
        return {}
    texts = {name: str(record.get(name, "unknown")) for name in ("task", "algorithm", "git_commit", "started")}
    resumed = record.get("resumed")
    return {
        **record,
        **texts,
        "git_dirty": bool(record.get("git_dirty")),
        "resumed": resumed if isinstance(resumed, list) else [],
    }


def section(notes: list[str], name: str, make: Callable, *arguments: Any) -> Any:
    """make(*arguments), or None with a note if a file's content is not what the programs write."""
    try:
        return make(*arguments)
    except DAMAGE as error:
        notes.append(f"{name}: damaged, so that a part of the page is missing ({type(error).__name__}: {error!s:.200})")
        return None


def _fits(field: str, value: Any) -> bool:
    return field == "nonfinite" or value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not (isinstance(value, float) and (value != value or abs(value) > 1e300))
