"""A generative judge that checks an answer against written rules, one question each (AutoRule)."""

import re
from collections.abc import Sequence

import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts
from experiments.parts.setup import Setup

TEMPLATE = (
    "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nRule: {rule}\n\nDoes the answer keep to "
    "the rule, Yes or No? Verdict:"
)


def rules(
    setup: Setup,
    *,
    path: str,
    rules: Sequence[str],
    template: str = TEMPLATE,
    pattern: str = r"\b(Yes|No)\b",
    max_tokens: int = 4,
    batch_size: int = 32,
) -> Judge:
    """The share of the rules that an answer keeps, in [0, 1]: AutoRule's term beside a reward model.

    An answer of the judge that says neither counts as No (`unparsed`). The rules are given: the paper has a reasoning
    model extract them from preference pairs once, before training. Source: arXiv 2506.15651.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      rules: the texts.
      template: the question, with {prompt}, {completion} and {rule}.
      pattern: regular expression whose first match is Yes or No.
      max_tokens: longest answer of the judge.
      batch_size: questions per call of the sampler.

    Raises:
      ValueError: if there is no rule.
    """
    if not rules or isinstance(rules, str):
        raise ValueError(f"rules.rules={rules!r}: give a sequence of texts, one for each rule")
    ask = generative.Cached(generative.make_ask(setup, path, "rules.path", max_tokens, batch_size))
    matcher = re.compile(pattern)

    def judge(judged: Rows) -> Verdict:
        questions = [
            generative.fill(template, prompt=prompt, completion=text, rule=rule)
            for prompt, text in zip(judge_prompts(judged.records), judged.completions, strict=True)
            for rule in rules
        ]
        found = [matcher.search(answer) for answer in ask(questions)]
        kept = np.array([match is not None and match[1 if matcher.groups else 0] == "Yes" for match in found], float)
        unparsed = np.array([match is None for match in found], float)
        shape = (len(judged.completions), len(rules))
        by_rule = kept.reshape(shape).T.astype(np.float32)
        parts = {f"rule_{i}": column for i, column in enumerate(by_rule)}
        parts["unparsed"] = unparsed.reshape(shape).mean(axis=1).astype(np.float32)
        return Verdict(by_rule.mean(axis=0), components=parts)

    return judge
