"""config.packing: what the model reads, padded rows or packed ones (rl_jax.training.packing). The loss sees [B, C].

--config.packing.mode=shared_prefix        # each prompt once, its completions attend to it
--config.packing.mode=packed               # prompt and completion together, several per row
--config.packing.mode=padded               # one row each

Policies pack with RolloutPacker, demonstrations with DemonstrationPacker, preferences with PreferencePacker of
experiments.parts.preference_data.
"""

import jax
import numpy as np

from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from rl_jax.core.types import Packed, PolicyBatch, Rollout, TokenBatch
from rl_jax.training import packing, sharding

SHARE_PREFIX = {"padded": None, "packed": False, "shared_prefix": True}
MODES = tuple(SHARE_PREFIX)


class Packing:
    """config.packing of one run.

    Args:
      setup: of the run.
      min_rows: in place of config.packing's.

    Attributes:
      padded: whether rows stay as they are.
      share_prefix: whether equal prompts appear only once per row.
      row_length: config.packing.row_length, 0 if the caller chooses.

    Raises:
      ValueError: if the mode is unknown.
    """

    def __init__(self, setup: Setup, min_rows: int = 0):
        settings = setup.config.packing
        if settings.mode not in SHARE_PREFIX:
            raise ValueError(f"packing.mode={settings.mode!r} is none of {', '.join(MODES)}")
        self.padded, self.share_prefix = settings.mode == "padded", bool(SHARE_PREFIX[settings.mode])
        self.row_length, self._min_rows = settings.row_length, min_rows or settings.min_rows
        self._shards = sharding.row_shards(setup.mesh)

    def arrange(self, tokens: TokenBatch, mask: np.ndarray, micro_batches: int) -> np.ndarray:
        """int [B]. A row order that fills the devices and micro-batches evenly."""
        return packing.arrange(tokens, mask, **self._parts(micro_batches))

    def pack(self, tokens: TokenBatch, mask: np.ndarray, micro_batches: int = 1, *, row_length: int = 0) -> Packed:
        """Packs rows on the host, separately per device and micro-batch.

        Args:
          tokens: TokenBatch [B, T].
          mask: bool [B, C]. The tokens that are read.
          micro_batches: of the train step; 1 for a forward without.
          row_length: of a packed row, if config.packing sets none; 0: about two padded rows.
        """
        sizes = {"row_length": self.row_length or row_length, "min_rows": self._min_rows}
        return packing.pack(tokens, mask, **sizes, **self._parts(micro_batches))

    def _parts(self, micro_batches: int) -> dict:
        parts = {"num_parts": self._shards * micro_batches, "num_micro_batches": micro_batches}
        return {"share_prefix": self.share_prefix, **parts}


class RolloutPacker:
    """Packs the rollouts of one run."""

    def __init__(self, setup: Setup):
        self._packing = Packing(setup)
        self._completion, self._group_size = setup.config.rollout.completion_length, setup.config.sample.group_size
        self._micro_batches = setup.config.train.micro_batches
        self._score_micro_batches = setup.config.score.get("micro_batches", 1)

    @property
    def padded(self) -> bool:
        """Whether rows stay as they are."""
        return self._packing.padded

    def to_score(self, rollout: Rollout) -> TokenBatch | Packed:
        """The rows of a rollout on the host, in their own order, for a forward in score.micro_batches parts."""
        if self.padded:
            return rollout.batch
        length = self._row_length(rollout.batch)
        count = self._score_micro_batches
        return self._packing.pack(rollout.batch, rollout.completion_mask, count, row_length=length)

    def to_train(self, batch, micro_batches: int | None = None):
        """A minibatch with its rows packed per micro-batch, reordered to fit.

        Args:
          batch: a PolicyBatch, or a batch that has one as `policy`.
          micro_batches: of the train step; None: config.train.micro_batches.
        """
        if self.padded:
            return batch
        count = micro_batches or self._micro_batches
        tokens, mask = jax.tree.map(np.asarray, (_policy_of(batch).batch, batch.completion_mask))
        order = self._packing.arrange(tokens, mask, count)
        tokens, mask = jax.tree.map(lambda x: x[order], (tokens, mask))
        packed = self._packing.pack(tokens, mask, count, row_length=self._row_length(tokens))
        return _with_rows(jax.tree.map(lambda x: x[order], _with_rows(batch, None)), packed)

    def _row_length(self, batch: TokenBatch) -> int:
        if not self._packing.share_prefix:
            return 0
        return packing.shared_row_length(batch.tokens.shape[1] - self._completion, self._completion, self._group_size)

    def metrics(self, batch) -> dict[str, float]:
        """packing/occupancy: fraction of the forward's columns that hold a token; {} if rows are padded."""
        return {} if self.padded else {"packing/occupancy": packing.occupancy(to_host(_policy_of(batch).batch))}


class DemonstrationPacker:
    """Packs the rows of supervised fine-tuning, in a run of one process: several would come to different shapes.

    packing.min_rows is of the batches of other programs, and not used.
    """

    def __init__(self, setup: Setup):
        self._packing, self._micro_batches = Packing(setup, min_rows=1), setup.config.sft.micro_batches
        self._padded = self._packing.padded or jax.process_count() > 1

    def __call__(self, tokens: TokenBatch, mask: np.ndarray) -> tuple[TokenBatch | Packed, np.ndarray]:
        """(rows, mask bool [B, C]): a batch with its rows packed per micro-batch, reordered to fit; or as it is.

        Packed rows are as long as one padded row, or as two if that makes fewer columns. A batch stays as it is if a
        row has no token before its completion, to predict the first one from.
        """
        if self._padded or not np.asarray(tokens.segment_ids)[:, : -mask.shape[1]].any(axis=1).all():
            return tokens, mask
        order = self._packing.arrange(tokens, mask, self._micro_batches)
        tokens, mask = TokenBatch(*(np.asarray(x)[order] for x in tokens[:3])), mask[order]
        lengths = (tokens.tokens.shape[1],) if self._packing.row_length else (tokens.tokens.shape[1], 0)
        packs = [self._packing.pack(tokens, mask, self._micro_batches, row_length=length) for length in lengths]
        return min(packs, key=lambda packed: packed.rows.tokens.size), mask


def _policy_of(batch) -> PolicyBatch:
    return batch if isinstance(batch, PolicyBatch) else batch.policy


def _with_rows(batch, rows: TokenBatch | Packed | None):
    """The batch with other rows in its PolicyBatch."""
    if isinstance(batch, PolicyBatch):
        return batch._replace(batch=rows)
    return batch._replace(policy=batch.policy._replace(batch=rows))
