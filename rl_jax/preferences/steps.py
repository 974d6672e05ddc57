"""Solutions with labelled steps as arrays: the end of each step, and whether it is right. numpy, no jax."""

from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax.preferences.encode import TRUNCATE, encode_prompts, layout
from rl_jax.preferences.places import naming_place, place_of

UNLABELLED = -100  # the label of unlabelled steps, as in TRL and in torch's cross-entropy


def encode_steps(
    tokenizer,
    records: Sequence[dict],
    *,
    prompt_buckets: Sequence[int],
    completion_length: int,
    num_steps: int | None = None,
    separator: str = "\n",
    truncate: str = "refuse",
    unlabelled: str = "refuse",
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Encodes records of kind "steps"; each step, and the `separator` after it, is tokenised separately.

    A step that was sampled, {"ids": [...]}, is those ids as they are, without a separator.

    A step ends at the last token of its separator, at which a process reward model reads its score (TRL's PRMTrainer).
    There is no EOS, because steps are scored before a solution is finished.

    Args:
      tokenizer: see tokenizers.base.
      records: N of them.
      prompt_buckets: allowed prompt lengths.
      completion_length: C. Longer solutions are cut, and the steps that end after C have no end and no label.
      num_steps: S. None takes the largest number of steps of a record.
      separator: text after each step.
      truncate: as in encode_preferences.
      unlabelled: for a record without a labelled step after cutting: "refuse" raises ValueError, "drop" leaves it out.

    Returns:
      (arrays, counts).
      arrays: tokens, positions, segment_ids int32 [N, P + C]; completion_mask bool [N, C]; step_ends int32 [N, S], the
      column among the C of a step's last token, -1 if there is no such step; step_labels int32 [N, S], 1 right, 0
      wrong, -100 unlabelled; indices int32 [N], the places in `records`.
      counts: num_records, num_kept, num_prompts_cut, num_prompts_dropped, num_unlabelled_dropped, and, of the records
      kept, num_steps and num_steps_cut.

    Raises:
      ValueError: if a setting is invalid, a record is refused or has more than S steps, or no record is left.
    """
    for name, value, known in (("truncate", truncate, TRUNCATE), ("unlabelled", unlabelled, ("refuse", "drop"))):
        if value not in known:
            raise ValueError(f"{name}={value!r} is none of {', '.join(known)}")
    if completion_length < 1:
        raise ValueError(f"completion_length must be at least 1, got {completion_length}")
    records = list(records)  # a source would read each record again on every access
    prompts, prompt_counts = encode_prompts(tokenizer, records, max(prompt_buckets), truncate)
    counts = {"num_records": len(records), "num_kept": 0, **prompt_counts}
    counts |= {"num_steps": 0, "num_steps_cut": 0, "num_unlabelled_dropped": 0}
    width = num_steps or max((len(record["steps"]) for record in records), default=0)
    kept, rows, ends, labels = [], [], [], []
    for place, prompt in prompts.items():
        record = records[place]
        if len(record["steps"]) > width:
            counted = f"{len(record['steps'])} steps, more than num_steps={width}"
            raise ValueError(f"{place_of(records, place)} has {counted}")
        ids, row_ends = [], np.full(width, -1, np.int32)
        for number, step in enumerate(record["steps"]):
            with naming_place(records, place):
                ids += _step_ids(tokenizer, step, separator)
            row_ends[number] = len(ids) - 1 if len(ids) <= completion_length else -1
        row_labels = np.full(width, UNLABELLED, np.int32)
        for number, label in enumerate(record["labels"]):
            if label is not None and row_ends[number] >= 0:
                row_labels[number] = label
        if np.all(row_labels == UNLABELLED):
            if unlabelled == "refuse":
                raise ValueError(
                    f"{place_of(records, place)} has no labelled step within {completion_length} tokens. Raise "
                    "completion_length, or pass unlabelled='drop'"
                )
            counts["num_unlabelled_dropped"] += 1
            continue
        kept.append(place)
        rows.append((prompt, ids[:completion_length]))
        ends.append(row_ends)
        labels.append(row_labels)
        counts["num_steps"] += len(record["steps"])
        counts["num_steps_cut"] += len(record["steps"]) - int(np.sum(row_ends >= 0))
    counts["num_kept"] = len(kept)
    if not kept:
        raise ValueError(f"no record is left to encode: {counts}")
    arrays = layout(rows, tokenizer.pad_id, prompt_buckets, completion_length)
    arrays |= {"step_ends": np.stack(ends), "step_labels": np.stack(labels), "indices": np.array(kept, np.int32)}
    return arrays, counts


def _step_ids(tokenizer, step: str | Mapping, separator: str) -> list[int]:
    """Ids of a step with what ends it."""
    if isinstance(step, Mapping):
        return list(step["ids"])
    return tokenizer.encode_continuation(step) + tokenizer.encode_continuation(separator)
