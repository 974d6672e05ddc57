"""Preferences as a task: a language model that learns to judge, by SFT on verdicts or by RL on whether they are right.

    config.task = dict(name="rl_jax.preferences.judge_task:load", data=dict(name="generated"), form="letter")

forms, what the judge is asked and what it says:
    letter     which of two answers is better: "A" or "B"                      (judges pairwise, win_probability)
    scores     a grade of each of two answers, "8 3"                           (generative reward modelling, SPCT)
    reasoned   grades, then a choice: "<think>8 3</think><answer>1</answer>"   (R1-Reward, arXiv 2505.02835)
    spans      the good and the poor passages, "GOOD: ..." and "POOR: ..."     (judge spans; needs labelled steps)
    follow_up  what a user says next, satisfied or not                         (judge follow_up)
    rewrite    the better answer, of the worse one and of itself               (judge rewrites, arXiv 2409.00162)
    list       a grade from 1 to 5 of each of several answers, "5 2 1 4"       (judge listwise; needs rankings)
    assessed   the same after reasons and with a ranking, in JSON: see preferences.assessments
The reward of a verdict is +1 if it agrees with the label and -1 if not (SPCT's rule, arXiv 2504.02495), for any form
but three: of `reasoned` it is R1-Reward's (`consistent_verdict`), of a list the rank correlation of the grades with the
label (Kendall's tau), -1 if a grade is missing, and of `assessed` RewardAnything's (`assessments.reward`).
"""

import json
import random
import re
from collections.abc import Mapping, Sequence

from rl_jax.preferences import assessments
from rl_jax.preferences import load as load_preferences
from rl_jax.preferences.assessments import agreement
from rl_jax.tasks.base import Task
from rl_jax.tokenizers import CharTokenizer, Llama2cTokenizer

PAIRWISE = "Question:\n{prompt}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\nWhich answer is better, A or B? Better:"
SCORES = "Question:\n{prompt}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\nGrade both from 1 to 10. Grades:"
REASONED = (
    "Question:\n{prompt}\n\nAnswer 1:\n{first}\n\nAnswer 2:\n{second}\n\nGrade both from 1 to 10 in <think></think>, "
    "and give the number of the better one in <answer></answer>:\n"
)
SPANS = (
    "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nQuote each good passage of the answer on a line GOOD: and each "
    "poor one on a line POOR:\n"
)
REWRITE = "{prompt}{completion}=="  # characters of the sums alone, as the policy has
LIST = "{prompt}\n\n{answers}\n\nGrade each from 1 to 5. Grades:"
ASSESSED = (
    '{prompt}\n\n{answers}\n\nRank them in <think></think>, then answer with JSON: {"scores": grades from 1 to 5, '
    '"best": the numbers from the best}:\n'
)
TEMPLATES = {
    "letter": PAIRWISE,
    "scores": SCORES,
    "reasoned": REASONED,
    "spans": SPANS,
    "follow_up": "{prompt}{completion}\n",
    "rewrite": REWRITE,
    "list": LIST,
    "assessed": ASSESSED,
}
KINDS = {
    "letter": ("pairs",),
    "scores": ("pairs",),
    "reasoned": ("pairs",),
    "spans": ("steps",),
    "follow_up": ("pairs",),
    "rewrite": ("pairs",),
    "list": ("rankings",),
    "assessed": ("rankings",),
}
ONE_ORDER = ("spans", "list", "assessed")
REASONING = re.compile(r"<think>(.*?)</think><answer>(.*?)</answer>", re.DOTALL)
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
SATISFIED, NOT_SATISFIED = "That is right, thank you.", "That is not right."


