"""Records as arrays of token ids: one prompt, its K responses, and what had to be cut. numpy, no jax.

The layout is that of rl_jax.data.pipeline.encode_sft with K rows per prompt: the prompt left-padded to P (the smallest
bucket that fits the longest), the response right-padded to C. A prompt is encoded once, so all its responses follow the
same ids, cut in the same way. Encode a split as a whole and take rows of the result, so that shapes stay the same.

Prompts and responses are texts (or chats), or token ids as they were sampled: {"ids": [...]}, and for a response that
an environment wrote a part of (rl_jax.preferences.episodes) {"ids": [...], "trained": [True, False, ...]}. A record may
have `prompts`, a prompt for each response: then the same response may stand after two prompts.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax.data import pipeline
from rl_jax.preferences.places import copied, naming_place, place_of
from rl_jax.preferences.records import take_responses

TRUNCATE = ("refuse", "left", "drop")
ROW_ARRAYS = ("tokens", "positions", "segment_ids", "completion_mask")


def encode_preferences(
    tokenizer,
    records: Sequence[dict],
    *,
    prompt_buckets: Sequence[int],
    completion_length: int,
    responses: int | None = None,
    truncate: str = "refuse",
    identical: str = "refuse",
    empty: str = "refuse",
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Encodes records of pairs, rankings or labels.

    Args:
      tokenizer: see tokenizers.base.
      records: N of them.
      prompt_buckets: allowed prompt lengths.
      completion_length: C. A response ends with one EOS, whether or not its text or its ids end with one already. A
        response that exceeds C with it is cut to C and gets no EOS: the model must not learn to stop there.
      responses: K. None takes the largest number of responses of a record. If a record has fewer, the rest of its row
        is not present.
      truncate: for a prompt over the largest bucket: "refuse" raises ValueError with the record's place, "left" keeps
        its end, after its BOS, "drop" leaves the record out.
      identical: for a record with two responses that have the same ids after cutting: "refuse" or "drop".
      empty: for a response with nothing before its EOS: "refuse", or "keep" for responses that a model may have
        sampled.

    Returns:
      (arrays, counts).
      arrays: tokens, positions, segment_ids int32 [N, K, P + C]; completion_mask bool [N, K, C], the EOS included;
      present bool [N, K]; rewards float32 [N, K], 0 if not present; label_probs, margins float32 [N]; indices int32
      [N], the places in `records` of those that are kept.
      counts: num_records, num_kept, num_prompts_cut, num_prompts_dropped, num_identical_dropped, and, of the records
      kept, num_responses and num_responses_cut.

    Raises:
      ValueError: if a setting is invalid, a record is refused or has more than K responses, or no record is left.
    """
    _check_choice("truncate", truncate, TRUNCATE)
    _check_choice("identical", identical, ("refuse", "drop"))
    _check_choice("empty", empty, ("refuse", "keep"))
    if completion_length < 1:
        raise ValueError(f"completion_length must be at least 1, got {completion_length}")
    records, kept, rows, untrained = list(records), [], [], []  # a source would read each record again on every access
    width = responses or max((len(record["responses"]) for record in records), default=0)
    prompts, prompt_counts = encode_prompts(tokenizer, records, max(prompt_buckets), truncate)
    counts = {"num_records": len(records), "num_kept": 0, **prompt_counts}
    counts |= {"num_responses": 0, "num_responses_cut": 0, "num_identical_dropped": 0}
    for place, prompt in prompts.items():
        given = records[place]["responses"]
        if len(given) > width:
            raise ValueError(f"{place_of(records, place)} has {len(given)} responses, more than responses={width}")
        own = records[place].get("prompts", [records[place]["prompt"]] * len(given))
        with naming_place(records, place):
            whole = [response_ids(tokenizer, text, before) for text, before in zip(given, own, strict=True)]
        if empty == "refuse":
            _refuse_blank(place_of(records, place), given, whole)
        ids = [row[:completion_length] for row in whole]
        asked = _asked(tokenizer, records[place], prompt, max(prompt_buckets), truncate)
        if len(asked) < len(ids):
            counts["num_prompts_dropped"] += 1
            continue
        if len({(tuple(before), tuple(row)) for before, row in zip(asked, ids, strict=True)}) < len(ids):
            if identical == "refuse":
                raise ValueError(
                    f"{place_of(records, place)}: two of its responses are the same once they are cut to "
                    f"{completion_length} tokens: {given[0]!r:.80}. Raise completion_length, or pass identical='drop'"
                )
            counts["num_identical_dropped"] += 1
            continue
        kept.append(place)
        rows += [*zip(asked, ids, strict=True)] + [(prompt, [])] * (width - len(ids))
        untrained += [(len(rows) - width + k, column) for k, text in enumerate(given) for column in _untrained(text)]
        counts["num_responses"] += len(ids)
        counts["num_responses_cut"] += sum(len(row) > completion_length for row in whole)
    counts["num_kept"] = len(kept)
    if not kept:
        raise ValueError(f"no record is left to encode: {counts}")
    arrays = layout(rows, tokenizer.pad_id, prompt_buckets, completion_length)
    for row, column in untrained:
        arrays["completion_mask"][row, column : column + 1] = False
    arrays = {name: value.reshape(len(kept), width, -1) for name, value in arrays.items()}
    arrays |= _values([records[place] for place in kept], width) | {"indices": np.array(kept, np.int32)}
    return arrays, counts


