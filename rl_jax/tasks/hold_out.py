"""Which prompts are held out: a hash of the prompt decides, so the same ones in every run, whatever else is drawn."""

from collections.abc import Iterable

from rl_jax.data import readers


def is_test(prompt: str, one_in: int = 10) -> bool:
    """Whether a prompt is one of the held-out ones, one in `one_in`."""
    return int(readers.text_hash(prompt)[:16], 16) % one_in == 0


def by_prompt(records: Iterable[dict], one_in: int = 10) -> dict[str, list[dict]]:
    """{"train", "test"}: no prompt is in both; of records with the same prompt, all are in one."""
    splits: dict[str, list[dict]] = {"train": [], "test": []}
    for record in records:
        splits["test" if is_test(record["prompt"], one_in) else "train"].append(record)
    return splits
