"""A judge that learns its reward from demonstrations alone, against the policy's own samples (inverse RL)."""

import itertools
import pathlib
from collections.abc import Sequence

import chex
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
    need_same_model,
    prompt_ids,
    sampled_ids,
)
from experiments.parts.judges.learning import Learner, row_shards
from experiments.parts.prompt_limits import prompt_of
from experiments.parts.setup import Setup
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Params, TokenBatch
from rl_jax.credit.difficulty import difficulty_scale, sentence_similarity
from rl_jax.data import pipeline
from rl_jax.losses.reward_model.demonstrations import inverse_rl
from rl_jax.models import heads
from rl_jax.training import checkpoint


class _Labelless(Learner):
    """It reads the records' demonstrations, not the task's own reward."""

    needs_labels = False


def demonstrated(
    setup: Setup,
    *,
    path: str,
    category: str = "",
    categories: Sequence = (),
    models: Sequence[str] = (),
    separator: str = "",
    tau: float = np.inf,
    by_data: bool = True,
    by_model: bool = True,
    decay: float = 0.5,
    batch_size: int = 64,
    retrain_every: int = 1,
    learning_rate: float = 1e-4,
) -> Judge:
    """A reward that tells the records' demonstrations from what the policy samples: one per row, at its last token.

    In every `retrain_every`-th step it takes one step of inverse RL on the step's own rows (inverse_rl). With `models`
    there is nothing left to learn: each category has the reward that an earlier run with this judge has learned, as in
    the paper; without, each has a head of its own on one trunk. `difficulty`, among its components, is the weight of
    each prompt (credit.difficulty): the text encoder is the model at `path`, and a vector the mean of its hidden states
    over a sentence. `accuracy`, logged at each update, is the share of prompts whose demonstration has more than their
    samples' mean; near a half the policy cannot be told from the demonstrations: time to stop. Source: DR-IRL arXiv
    2503.18991; without categories and the weight, reward learning from demonstrations, 2405.17888.

    Args:
      setup: of the run.
      path: the trunk to start from: workdir of a run or a Hugging Face folder with the policy's tokenizer.
      category: field of a record's info that says which head reads it. "": one head for all.
      categories: its values.
      models: workdir, for each category, of a run whose judge is this one, with one head; with retrain_every=0.
      separator: text of one token that ends a sentence (the similarity compares sentences). "": all is one.
      tau: of difficulty_scale: gaps off their category's mean by more than its root are outliers.
      by_data: whether how unlike the samples are the demonstration counts in the difficulty.
      by_model: whether the gap of rewards does.
      decay: of the reward's square.
      batch_size: rows per forward pass.
      retrain_every: steps between updates. 0: never.
      learning_rate: of the updates.

    Raises:
      FileNotFoundError: if the folder is neither.
      ValueError: if the tokenizer is another one, or categories has no values for `category`.
    """
    if bool(category) != bool(len(categories)):
        raise ValueError(f"demonstrated: category={category!r} and categories={tuple(categories)} go together")
    count = max(len(categories), 1)
    if len(models) and (retrain_every or len(models) != count):
        raise ValueError(
            f"demonstrated: {len(models)} models, {count} categories and retrain_every={retrain_every}: give each "
            "category a model that has learned, and retrain_every=0"
        )
    own, params = load_run(setup, path, "demonstrated.path")
    mode_of(setup, own.task.tokenizer, "tokens", f"the model {path}")
    separator_ids = own.task.tokenizer.encode_continuation(separator)
    if separator and len(separator_ids) != 1:
        raise ValueError(f"demonstrated.separator={separator!r} must be one token of the model")
    places = {value: place for place, value in enumerate(categories)}
    key = jax.random.key(setup.config.seed)
    trained = heads.add_reward_head(own.model, params, key, num_outputs=count)
    options = dict(category=category, places=places, by=(by_data, by_model), tau=tau, size=batch_size, decay=decay)
    options["separator"] = separator_ids[0] if separator else None
    starts = [learned_reward(setup, own, folder) for folder in models] or [trained]
    judge = _Demonstrated(own, params, starts, setup.config.rollout.completion_length, **options)
    if retrain_every:
        judge.learner = _Labelless(own, trained, judge.loss, learning_rate=learning_rate, every=retrain_every)
    return judge


