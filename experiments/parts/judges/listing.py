"""A judge that grades all answers to a prompt at once, as a principle says: RewardAnything (arXiv 2506.03637)."""

import random
from collections.abc import Sequence

import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts
from experiments.parts.setup import Setup
from rl_jax.experience.prompt import info_of
from rl_jax.preferences.judge_task import LIST, TEMPLATES, fill, numbered, read_scores


def listwise(
    setup: Setup,
    *,
    path: str,
    principle: str = "",
    template: str = LIST,
    low: float = 1.0,
    high: float = 5.0,
    most: int = 8,
    fallback: float = 0.5,
    max_tokens: int = 24,
    batch_size: int = 16,
) -> Judge:
    """A grade per row from one question about all different answers to its prompt: (x - low) / (high - low).

    The question has the principle, the prompt and the answers, numbered, in an order that depends on them alone; the
    judge says a number for each. Equal answers are asked about once. Without a number for each answer all rows of the
    question get `fallback` (`unparsed`): it teaches nothing if they are the whole group, and counts as a grade like any
    other beside those of another question to the same prompt. With `most` below sample.group_size there may be several.

    Args:
      setup: of the run.
      path: the judge, as configs/preferences/reward_anything.py trains one, or a Hugging Face folder.
      principle: a line before the prompt; a record's info["principle"] replaces it. "": none.
      template: the question, with {prompt} and {answers}, or the name of a form of preferences.judge_task.
      low: worst grade.
      high: best grade.
      most: answers of one question; more are asked about in several, whose grades are not comparable.
      fallback: grade where the judge gives none.
      max_tokens: longest answer of the judge.
      batch_size: questions per call of the sampler.

    Raises:
      ValueError: if low is not below high, or most is below 1.
    """
    if not low < high or most < 1:
        raise ValueError(f"listwise: low={low} must be below high={high}, and most={most} at least 1")
    template = TEMPLATES.get(template, template)
    if "{answers}" not in template:
        raise ValueError(
            f"listwise: template={template!r:.80} has no {{answers}}, so that the judge would not see them"
        )
    ask = generative.Cached(generative.make_ask(setup, path, "listwise.path", max_tokens, batch_size))

    def judge(judged: Rows) -> Verdict:
        lists = lists_of(judged, principle, most)
        questions = [fill(template, prompt=prompt, answers=numbered(texts)) for prompt, texts in lists]
        grades: dict[tuple[str, str], float | None] = {}
        for (prompt, texts), said in zip(lists, ask(questions), strict=True):
            scores = read_scores(said, len(texts)) or [None] * len(texts)
            grades |= {(prompt, text): score for text, score in zip(texts, scores, strict=True)}
        asked = [asked_prompt(record, prompt, principle) for record, prompt in _rows(judged)]
        found = [grades[prompt, text] for prompt, text in zip(asked, judged.completions, strict=True)]
        rewards = [fallback if x is None else (min(max(x, low), high) - low) / (high - low) for x in found]
        return Verdict(np.array(rewards, np.float32), components={"unparsed": np.float32([x is None for x in found])})

    return judge


def lists_of(judged: Rows, principle: str, most: int) -> list[tuple[str, list[str]]]:
    """(what is asked, the different answers to it) of each question, at most `most` answers each."""
    groups: dict[str, dict[str, None]] = {}
    for (record, prompt), text in zip(_rows(judged), judged.completions, strict=True):
        groups.setdefault(asked_prompt(record, prompt, principle), {})[text] = None
    lists = []
    for prompt, texts in groups.items():
        order = sorted(texts)
        random.Random("\0".join([prompt, *order])).shuffle(order)
        lists += [(prompt, order[start : start + most]) for start in range(0, len(order), most)]
    return lists


def asked_prompt(record: dict, prompt: str, principle: str) -> str:
    """The prompt after its principle, if there is one."""
    principle = str(info_of(record).get("principle", principle))
    return f"{principle}\n{prompt}" if principle else prompt


def _rows(judged: Rows) -> Sequence[tuple[dict, str]]:
    return list(zip(judged.records, judge_prompts(judged.records), strict=True))
