"""Short stories of two moods, made here: a first sentence, and sentences behind it that are each good or bad.

    "Mia saw a red bird in the park." -> " She was glad. The bird was mean. It was a nice day."

What rl_jax.tasks.stories takes where no file of stories is given. The mood of each sentence is drawn on its own, so a
model that imitates the stories has a reward (rl_jax.rewards.lexicon) near 0.5. Train or test is a hash of the prompt.
"""

import json
import random
from collections.abc import Sequence

from rl_jax.rewards import lexicon

NAMES = (("Tom", "He"), ("Ben", "He"), ("Sam", "He"), ("Max", "He"))
NAMES += (("Mia", "She"), ("Lily", "She"), ("Anna", "She"), ("Sue", "She"))
VERBS = ("saw", "found", "met", "had")
COLOURS = ("red", "blue", "big", "small", "little", "brown")
THINGS = ("bird", "dog", "cat", "frog", "duck", "horse", "mouse", "bear", "fox", "fish")
PLACES = ("in the park", "at home", "in the woods", "by the lake", "at school")
FORMS = ("{person} was {word}.", "The {thing} was {word}.", "It was a {word} day.")
CODE = (__file__, lexicon.__file__)  # the files that decide what is made
NUM_PROMPTS = len(NAMES) * len(VERBS) * len(COLOURS) * len(THINGS) * len(PLACES)
ALPHABET = "\n !'.?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def draw_prompt(rng: random.Random) -> tuple[str, str, str]:
    """(first sentence, who the others speak of, what they speak of)."""
    name, person = rng.choice(NAMES)
    thing = rng.choice(THINGS)
    prompt = f"{name} {rng.choice(VERBS)} a {rng.choice(COLOURS)} {thing} {rng.choice(PLACES)}."
    return prompt, person, thing


def draw_rest(rng: random.Random, person: str, thing: str, moods: Sequence[bool]) -> str:
    """A sentence for each of `moods`, True for a good one, with a space before each."""
    forms = [form for _ in range(0, len(moods), len(FORMS)) for form in rng.sample(FORMS, len(FORMS))]
    words = [rng.choice(lexicon.GOOD if good else lexicon.BAD) for good in moods]
    rows = zip(forms, words, strict=False)
    return "".join(" " + form.format(person=person, thing=thing, word=word) for form, word in rows)


def make_stories(*, num_stories: int, num_sentences: int, seed: int, good_share: float = 0.5) -> list[dict[str, str]]:
    """Records with distinct prompts, in the order they are drawn.

    Args:
      num_stories: of them, each with a prompt of its own.
      num_sentences: behind the prompt.
      seed: of all that is drawn.
      good_share: probability that a sentence is a good one.

    Raises:
      ValueError: if there are fewer prompts than asked for, or a number is out of its range.
    """
    if not 0.0 <= good_share <= 1.0:
        raise ValueError(f"good_share must be from 0 to 1, got {good_share}")
    if not 2 <= num_stories <= NUM_PROMPTS // 2:
        raise ValueError(f"num_stories must be 2..{NUM_PROMPTS // 2}, got {num_stories}")
    if not 1 <= num_sentences <= 6:
        raise ValueError(f"num_sentences must be 1..6, got {num_sentences}")
    rng, result = random.Random(seed), {}
    while len(result) < num_stories:
        prompt, person, thing = draw_prompt(rng)
        moods = [rng.random() < good_share for _ in range(num_sentences)]
        rest = draw_rest(rng, person, thing, moods)
        result.setdefault(prompt, {"prompt": prompt, "completion": rest, "info": json.dumps({"num_good": sum(moods)})})
    return list(result.values())
