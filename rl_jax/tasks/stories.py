"""Continue a children's story (TinyStories); the reward is the sentiment of the continuation.

The prompt is the first sentence, cut at a word if it is over `max_prompt_tokens`. The completion is the rest, so prompt
+ completion is the story, byte for byte. The split is a hash of the prompt: no story and no prompt is ever in both
splits, though many stories share their first sentence.

Without files the stories are generated (rl_jax.tasks.moods), of characters, and the reward is that of a lexicon.
"""
import json
import pathlib
import re

from rl_jax.data import readers
from rl_jax.rewards import lexicon, sentiment
from rl_jax.tasks import base, moods
from rl_jax.tokenizers import CharTokenizer, llama2c

TEST_ONE_IN = 10  # one in this many distinct prompts is a test prompt
_FIRST_SENTENCE = re.compile(r".*?[.!?][\"'”’]*(?=\s)", re.DOTALL)


def split_story(story: str, tokenizer, *, max_prompt_tokens: int) -> tuple[str, str]:
    """(prompt, rest): the first sentence, or as many of its first words as fit with BOS; rest may be "".

    Returns ("", story) if not even the first word fits.
    """
    match = _FIRST_SENTENCE.match(story)
    prompt = match[0] if match else story
    while prompt and len(tokenizer.encode(prompt, bos=True)) > max_prompt_tokens:
        prompt = re.sub(r"\s*\S+$", "", prompt)
    return prompt, story[len(prompt):]


def split_of(prompt: str) -> str:
    """"train" or "test", by a hash of the prompt."""
    return "test" if int(readers.text_hash(prompt)[:16], 16) % TEST_ONE_IN == 0 else "train"


def load(*, path: str = "", tokenizer_path: str = "", sentiment_path: str = "", max_prompt_tokens: int = 48,
         num_stories: int = 4_000, num_sentences: int = 3, good_share: float = 0.5, seed: int = 0,
         skip_bad_records: bool = False,
         data_dir: str = base.DEFAULT_DATA_DIR, sentiment_cache_dir: str = sentiment.DEFAULT_CACHE_DIR) -> base.Task:
    """The stories task. Without path, tokenizer_path and sentiment_path: generated stories, a lexicon as the reward.

    Args:
      path: tinystories text (plain or gzip, stories ended by <|endoftext|>).
      tokenizer_path: llama2.c tokenizer.bin.
      sentiment_path: folder of sst2_{train,dev,test}.txt.gz, on which the reward model is trained (a second, cached).
      max_prompt_tokens: BOS included.
      num_stories: of generated stories: how many, each with a prompt of its own.
      num_sentences: of generated stories: behind the prompt.
      good_share: of generated stories: probability that a sentence is a good one. 1: demonstrations of good ones.
      seed: of generated stories.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.
      sentiment_cache_dir: where the reward model is stored.

    Returns:
      Task.

    Raises:
      ValueError: if max_prompt_tokens is below 8, or if some of the three paths are given and others not.
      readers.DataError: if a record is bad.
    """
    if max_prompt_tokens < 8:
        raise ValueError(f"max_prompt_tokens must be at least 8, got {max_prompt_tokens}")
    if not any((path, tokenizer_path, sentiment_path)):
        drawn = {"num_stories": int(num_stories), "num_sentences": int(num_sentences), "seed": int(seed)}
        return _generated(drawn | ({} if good_share == 0.5 else {"good_share": float(good_share)}), data_dir)
    if not all((path, tokenizer_path, sentiment_path)):
        raise ValueError("stories need path, tokenizer_path and sentiment_path, or none of them for generated ones")
    tokenizer = llama2c.Llama2cTokenizer(tokenizer_path)
    path = pathlib.Path(path)

    def make():
        bad = readers.BadRecords(skip=skip_bad_records)
        splits, seen = {"train": [], "test": []}, set()
        report = {"num_duplicates": 0, "num_too_short": 0}
        for line, story in readers.read_stories(path, bad):
            prompt, rest = split_story(story, tokenizer, max_prompt_tokens=max_prompt_tokens)
            if story in seen:
                report["num_duplicates"] += 1
            elif not prompt or not rest.strip():
                report["num_too_short"] += 1  # one sentence: nothing to continue
            else:
                seen.add(story)
                splits[split_of(prompt)].append(
                    {"prompt": prompt, "completion": rest, "info": json.dumps({"line": line})})
        return splits, report | {"num_skipped": bad.num_skipped, "skipped": bad.first}

    arguments = {"max_prompt_tokens": int(max_prompt_tokens), "skip_bad_records": bool(skip_bad_records)}
    # The tokenizer decides how long a prompt may be, so its file and code are part of the dataset's identity.
    sources = base.record_splits("stories", make, arguments=arguments, sources=[path, tokenizer_path],
                                 code=[__file__, llama2c.__file__], data_dir=data_dir)
    model_path = sentiment.prepare(sentiment_path, cache_dir=sentiment_cache_dir, skip_bad_records=skip_bad_records)
    return base.Task("stories", tokenizer, sources, sentiment.score, {"model_path": model_path})


def _generated(arguments: dict[str, int | float], data_dir: str) -> base.Task:
    """The task of the stories that moods.make_stories(**arguments) makes."""

    def make():
        splits = {"train": [], "test": []}
        for record in moods.make_stories(**arguments):
            splits[split_of(record["prompt"])].append(record)
        return splits, {}

    code = [__file__, *moods.CODE]
    sources = base.record_splits("stories_generated", make, arguments=arguments, code=code, data_dir=data_dir)
    return base.Task("stories", CharTokenizer(moods.ALPHABET), sources, lexicon.score)
