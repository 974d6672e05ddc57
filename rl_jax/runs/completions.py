"""Completions as text for a terminal: one line per prompt and completion, whatever they hold."""

from collections.abc import Mapping, Sequence
from typing import Any


def completions_table(step: int, rows: Sequence[Mapping[str, Any]], limit: int, *, width: int = 110) -> str:
    """The first `limit` completions of each split as a small table.

    Args:
      step: of the samples.
      rows: of samples.jsonl: {"split", "prompt", "completion", "reward", "finished", "truncated"} each.
      limit: rows per split.
      width: of a line, in characters. The end of a prompt is shown, and the beginning and the end of a completion.
    """
    lines = []
    for split in dict.fromkeys(row["split"] for row in rows):
        of_split = [row for row in rows if row["split"] == split]
        lines.append(f"step {step}, {split}: {min(limit, len(of_split))} of {len(of_split)} completions")
        for row in of_split[:limit]:
            end = "" if row["finished"] else "  (cut off)" if row["truncated"] else "  (not finished)"
            head = f"  {row['reward']:8.3g}  "
            prompt, completion = one_line(row["prompt"]), one_line(row["completion"])
            lines.append(head + _last(prompt, width - len(head)))
            room = width - len(head) - 2 - len(end)
            lines.append(" " * len(head) + "> " + _ends(completion, room) + end)
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Text without line breaks and control characters, which could steer the terminal: they are written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _last(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _ends(text: str, width: int) -> str:
    """The beginning of a text and its last third, if it is longer than `width`."""
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"
