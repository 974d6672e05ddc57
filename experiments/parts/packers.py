"""config.packing: what the model reads, padded rows or packed ones (rl_jax.training.packing). The loss sees [B, C].

--config.packing.mode=shared_prefix        # each prompt once, its completions attend to it
--config.packing.mode=packed               # prompt and completion together, several per row
--config.packing.mode=padded               # one row each
"""

import jax
import numpy as np

from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from rl_jax.core.types import Packed, PolicyBatch, Rollout, TokenBatch
from rl_jax.training import packing, sharding

SHARE_PREFIX = {"packed": False, "shared_prefix": True}
MODES = ("padded", *SHARE_PREFIX)


class Packer:
    """The packing of one run, from config.packing. Raises ValueError if the mode is unknown."""

    def __init__(self, setup: Setup):
        settings = setup.config.packing
        if settings.mode not in MODES:
            raise ValueError(f"packing.mode={settings.mode!r} is none of {', '.join(MODES)}")
        self._padded = settings.mode == "padded"
        self._share_prefix = not self._padded and SHARE_PREFIX[settings.mode]
        self._row_length, self._min_rows = settings.row_length, settings.min_rows
        self._more_columns = (setup.config.sample.group_size - 1) * setup.config.rollout.completion_length
        self._shards = sharding.row_shards(setup.mesh)
        self._micro_batches = setup.config.train.micro_batches

    def to_score(self, rollout: Rollout) -> TokenBatch | Packed:
        """The rows of a rollout on the host, in their own order, for a forward without micro-batches."""
        if self._padded:
            return rollout.batch
        settings = {"share_prefix": self._share_prefix, "num_parts": self._shards, **self._sizes(rollout.batch)}
        return packing.pack(rollout.batch, rollout.completion_mask, **settings)

    def to_train(self, batch: PolicyBatch) -> PolicyBatch:
        """A minibatch with its rows packed per micro-batch, reordered to fit."""
        if self._padded:
            return batch
        parts = {"num_parts": self._shards * self._micro_batches, "num_micro_batches": self._micro_batches}
        settings = {"share_prefix": self._share_prefix, **parts}
        tokens, mask = jax.tree.map(np.asarray, (batch.batch, batch.completion_mask))
        order = packing.arrange(tokens, mask, **settings)
        tokens, mask = jax.tree.map(lambda x: x[order], (tokens, mask))
        packed = packing.pack(tokens, mask, **self._sizes(tokens), **settings)
        return jax.tree.map(lambda x: x[order], batch._replace(batch=None))._replace(batch=packed)

    def _sizes(self, batch: TokenBatch) -> dict[str, int]:
        """row_length and min_rows. A row holds a whole group if that is a little shorter than two padded rows."""
        width = batch.tokens.shape[1]
        group = width + self._more_columns
        fits = self._share_prefix and 1.5 * width < group < 2 * width
        return {"row_length": self._row_length or (group if fits else 0), "min_rows": self._min_rows}

    def metrics(self, batch: PolicyBatch) -> dict[str, float]:
        """packing/occupancy: fraction of the forward's columns that hold a token; {} if rows are padded."""
        return {} if self._padded else {"packing/occupancy": packing.occupancy(to_host(batch.batch))}
