"""A generative judge that is asked several times: the sum of sampled grades (SPCT, inference-time scaling)."""

import re
import zlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts, load_asked
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.preferences.judge_task import SCORES
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding


def graded_votes(
    setup: Setup,
    *,
    path: str,
    votes: int = 8,
    template: str = SCORES,
    temperature: float = 1.0,
    low: float = 1.0,
    high: float = 10.0,
    against: str = "group",
    opponents: int = 1,
    max_tokens: int = 8,
) -> Judge:
    """The mean of sampled grades of a row beside another answer, in [0, 1]: (mean grade - low) / (high - low).

    Each comparison is asked in both orders, `votes` samples each; a sample says two numbers, cut to [low, high]. One
    without two numbers does not count (`unparsed`); without any the reward is 1/2. What is sampled depends on the
    question alone, so that equal questions have equal votes. Source: arXiv 2504.02495, which sums pointwise grades of
    all responses in shuffled orders; two at a time here.

    Args:
      setup: of the run.
      path: the judge, as configs/preferences/judged.py:scores trains one.
      votes: k, samples of each question.
      template: the question, with {prompt}, {first} and {second}.
      temperature: of the samples.
      low: worst grade.
      high: best grade.
      against: as in `pairwise`.
      opponents: as in `pairwise`.
      max_tokens: longest answer.

    Raises:
      ValueError: if votes is below 1, low is not below high, or `against` is unknown.
    """
    generative.check_against(against, "graded_votes")
    if votes < 1 or not low < high:
        raise ValueError(f"graded_votes: votes={votes} must be at least 1, and low={low} below high={high}")
    ask = generative.Cached(make_votes(setup, path, votes, temperature, max_tokens))

    def judge(judged: Rows) -> Verdict:
        pairs = generative.pairs_of(judged, against, opponents)
        prompts, texts = judge_prompts(judged.records), judged.completions
        questions, places = [], []
        for row, other in pairs:
            for own in (0, 1):  # where the row's own answer stands
                first, second = (texts[row], other) if own == 0 else (other, texts[row])
                questions.append(generative.fill(template, prompt=prompts[row], first=first, second=second))
                places.append((row, own))
        total, counts, lost = (np.zeros(len(texts)) for _ in range(3))
        for (row, own), samples in zip(places, ask(questions), strict=True):
            grades = [pair[own] for pair in map(read_grades, samples) if pair is not None]
            total[row] += np.clip(grades, low, high).sum()
            counts[row] += len(grades)
            lost[row] += len(samples) - len(grades)
        means = (total / np.maximum(counts, 1) - low) / (high - low)
        rewards = np.where(counts > 0, means, 0.5).astype(np.float32)
        return Verdict(rewards, components={"unparsed": (lost / np.maximum(counts + lost, 1)).astype(np.float32)})

    return judge


def read_grades(text: str) -> tuple[float, float] | None:
    """The first two numbers of an answer, None if it has fewer."""
    found = re.findall(r"\d{1,6}(?:\.\d{1,6})?", text)
    return (float(found[0]), float(found[1])) if len(found) > 1 else None


def make_votes(
    setup: Setup, path: str, votes: int, temperature: float, max_tokens: int, what: str = "graded_votes.path"
) -> Callable:
    """Makes ask(texts) -> for each text a tuple of `votes` sampled answers of a frozen language model."""
    own, params = load_asked(setup, path, what)
    tokenizer = own.task.tokenizer
    shards = sharding.row_shards(own.mesh)
    count = -(-votes // shards) * shards  # rows of one question, over the whole mesh
    sampling, ends = Sampling(temperature=temperature), dict(eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id)
    generate = make_generate(own.model, completion_length=max_tokens, sampling=sampling, **ends)
    compiled = jax.jit(sharding.on_mesh(generate, own.mesh), out_shardings=sharding.batch_sharding(own.mesh))

    def ask(texts: Sequence[str]) -> list[tuple[str, ...]]:
        answers = []
        for text in texts:
            ids = tokenizer.encode(text, bos=True)
            width = 1 << max(len(ids) - 1, 0).bit_length()
            tokens, mask = np.full((count, width), tokenizer.pad_id, np.int32), np.zeros((count, width), bool)
            tokens[:, width - len(ids) :], mask[:, width - len(ids) :] = ids, True
            rollout = compiled(params, *to_mesh(own, (tokens, mask)), jax.random.key(zlib.crc32(text.encode())))
            sampled = to_host((rollout.batch.tokens, rollout.completion_mask))
            sampled = [np.asarray(x)[:votes, -max_tokens:] for x in sampled]
            answers.append(tuple(tokenizer.decode(t[m].tolist()) for t, m in zip(*sampled, strict=True)))
        return answers

    return ask
