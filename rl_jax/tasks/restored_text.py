"""Tasks made of raw text: fill what is masked, put steps in order, write what comes next or stands in the middle.

    masked  "3+4=[1]\\n[2]-2=5\\n" -> "7; 7"              numbers of a worked answer (MR-RLVR, arXiv 2511.17473)
    order   "1) 7-2=5\\n2) 3+4=7\\n" -> "2, 1"            its lines, shuffled (MR-RLVR; Visual Jigsaw, arXiv 2509.25190)
    next    "Mia saw a red bird. She" ...                the next sentence of a text (RLPT, arXiv 2509.19249)
    middle  "... [...] ..."                              the sentence between two others (RLPT)
    rest    the first share of a text                    the rest of it, word for word (arXiv 2507.10532)

The texts are generated (worked answers of rl_jax.tasks.made_problems, stories of rl_jax.tasks.moods), or those of a
file: *.jsonl with the field `column` (its lines are the steps), or plain stories ended by <|endoftext|>. The reward is
rl_jax.rewards.order, and the tokens are bytes unless the model brings its own tokenizer.
"""

import functools
import json
import pathlib
import random
import re
from collections.abc import Callable, Iterator, Sequence

from rl_jax.data import readers
from rl_jax.rewards import order
from rl_jax.tasks import base, hold_out, made_problems, moods
from rl_jax.tokenizers import ByteTokenizer

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MARKS = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator: it would give a masked number away
_SENTENCE = re.compile(r".+?[.!?][\"'”’]*(?=\s|$)\s*", re.DOTALL)


def masked(text: str, rng: random.Random, tagged: bool = False) -> dict | None:
    """One or two numbers of a worked answer, masked by [1] and [2]; None if there are none."""
    spans = list(_NUMBER.finditer(text))
    chosen = sorted(rng.sample(spans, min(len(spans), 2)), key=lambda match: match.start())
    if not chosen:
        return None
    for place, match in reversed(list(enumerate(chosen, start=1))):
        text = f"{text[: match.start()]}[{place}]{text[match.end() :]}"
    answers = [match[0] for match in chosen]
    return _record(f"Fill in:\n{text}\n", "; ".join(answers), answers, tagged)


def shuffled(text: str, rng: random.Random, tagged: bool = False) -> dict | None:
    """The lines of a text in another order, numbered; the answer is the right order of the numbers."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not 2 <= len(lines) <= 9 or len(set(lines)) < len(lines):
        return None
    places = list(range(len(lines)))  # places[j]: which line is shown j-th
    while places == sorted(places):
        rng.shuffle(places)
    answer = [places.index(line) + 1 for line in range(len(lines))]
    shown = "\n".join(f"{j}) {lines[line]}" for j, line in enumerate(places, start=1))
    return _record(f"Order:\n{shown}\n", ", ".join(map(str, answer)), answer, tagged)


def following(text: str, rng: random.Random, tagged: bool = False) -> dict | None:
    """Some sentences of a text, to be continued by the next one."""
    parts = [part.strip() for part in _SENTENCE.findall(text)]
    if len(parts) < 2:
        return None
    place = rng.randint(1, len(parts) - 1)
    return _record(" ".join(parts[:place]) + "\n", parts[place], parts[place], tagged)


def between(text: str, rng: random.Random, tagged: bool = False) -> dict | None:
    """A text without one of its inner sentences, which is the answer."""
    parts = [part.strip() for part in _SENTENCE.findall(text)]
    if len(parts) < 3:
        return None
    place = rng.randint(1, len(parts) - 2)
    shown = " ".join([*parts[:place], "[...]", *parts[place + 1 :]])
    return _record(shown + "\n", parts[place], parts[place], tagged)


def rest(text: str, rng: random.Random, tagged: bool = False, share: float = 0.6) -> dict | None:
    """The first `share` of a text's words, to be continued by the rest: who can has seen it before."""
    words = " ".join(text.split()).split(" ")
    place = round(share * len(words))
    if not 0 < place < len(words):
        return None
    answer = " ".join(words[place:])
    return _record(" ".join(words[:place]), answer if tagged else " " + answer, answer, tagged)


KINDS: dict[str, Callable] = {"masked": masked, "order": shuffled, "next": following, "middle": between, "rest": rest}
OF_STEPS = ("masked", "order")


