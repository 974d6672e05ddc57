"""Classification in words: a text and the name of its class, with or without a thought before it (CLS-RL).

Real texts are those of SST-2 (sst2_{train,test}.txt.gz, "<0 or 1> <sentence>" per line); generated ones are sentences
of rl_jax.tasks.moods. The tokens are bytes, unless the model brings its own tokenizer. Source: arXiv 2503.16188.
"""

import json
import pathlib
import random

from rl_jax.data import readers
from rl_jax.rewards import exact, lexicon
from rl_jax.tasks import base, hold_out, moods
from rl_jax.tokenizers import ByteTokenizer

LABELS = ("negative", "positive")


def generated(count: int, seed: int) -> list[tuple[str, str, int]]:
    """(text, the word that decides, label) of distinct two-sentence texts."""
    rng, result = random.Random(seed), {}
    for _ in range(50 * count):
        opening, person, thing = moods.draw_prompt(rng)
        label = rng.randint(0, 1)
        word = rng.choice((lexicon.BAD, lexicon.GOOD)[label])
        text = f"{opening} " + rng.choice(moods.FORMS).format(person=person, thing=thing, word=word)
        result.setdefault(text, (text, word, label))
        if len(result) == count:
            break
    return list(result.values())


def load(
    *,
    path: str = "",
    think: bool = True,
    num_texts: int = 4_000,
    seed: int = 0,
    max_prompt_bytes: int = 256,
    skip_bad_records: bool = False,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """Texts to be called positive or negative.

    Args:
      path: folder of sst2_{train,test}.txt.gz; "": generated texts.
      think: whether the answer is <think>...</think><answer>LABEL</answer>, or the bare label.
      num_texts: generated ones.
      seed: of generated texts.
      max_prompt_bytes: longest prompt; longer ones are left out and counted.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Raises:
      readers.DataError: if a line is bad.
    """
    files = {split: pathlib.Path(path) / f"sst2_{split}.txt.gz" for split in ("train", "test") if path}

    def record(text, word, label):
        name = LABELS[label]
        completion = f"<think>{word}</think><answer>{name}</answer>" if think else name
        return {"prompt": text + "\n", "completion": completion, "info": json.dumps({"answer": name})}

    def make():
        bad, report = readers.BadRecords(skip=skip_bad_records), {"num_too_long": 0}
        if path:
            splits = {
                split: [record(text, "it sounds so", label) for _, label, text in readers.read_labelled(file, bad)]
                for split, file in files.items()
            }
        else:
            splits = hold_out.by_prompt(record(*row) for row in generated(num_texts, seed))
        for split, rows in splits.items():
            kept = [row for row in rows if len(row["prompt"].encode()) <= max_prompt_bytes]
            report["num_too_long"] += len(rows) - len(kept)
            splits[split] = kept
        return splits, report | {"num_skipped": bad.num_skipped, "skipped": bad.first}

    arguments = {"think": bool(think), "num_texts": int(num_texts), "seed": int(seed)}
    arguments |= {"max_prompt_bytes": int(max_prompt_bytes), "skip_bad_records": bool(skip_bad_records)}
    code = [__file__, hold_out.__file__, *moods.CODE]
    sources = base.record_splits("labelled_text" if path else "labelled_generated", make, arguments=arguments,
                                 sources=files.values(), code=code, data_dir=data_dir)  # fmt: skip
    return base.Task("labelled_text", ByteTokenizer(), sources, exact.label, {"think": think})