def encode_labels(tokenizer, records: Sequence[dict], **settings) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """encode_preferences for labelled responses, K = 1.

    Raises:
      ValueError: if a record has several responses (see `unpair`), or as encode_preferences.
    """
    records = list(records)
    for place, record in enumerate(records):
        if len(record["responses"]) != 1:
            raise ValueError(
                f"record {place} has {len(record['responses'])} responses, but a label is of one response: use unpair"
            )
    return encode_preferences(tokenizer, records, responses=1, **settings)


def unpair(records: Sequence[dict]) -> list[dict]:
    """Pairs and rankings as labels: the first response of each is desirable, the others are not.

    What a record's info holds per response goes with each response.

    All desirable ones come first (as in TRL), so shuffle the result; to limit the number of prompts, cut before.
    """
    records = list(records)
    most = max((len(record["responses"]) for record in records), default=0)
    return [
        copied(record, take_responses(record, [k]) | {"rewards": [float(k == 0)]})
        for k in range(most)
        for record in records
        if k < len(record["responses"])
    ]


def mismatched(arrays: dict[str, np.ndarray], *, neighbour: int = -1) -> dict[str, np.ndarray]:
    """KTO's mismatched rows (arXiv 2402.01306): prompt i with the responses of prompt (i + neighbour) mod N.

    N are the rows that are present. If prompt i + neighbour is the same as prompt i, it is the next one in that
    direction that differs; TRL and HALOs take the same one.

    Args:
      arrays: of encode_preferences, the update's batch.
      neighbour: -1 as in TRL, 1 as in HALOs.

    Returns:
      tokens, positions, segment_ids, completion_mask and present, which is False for a row without another prompt.

    Raises:
      ValueError: if a row would be matched with itself, as with fewer than two rows.
    """
    count, length = arrays["present"].shape[0], arrays["completion_mask"].shape[-1]
    if neighbour % max(count, 1) == 0:
        raise ValueError(f"{count} rows and neighbour={neighbour} would match a row with itself")
    prompts = arrays["segment_ids"][..., :-length] > 0
    asked = np.where(prompts, arrays["tokens"][..., :-length], -1).reshape(count, -1)
    others, found = _others(asked, arrays["present"].any(axis=1), neighbour)
    taken = {name: arrays[name][others] for name in ("tokens", "segment_ids", "completion_mask", "present")}
    present = taken["present"] & found[:, None]
    tokens = np.concatenate([arrays["tokens"][..., :-length], taken["tokens"][..., -length:]], axis=-1)
    # Not the mask: a response is read whole, what an environment wrote in it too.
    responses = (taken["segment_ids"][..., -length:] > 0) & present[..., None]
    positions, segments = _positions(np.concatenate([prompts, responses], axis=-1))
    mask = taken["completion_mask"] & present[..., None]
    made = {"tokens": tokens, "positions": positions, "segment_ids": segments}
    return made | {"completion_mask": mask, "present": present}


