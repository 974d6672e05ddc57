"""Which prompts are held out: a hash of the prompt decides, so the same ones in every run, whatever else is drawn."""

import re
from collections.abc import Callable, Iterable

from rl_jax.data import readers


def is_test(prompt: str, one_in: int = 10) -> bool:
    """Whether a prompt is one of the held-out ones, one in `one_in`."""
    return int(readers.text_hash(prompt)[:16], 16) % one_in == 0


def by_prompt(records: Iterable[dict], one_in: int = 10, key: Callable[[str], str] = str) -> dict[str, list[dict]]:
    """{"train", "test"}: no prompt is in both; of records whose prompts have the same key, all are in one.

    Args:
      records: with "prompt" each.
      one_in: of how many keys one is held out.
      key: of a prompt; `unordered` where a held-out problem with its numbers in another order would be no new one.
    """
    splits: dict[str, list[dict]] = {"train": [], "test": []}
    for record in records:
        splits["test" if is_test(key(record["prompt"]), one_in) else "train"].append(record)
    return splits


def unordered(prompt: str) -> str:
    """The numbers and other signs of a prompt, sorted: equal for "3*4+5=" and "5+4*3="."""
    return " ".join(sorted(re.findall(r"\d+|[^\d\s]", prompt)))
