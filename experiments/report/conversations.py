"""An episode of several turns as text: who wrote what, what was trained on, and what each turn earned."""

from collections.abc import Mapping
from typing import Any

WHO = {"prompt": "prompt", "sampled": "model", "observation": "environment", "template": "template"}


def as_text(row: Mapping[str, Any]) -> str:
    """A row of samples.jsonl as a conversation, one turn a line; "" if it is not an episode."""
    turns = row.get("conversation")
    if not turns:
        return ""
    lines = [_line(turn) for turn in turns]
    return "\n".join([*lines, f"[{row['status']}{': ' + row['error'] if row.get('error') else ''}]"])


def _line(turn: Mapping[str, Any]) -> str:
    notes = [f"turn {turn['turn']}", f"reward {turn['reward']:g}"] if "turn" in turn else []
    notes += [f"{name} {value:g}" for name, value in turn.get("numbers", {}).items() if value]
    notes += ["trained on"] * turn["trained"]
    return f"{WHO[turn['by']]}{' (' + ', '.join(notes) + ')' if notes else ''}: {turn['text']}"
