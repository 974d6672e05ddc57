"""Generative judges: a frozen language model is asked, greedily, and its answer is read.

What was asked before is answered from memory, by its text, so equal completions cost one question.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, groups_of, judge_prompts, load_asked
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.text_models import Ask, Cached
from experiments.parts.training import to_mesh
from rl_jax.experience.prompt import info_of
from rl_jax.preferences.judge_task import PAIRWISE, fill
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding

POINTWISE = "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nGrade the answer from {low} to {high}. Grade:"
AGAINST = ("group", "bootstrap", "record")


def pointwise(
    setup: Setup,
    *,
    path: str,
    template: str = POINTWISE,
    pattern: str = r"-?\d+(?:\.\d+)?",
    low: float = 1.0,
    high: float = 10.0,
    fallback: float = 0.0,
    max_tokens: int = 16,
    batch_size: int = 32,
    chat: bool | None = None,
) -> Judge:
    """A grade per row: (x - low) / (high - low), x the first number of the judge's answer, cut to [low, high].

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      template: the question, with {prompt}, {completion}, {answer} (info["answer"]), {low} and {high}.
      pattern: regular expression of the grade; its first group, if it has one, is the number.
      low: worst grade.
      high: best grade.
      fallback: reward if the answer has no grade; `unparsed` counts these.
      max_tokens: longest answer.
      batch_size: questions per call of the sampler.
      chat: whether a Hugging Face folder is asked through its chat template; None: if it has one.
    """
    if not low < high:
        raise ValueError(f"pointwise: low={low} must be below high={high}")
    ask = Cached(make_ask(setup, path, "pointwise.path", max_tokens, batch_size, chat))
    matcher = re.compile(pattern)

    def read(text: str) -> float | None:
        found = matcher.search(text)
        if found is None:
            return None
        try:
            number = float(found[1] if matcher.groups else found[0])
        except (TypeError, ValueError):
            return None
        return (min(max(number, low), high) - low) / (high - low)

    def judge(judged: Rows) -> Verdict:
        bounds = {"low": f"{low:g}", "high": f"{high:g}"}
        questions = [
            fill(template, prompt=prompt, completion=text, answer=answer_of(record), **bounds)
            for prompt, text, record in zip(
                judge_prompts(judged.records), judged.completions, judged.records, strict=True
            )
        ]
        grades = [read(text) for text in ask(questions)]
        rewards = np.array([fallback if grade is None else grade for grade in grades], np.float32)
        return Verdict(rewards, components={"unparsed": np.array([grade is None for grade in grades], np.float32)})

    return judge


def pairwise(
    setup: Setup,
    *,
    path: str,
    template: str = PAIRWISE,
    pattern: str = r"\b([AB])\b",
    against: str = "group",
    opponents: int = 1,
    swap: bool = True,
    max_tokens: int = 4,
    batch_size: int = 32,
    chat: bool | None = None,
) -> Judge:
    """The share of comparisons that a row wins, in [0, 1]; an answer that names neither counts one half.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      template: the question, with {prompt}, {first} and {second}.
      pattern: regular expression whose first match is "A" or "B".
      against: "group", the next `opponents` completions of the same prompt; "bootstrap", one completion of the prompt,
        chosen by a hash of all of them, which itself gets one half (BRPO, arXiv 2506.00103); or "record", the record's
        own completion.
      opponents: completions of the group to compare with.
      swap: ask in both orders, so that a judge that likes the first place wins nothing by it.
      max_tokens: longest answer.
      batch_size: questions per call of the sampler.
      chat: whether a Hugging Face folder is asked through its chat template; None: if it has one.
    """
    check_against(against, "pairwise")
    ask = Cached(make_ask(setup, path, "pairwise.path", max_tokens, batch_size, chat))
    matcher = re.compile(pattern)

    def judge(judged: Rows) -> Verdict:
        pairs = pairs_of(judged, against, opponents)
        prompts, texts = judge_prompts(judged.records), judged.completions
        questions, rows = [], []
        for row, other in pairs:
            for swapped in (False, True) if swap else (False,):
                first, second = (other, texts[row]) if swapped else (texts[row], other)
                questions.append(fill(template, prompt=prompts[row], first=first, second=second))
                rows.append((row, swapped))
        wins, counts, unparsed = (np.zeros(len(texts), np.float32) for _ in range(3))
        for (row, swapped), text in zip(rows, ask(questions), strict=True):
            found = matcher.search(text)
            verdict = found and found[1 if matcher.groups else 0]
            wins[row] += 0.5 if found is None else float((verdict == "A") != swapped)
            unparsed[row] += found is None
            counts[row] += 1
        wins[counts == 0] = 0.5  # nothing to compare with: a single sample of its prompt
        counts = np.maximum(counts, 1)
        return Verdict(wins / counts, components={"unparsed": unparsed / counts})

    return judge


def check_against(against: str, judge: str) -> None:
    """Raises ValueError if `against` is not what `pairs_of` takes."""
    if against not in AGAINST:
        raise ValueError(f"{judge}.against={against!r} is neither {', nor '.join(map(repr, AGAINST))}")


def pairs_of(judged: Rows, against: str, opponents: int) -> list[tuple[int, str]]:
    """(row, text to compare it with) of each comparison.

    Raises:
      ValueError: if a record has no completion to compare with.
    """
    if against == "record":
        for record in judged.records:
            if not record.get("completion"):
                raise ValueError(f"pairwise: the record of {record['prompt']!r:.60} has no completion to compare with")
        return [(row, record["completion"]) for row, record in enumerate(judged.records)]
    pairs = []
    for group in groups_of(judged):
        if against == "bootstrap":  # the same one in every process, and after a resume
            texts = [judged.records[group.start]["prompt"], *(judged.completions[row] for row in group)]
            reference = group[zlib.crc32("\0".join(texts).encode()) % len(group)]
            pairs += [(row, judged.completions[reference]) for row in group if row != reference]
            continue
        for place, row in enumerate(group):
            others = [group[(place + step) % len(group)] for step in range(1, min(opponents, len(group) - 1) + 1)]
            pairs += [(row, judged.completions[other]) for other in others]
    return pairs


def answer_of(record: dict) -> str:
    """info["answer"] as text; "" if there is none."""
    return str(info_of(record).get("answer", ""))


def make_ask(
    setup: Setup, path: str, what: str, max_tokens: int, batch_size: int, chat: bool | None = None
) -> Ask:
    """Makes ask(texts) -> greedy answers of a frozen language model, on the mesh of the run. chat: as load_asked."""
    own, params = load_asked(setup, path, what, chat)
    tokenizer: Any = own.task.tokenizer
    size = -(-batch_size // sharding.row_shards(own.mesh)) * sharding.row_shards(own.mesh)
    ends = dict(eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id)
    greedy = make_generate(own.model, completion_length=max_tokens, sampling=Sampling(top_k=1), **ends)
    sample = sharding.on_mesh(greedy, own.mesh)
    rows = sharding.batch_sharding(own.mesh)
    compiled, key = jax.jit(sample, out_shardings=rows), jax.random.key(0)

    def ask(texts: Sequence[str]) -> list[str]:
        ids = [tokenizer.encode(text, bos=True) for text in texts]
        answers = []
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            width = 1 << max(max(map(len, part)) - 1, 0).bit_length()
            tokens = np.full((size, width), tokenizer.pad_id, np.int32)
            mask = np.zeros((size, width), bool)
            for row in range(size):
                chosen = part[row % len(part)]
                tokens[row, width - len(chosen) :], mask[row, width - len(chosen) :] = chosen, True
            rollout = compiled(params, *to_mesh(own, (tokens, mask)), key)
            sampled = to_host((rollout.batch.tokens, rollout.completion_mask))
            sampled = [np.asarray(x)[:, -max_tokens:] for x in sampled]
            answers += [tokenizer.decode(t[m].tolist()) for t, m in zip(*sampled, strict=True)][: len(part)]
        return answers

    return ask