def learned_reward(setup: Setup, trunk: Setup, folder: str) -> Params:
    """The reward that the judge `demonstrated` of an earlier run has learned, of its newest checkpoint.

    Args:
      setup: of the run that reads it.
      trunk: of the model that reads it, demonstrated.path of that run.
      folder: workdir of the earlier run.

    Raises:
      FileNotFoundError: if there is no such run.
      ValueError: if it has not one judge of this kind, that one has several heads, or its model is not trunk's.
    """
    found, _ = load_run(setup, folder, "demonstrated.models")
    mine = {name: spec for name, spec in found.config.judge.items() if spec.fn == "demonstrated"}
    if len(mine) != 1 or any(len(spec.get("categories", ())) > 1 for spec in mine.values()):
        raise ValueError(f"demonstrated.models: {folder} must have one judge `demonstrated`, of one category")
    ((name, spec),) = mine.items()
    own, params = load_run(found, spec.path, "demonstrated.path")
    need_same_model(trunk, own, f"demonstrated.models: the reward of {folder}, trained from {spec.path},")
    head = heads.add_reward_head(own.model, params, jax.random.key(found.config.seed), num_outputs=1)
    like = _Labelless(own, head, lambda *_: None, learning_rate=spec.get("learning_rate", 1e-4), every=1).carried()
    with checkpoint.Checkpointer(pathlib.Path(folder) / "checkpoints", every=1) as checkpoints:
        items, _ = checkpoints.restore({"judges": {name: like}})
    return items["judges"][name]["state"].params


