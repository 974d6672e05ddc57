"""A generative judge of pairs whose verdict is read as a probability: Pairwise-RL's win rate."""

from collections.abc import Sequence

import jax
import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, in_batches, judge_prompts, lay_out, load_asked
from experiments.parts.setup import Setup
from rl_jax.training.scoring import make_score

LABELS = ("A", "B")


def win_probability(
    setup: Setup,
    *,
    path: str,
    template: str = generative.PAIRWISE,
    labels: Sequence[str] = LABELS,
    against: str = "record",
    opponents: int = 1,
    batch_size: int = 64,
) -> Judge:
    """The probability that a row is better than another answer, in [0, 1], averaged over both orders.

        P(y > y') = (sigma(log p(A | y, y') - log p(B | y, y')) + sigma(log p(B | y', y) - log p(A | y', y))) / 2

    The judge is a language model that continues the question with one of two labels, as `experiments.sft` trains it on
    the task rl_jax.preferences.judge_task. Equal answers have exactly 1/2. Source: arXiv 2504.04950 (the anchor is the
    record's completion there, too); that the reward is the probability and not its log-odds is our reading.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      template: the question, with {prompt}, {first} and {second}.
      labels: what says that the first, or the second, is better.
      against: as in `pairwise`.
      opponents: as in `pairwise`.
      batch_size: questions per forward pass.

    Raises:
      ValueError: if there are not two different labels, or `against` is unknown.
    """
    generative.check_against(against, "win_probability")
    if len(set(labels)) != 2:
        raise ValueError(f"win_probability.labels={tuple(labels)!r} must be two different texts")
    own, params = load_asked(setup, path, "win_probability.path")
    tokenizer, chunk = own.task.tokenizer, setup.config.score.chunk
    ids = [tokenizer.encode_continuation(label) for label in labels]
    length = max(map(len, ids))
    score = make_score(own.model, completion_length=length, chunk=chunk)
    read = jax.jit(lambda params, batch: score(params, batch).log_probs)

    def odds(questions: Sequence[str]) -> np.ndarray:
        """log p(first label) - log p(second), float [Q]."""
        asked = list(dict.fromkeys(questions))
        rows = [(tokenizer.encode(text, bos=True), label) for text in asked for label in ids]
        log_probs = in_batches(own, read, params, lay_out(rows, tokenizer, length), batch_size)
        sums = [float(row[: len(label)].sum()) for row, (_, label) in zip(log_probs, rows, strict=True)]
        gaps = dict(zip(asked, np.subtract(sums[::2], sums[1::2]), strict=True))
        return np.array([gaps[text] for text in questions])

    def judge(judged: Rows) -> Verdict:
        pairs = generative.pairs_of(judged, against, opponents)
        prompts, texts = judge_prompts(judged.records), judged.completions
        both = [(prompts[row], texts[row], other) for row, other in pairs]
        first = [generative.fill(template, prompt=p, first=y, second=other) for p, y, other in both]
        second = [generative.fill(template, prompt=p, first=other, second=y) for p, y, other in both]
        gaps = odds(first + second) if both else np.zeros(0)
        half = len(both)
        wins = 0.5 * (1.0 / (1.0 + np.exp(-gaps[:half])) + 1.0 / (1.0 + np.exp(gaps[half:])))
        rows = np.array([row for row, _ in pairs], np.int64)
        total, counts = (np.bincount(rows, weights=w, minlength=len(texts)) for w in (wins, np.ones(half)))
        rewards = np.where(counts > 0, total / np.maximum(counts, 1), 0.5)  # 1/2: nothing to compare with
        bias = np.bincount(rows, weights=0.5 * (gaps[:half] + gaps[half:]), minlength=len(texts))
        found = {"first_place": (bias / np.maximum(counts, 1)).astype(np.float32)}  # log-odds that its place is worth
        return Verdict(rewards.astype(np.float32), components=found)

    return judge
