"""Judges that are language models and are not asked anything: log-ratios of two models, likelihoods of texts."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import (
    Judge,
    Rows,
    Verdict,
    in_batches,
    info_of,
    lay_out,
    load_run,
    mode_of,
    row_prompts,
    token_rows,
)
from experiments.parts.judges.learning import Learner
from experiments.parts.reward_readers import base_params
from experiments.parts.setup import Setup, load_params
from rl_jax.core.masked import Mean, masked_mean, zero_masked
from rl_jax.core.types import Params, TokenBatch
from rl_jax.credit.step_rewards import prime_token_rewards
from rl_jax.losses.reward_model.implicit import implicit_outcome, implicit_rewards
from rl_jax.training.scoring import make_score

RIGHT = 0.5  # an outcome above it is right
REDUCE: dict[str, Callable] = {"sum": np.sum, "mean": np.mean}


def log_ratio(
    setup: Setup,
    *,
    path: str,
    reference: str = "",
    beta: float = 1.0,
    clip: float = 0.0,
    normalize: bool = False,
    batch_size: int = 64,
    retrain_every: int = 0,
    learning_rate: float = 1e-6,
    train_beta: float = 0.05,
) -> Judge:
    """Token rewards r_t = beta (log phi_t - log ref_t) of a model phi: an implicit reward model, or a DPO run (RTO).

    Args:
      setup: of the run.
      path: phi: workdir of a run, of experiments.dpo (arXiv 2404.18922) or of experiments.reward_model that reads
        log-ratios (arXiv 2412.01981).
      reference: ref: workdir of a run or a Hugging Face folder. "": what the run at `path` started from.
      beta: RTO's is 0.05, PRIME's 1 with `normalize`.
      clip: bound of |r_t|, RTO's is 0.05. 0: none.
      normalize: PRIME's, in place of beta: divide by the batch's largest return (step_rewards.prime_token_rewards).
      batch_size: rows per forward pass.
      retrain_every: steps between updates of phi with the outcomes of the step's own rows, by the task's own reward,
        right above 0.5 (arXiv 2502.01456, which trains in every step). 0: never.
      learning_rate: of these updates.
      train_beta: beta of their loss.

    Raises:
      FileNotFoundError: if a folder is no run.
      ValueError: if the tokenizer is another one.
    """
    own, model = load_run(setup, path, "log_ratio.path")
    mode_of(setup, own.task.tokenizer, "", f"the model {path}", texts=False)
    ref = load_run(setup, reference, "log_ratio.reference")[1] if reference else start_of(own, pathlib.Path(path))
    length = setup.config.rollout.completion_length
    score = make_score(own.model, completion_length=length, chunk=setup.config.score.chunk)
    judge = _LogRatio(own, model, ref, score, batch_size, (beta, clip, normalize))
    if retrain_every:
        loss = outcome_loss(score, train_beta)
        judge.learner = Learner(own, model, loss, learning_rate=learning_rate, every=retrain_every)
    return judge


class _LogRatio:
    """The judge of `log_ratio`."""

    def __init__(self, setup: Setup, model: Params, reference: Params, score: Callable, size: int, numbers: tuple):
        self._setup, self._model, self._reference, self._size, self._numbers = setup, model, reference, size, numbers
        self._read = jax.jit(lambda params, batch: score(params, batch).log_probs)
        self.learner: Learner | None = None

    def __call__(self, judged: Rows) -> Verdict:
        beta, clip, normalize = self._numbers
        rows, mask = token_rows(judged, self._setup.task.tokenizer), np.asarray(judged.rollout.completion_mask)
        ratios = np.where(mask, self._score(self.params, rows) - self._score(self._reference, rows), np.float32(0))
        rewards = np.asarray(prime_token_rewards(ratios, mask)) if normalize else np.float32(beta) * ratios
        if clip:
            rewards = np.clip(rewards, -clip, clip)
        return Verdict(None, rewards, components={"log_ratio": ratios.sum(axis=1)})

    @property
    def params(self) -> Params:
        """phi's, the newest ones."""
        return self.learner.params if self.learner else self._model

    def learn(self, judged: Rows, labels: np.ndarray) -> dict[str, float]:
        """One update of phi: the cross-entropy of beta sum_t (log phi_t - log ref_t) with the outcomes."""
        rows, mask = token_rows(judged, self._setup.task.tokenizer), np.asarray(judged.rollout.completion_mask)
        return self.learner.update((rows, mask, self._score(self._reference, rows), labels))

    def _score(self, params: Params, rows: TokenBatch) -> np.ndarray:
        return in_batches(self._setup, self._read, params, rows, self._size)


