"""Records as batches of token ids, of one width in all processes."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from experiments.parts.prompt_limits import cuts, prompt_of, rule_of_preferences
from experiments.parts.setup import Setup
from rl_jax.core.types import TokenBatch
from rl_jax.data import pipeline
from rl_jax.data.checks import RECORDED
from rl_jax.experience.prompt import info_of
from rl_jax.preferences.encode import encode_preferences, rows_of
from rl_jax.training import distributed


def encode_prompts(setup: Setup, records: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes prompts, left-padded to the config's buckets.

    Args:
      setup: of the run.
      records: this process's own. The width fits the longest prompt of all processes.

    Returns:
      (tokens int32 [B, P], prompt_mask bool [B, P]).
    """
    buckets, tokenizer = setup.config.rollout.prompt_buckets, setup.task.tokenizer
    prompts = [prompt_of(record) for record in records]
    tokens, mask = pipeline.encode_prompts(tokenizer, prompts, buckets=buckets, cut=cuts(setup.config))
    width = distributed.largest(tokens.shape[1])
    return pipeline.pad_left(tokens, width, tokenizer.pad_id), pipeline.pad_left(mask, width)


def pad_prompts(batch: TokenBatch, width: int, pad_id: int) -> TokenBatch:
    """`batch` on the host, [..., T], with its prompts left-padded to `width` columns in all.

    What is said of completions (allowed) stays; experts of the new columns are the router's choice (routes of -1).
    """
    left = [(0, 0)] * (batch.tokens.ndim - 1) + [(width - batch.tokens.shape[-1], 0)]
    tokens = np.pad(batch.tokens, left, constant_values=pad_id)
    rows = batch._replace(tokens=tokens, positions=np.pad(batch.positions, left))
    routes = None if batch.routes is None else np.pad(batch.routes, [*left, (0, 0), (0, 0)], constant_values=-1)
    return rows._replace(segment_ids=np.pad(batch.segment_ids, left), routes=routes)


def encode_sft(setup: Setup, records: list[dict]) -> tuple[TokenBatch, np.ndarray]:
    """Encodes prompts with their completions, as the train step reads them.

    Args:
      setup: of the run.
      records: this process's own. The width fits the longest prompt of all processes.

    Returns:
      (TokenBatch [B, P + C], completion_mask bool [B, C]).
    """
    settings = setup.config.rollout
    length = settings.completion_length
    cut = cuts(setup.config) or rule_of_preferences(setup.config).choice == "cut"
    if "ids" in records[0]:
        return _encode_recorded(setup, records, cut)
    rows = pipeline.encode_sft(
        setup.task.tokenizer,
        [_demonstration(record) for record in records],
        prompt_buckets=settings.prompt_buckets,
        completion_length=length,
        cut=cut,
    )
    width = distributed.largest(rows["tokens"].shape[1])
    padding = {"tokens": setup.task.tokenizer.pad_id, "positions": 0, "segment_ids": 0}
    batch = TokenBatch(**{name: pipeline.pad_left(rows[name], width, value) for name, value in padding.items()})
    return batch, rows["completion_mask"][:, -length:]


def completion_length(setup: Setup, record: dict) -> int:
    """The tokens of a record's completion, EOS included, before encode_sft cuts it to rollout.completion_length."""
    if "ids" in record:
        return len(record["ids"][1])
    return sum(map(len, pipeline.completion_ids(setup.task.tokenizer, _demonstration(record))))


def _encode_recorded(setup: Setup, records: list[dict], cut: bool) -> tuple[TokenBatch, np.ndarray]:
    """The same of sampled token ids, whose rows all have the largest bucket's width."""
    settings, pairs = setup.config.rollout, [record["ids"] for record in records]
    rows, _ = encode_preferences(
        setup.task.tokenizer,
        [{"prompt": {"ids": prompt}, "responses": [response], "rewards": [1.0]} for prompt, response in pairs],
        prompt_buckets=(max(settings.prompt_buckets),),
        completion_length=settings.completion_length,
        responses=1,
        truncate="left" if cut else "refuse",
    )
    rows = rows_of(rows)
    return TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]), rows["completion_mask"]


def _demonstration(record: dict) -> dict:
    """A record as pipeline.encode_sft reads it."""
    return {"prompt": prompt_of(record), "completion": record["completion"], **_turns(record)}


def _turns(record: dict) -> dict:
    """The turns of a recorded episode, from the record's info, if it is one: a column `turns` of a user's is none."""
    return {"turns": turns} if RECORDED in record.get("info", "") and (turns := info_of(record).get(RECORDED)) else {}


def whole_text(tokenizer) -> Callable[[Sequence[int]], str]:
    """ids -> text with special tokens spelled out, if the tokenizer can: what stop strings are looked for in."""
    special = getattr(tokenizer, "special_tokens", None) is not None
    return functools.partial(tokenizer.decode, keep_special=True) if special else tokenizer.decode
