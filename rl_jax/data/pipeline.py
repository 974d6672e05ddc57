"""From records to batches of token ids: grain pipelines over a task's source, and fixed-shape encoding. No jax here.

(grain itself imports jax, so it is imported inside the functions that need it.)
"""
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

DEFAULT_BUCKETS = (16, 32, 64, 128, 256, 512, 1024)


def train_iterator(source, *, batch_size: int, seed: int, start: int = 0, shuffle: bool = True,
                   rows: Sequence[int] | None = None):
    """An endless grain iterator of batches (lists of records).

    Every epoch is a new permutation determined by `seed`; a batch may span two epochs, so no record is dropped.
    `get_state()` returns a JSON value and `set_state` continues from it. The batch at a step depends only on (source,
    batch_size, seed, step), and the state does not depend on `rows`.

    Args:
      source: random access to records.
      batch_size: records per batch.
      seed: of the permutations.
      start: number of batches to skip.
      shuffle: whether to permute the records.
      rows: this process's rows of each batch, if several processes share it (rl_jax.training.distributed.rows_here).
        Only these records are read. None: all rows.

    Raises:
      ValueError: if batch_size is below 1, the source is empty, or rows are not rows of the batch.
    """
    import grain

    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not len(source):
        raise ValueError(f"{source!r} has no records")
    dataset = grain.MapDataset.source(source)
    if shuffle:
        dataset = dataset.shuffle(seed=seed)
    dataset = dataset.repeat()
    if rows is not None:
        dataset = grain.MapDataset.source(_Rows(dataset, batch_size, [int(row) for row in rows]))
    dataset = dataset.batch(batch_size if rows is None else len(rows), batch_fn=list)
    # No reader threads: a batch of short texts costs less than passing it between threads.
    iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
    if start:
        iterator.set_state({"next_index": start})
    return iterator


def peek(iterator):
    """The next batch of a train_iterator, without advancing it."""
    position = iterator.get_state()
    batch = next(iterator)
    iterator.set_state(position)
    return batch


class _Rows:
    """The records at some rows of each batch of a dataset, batch after batch."""

    def __init__(self, dataset, batch_size: int, rows: list[int]):
        if not rows or not 0 <= min(rows) <= max(rows) < batch_size:
            raise ValueError(f"rows {rows} must be some of the {batch_size} rows of a batch, 0 to {batch_size - 1}")
        self._dataset, self._batch_size, self._rows = dataset, batch_size, rows

    def __len__(self) -> int:
        return len(self._dataset) // self._batch_size * len(self._rows)

    def __getitem__(self, index: int):
        batch, place = divmod(index, len(self._rows))
        return self._dataset[batch * self._batch_size + self._rows[place]]

    def __repr__(self) -> str:
        return f"_Rows({self._dataset!r}, {len(self._rows)} of {self._batch_size})"


def eval_batches(source, batch_size: int, limit: int | None = None) -> Iterator[list[dict]]:
    """Yields lists of records in order, the first `limit` of them (None: all); the last list may be shorter."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    count = len(source) if limit is None else min(limit, len(source))
    for start in range(0, count, batch_size):
        yield [source[index] for index in range(start, min(start + batch_size, count))]


def encode_prompts(tokenizer, prompts: Sequence, *, buckets: Sequence[int] = DEFAULT_BUCKETS, cut: bool = False
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Encodes BOS + prompt, left-padded to the smallest bucket that fits the longest prompt.

    Args:
      tokenizer: see tokenizers.base.
      prompts: texts, or whatever else the tokenizer encodes (chats).
      buckets: allowed prompt lengths.
      cut: whether a prompt over the largest bucket keeps its end, behind its BOS, instead of being refused.

    Returns:
      (tokens i32 [B,P], prompt_mask bool [B,P]).

    Raises:
      ValueError: if a prompt fits no bucket (the message shows it), or there are no prompts.
    """
    if not len(prompts):
        raise ValueError("no prompts to encode")
    rows = [tokenizer.encode(prompt, bos=True) for prompt in prompts]
    if cut:
        rows = [_end_of(row, max(buckets), tokenizer.bos_id) for row in rows]
    longest = max(range(len(rows)), key=lambda index: len(rows[index]))
    fitting = [bucket for bucket in sorted(buckets) if bucket >= len(rows[longest])]
    if not fitting:
        raise ValueError(f"prompt {longest} has {len(rows[longest])} tokens with BOS, over the largest bucket "
                         f"{max(buckets)}: {prompts[longest]!r:.200}. Shorten it or add a bucket")
    tokens = np.full((len(rows), fitting[0]), tokenizer.pad_id, np.int32)
    mask = np.zeros(tokens.shape, bool)
    for index, row in enumerate(rows):
        tokens[index, fitting[0] - len(row):] = row
        mask[index, fitting[0] - len(row):] = True
    return tokens, mask


