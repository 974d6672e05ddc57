"""Endless batches of records from a source, whose position and memory are one JSON value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptMemory, prompt_id, source_of
from rl_jax.experience.sources.base import Source, effective


class PromptStream:
    """Batches of records, chosen by a source. next(stream) reads this process's rows of the next batch only.

    A record gets the fields id, source and index. All processes choose the whole batch, with equal states.

    Args:
      records: random access to {"prompt", "completion", "info"}.
      source: chooses among them.
      batch_size: records per batch, in all processes together.
      rows: this process's rows of a batch. None: all.
      memory: is updated by the feedback. None: nothing is remembered.
    """

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        source: Source,
        *,
        batch_size: int,
        rows: Sequence[int] | None = None,
        memory: PromptMemory | None = None,
    ):
        rows = range(batch_size) if rows is None else [int(row) for row in rows]
        if batch_size < 1 or not len(rows) or not 0 <= min(rows) <= max(rows) < batch_size:
            raise ValueError(f"rows {list(rows)} must be some of the {batch_size} rows of a batch")
        self._records, self._source, self._memory = records, source, memory
        self._batch_size, self._rows, self._success = batch_size, rows, []

    def __iter__(self) -> "PromptStream":
        return self

    def __next__(self) -> list[dict[str, Any]]:
        chosen = self._source.take(self._batch_size)
        return [self._read(int(chosen[row])) for row in self._rows]

    def _read(self, index: int) -> dict[str, Any]:
        record = dict(self._records[index])
        return record | {"id": prompt_id(record), "source": source_of(record), "index": index}

    def get_state(self) -> dict[str, Any]:
        """A JSON value: the source's state, and the memory's."""
        memory = {} if self._memory is None else {"memory": self._memory.state()}
        return {"source": self._source.state(), **memory}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned. Also takes the state of data.train_iterator, for shuffled prompts.

        Raises:
          ValueError: if the state is of another source or of other records.
        """
        if set(state) == {"next_index"}:
            batches = state["next_index"]
            return self._source.restore({"draws": batches, "taken": batches * self._batch_size})
        self._source.restore(state["source"])
        if self._memory is not None:
            self._memory.restore(state.get("memory", {}))

    def recall(self, records: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """What is known of these records before this step's feedback, one value per record.

        Returns:
          prompt_ids int32 [B], their places in the split; with a memory also best_lengths float32 [B], the tokens of
          the shortest successful completion so far, 0 if there is none.
        """
        named = {"prompt_ids": np.asarray([record["index"] for record in records], np.int32)}
        if self._memory is not None:
            lengths = [self._memory.get(record["id"])["best_length"] or 0 for record in records]
            named["best_lengths"] = np.asarray(lengths, np.float32)
        return named

    def last_visits(self, records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, list] | None]:
        """Per record what the memory kept of its prompt's last visit, {"tokens", "log_probs"}; None if nothing."""
        return [None if self._memory is None else self._memory.get(record["id"])["last"] for record in records]

    def feedback(self, seen: Feedback) -> None:
        """Tells source and memory what became of the groups of a step, the dropped ones included, if there are any."""
        if not len(seen.indices):
            return
        self._source.feedback(seen)
        if self._memory is not None:
            self._memory.update(seen)
        self._success += [float(x) for x in np.ravel(seen.success)]

    def metrics(self) -> dict[str, float]:
        """prompts/success of the feedback since the last call, prompts/effective, the source's; {} if there is none.

        prompts/effective is the effective number of prompts of the next draw. Without feedback there are none of them.
        """
        success, self._success = self._success, []
        weights, own = self._source.weights(), self._source.metrics()
        if not success or (weights is None and not own):
            return {}
        shown = {"success": float(np.mean(success))} | ({} if weights is None else {"effective": effective(weights)})
        return {f"prompts/{name}": value for name, value in (shown | own).items()}