class _Demonstrated:
    """The judge of `demonstrated`."""

    def __init__(self, setup: Setup, encoder: Params, starts: Sequence[Params], length: int, **options):
        self._setup, self._encoder, self._starts, self._length = setup, encoder, starts, length
        self._options = options
        self.learner: Learner | None = None
        self._predict = heads.make_predict_last(setup.model)
        mean = heads.make_hidden_mean(setup.model)
        self._read = jax.jit(self._rewards)
        self._embed = jax.jit(lambda params, rows: mean(params, *rows))

    def _rewards(self, params: Params, rows: tuple[TokenBatch, chex.Array]) -> chex.Array:
        """float32 [B]: of each row by the head of its category."""
        batch, which = rows
        return jnp.take_along_axis(self._predict(params, batch), which[:, None], axis=1)[:, 0]

    def loss(self, params: Params, batch: tuple[TokenBatch, chex.Array, chex.Array]) -> tuple[Mean, dict]:
        """inverse_rl of (TokenBatch [N, K, T], categories int32 [N, K], present bool [N, K])."""
        tokens, which, present = batch
        flat = TokenBatch(*(None if x is None else x.reshape(-1, x.shape[-1]) for x in tokens))
        rewards = self._rewards(params, (flat, which.reshape(-1))).reshape(present.shape)
        gap = rewards[:, 0] - jnp.mean(rewards[:, 1:], axis=1)
        found = inverse_rl(rewards, present, decay=self._options["decay"])
        numbers = {"gap": jax.lax.stop_gradient(gap), "accuracy": (gap > 0.0).astype(jnp.float32)}
        return masked_mean(*found), {name: masked_mean(x, present[:, 0]) for name, x in numbers.items()}

    def __call__(self, judged: Rows) -> Verdict:
        options, (batch, mask, which, starts) = self._options, self._laid_out(judged)
        rewards = self._rewarded(batch, which)
        of_rows, shown = len(judged.records), np.arange(len(judged.records), len(batch.tokens))
        sizes = np.diff([*starts, of_rows])
        mine = np.repeat(shown, sizes)  # the demonstration of each row
        vectors = self._vectors(batch, mask)
        alike = np.array([sentence_similarity(vectors[row], vectors[mine[row]]) for row in range(of_rows)])
        gaps = rewards[mine] - rewards[:of_rows]
        differences, of_gaps = (np.add.reduceat(x, starts) / sizes for x in (1.0 - alike, gaps))
        counted = dict(zip(("data", "model"), options["by"], strict=True))
        scale = difficulty_scale(differences, of_gaps, which[starts], tau=options["tau"], **counted)
        numbers = {"similarity": alike, "gap": gaps, "difficulty": np.repeat(scale, sizes)}
        return Verdict(rewards[:of_rows], components={name: np.float32(x) for name, x in numbers.items()})

    def _rewarded(self, batch: TokenBatch, which: np.ndarray) -> np.ndarray:
        """float32 [B]: each row's reward, of the head or the model of its category."""
        size = self._options["size"]
        if len(self._starts) == 1:
            params = self.learner.params if self.learner else self._starts[0]
            return in_batches(self._setup, self._read, params, (batch, which), size)
        alone = np.zeros_like(which)  # each has one head
        each = [in_batches(self._setup, self._read, params, (batch, alone), size) for params in self._starts]
        return np.stack(each)[which, np.arange(len(which))]

    def _vectors(self, batch: TokenBatch, mask: np.ndarray) -> list[np.ndarray]:
        """float [K, D] for each row: the mean of the encoder's hidden states over each of its K sentences."""
        masks, owner = [], []
        for row, length in enumerate(mask.sum(axis=1)):
            tokens = np.asarray(batch.tokens[row])[-self._length :]
            ends = np.flatnonzero(tokens[:length] == self._options["separator"]) + 1
            for start, stop in itertools.pairwise([0, *(end for end in ends if end < length - 1), length]):
                masks.append((np.arange(self._length) >= start) & (np.arange(self._length) < stop))
                owner.append(row)
        owner = np.array(owner)
        rows = (jax.tree.map(lambda x: x[owner], batch), np.stack(masks))
        hidden = in_batches(self._setup, self._embed, self._encoder, rows, self._options["size"])
        return np.split(hidden, np.flatnonzero(np.diff(owner)) + 1)

    def learn(self, judged: Rows, labels: np.ndarray | None) -> dict[str, float]:
        """One update: each prompt's demonstration and its samples, as many as the largest group has."""
        batch, _, which, starts = self._laid_out(judged)
        sizes = np.diff([*starts, len(judged.records)])
        count = -(-len(starts) // row_shards(self._setup)) * row_shards(self._setup)
        rows = np.zeros((count, 1 + sizes.max()), int)
        present = np.zeros(rows.shape, bool)
        for place, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            rows[place, : 1 + size] = [len(judged.records) + place, *range(start, start + size)]
            present[place, : 1 + size] = True
        return self.learner.update((jax.tree.map(lambda x: x[rows], batch), which[rows], present))

    def _laid_out(self, judged: Rows) -> tuple[TokenBatch, np.ndarray, np.ndarray, list[int]]:
        """The B rows and, behind them, the demonstration of each of N prompts; where the prompts start.

        Returns:
          (TokenBatch [B + N, T], completion mask bool [B + N, C], head of each row int32 [B + N], N starts).
        """
        tokenizer, length = self._setup.task.tokenizer, self._length
        prompts, records = prompt_ids(judged, tokenizer), judged.records
        starts = [i for i, r in enumerate(records) if not i or r["prompt"] != records[i - 1]["prompt"]]
        for start in starts:
            if not records[start].get("completion"):
                raise ValueError(
                    f"demonstrated: the record of the prompt {records[start]['prompt']!r:.80} has an empty field "
                    "`completion`: it learns from demonstrations, so give every record one"
                )
        given = [(records[i]["completion"], prompt_of(records[i])) for i in starts]
        shown = [pipeline.response_ids(tokenizer, *answer)[:length] for answer in given]
        pairs = list(zip([*prompts, *(prompts[i] for i in starts)], [*sampled_ids(judged), *shown], strict=True))
        lengths = np.array([len(ids) for _, ids in pairs])
        which = np.array([self._head_of(record) for record in [*records, *(records[i] for i in starts)]], np.int32)
        return lay_out(pairs, tokenizer, length), np.arange(length) < lengths[:, None], which, starts

    def _head_of(self, record: dict) -> int:
        name, places = self._options["category"], self._options["places"]
        if not name:
            return 0
        value = info_of(record).get(name)
        if value not in places:
            raise ValueError(f"demonstrated: {name}={value!r} of a record is none of {', '.join(map(str, places))}")
        return places[value]