def _end_of(ids: list[int], limit: int, bos_id: int | None) -> list[int]:
    """The last `limit` ids, of which the first is the BOS if the whole began with it."""
    if len(ids) <= limit:
        return ids
    first = ids[:1] if ids[0] == bos_id else []
    return first + ids[len(ids) - limit + len(first):]


def pad_left(array: np.ndarray, width: int, value: int = 0) -> np.ndarray:
    """[B, T] -> [B, width], filling the new columns on the left with `value`."""
    return np.pad(array, ((0, 0), (width - array.shape[1], 0)), constant_values=value)


def encode_sft(tokenizer, records: Sequence[dict], *, prompt_buckets: Sequence[int] = DEFAULT_BUCKETS,
               completion_length: int, cut: bool = False) -> dict[str, np.ndarray]:
    """Encodes prompts, left-padded to P, and completions with EOS, right-padded to C = completion_length.

    A completion over C tokens (EOS included) is cut to C and has no EOS: the model must not learn to stop there.

    Args:
      tokenizer: see tokenizers.base.
      records: with "prompt" and "completion" each. One with "turns", the texts of an episode in place of the
        completion, has those of the model and of its environment in turn, the model's first; each of the model's ends
        with EOS, and only they are in the mask.
      prompt_buckets: allowed prompt lengths.
      completion_length: C.
      cut: of prompts, as in `encode_prompts`.

    Returns:
      tokens i32 [B,P+C]; completion_mask bool [B,P+C], true on completion tokens and the EOS; segment_ids i32 [B,P+C],
      1 on real tokens and 0 on padding; positions i32 [B,P+C], 0 at BOS and counting real tokens.

    Raises:
      ValueError: if completion_length is below 1, or as `encode_prompts`.
    """
    if completion_length < 1:
        raise ValueError(f"completion_length must be at least 1, got {completion_length}")
    texts = [record["prompt"] for record in records]
    prompts, prompt_mask = encode_prompts(tokenizer, texts, buckets=prompt_buckets, cut=cut)
    completions = np.full((len(records), completion_length), tokenizer.pad_id, np.int32)
    mask, filled = np.zeros(completions.shape, bool), np.zeros(completions.shape, bool)
    for index, record in enumerate(records):
        start = 0
        for number, row in enumerate(completion_ids(tokenizer, record)):
            row = row[:completion_length - start]
            completions[index, start:start + len(row)] = row
            mask[index, start:start + len(row)] = number % 2 == 0
            start += len(row)
        filled[index, :start] = True
    real = np.concatenate([prompt_mask, filled], axis=1)
    return {
        "tokens": np.concatenate([prompts, completions], axis=1),
        "completion_mask": np.concatenate([np.zeros_like(prompt_mask), mask], axis=1),
        "segment_ids": real.astype(np.int32),
        "positions": np.maximum(np.cumsum(real, axis=1, dtype=np.int32) - 1, 0) * real.astype(np.int32),
    }


def completion_ids(tokenizer, record: dict) -> list[list[int]]:
    """The ids of a record's completion, not cut, as `encode_sft` reads it: one list, or one for each of its turns."""
    asked = None if record.get("turns") else record["prompt"]  # recorded turns are as they were sampled
    return [tokenizer.encode_continuation(text) if number % 2 else response_ids(tokenizer, text, asked)
            for number, text in enumerate(record.get("turns") or [record["completion"]])]


def response_ids(tokenizer, text: str, prompt: Any = None) -> list[int]:
    """Ids of a model's response with exactly one EOS at its end, even if `text` already ends with one or several.

    Args:
      tokenizer: see tokenizers.base.
      text: of the response.
      prompt: what it answers. If that is a chat whose template writes whitespace between prompt and response (Mistral's
        a space), that comes first, unless `text` begins with it. None: the text is as it was sampled.
    """
    ends = tuple(tokenizer.token_text(token) for token in tokenizer.eos_ids)
    while text.rstrip().endswith(ends):
        text = text.rstrip()
        text = text[:-len(next(end for end in ends if text.endswith(end)))]
    space = tokenizer.before_response(prompt) if hasattr(tokenizer, "before_response") else ""
    if text and not text.startswith(space):
        text = space + text
    ids = tokenizer.encode_continuation(text)
    while ids and ids[-1] in tokenizer.eos_ids:
        ids = ids[:-1]
    return [*ids, tokenizer.eos_id]
