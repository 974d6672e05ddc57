"""Texts of words for studies of language models: stories whose sentences have moods, and lists of words with values."""

import random
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rl_jax import tasks
from rl_jax.rewards import lexicon
from rl_jax.tasks import moods, stories

WORD = re.compile(r"\w+|\.")


class WordTokenizer:
    """One id per word: pad 0, bos 1, eos 2, then `words` in order. A text is words and full stops."""

    pad_id, bos_id, eos_id = 0, 1, 2
    eos_ids = (2,)

    def __init__(self, words: Sequence[str]):
        if len(set(words)) != len(words) or not words:
            raise ValueError(f"words must be distinct, at least one; got {words!r:.80}")
        self._words, self._ids = tuple(words), {word: index + 3 for index, word in enumerate(words)}
        self.vocab_size = len(words) + 3

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of `text`; raises KeyError if a word is unknown."""
        ids = [self._ids[word] for word in WORD.findall(text)]
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt (here the same as `encode`)."""
        return self.encode(text, eos=eos)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; pad, bos and eos are dropped wherever they are."""
        return " ".join(self._words[i - 3] for i in ids if i >= 3).replace(" .", ".")

    def token_text(self, token: int) -> str:
        """The word, or <pad>, <bos>, <eos>."""
        return ("<pad>", "<bos>", "<eos>", *self._words)[int(token)]


def story_task(*, count: int, sentences: int, moody: float, seed: int) -> tasks.Task:
    """Stories as those of rl_jax.tasks.moods, of words, some of whose sentences have no mood.

    Args:
      count: of distinct prompts.
      sentences: of a completion, up to 3.
      moody: share of the sentences that say something good or bad; the others say what somebody did.
      seed: of the stories.
    """
    rng, records = random.Random(seed), {}
    while len(records) < count:
        prompt, person, thing = moods.draw_prompt(rng)
        rest = []
        for form in rng.sample(moods.FORMS, sentences):
            if rng.random() < moody:
                rest.append(form.format(person=person, thing=thing, word=rng.choice(lexicon.GOOD + lexicon.BAD)))
            else:
                rest.append(moods.draw_prompt(rng)[0])
        records.setdefault(prompt, {"prompt": prompt, "completion": " " + " ".join(rest)})
    splits = {"train": [], "test": []}
    for record in records.values():
        splits[stories.split_of(record["prompt"])].append(record)
    texts = (text for record in records.values() for text in (record["prompt"], record["completion"]))
    words = sorted({word for text in texts for word in WORD.findall(text)})
    source = dict(splits, sft_train=splits["train"])
    return tasks.base.Task("stories_of_words", WordTokenizer(words), source.__getitem__, lexicon.score)


def rare_words_task(
    *, words: int, topics: int, common: int, rare: int, rare_share: float, rare_value: float, count: int, seed: int
) -> tasks.Task:
    """Texts of distinct words, a few of which are hardly ever written and bad.

        gold = (sum of the values of the distinct words - |number of words - W|) / W

    Common words have values from -1 to 1, in even steps and in an order of chance. What is said twice says nothing.

    Args:
      words: W, of a completion; no word twice.
      topics: number of words of which a prompt has two.
      common: number of common words.
      rare: number of rare words.
      rare_share: of all words that are drawn, before those that are there are left out.
      rare_value: of each rare word.
      count: of texts.
      seed: of the values and the texts.
    """
    rng = np.random.default_rng(seed)
    names = [f"common{i}" for i in range(common)] + [f"rare{i}" for i in range(rare)]
    values = np.concatenate([rng.permutation(np.linspace(-1.0, 1.0, common)), np.full(rare, rare_value)])
    value_of = dict(zip(names, values.tolist(), strict=True))
    likely = np.concatenate([np.full(common, (1.0 - rare_share) / common), np.full(rare, rare_share / rare)])
    subjects = [f"topic{i}" for i in range(topics)]
    records = []
    for _ in range(count):
        chosen = rng.choice(len(names), words, p=likely, replace=False)
        prompt = " ".join(subjects[i] for i in rng.integers(topics, size=2))
        records.append({"prompt": prompt, "completion": " " + " ".join(names[i] for i in chosen)})

    def gold(prompt: str, completion: str, info: Mapping) -> dict[str, float]:
        found = WORD.findall(completion)
        total = sum(value_of.get(word, -1.0) for word in set(found))  # -1: a topic, which is no word of a text
        return {"reward": (total - abs(len(found) - words)) / words}

    return _task_of("rare_words", [*subjects, *names], records, gold)


def unseen_words_task(
    *, words: int, topics: int, common: int, unseen: int, share: float, value: float, count: int, seed: int
) -> tasks.Task:
    """Texts of words of two classes in turns, a share of which are bad ones.

        gold = the mean of the values of the W words; `value` for each that is missing or not of its place's class

    Each class has common words, with values from -1 to 1 in even steps, and bad ones. With share=0 none are bad;
    the ids are the same.

    Args:
      words: W, of a completion.
      topics: number of words of which a prompt has two.
      common: number of common words of a class.
      unseen: number of bad words of a class.
      share: of the bad words among all that are written.
      value: of each bad word.
      count: of texts.
      seed: of the texts.
    """
    rng = np.random.default_rng(seed)
    names = [[f"{c}{kind}{i}" for kind, n in (("common", common), ("bad", unseen)) for i in range(n)] for c in "ab"]
    values = [*np.linspace(-1.0, 1.0, common).tolist(), *[value] * unseen]
    value_of = [dict(zip(of_class, values, strict=True)) for of_class in names]
    likely = np.concatenate([np.full(common, (1.0 - share) / common), np.full(unseen, share / unseen)])
    subjects = [f"topic{i}" for i in range(topics)]
    records = []
    for _ in range(count):
        prompt = " ".join(subjects[i] for i in rng.integers(topics, size=2))
        chosen = rng.choice(common + unseen, words, p=likely)
        written = " ".join(names[place % 2][i] for place, i in enumerate(chosen))
        records.append({"prompt": prompt, "completion": " " + written})

    def gold(prompt: str, completion: str, info: Mapping) -> dict[str, float]:
        found = WORD.findall(completion)[:words]
        total = sum(value_of[place % 2].get(word, value) for place, word in enumerate(found))
        return {"reward": (total + value * (words - len(found))) / words}

    return _task_of("unseen_words", [*subjects, *names[0], *names[1]], records, gold)


def _task_of(name: str, words: Sequence[str], records: list[dict], gold: Callable) -> tasks.Task:
    """A task of words whose records are those of each split."""
    splits = {"train": records, "test": records, "sft_train": records}
    return tasks.base.Task(name, WordTokenizer(words), splits.__getitem__, gold)