def _others(prompts: np.ndarray, present: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """For each present row the first present one with another prompt, `step` rows away, or twice as many, ...

    Args:
      prompts: int [N, P].
      present: bool [N].
      step: among the present rows.

    Returns:
      (int [N], bool [N]): the rows, and whether there is one.
    """
    names, rows = np.unique(prompts, axis=0, return_inverse=True)[1].reshape(-1), np.flatnonzero(present)
    others, found = np.arange(len(prompts)), np.zeros(len(prompts), bool)
    for times in range(1, len(rows)):
        away = np.roll(rows, -step * times)
        new = ~found[rows] & (names[away] != names[rows])
        others[rows[new]], found[rows[new]] = away[new], True
        if found[rows].all():
            break
    return others, found


def rows_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """tokens, positions, segment_ids, completion_mask as rows: [N, K, ...] becomes [N * K, ...], prompt by prompt."""
    return {name: arrays[name].reshape(-1, arrays[name].shape[-1]) for name in ROW_ARRAYS}


def encode_prompts(
    tokenizer, records: Sequence[dict], limit: int, truncate: str
) -> tuple[dict[int, list[int]], dict[str, int]]:
    """Encodes the prompts of records.

    Args:
      tokenizer: see tokenizers.base.
      records: with a "prompt" each.
      limit: most tokens of a prompt, BOS included.
      truncate: as in encode_preferences.

    Returns:
      (place -> ids with BOS, at most `limit`, of the prompts that are kept; counts of what was cut).

    Raises:
      ValueError: if a prompt is a chat and the tokenizer has no template, or a prompt is refused.
    """
    result, counts = {}, {"num_prompts_cut": 0, "num_prompts_dropped": 0}
    for place, record in enumerate(records):
        with naming_place(records, place):
            ids = _prompt_ids(tokenizer, record["prompt"], place)
        if len(ids) > limit:
            if truncate == "refuse":
                raise ValueError(
                    f"{place_of(records, place)}: its prompt has {len(ids)} tokens with BOS, over the largest "
                    f"bucket {limit}: {str(record['prompt'])!r:.80}. Add a wider one to prompt_buckets, or "
                    "set encode.truncate to 'left' or 'drop'"
                )
            if truncate == "drop":
                counts["num_prompts_dropped"] += 1
                continue
            counts["num_prompts_cut"] += 1
            first = ids[:1] if ids[0] == tokenizer.bos_id else []
            ids = first + ids[len(ids) - limit + len(first) :]
        result[place] = ids
    return result, counts


def _values(records: Sequence[dict], width: int) -> dict[str, np.ndarray]:
    """present and rewards [N, K], label_probs and margins [N] of records with at most K = width responses."""
    rewards = [[*record["rewards"], *[0.0] * (width - len(record["rewards"]))] for record in records]
    return {
        "present": np.array([[k < len(record["responses"]) for k in range(width)] for record in records]),
        "rewards": np.array(rewards, np.float32),
        "label_probs": np.array([record.get("label_prob", 1.0) for record in records], np.float32),
        "margins": np.array([record.get("margin", 0.0) for record in records], np.float32),
    }


def _refuse_blank(where: str, given: Sequence, ids: Sequence[list[int]]) -> None:
    """Raises ValueError if a response that is a text has no token before its EOS."""
    blank = [len(row) == 1 and isinstance(text, str) for row, text in zip(ids, given, strict=True)]
    if any(blank):
        raise ValueError(
            f"{where}: response {blank.index(True)} is empty: it has no token before its "
            "EOS. Correct the record, or pass empty='keep' for sampled responses"
        )


def _asked(tokenizer, record: Mapping, prompt: list[int], limit: int, truncate: str) -> list[list[int]]:
    """The ids of each response's prompt: its own of `prompts`, else `prompt`. Too long ones may be left out."""
    if "prompts" not in record:
        return [prompt] * len(record["responses"])
    return list(encode_prompts(tokenizer, [{"prompt": own} for own in record["prompts"]], limit, truncate)[0].values())


def response_ids(tokenizer, text: str | Mapping, prompt: str | Mapping | Sequence | None = None) -> list[int]:
    """Ids of a response: data.pipeline's of a text; one that was sampled, {"ids": [...]}, is those ids as they are."""
    return list(text["ids"]) if isinstance(text, Mapping) else pipeline.response_ids(tokenizer, text, prompt)


def _untrained(response: str | Mapping) -> list[int]:
    """The places in a response that nobody learns to say: what an environment wrote."""
    trained = response.get("trained", ()) if isinstance(response, Mapping) else ()
    return [place for place, is_trained in enumerate(trained) if not is_trained]


def layout(
    rows: Sequence[tuple[list[int], list[int]]], pad_id: int, prompt_buckets: Sequence[int], completion_length: int
) -> dict[str, np.ndarray]:
    """Lays out B rows of (prompt ids, completion ids), padded.

    Args:
      rows: (prompt ids, completion ids) each.
      pad_id: fills the padding.
      prompt_buckets: allowed prompt lengths; P is the smallest that fits the longest prompt, and the caller must make
        sure that there is one.
      completion_length: C.

    Returns:
      tokens, positions, segment_ids int32 [B, P + C]; completion_mask bool [B, C].
    """
    longest = max(len(prompt) for prompt, _ in rows)
    width = min(bucket for bucket in prompt_buckets if bucket >= longest)
    tokens = np.full((len(rows), width + completion_length), pad_id, np.int32)
    real = np.zeros(tokens.shape, bool)
    for row, (prompt, completion) in enumerate(rows):
        columns = slice(width - len(prompt), width + len(completion))
        tokens[row, columns] = prompt + completion
        real[row, columns] = True
    positions, segments = _positions(real)
    return {"tokens": tokens, "positions": positions, "segment_ids": segments, "completion_mask": real[:, width:]}


def _positions(real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(positions, segment_ids) int32 of rows with one sequence each; `real` marks the tokens."""
    segments = real.astype(np.int32)
    return np.maximum(np.cumsum(real, axis=-1, dtype=np.int32) - 1, 0) * segments, segments


def _prompt_ids(tokenizer, prompt, place: int) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, bos=True)
    if isinstance(prompt, Mapping):
        return list(prompt["ids"])
    encode = getattr(tokenizer, "encode_messages", None)
    if encode is None:
        raise ValueError(
            f"record {place} has a chat as prompt, but the tokenizer has no chat template: pass "
            "ChatPrompts(ChatTemplate.load(folder, tokenizer)), or load the records with chat=False"
        )
    return encode(prompt)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is none of {', '.join(known)}")
