"""Judges that experiments.reward_model has trained: of responses, and of the steps of a solution."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import (
    Judge,
    Rows,
    Verdict,
    in_batches,
    lay_out,
    mode_of,
    prompt_ids,
    row_prompts,
    sampled_ids,
    token_rows,
)
from experiments.parts.judges.learning import Learner, best_and_worst, padded_pairs, pair_loss, row_shards
from experiments.parts.judges.trained import RewardModel, load_head, load_reward_model, need_finished
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind
from rl_jax.core.types import Params, TokenBatch
from rl_jax.credit import process_rewards, step_rewards
from rl_jax.models.heads import make_predict_at

STEPS = "configs/preferences/reward_models.py:steps"  # trains a process reward model
MIN_STEPS = 8  # steps are padded to this, or to the next power of two


def folders_of(path: str | Sequence[str], what: str) -> list[str]:
    """One folder or several, as a sequence or with commas between them. Raises ValueError if there is none."""
    folders = path.split(",") if isinstance(path, str) else list(path)
    if not all(folders) or not folders:
        raise ValueError(f"{what}.path={path!r}: give the workdir of a run of experiments.reward_model, or several")
    return folders


def reward_model(
    setup: Setup,
    *,
    path: str | Sequence[str],
    combine: Mapping[str, Any] | None = None,
    standardize: bool | None = None,
    rows: str = "",
    batch_size: int = 64,
    retrain_every: int = 0,
    learning_rate: float = 1e-5,
) -> Judge:
    """A reward model, or several as an ensemble: one reward per row, read at the row's last token.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.reward_model, or several.
      combine: dict(fn=...) of rl_jax.credit.ensembles: mean, worst_case, uncertainty_weighted, ...; None: as trained.
      standardize: whether each member has mean 0 and deviation 1 on its held-out responses; None: as trained.
      rows: "tokens", the sampled ids as they are; "texts", encoded again with an EOS, as the model was trained; "":
        tokens if the tokenizer is the same.
      batch_size: rows per forward pass.
      retrain_every: steps between updates on the step's own rows, the best and the worst of each prompt by the task's
        own reward (Bradley-Terry). 0: never.
      learning_rate: of these updates.

    Raises:
      FileNotFoundError: if a folder holds no finished run.
      ValueError: if the rows cannot be read, or the model cannot be trained.
    """
    folders = folders_of(path, "reward_model")
    combine = None if combine is None else dict(combine)
    model = load_reward_model(folders, combine, setup.config.mesh, standardize)
    mode = mode_of(setup, model.tokenizer, rows, f"the reward model {folders[0]}")

    if retrain_every and model.config.algorithm.reads == "log_ratio":
        raise ValueError("reward_model.retrain_every: a model of log-ratios is trained by the judge log_ratio")
    learner = None
    if retrain_every:
        loss = pair_loss(model.members)
        options = dict(learning_rate=learning_rate, every=retrain_every)
        learner = Learner(model.setup, model.params, loss, **options)
    return _RewardModel(model, mode, batch_size, learner)


class _RewardModel:
    """The judge of `reward_model`."""

    def __init__(self, model: RewardModel, mode: str, batch_size: int, learner: Learner | None):
        self._model, self._mode, self._size, self.learner = model, mode, batch_size, learner
        self._read = jax.jit(model.members)

    def __call__(self, judged: Rows) -> Verdict:
        model = self._model
        params = self.learner.params if self.learner else model.params
        members = in_batches(model.setup, self._read, params, self._rows(judged), self._size)
        rewards = np.asarray(model.combine(jnp.asarray(members)))  # of all rows: some combinations couple them
        return Verdict(rewards, components={"disagreement": members.std(axis=1)} if members.shape[1] > 1 else {})

    def learn(self, judged: Rows, labels: np.ndarray) -> dict[str, float]:
        """One update on the best and the worst row of each prompt."""
        pairs, present = best_and_worst(judged, labels, row_shards(self._model.setup))
        return self.learner.update((jax.tree.map(lambda x: np.asarray(x)[pairs], self._rows(judged)), present))

    def learn_texts(
        self, prompts: Sequence[str], pairs: Sequence[tuple[str, str]], live: Sequence[bool]
    ) -> dict[str, float]:
        """One update on given pairs of answers, the better one first.

        Args:
          prompts: N of them, as the model reads them.
          pairs: N pairs of texts.
          live: which of them count.
        """
        texts = [text for pair in pairs for text in pair]
        rows = self._model.encode([prompt for prompt in prompts for _ in range(2)], texts)
        places = np.arange(len(texts)).reshape(-1, 2)
        places, present = padded_pairs(places, np.asarray(live, bool), row_shards(self._model.setup))
        return self.learner.update((jax.tree.map(lambda x: np.asarray(x)[places], rows), present))

    def _rows(self, judged: Rows) -> TokenBatch:
        if self._mode == "tokens":
            return token_rows(judged, self._model.tokenizer)
        return self._model.encode(self.prompts_of(judged.records), judged.completions)

    def prompts_of(self, records: Sequence[dict]) -> list:
        """The prompts as the model reads them, texts or chats."""
        return row_prompts(records, self._model.tokenizer)


def process_reward_model(
    setup: Setup,
    *,
    path: str,
    separator: str | Sequence[str] = "",
    whole: bool = False,
    transforms: Sequence[Mapping[str, Any]] = (),
    aggregate: Mapping[str, Any] | None = None,
    batch_size: int = 64,
) -> Judge:
    """A process reward model: the probability that a step is right, on the step's last token.

    A step ends at the token that completes a separator, where the model reads it. The rest of a completion is a step,
    too: it is read after a separator that is added for the model, and rewarded on its last token before the EOS.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.reward_model that reads steps.
      separator: text after each step, or several texts, as (".", "!", "?"), of which the first one is added. "": the
        run's encode.separator.
      whole: whether a completion is one step, whatever it contains.
      transforms: dict(fn=...) of rl_jax.credit.step_rewards, applied in this order: clip_steps, delta_steps, signed.
      aggregate: dict(fn=...) of rl_jax.credit.process_rewards: the score of a whole solution, which is only logged, as
        `solution`; None: the run's.
      batch_size: rows per forward pass.

    Raises:
      FileNotFoundError: if the folder holds no finished run.
      ValueError: if the run does not read steps, or has another tokenizer.
    """
    folder = pathlib.Path(folders_of(path, "process_reward_model")[0])
    need_finished(folder, STEPS)
    own, params = load_head(folder, setup.config.mesh)
    if own.config.algorithm.reads != "steps":
        raise ValueError(
            f"{folder} reads {own.config.algorithm.reads!r}: a process reward model is trained with --config={STEPS}"
        )
    tokenizer = own.task.tokenizer
    mode_of(setup, tokenizer, "", f"the process reward model {folder}", texts=False)
    separators = separator or own.config.encode.separator
    separators = (separators,) if isinstance(separators, str) else tuple(separators)
    added = tokenizer.encode_continuation(separators[0])
    separators = () if whole else separators
    steps = [bind(dict(spec), step_rewards) for spec in transforms]
    solution = bind(dict(aggregate or own.config.algorithm.aggregate.to_dict()), process_rewards)
    predict = make_predict_at(own.model)

    @jax.jit
    def read(params: Params, rows: tuple[TokenBatch, chex.Array]) -> chex.Array:
        return jax.nn.softmax(predict(params, *rows), axis=-1)[..., 1]

    def judge(judged: Rows) -> Verdict:
        length = judged.rollout.completion_mask.shape[1]
        texts = [[token for token in ids if token not in tokenizer.eos_ids] for ids in sampled_ids(judged)]
        ends, is_open = step_ends(texts, tokenizer, separators)
        rows = [(ids, text + added) for ids, text in zip(prompt_ids(judged, tokenizer), texts, strict=True)]
        batch, mask = lay_out(rows, tokenizer, length + len(added)), ends >= 0
        last = mask & ~np.roll(mask, -1, axis=1)
        last[:, -1] = mask[:, -1]
        places = ends + np.where(last & is_open[:, None], len(added), 0)
        columns = np.where(mask, places + batch.tokens.shape[1] - length - len(added), -1).astype(np.int32)
        probs = jnp.asarray(in_batches(own, read, params, (batch, columns), batch_size))
        mask = jnp.asarray(mask)
        rewards = probs
        for step in steps:
            rewards = step(rewards, mask)
        tokens = step_rewards.at_tokens(rewards, mask, jnp.asarray(ends), completion_length=length)
        marks = step_rewards.at_tokens(jnp.ones_like(rewards), mask, jnp.asarray(ends), completion_length=length)
        numbers = {"solution": solution(probs, mask), "steps": jnp.sum(mask, axis=1, dtype=jnp.float32)}
        return Verdict(None, np.asarray(tokens), np.asarray(marks > 0), jax.tree.map(np.asarray, numbers))

    return judge


def step_ends(
    completions: Sequence[list[int]], tokenizer: Any, separators: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Where the steps of completions end.

    Args:
      completions: ids of each row, without EOS.
      tokenizer: of the ids.
      separators: texts after a step. A token that completes one ends the step.

    Returns:
      (the column of each step's last token, int32 [B, S], -1 if there is no such step; whether the last step of a row
      has no separator, bool [B]).
    """
    pieces: dict[int, str] = {}
    found, is_open = [], []
    for ids in completions:
        row, text = [], ""
        for column, token in enumerate(ids):
            if token not in pieces:
                pieces[token] = tokenizer.decode([token])
            text += pieces[token]
            if any(mark in text for mark in separators):
                row, text = [*row, column], ""
        is_open.append(bool(text.strip()))
        found.append([*row, len(ids) - 1] if is_open[-1] else row)
    width = max([MIN_STEPS, *(1 << max(len(row) - 1, 0).bit_length() for row in found)])
    return np.array([row + [-1] * (width - len(row)) for row in found], np.int32), np.array(is_open)
