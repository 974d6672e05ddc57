"""config.rollout.long_prompts: what happens to prompts that are longer than the widest of rollout.prompt_buckets.

    --config.rollout.long_prompts=stop     # the run ends, with the first of them (the default)
    --config.rollout.long_prompts=drop     # they are left out
    --config.rollout.long_prompts=cut      # their ends are kept, behind a BOS

What is dropped or cut is said once, and what is dropped is counted in data/skipped_records. SFT on preferences obeys
encode.truncate, which says the same of preferences ("refuse", "drop", "left"), and if that refuses, long_prompts.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.preferences import encode, places
from rl_jax.training import distributed

CHOICES = ("stop", "drop", "cut")
TRUNCATE = dict(zip(encode.TRUNCATE, ("stop", "cut", "drop"), strict=True))  # encode.truncate -> one of CHOICES


class Rule(NamedTuple):
    """What happens to long prompts.

    Attributes:
      choice: one of CHOICES.
      said: the field of the config that says so, and its value.
      ways: for messages, what to set in place of "stop".
    """

    choice: str
    said: str
    ways: str


def rule_of(config) -> Rule:
    """The rule of config.rollout.long_prompts. Raises ValueError if that is unknown."""
    choice = config.rollout.long_prompts
    if choice not in CHOICES:
        raise ValueError(f"rollout.long_prompts={choice!r} is none of {', '.join(CHOICES)}")
    ways = "rollout.long_prompts to drop (leave them out) or cut (keep their ends)"
    return Rule(choice, f"rollout.long_prompts={choice}", ways)


def rule_of_preferences(config) -> Rule:
    """The rule of SFT on preferences. Raises ValueError if a field of the config is unknown."""
    rule = rule_of(config)
    if "encode" not in config:
        return rule
    truncate = config.encode.truncate
    if truncate not in TRUNCATE:
        raise ValueError(f"encode.truncate={truncate!r} is none of {', '.join(TRUNCATE)}")
    if truncate == "refuse":
        return rule._replace(ways="encode.truncate to drop (leave them out) or left (keep their ends)")
    return Rule(TRUNCATE[truncate], f"encode.truncate={truncate}", "")


def prompt_of(record: dict) -> str | list[dict]:
    """What a tokenizer encodes as a record's prompt: its chat, if it has one, else its text."""
    return record.get("messages") or record["prompt"]


def cuts(config) -> bool:
    """Whether prompts over the widest bucket are cut to their ends."""
    return config.rollout.long_prompts == "cut"


class Kept:
    """Some records of a source; what else it has (report, name, split) is its own.

    Attributes:
      num_skipped: records that are left out: bad ones of the source, and these.
    """

    def __init__(self, source: Any, places: Sequence[int]):
        """places: of the records in `source`."""
        self._source, self._places = source, list(places)
        self.num_skipped = num_skipped(source) + len(source) - len(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict:
        return self._source[self._places[index]]

    def __getattr__(self, name: str):
        return getattr(self._source, name)

    def __repr__(self) -> str:  # grain prints it in error messages: it must not show the data
        return f"Kept({self._source!r}, {len(self)} records)"


def limited(config, task: tasks.Task) -> tasks.Task:
    """The task with config.rollout.long_prompts applied to each of its splits, when it is first read.

    With "stop", only the prompts of a user's own files are measured before the run (Task.check_prompts). Training
    prompts that are in the test file, too, are said.

    Args:
      config: of the run.
      task: with the tokenizer of the run.

    Raises:
      ValueError: for another choice. Reading a split raises readers.DataError if a prompt is too long, or none is left.
    """
    rule = rule_of(config)
    if task.data_source is None or (rule.choice == "stop" and not task.check_prompts):
        return task

    warn = functools.cache(functools.partial(_say_overlap, says=config.log.progress))  # once, not for each split

    @functools.cache
    def data_source(split: str):
        source = task.data_source(split)
        report = getattr(source, "report", {})
        warn(report.get("num_train_in_test", 0), report.get("num_records", {}).get("train", 0))
        return limited_source(config, task.tokenizer, source, split, rule)

    return task._replace(data_source=data_source)


def limited_source(config, tokenizer, source: Any, split: str, rule: Rule) -> Any:
    """The source with a rule applied to its prompts.

    Args:
      config: of the run.
      tokenizer: of the run.
      source: of records.
      split: its name, for messages.
      rule: what happens to long prompts.

    Raises:
      readers.DataError: if a prompt is too long, or none is left.
    """
    limit, lengths = max(config.rollout.prompt_buckets), []
    for record in (source[index] for index in range(len(source))):
        ids = record["ids"][0] if "ids" in record else tokenizer.encode(prompt_of(record), bos=True)
        lengths.append(len(ids))
    return _apply(rule, source, lengths, limit, split, config.log.progress)


def place_of(source: Any, index: int) -> str:
    """Where a record of a source comes from, for messages: as the source says, or the record; else its number."""
    return source.place_of(index) if hasattr(source, "place_of") else places.place_of(source, index)


def num_skipped(source: Any) -> int:
    """The number of records that a source leaves out; a source of your own, such as a list, may not say."""
    return getattr(source, "num_skipped", 0)


def told_of_skipped(source: Any) -> str:
    """What is said of the records that a source leaves out, with the place of the first bad one; "" if it has all."""
    count, bad = num_skipped(source), getattr(source, "report", {}).get("skipped", [])
    return f"{count} records were left out" + (f", the first bad one: {bad[0]}" if bad else "") if count else ""


def say_skipped(config, source: Any) -> int:
    """The number of records that a source leaves out. Prints `told_of_skipped` if config.log.progress."""
    if (told := told_of_skipped(source)) and config.log.progress and distributed.is_main():
        print(told, flush=True)
    return num_skipped(source)


def _say_overlap(shared: int, count: int, *, says: bool) -> None:
    """Prints how many of `count` training records have a prompt that is tested on, too."""
    if shared and says and distributed.is_main():
        print(f"{shared} of {count} training records have a prompt of the test file, so that eval/ is not held out")


def _apply(rule: Rule, source: Any, lengths: list[int], limit: int, split: str, says: bool) -> Any:
    """The source with a rule applied. lengths: tokens of each prompt. says: whether to print what was done."""
    long = [place for place, length in enumerate(lengths) if length > limit]
    if not long:
        return source
    prompt = str(prompt_of(source[long[0]]))
    count = f"{len(long)} of {len(lengths)} prompts of {split} have over {limit} tokens (the longest {max(lengths)})"
    if rule.choice == "stop":
        raise readers.DataError(
            f"{count}: the widest of rollout.prompt_buckets, BOS included. The first is {place_of(source, long[0])}, "
            f"{lengths[long[0]]} tokens: {prompt!r:.120}. Add a wider bucket, or set {rule.ways}"
        )
    if says and distributed.is_main():
        print(f"{rule.said}: {count}")
    if rule.choice == "cut":
        return source
    if len(long) == len(lengths):
        raise readers.DataError(f"{count}, so that none is left: add a wider bucket to rollout.prompt_buckets")
    kept = [place for place, length in enumerate(lengths) if length <= limit]
    return Kept(source, kept)
