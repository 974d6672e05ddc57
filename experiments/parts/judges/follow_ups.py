"""A judge that asks what the user would say next: follow-up likelihood as a reward (FLR)."""

from collections.abc import Sequence

import jax
import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, in_batches, judge_prompts, lay_out, load_run
from experiments.parts.setup import Setup
from rl_jax.training.scoring import make_score

POSITIVE = ("That is right, thank you.", "Great, that is what I wanted to know.")
NEGATIVE = ("That is not right.", "You did not answer my question.")


def follow_up(
    setup: Setup,
    *,
    path: str,
    positive: Sequence[str] = POSITIVE,
    negative: Sequence[str] = NEGATIVE,
    lead_in: str = "\n",
    batch_size: int = 64,
) -> Judge:
    """How much likelier a satisfied user's next words are than a dissatisfied one's, under a frozen language model.

        R = mean over the positive f of log p(f | x, y) / |f|  -  the same over the negative f

    Source: arXiv 2409.13948; that each text counts by its mean over tokens is our reading, and the texts are ours.

    Args:
      setup: of the run.
      path: workdir of a run or a Hugging Face folder.
      positive: what follows a good answer.
      negative: what follows a poor one.
      lead_in: text between the answer and the follow-up.
      batch_size: rows per forward pass.

    Raises:
      ValueError: if one of the two is empty.
    """
    if not positive or not negative:
        raise ValueError("follow_up: give at least one positive and one negative text")
    own, params = load_run(setup, path, "follow_up.path")
    tokenizer, chunk = own.task.tokenizer, setup.config.score.chunk
    texts = [tokenizer.encode_continuation(text) for text in (*positive, *negative)]
    length = max(map(len, texts))
    score = make_score(own.model, completion_length=length, chunk=chunk)
    read = jax.jit(lambda params, batch: score(params, batch).log_probs)

    def judge(judged: Rows) -> Verdict:
        rows = []
        for prompt, completion in zip(judge_prompts(judged.records), judged.completions, strict=True):
            before = tokenizer.encode(prompt, bos=True) + tokenizer.encode_continuation(completion + lead_in)
            rows += [(before, ids) for ids in texts]
        log_probs = in_batches(own, read, params, lay_out(rows, tokenizer, length), batch_size)
        means = [float(row[: len(ids)].mean()) for row, (_, ids) in zip(log_probs, rows, strict=True)]
        means = np.array(means).reshape(len(judged.completions), len(texts))
        satisfied, not_satisfied = means[:, : len(positive)].mean(axis=1), means[:, len(positive) :].mean(axis=1)
        return Verdict((satisfied - not_satisfied).astype(np.float32))

    return judge
