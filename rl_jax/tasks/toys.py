"""Small generated tasks for the verifiers of rl_jax.rewards: one kind of question, or a mixture with sources.

    load(kinds=("calls",))                    # each kind: rl_jax.tasks.toy_kinds
    load(kinds=("boxes", "calls", "echoes"))  # a record's "source" is its kind

The demonstrations of the warm start are right with probability 1 - imperfect, so there is something left to learn.
"""

import hashlib
import json
import random
import string
from collections.abc import Sequence

from rl_jax.tasks import base, toy_kinds
from rl_jax.tokenizers import CharTokenizer

ALPHABET = string.ascii_letters + string.digits + " \n" + string.punctuation
TEST_IN = 5  # of so many prompts, one is held out


class Sourced(base.RecordSource):
    """Records whose "source" is that of their info."""

    def __getitem__(self, index: int) -> dict[str, str]:
        record = super().__getitem__(index)
        return record | {"source": json.loads(record["info"])["source"]}


def load(
    *,
    kinds: Sequence[str] = ("calls",),
    num_train: int = 2_000,
    num_test: int = 200,
    imperfect: float = 0.5,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """A generated task without a reward of its own: config.reward.terms names the verifier.

    Args:
      kinds: names of toy_kinds.KINDS; several are drawn with equal probability.
      num_train: questions, drawn with repetition: a kind may have fewer different ones.
      num_test: questions with other prompts than these; the same prompts for a kind whose answers cannot be derived
        from the prompt (clicks, facts).
      imperfect: share of the demonstrations that are wrong, in [0, 1].
      seed: of the questions.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a setting is out of its range.
    """
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if unknown := sorted(set(kinds) - set(toy_kinds.KINDS)):
        raise ValueError(f"no kind {', '.join(unknown)}; the kinds are {', '.join(toy_kinds.KINDS)}")
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"kinds must be different names, at least one, got {kinds}")
    if num_train < 1 or num_test < 1:
        raise ValueError(f"num_train and num_test must be at least 1, got {num_train} and {num_test}")
    if not 0 <= imperfect <= 1:
        raise ValueError(f"imperfect must lie in [0, 1], got {imperfect}")
    arguments = dict(
        kinds=kinds, num_train=int(num_train), num_test=int(num_test), imperfect=float(imperfect), seed=int(seed)
    )
    code = [__file__, toy_kinds.__file__]
    stored = base.record_splits(
        "toys", lambda: (make(**arguments), {}), arguments=arguments, code=code, data_dir=data_dir
    )

    def data_source(split: str) -> base.RecordSource:
        source = stored(split)
        return Sourced(source._data, name=source.name, split=source.split, report=source.report)

    return base.Task("_".join(kinds), CharTokenizer(ALPHABET), data_source, None)


def make(*, kinds: Sequence[str], num_train: int, num_test: int, imperfect: float, seed: int) -> dict[str, list[dict]]:
    """The records of each split."""
    rng, splits = random.Random(seed), {"train": [], "test": [], "sft_train": []}
    while len(splits["train"]) < num_train or len(splits["test"]) < num_test:
        kind = rng.choice(kinds)
        toy = toy_kinds.KINDS[kind](rng)
        split = "test" if _is_held_out(kind, toy.prompt, rng) else "train"
        if len(splits[split]) == (num_test if split == "test" else num_train):
            continue
        record = {"prompt": toy.prompt, "info": json.dumps(toy.info | {"source": kind})}
        splits[split].append(record | {"completion": toy.right})
        if split == "train":
            shown = rng.choice(toy.wrong) if rng.random() < imperfect else toy.right
            splits["sft_train"].append(record | {"completion": shown})
    return splits


def _is_held_out(kind: str, prompt: str, rng: random.Random) -> bool:
    if kind in ("clicks", "facts"):  # nothing in a prompt says its answer
        return rng.random() < 1 / TEST_IN
    return hashlib.sha256(f"{kind} {prompt}".encode()).digest()[0] % TEST_IN == 0
