"""A judge that learns its reward from demonstrations alone, against the policy's own samples (inverse RL)."""

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
    prompt_ids,
    sampled_ids,
)
from experiments.parts.judges.learning import Learner, row_shards
from experiments.parts.setup import Setup
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Params, TokenBatch
from rl_jax.credit.difficulty import difficulty_scale
from rl_jax.losses.reward_model.demonstrations import inverse_rl
from rl_jax.models import heads


class _Labelless(Learner):
    """It reads the records' demonstrations, not the task's own reward."""

    needs_labels = False


def demonstrated(
    setup: Setup,
    *,
    path: str,
    category: str = "",
    categories: Sequence = (),
    data_coef: float = 1.0,
    model_coef: float = 1.0,
    decay: float = 0.5,
    batch_size: int = 64,
    retrain_every: int = 1,
    learning_rate: float = 1e-4,
) -> Judge:
    """A reward that tells the records' demonstrations from what the policy samples: one per row, at its last token.

    In every `retrain_every`-th step it takes one step of inverse RL on the step's own rows (inverse_rl). Each category
    has a head of its own on one trunk; the paper trains a model of each. `difficulty`, among its components, is the
    weight of each prompt (credit.difficulty): the text encoder is the model at `path`, as it is there, the mean of its
    hidden states over a completion. `accuracy`, logged at each update, is the share of prompts whose demonstration has
    more than their samples' mean; near a half the policy cannot be told from the demonstrations: time to stop.
    Source: DR-IRL arXiv 2503.18991; without categories and the weight, reward learning from demonstrations, 2405.17888.

    Args:
      setup: of the run.
      path: the trunk to start from: workdir of a run or a Hugging Face folder with the policy's tokenizer.
      category: field of a record's info that says which head reads it. "": one head for all.
      categories: its values.
      data_coef: of the similarity in the difficulty.
      model_coef: of the gap of rewards in it.
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
    own, params = load_run(setup, path, "demonstrated.path")
    mode_of(setup, own.task.tokenizer, "tokens", f"the model {path}")
    places = {value: place for place, value in enumerate(categories)}
    key = jax.random.key(setup.config.seed)
    trained = heads.add_reward_head(own.model, params, key, num_outputs=max(len(places), 1))
    options = dict(category=category, places=places, coefs=(data_coef, model_coef), size=batch_size, decay=decay)
    judge = _Demonstrated(own, params, trained, setup.config.rollout.completion_length, **options)
    if retrain_every:
        judge.learner = _Labelless(own, trained, judge.loss, learning_rate=learning_rate, every=retrain_every)
    return judge


class _Demonstrated:
    """The judge of `demonstrated`."""

    def __init__(self, setup: Setup, encoder: Params, start: Params, length: int, **options):
        self._setup, self._encoder, self._start, self._length = setup, encoder, start, length
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
        params, size = self.learner.params if self.learner else self._start, self._options["size"]
        batch, mask, which, starts = self._laid_out(judged)
        rewards = in_batches(self._setup, self._read, params, (batch, which), size)
        hidden = in_batches(self._setup, self._embed, self._encoder, (batch, mask), size)
        hidden /= np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-8)
        of_rows, shown = len(judged.records), np.arange(len(judged.records), len(batch.tokens))
        sizes = np.diff([*starts, of_rows])
        mine = np.repeat(shown, sizes)  # the demonstration of each row
        alike = np.sum(hidden[:of_rows] * hidden[mine], axis=1)
        gaps = rewards[mine] - rewards[:of_rows]
        cosines, differences = (np.add.reduceat(x, starts) / sizes for x in (alike, gaps))
        scale = difficulty_scale(
            cosines, differences, data_coef=self._options["coefs"][0], model_coef=self._options["coefs"][1]
        )
        numbers = {"similarity": alike, "gap": gaps, "difficulty": np.repeat(scale, sizes)}
        return Verdict(rewards[:of_rows], components=numbers)

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
        shown = [tokenizer.encode(records[i]["completion"], eos=True)[:length] for i in starts]
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