def outcome_loss(score: Callable, beta: float) -> Callable:
    """Makes loss(params, (TokenBatch, mask, ref_log_probs [B, C], labels [B])) of an implicit reward model.

    A row of which nothing is known has the label nan.
    """

    def loss(params: Params, batch: tuple) -> tuple[Mean, dict]:
        rows, mask, reference, labels = batch
        ratios = (zero_masked(score(params, rows).log_probs, mask) - zero_masked(reference, mask))[:, None]
        targets, there = (labels > RIGHT).astype(jnp.float32)[:, None], ~jnp.isnan(labels)[:, None]
        mean = masked_mean(*implicit_outcome(ratios, mask[:, None], there, targets=targets, beta=beta))
        rewards = implicit_rewards(ratios, mask[:, None], beta=beta)
        accuracy = ((rewards > 0) == (targets > RIGHT)).astype(jnp.float32)
        return mean, {"accuracy": masked_mean(accuracy, there)}

    return loss


def start_of(setup: Setup, workdir: pathlib.Path) -> Params:
    """The params that a run started from, adapters merged: its warm start, init_from, or the model's own."""
    warm = workdir / "sft"
    has_warm_start = not setup.config.init_from and (warm / "checkpoints").is_dir()
    params = load_params(setup, warm) if has_warm_start else base_params(setup, workdir)
    return setup.merged(params) if setup.merged else params


def likelihood(
    setup: Setup,
    *,
    path: str,
    of: str = "answer",
    lead_in: str = "",
    reduce: str = "mean",
    answer_length: int = 32,
    batch_size: int = 64,
) -> Judge:
    """The log-likelihood of a text under a frozen language model, a reward of each row.

        of="answer"      log p(answer | prompt, completion, lead_in), the answer from the record's info: what a
                         completion tells about the right answer, without a verifier
        of="completion"  log p(completion | prompt), how usual it is

    Args:
      setup: of the run.
      path: workdir of a run or a Hugging Face folder.
      of: "completion", or the name of a text in the record's info; "answer" falls back to the record's completion.
      lead_in: text between the completion and the answer.
      reduce: "mean" over the tokens, or "sum".
      answer_length: most tokens of an answer; longer ones are cut.
      batch_size: rows per forward pass.

    Raises:
      FileNotFoundError: if the folder is neither.
      ValueError: if reduce is unknown, or (when called) a record lacks the text.
    """
    if reduce not in REDUCE:
        raise ValueError(f"likelihood.reduce={reduce!r} is none of {', '.join(REDUCE)}")
    own, params = load_run(setup, path, "likelihood.path")
    tokenizer, chunk = own.task.tokenizer, setup.config.score.chunk
    length = setup.config.rollout.completion_length if of == "completion" else answer_length
    score = make_score(own.model, completion_length=length, chunk=chunk)
    read = jax.jit(lambda params, batch: score(params, batch).log_probs)

    def judge(judged: Rows) -> Verdict:
        rows = texts_to_score(judged, tokenizer, of, lead_in, length)
        batch = lay_out(rows, tokenizer, length)
        log_probs = in_batches(own, read, params, batch, batch_size)
        rewards = [REDUCE[reduce](row[: len(ids)]) for row, (_, ids) in zip(log_probs, rows, strict=True)]
        return Verdict(np.array(rewards, np.float32))

    return judge


def texts_to_score(
    judged: Rows, tokenizer: Any, of: str, lead_in: str, length: int
) -> Sequence[tuple[list[int], list[int]]]:
    """(ids of what comes before, ids of the text that is scored) of each row.

    Raises:
      ValueError: if a record lacks the text.
    """
    rows = []
    for prompt, record, completion in zip(
        row_prompts(judged.records, tokenizer), judged.records, judged.completions, strict=True
    ):
        before, text = tokenizer.encode(prompt, bos=True), completion
        if of != "completion":
            text = info_of(record).get(of, record.get("completion") if of == "answer" else None)
            if not isinstance(text, str | int | float) or not str(text):
                raise ValueError(
                    f"likelihood.of={of!r}: the record of the prompt {record['prompt']!r:.60} has no {of!r} in info"
                )
            before = before + tokenizer.encode_continuation(completion + lead_in)
        ids = tokenizer.encode_continuation(str(text))[:length]
        rows.append((before, ids or [tokenizer.eos_id]))
    return rows
