"""A judge that is asked for the good and the poor passages of an answer: rewards on their tokens (Text2Grad)."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts, sampled_ids
from experiments.parts.setup import Setup
from rl_jax.preferences.judge_task import SPANS

LINE = r"(?m)^\s*(GOOD|POOR):\s*(.+?)\s*$"


def spans(
    setup: Setup,
    *,
    path: str,
    template: str = SPANS,
    pattern: str = LINE,
    good: float = 1.0,
    poor: float = -1.0,
    max_tokens: int = 128,
    batch_size: int = 32,
) -> Judge:
    """Rewards on the tokens of quoted passages, `good` or `poor`, 0 on all others.

    A quotation is looked for in the answer as it is, its first place; one that is not there is counted (`unfound`), as
    is an answer without any (`unparsed`). The paper matches words fuzzily; ours is exact. Source: arXiv 2505.22338.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      template: the question, with {prompt} and {completion}.
      pattern: regular expression of a quotation; its groups are GOOD or POOR, and the passage.
      good: reward of each token of a good passage.
      poor: reward of each token of a poor one; it wins where both are quoted.
      max_tokens: longest answer.
      batch_size: questions per call of the sampler.
    """
    ask = generative.Cached(generative.make_ask(setup, path, "spans.path", max_tokens, batch_size))
    matcher, tokenizer = re.compile(pattern), setup.task.tokenizer

    def judge(judged: Rows) -> Verdict:
        prompts, texts = judge_prompts(judged.records), judged.completions
        questions = [
            generative.fill(template, prompt=prompt, completion=text)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        rewards = np.zeros(judged.rollout.completion_mask.shape, np.float32)
        unparsed, unfound = np.zeros(len(texts), np.float32), np.zeros(len(texts), np.float32)
        for row, (answer, ids) in enumerate(zip(ask(questions), sampled_ids(judged), strict=True)):
            quoted = matcher.findall(answer)
            unparsed[row] = not quoted
            starts, text = places(ids, tokenizer)
            for kind, passage in sorted(quoted):  # POOR comes last
                start = text.find(passage)
                unfound[row] += start < 0
                inside = (starts[1:] > start) & (starts[:-1] < start + len(passage))
                if start >= 0:
                    rewards[row, : len(ids)][inside] = good if kind == "GOOD" else poor
        return Verdict(None, rewards, components={"unparsed": unparsed, "unfound": unfound})

    return judge


def places(ids: Sequence[int], tokenizer: Any) -> tuple[np.ndarray, str]:
    """(where in the text each token begins, int [n + 1], the last one the text's length; the text of the tokens)."""
    pieces = ["" if token in tokenizer.eos_ids else tokenizer.decode([token]) for token in ids]
    return np.cumsum([0, *map(len, pieces)]), "".join(pieces)