def _record(prompt: str, completion: str, answer, tagged: bool) -> dict:
    completion = f"<answer>{completion}</answer>" if tagged else completion
    return {"prompt": prompt, "completion": completion, "info": json.dumps({"answer": answer})}


def load(
    *,
    kinds: Sequence[str] = ("masked", "order"),
    path: str = "",
    column: str = "answer",
    share: float = 0.6,
    num_texts: int = 4_000,
    num_steps: int = 2,
    seed: int = 0,
    tagged: bool = False,
    only_test: bool = False,
    max_prompt_bytes: int = 256,
    max_completion_bytes: int = 96,
    skip_bad_records: bool = False,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """Tasks made of raw text; each text gives one record of each kind that fits it.

    Args:
      kinds: names of KINDS.
      path: a file; "": generated texts.
      column: of a *.jsonl file.
      share: of a text's words that kind "rest" shows, in (0, 1).
      num_texts: generated ones.
      num_steps: of a generated worked answer, 1 or more; it has one line more.
      seed: of the texts and of what is masked or shuffled.
      tagged: whether targets stand in <answer>.
      only_test: whether all texts of a file are in the test split, as for a benchmark; otherwise one in ten is.
      max_prompt_bytes: longest prompt; longer ones are left out and counted.
      max_completion_bytes: longest target; longer ones are left out and counted.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a kind is unknown, the share is outside of (0, 1), or num_steps is below 1.
      readers.DataError: if a record is bad.
    """
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if not kinds or (unknown := sorted(set(kinds) - set(KINDS))):
        raise ValueError(f"kinds={kinds} must be of {', '.join(KINDS)}" + (f", not {unknown}" if kinds else ""))
    if not 0 < share < 1:
        raise ValueError(f"share must lie in (0, 1), got {share}")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    arguments = {"kinds": kinds, "share": float(share), "column": column}
    arguments |= {"num_texts": int(num_texts), "num_steps": int(num_steps), "seed": int(seed)}
    arguments |= {"tagged": bool(tagged), "only_test": bool(only_test)}
    longest = [int(max_prompt_bytes), int(max_completion_bytes)]
    arguments |= {"max": longest, "skip_bad_records": bool(skip_bad_records)}

    def make():
        bad, report = readers.BadRecords(skip=skip_bad_records), {"num_too_long": 0, "num_unfit": 0}
        kept, rng = {}, random.Random(seed)
        for steps, text in _texts(path, column, num_texts, num_steps, seed, bad, kinds):
            for kind in kinds:
                if steps is not None and steps != (kind in OF_STEPS):
                    continue
                record = KINDS[kind](text, rng, tagged, **({"share": share} if kind == "rest" else {}))
                report["num_unfit"] += record is None
                if record is None:
                    continue
                too_long = len(record["prompt"].encode()) > max_prompt_bytes
                too_long = too_long or len(record["completion"].encode()) > max_completion_bytes
                report["num_too_long"] += too_long
                if not too_long:
                    kept.setdefault(record["prompt"], record)
        splits = {"test": list(kept.values())} if path and only_test else hold_out.by_prompt(kept.values())
        return splits, report | {"num_skipped": bad.num_skipped, "skipped": bad.first}

    code = [__file__, hold_out.__file__, made_problems.__file__, *moods.CODE]
    sources = base.record_splits("restored_text" if path else "restored_generated", make, arguments=arguments,
                                 sources=[path] if path else [], code=code, data_dir=data_dir)  # fmt: skip
    extract = "tag" if tagged else "whole"
    return base.Task("restored_text", ByteTokenizer(), sources, order.restored, {"extract": extract})


def _texts(
    path: str, column: str, count: int, num_steps: int, seed: int, bad, kinds
) -> Iterator[tuple[bool | None, str]]:
    """(whether the text is one of steps, or None if both kinds fit, text)."""
    if not path:
        if set(kinds) & set(OF_STEPS):
            make = functools.partial(made_problems.word_problem, num_steps=num_steps)
            yield from ((True, worked) for _, worked, _ in made_problems.distinct(make, count=count, seed=seed))
        if set(kinds) - set(OF_STEPS):
            for record in moods.make_stories(num_stories=count, num_sentences=3, seed=seed):
                yield False, record["prompt"] + record["completion"]
    elif ".jsonl" in pathlib.Path(path).suffixes:
        for _, record in readers.read_jsonl(path, {column: str}, bad):
            yield None, _MARKS.sub("", record[column])
    else:
        yield from ((None, text) for _, text in readers.read_stories(path, bad))