def load(
    *,
    data: Mapping,
    form: str = "letter",
    template: str = "",
    separator: str = "\n",
    satisfied: str = SATISFIED,
    not_satisfied: str = NOT_SATISFIED,
    alphabet: str = PRINTABLE,
    tokenizer_path: str = "",
) -> Task:
    """A task whose prompts are questions to a judge.

    Each pair is asked about twice, in both orders (letter, scores, reasoned), or once for each answer (follow_up,
    rewrite).

    Args:
      data: keywords of rl_jax.preferences.load; pairs, or steps for `spans`.
      form: one of TEMPLATES.
      template: of the question; "": the form's own.
      separator: between the steps of an answer (spans).
      satisfied: what a user says after the better answer (follow_up).
      not_satisfied: after the worse one.
      alphabet: the characters of the tokenizer.
      tokenizer_path: llama2.c tokenizer.bin, instead of characters.

    Returns:
      Task.

    Raises:
      ValueError: if the form is unknown, or the data are of another kind than it needs.
    """
    if form not in TEMPLATES:
        raise ValueError(f"form={form!r} is none of {', '.join(TEMPLATES)}")
    prefs = load_preferences(**data)
    if prefs.kind not in KINDS[form]:
        raise ValueError(f"form={form!r} is made of {' or '.join(KINDS[form])}, and {prefs.name} are {prefs.kind}")
    template, says = template or TEMPLATES[form], (satisfied, not_satisfied)
    splits = {"sft_train": "train", "train": "train", "test": "test"}
    tokenizer = Llama2cTokenizer(tokenizer_path) if tokenizer_path else CharTokenizer(alphabet)
    return Task(
        f"judge_{form}",
        tokenizer,
        lambda split: Questions(prefs.data_source(splits[split]), form, template, separator, says),
        verdict,
    )


class Questions:
    """Random access to the questions of one split: source[i] -> {"prompt", "completion", "info"}.

    Attributes:
      name: of the preferences.
      split: of the preferences.
      report: of the preferences.
      num_skipped: of the preferences.
    """

    def __init__(self, source: Sequence[dict], form: str, template: str, separator: str, says: tuple[str, str]):
        """The questions about the records of `source`."""
        self._source, self._form, self._template, self._separator, self._says = source, form, template, separator, says
        self.name, self.split, self.report = source.name, source.split, source.report
        self.num_skipped = source.num_skipped

    def __len__(self) -> int:
        return len(self._source) * (1 if self._form in ONE_ORDER else 2)

    def __getitem__(self, index: int) -> dict[str, str]:
        """The question at `index`. Raises ValueError if its record has a prompt per response."""
        index = range(len(self))[index]
        place = index if self._form in ONE_ORDER else index // 2
        record, turned = self._source[place], index % 2 == 1
        if "prompts" in record:
            raise ValueError(
                f"{self.name}, {self.split}, record {place}: its responses have prompts of their own (`prompts`), and "
                f"a question of form={self._form!r} has one prompt: leave such records out (of `instructed`: "
                "parts=('original', 'inter'))"
            )
        if self._form == "spans":
            return self._about_spans(record)
        if self._form in ("list", "assessed"):
            return self._about_list(record)
        prompt, (better, worse) = _text(record["prompt"]), map(_text, record["responses"])
        if self._form == "follow_up":
            asked = fill(self._template, prompt=prompt, completion=worse if turned else better)
            return _record(asked, self._says[turned], {"answer": self._says[turned], "form": self._form})
        if self._form == "rewrite":
            asked = fill(self._template, prompt=prompt, completion=worse if turned else better)
            return _record(asked, better, {"answer": better, "form": self._form})
        first, second = (worse, better) if turned else (better, worse)
        asked, answer = fill(self._template, prompt=prompt, first=first, second=second), "AB"[turned]
        grades = " ".join(("8", "3")[:: -1 if turned else 1])
        if self._form == "reasoned":
            grades = f"<think>{grades}</think><answer>{1 + turned}</answer>"
        says = answer if self._form == "letter" else grades
        return _record(asked, says, {"answer": answer, "form": self._form})

    def _about_list(self, record: dict) -> dict[str, str]:
        texts = list(map(_text, record["responses"]))
        order = list(range(len(texts)))
        random.Random("\0".join([_text(record["prompt"]), *texts])).shuffle(order)
        grades = [record["rewards"][place] for place in order]
        scores = [str(round(score)) for score in assessments.scaled(grades)]
        says = " ".join(scores) if self._form == "list" else assessments.write(grades)
        asked = fill(self._template, prompt=_text(record["prompt"]), answers=numbered([texts[x] for x in order]))
        return _record(asked, says, {"answer": grades, "form": self._form})

    def _about_spans(self, record: dict) -> dict[str, str]:
        steps, labels = record["steps"], record["labels"]
        asked = fill(self._template, prompt=_text(record["prompt"]), completion=self._separator.join(steps))
        lines = [
            f"{'GOOD' if label else 'POOR'}: {step}"
            for step, label in zip(steps, labels, strict=True)
            if label is not None
        ]
        return _record(asked, "\n".join(lines), {"answer": "\n".join(lines), "form": self._form})


def verdict(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """+1 if the verdict agrees with info["answer"], -1 if not or if there is none. `parsed`: whether there is one.

    letter: the first A or B. scores: the first two numbers, of which the better answer's has to be the larger one; a
    tie is wrong. spans, follow_up and rewrite: the text itself. reasoned: see `consistent_verdict`.
    """
    form, answer = info["form"], info["answer"]
    if form == "reasoned":
        return consistent_verdict(completion, answer)
    if form == "assessed":
        return assessments.reward(completion, answer)
    if form == "list":
        scores = read_scores(completion, len(answer))
        tau = agreement(scores, answer) if scores else -1.0
        return {"reward": tau, "right": float(tau == 1.0), "parsed": float(scores is not None)}
    if form == "letter":
        found = re.search(r"\b([AB])\b", completion)
        right, parsed = found is not None and found[1] == answer, found is not None
    elif form == "scores":
        numbers = [int(x) for x in re.findall(r"\d{1,4}", completion)[:2]]
        parsed = len(numbers) == 2
        right = parsed and (numbers[0] > numbers[1] if answer == "A" else numbers[1] > numbers[0])
    else:
        right, parsed = completion.strip() == answer, bool(completion.strip())
    return {"reward": 1.0 if right else -1.0, "right": float(right), "parsed": float(parsed)}


def consistent_verdict(completion: str, answer: str) -> dict[str, float]:
    """R1-Reward's reward of a verdict that is reasoned: .5 format + right (1 + .5 consistent).

    consistent is +1 if the reasoning's own conclusion is the choice and -1 if not, so that a right choice after grades
    that say the opposite earns a third of what is earned by one that follows from them. The conclusion is read by a
    rule, the larger of the first two grades; in yfzhang114/r1_reward a language model reads it.

    Args:
      completion: the verdict.
      answer: "A" if the first of the two is better, "B" if the second.

    Returns:
      reward, and its parts: right, consistent, format; parsed, whether there is a choice.
    """
    said = REASONING.search(completion)
    reasoning, chosen = (said[1], said[2].strip()) if said else ("", "")
    once = all(completion.count(tag) == 1 for tag in ("<think>", "<answer>"))
    formed = once and REASONING.fullmatch(completion) is not None
    grades = [int(x) for x in re.findall(r"\d{1,4}", reasoning)[:2]]
    concluded = "" if len(grades) < 2 or grades[0] == grades[1] else "12"[grades[1] > grades[0]]
    right, consistent = float(chosen == "12"[answer == "B"]), 1.0 if chosen and chosen == concluded else -1.0
    reward = 0.5 * formed + right * (1.0 + 0.5 * consistent)
    parts = {"right": right, "consistent": consistent, "format": float(formed), "parsed": float(chosen in ("1", "2"))}
    return {"reward": reward, **parts}


def numbered(texts: Sequence[str]) -> str:
    """The answers of a list, a line each: "1) ..."."""
    return "\n".join(f"{place}) {text}" for place, text in enumerate(texts, start=1))


def read_scores(text: str, count: int) -> list[float] | None:
    """The grades that a judge says of `count` answers, alone or as an assessment; None if they are not as many.

    An assessment that is cut off gives None: the numbers of its reasons are no grades.
    """
    if scores := assessments.read(text, count).scores:
        return scores
    if "<think>" in text or "{" in text:
        return None
    found = re.findall(r"-?\d{1,6}(?:\.\d{1,6})?", text)
    return [float(x) for x in found] if len(found) == count else None


def fill(template: str, **texts: str) -> str:
    """The template with {name} replaced; braces in the texts stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: texts.get(found[1], found[0]), template)


def _record(prompt: str, completion: str, info: dict) -> dict[str, str]:
    return {"prompt": prompt, "completion": completion, "info": json.dumps(info)}


def _text(value: str | Sequence[Mapping]) -> str:
    """A text, or the last message of a chat."""
    return value if isinstance(value, str) else value[-1]["content"]
