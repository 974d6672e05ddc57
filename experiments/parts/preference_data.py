"""Preferences for the programs: a split's records as arrays of fixed shape, batches of them, packed or not.

Records, and how they are read and encoded, are defined in rl_jax.preferences.
"""

import contextlib
import difflib
import functools
import json
from collections.abc import Iterator, Mapping

import numpy as np
from ml_collections import ConfigDict

from experiments.parts import hub, prompt_limits, refusals
from experiments.parts.packers import Packing
from experiments.parts.setup import Setup
from rl_jax import preferences
from rl_jax.core.types import Packed, PreferenceBatch, TokenBatch
from rl_jax.preferences import places
from rl_jax.preferences.encode import layout
from rl_jax.preferences.places import naming_place
from rl_jax.preferences.records import take_responses
from rl_jax.tokenizers import ChatPrompts, plain_text

Arrays = dict[str, np.ndarray]  # leading axis N; what preferences.encode_preferences returns, and extras by name
# What losses ask for and only a record's info can say, and what in it has one entry per response.
OF_RECORDS = ("other_rewards", "offsets", "prior_log_ratios", "attribute_targets", "prompt_weights", "values")
OF_RESPONSES = ("other_rewards", "offsets", "prior_log_ratios", "attribute_targets", "targets")
SCORED = ("tokens", "positions", "segment_ids")  # what a model reads
KINDS = {1: ("labels", "pairs"), 2: ("pairs", "rankings")}  # responses -> kinds of data; more than 2: like 2


def for_sft(setup: Setup, pairs: preferences.Preferences) -> Setup:
    """The setup whose task has the records of `pairs`: their best responses for SFT, their prompts for sampling.

    Prompts over the widest bucket are refused, cut or dropped as the config says (prompt_limits), in SFT by
    encode.truncate first. If they are refused, those to sample for are not measured before they are sampled for.

    A task with records of its own keeps its prompts.
    """
    task = setup.task

    @functools.cache
    def data_source(split: str):
        if split == "sft_train":
            best = Best(pairs.data_source("train"), task.tokenizer)
            rule = prompt_limits.rule_of_preferences(setup.config)
            return prompt_limits.limited_source(setup.config, task.tokenizer, best, split, rule)
        if task.data_source is not None:
            return task.data_source(split)
        prompts, rule = Prompts(pairs.data_source(split)), prompt_limits.rule_of(setup.config)
        if rule.choice == "stop":
            return prompts
        return prompt_limits.limited_source(setup.config, task.tokenizer, prompts, split, rule)

    return setup._replace(task=task._replace(data_source=data_source))


def load_pairs(group: str, fields: ConfigDict) -> preferences.Preferences:
    """The preferences of a group of the config, as config.data; its files may be of the Hub (experiments.parts.hub)."""
    return refusals.loaded(preferences.load, group, hub.local_fields(fields.to_dict()))


@contextlib.contextmanager
def naming_lengths() -> Iterator[None]:
    """Inside, errors of the encoders name the fields of config.rollout and config.encode."""
    lengths, rules = ("prompt_buckets", "completion_length"), ("truncate", "identical", "empty")
    with refusals.naming_fields("rollout", lengths), refusals.naming_fields("encode", rules):
        yield


def with_data(setup: Setup) -> Setup:
    """`for_sft` with the preferences of config.data; the setup itself if the config has none."""
    return for_sft(setup, load_pairs("data", setup.config.data)) if "data" in setup.config else setup


class Prompts:
    """The records of preferences as those of a task: prompt, best response, info, with an "answer" (see _answer)."""

    def __init__(self, source):
        self._source = source

    @property
    def num_skipped(self) -> int:
        """Bad records of the source that were left out."""
        return self._source.num_skipped

    @property
    def report(self) -> dict:
        """All counts from reading the source."""
        return getattr(self._source, "report", {})

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict:
        record = self._source[index]
        prompt, rest = record["prompt"], {}
        if isinstance(prompt, Mapping):  # sampled token ids
            info = json.dumps(record.get("info", {}))
            return {"prompt": "", "completion": "", "info": info, "ids": (prompt["ids"], record["responses"][0])}
        if not isinstance(prompt, str):
            prompt, rest = plain_text(prompt), {"messages": prompt}
        info = json.dumps(_answer(record) | record.get("info", {}) | rest)
        return {"prompt": prompt, "completion": record.get("responses", [""])[0], "info": info} | rest

    def place_of(self, index: int) -> str:
        """Where a record comes from, for messages."""
        return places.place_of(self._source, index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r}, {len(self)} records)"


def _answer(record: Mapping) -> dict[str, str]:
    """{"answer": the chosen text}, with which verifiers compare; nothing of steps and of one undesirable response."""
    best, rewards = record.get("responses", [None])[0], record.get("rewards", [0.0])
    return {"answer": best} if isinstance(best, str) and (len(rewards) > 1 or rewards[0] > 0.5) else {}


class Best(Prompts):
    """The best responses as completions for SFT. Of labelled responses only the desirable ones are used."""

    def __init__(self, source, tokenizer):
        super().__init__(source)
        self._kept = []
        for index in range(len(source)):
            record = source[index]
            if len(record["responses"]) == 1 and record["rewards"][0] <= 0.5:
                continue
            if hasattr(tokenizer, "alphabet"):  # refused here, with its place; other tokenizers write any text
                with naming_place(source, index):
                    for text in (record["prompt"], record["responses"][0]):
                        if isinstance(text, str):
                            tokenizer.encode(text)
            self._kept.append(index)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> dict:
        return super().__getitem__(self._kept[index])

    def place_of(self, index: int) -> str:
        """Where a record comes from, for messages."""
        return super().place_of(self._kept[index])


def records_of(pairs: preferences.Preferences, split: str, responses: int, *, limit: int | None = None) -> list[dict]:
    """A split's records with at most `responses` responses each.

    Args:
      pairs: the preferences.
      split: "train" or "test".
      responses: 1 makes a labelled response of each side of a pair; 2 takes the best and the worst of a ranking.
      limit: how many records of the split are used (both sides of a pair); None for all.

    Raises:
      ValueError: if this kind of data has no such responses.
    """
    kinds = KINDS.get(responses, KINDS[2])
    if pairs.kind not in kinds:
        needed = " or ".join(kinds)
        raise ValueError(f"{pairs.name} holds {pairs.kind}; algorithm.responses={responses} needs {needed}")
    source = pairs.data_source(split)
    number = len(source) if limit is None else min(limit, len(source))
    records = [source[index] for index in range(number)]
    if responses == 1 and pairs.kind == "pairs":
        return preferences.unpair(records)
    if responses == 2:
        return [take_responses(record, (0, -1)) for record in records]
    return records


class Encoder:
    """Encodes records as arrays of one shape: config.rollout's lengths, config.algorithm.responses responses.

    Args:
      setup: of the run.
      needed: names that the objective asks for (Objective.needs). Those in the records' info are added (info_arrays).
        For token_rewards the rows after each instruction of config.algorithm.contrast are added, as better_tokens and
        the like.

    Raises:
      ValueError: if token_rewards are needed and an instruction is empty.
    """

    def __init__(self, setup: Setup, needed: set[str]):
        rollout = setup.config.rollout
        self._contrast = setup.config.algorithm.contrast.to_dict() if "token_rewards" in needed else {}
        for side, instruction in self._contrast.items():
            if not instruction:
                raise ValueError(
                    f"algorithm.contrast.{side} is empty: token rewards compare two instructions; set both better and "
                    "worse"
                )
        self._tokenizer, self._needed, self._brevity = setup.task.tokenizer, needed, setup.config.algorithm.brevity
        self._settings = dict(
            prompt_buckets=(max(rollout.prompt_buckets),),  # a single one, so that every batch has one shape
            completion_length=rollout.completion_length,
            responses=setup.config.algorithm.responses,
            **setup.config.encode.to_dict(),
        )

    def __call__(self, records: list[dict]) -> tuple[Arrays, dict[str, int]]:
        """(arrays, counts of what was truncated and dropped)."""
        with naming_lengths():
            arrays, counts = preferences.encode_preferences(self._tokenizer, records, **self._settings)
        for side, instruction in self._contrast.items():
            made = self.instructed(records, arrays, instruction)
            arrays |= {f"{side}_{name}": x for name, x in made.items()}
        arrays |= info_arrays(records, arrays, self._needed)
        if "other_rewards" in self._needed - set(arrays):
            if not self._brevity:
                raise ValueError("the method needs other_rewards in each record's info, or algorithm.brevity above 0")
            arrays["other_rewards"] = np.float32(-self._brevity) * arrays["completion_mask"].sum(axis=2)
        return arrays, counts

    def instructed(self, records: list[dict], arrays: Arrays, instruction: str) -> Arrays:
        """The rows of `arrays` with an instruction at the beginning of each prompt.

        In a chat it is in front of the first message's text; in other prompts, and in chats that were cut, after BOS if
        they begin with one, else before everything.

        Args:
          records: as encoded.
          arrays: of `records`, N of them, K responses each.
          instruction: the text.

        Returns:
          tokens, positions and segment_ids, int32 [N, K, T], T at least as many columns more as the instruction has
          tokens.
        """
        (count, responses, length), rows = arrays["completion_mask"].shape, []
        for place, tokens, segments in zip(arrays["indices"], arrays["tokens"], arrays["segment_ids"], strict=True):
            record = records[place]
            for k in range(responses):
                prompt, response = (tokens[k, x][segments[k, x] > 0] for x in (slice(-length), slice(-length, None)))
                asked = record["prompts"][k] if k < len(record.get("prompts", ())) else record["prompt"]
                rows.append((self._instructed(asked, prompt.tolist(), instruction), response.tolist()))
        width = arrays["tokens"].shape[2] - length + len(self._tokenizer.encode_continuation(instruction))
        width = max(width, max(len(prompt) for prompt, _ in rows))  # for all splits the same, unless a chat needs more
        made = layout(rows, self._tokenizer.pad_id, (width,), length)
        return {name: made[name].reshape(count, responses, -1) for name in SCORED}

    def _instructed(self, prompt, ids: list[int], instruction: str) -> list[int]:
        """`ids` of one prompt with the instruction."""
        if isinstance(prompt, str) and isinstance(self._tokenizer, ChatPrompts) and self._tokenizer.texts:
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, str | Mapping) and self._tokenizer.encode_messages(prompt) == ids:
            first = {**prompt[0], "content": instruction + (prompt[0].get("content") or "")}
            return self._tokenizer.encode_messages([first, *prompt[1:]])
        begins = ids[:1] == [self._tokenizer.bos_id]  # many tokenizers have a BOS and put it before no text
        return ids[:begins] + self._tokenizer.encode_continuation(instruction) + ids[begins:]

    def batch(self, arrays: Arrays, indices: np.ndarray | None = None, size: int = 0) -> PreferenceBatch:
        """The PreferenceBatch of some rows of `arrays`, filled up with absent rows.

        Args:
          arrays: N records.
          indices: int [n]. The rows; None for all.
          size: rows of the batch, if more than n.
        """
        if indices is None:
            indices = np.arange(len(arrays["tokens"]))
        batch = take_rows(arrays, indices, max(size, len(indices)), self._needed)
        if "mean_tokens" in self._needed:
            prompts = max(batch.present.any(axis=1).sum(), 1)  # the loss's denominator
            mean = np.full(len(batch.present), batch.completion_mask[:, 0].sum() / prompts, np.float32)
            batch = batch._replace(extras=batch.extras | {"mean_tokens": mean})
        return batch


def info_arrays(records: list[dict], arrays: Arrays, needed: set[str]) -> Arrays:
    """What the kept records hold in their info under the names that a method needs: of all of them, or of none.

    Args:
      records: as encoded; those at arrays["indices"] were kept, N of them.
      arrays: of encode_preferences.
      needed: names that the objective asks for.

    Returns:
      name -> [N, ...], or [N, K, ...] of a list with one entry per response, 0 for absent ones: bool if all values are
      true or false, else float32; null is nan.

    Raises:
      ValueError: if a name is in some records but not all, if values differ in shape or are no numbers, or if a field
        looks like a misspelt name. It names the record, counted from 0.
    """
    kept = {int(place): records[place] for place in arrays["indices"]}
    result = {}
    for name in sorted(needed):
        having = [place for place, record in kept.items() if name in record["info"]]
        absent = [place for place in kept if place not in set(having)]
        for place in absent if name in OF_RECORDS else ():
            near = difflib.get_close_matches(name, set(kept[place]["info"]) - needed, n=1, cutoff=0.8)
            if near:
                raise ValueError(
                    f"record {place} has a field {near[0]!r}: did you mean {name!r}, which the method needs?"
                )
        if having and absent:
            raise ValueError(f"record {absent[0]} lacks {name!r}, which record {having[0]} has: all need it, or none")
        if having:
            result[name] = _column(name, kept, arrays["present"].shape[1])
    return result


def _column(name: str, records: dict[int, dict], width: int) -> np.ndarray:
    """[N, ...] of info's field `name`; records: place -> record; width: responses of a row."""
    values = []
    for place, record in records.items():
        value, count = record["info"][name], len(record["responses"])
        try:
            one = np.array(value)
            one = one if one.dtype == bool else np.array(value, np.float32)  # null is nan
        except (TypeError, ValueError):
            raise ValueError(f"record {place}: {name}={value!r:.80} is no array of numbers") from None
        if one.ndim and len(one) == count < width:  # absent responses
            one = np.concatenate([one, np.zeros((width - count, *one.shape[1:]), one.dtype)])
        if name in OF_RESPONSES and one.shape[:1] != (width,):
            raise ValueError(f"record {place}: {name}={value!r:.80} must have one entry for each of {count} responses")
        if values and one.shape != values[0].shape:
            raise ValueError(f"record {place}: {name} has the shape {one.shape}, not {values[0].shape} as before it")
        values.append(one)
    marks = all(one.dtype == bool for one in values)
    return np.stack(values) if marks else np.stack(values).astype(np.float32)


def take_rows(arrays: Arrays, indices: np.ndarray, size: int, needed: set[str]) -> PreferenceBatch:
    """The PreferenceBatch of some rows of `arrays`.

    Args:
      arrays: N records.
      indices: int [n]. The rows.
      size: rows of the result; those after the first n are absent.
      needed: names of arrays to add as extras.
    """
    rows = np.resize(indices, size)
    taken = {name: x[rows] for name, x in arrays.items()}
    present = taken["present"] & (np.arange(size) < len(indices))[:, None]
    mask = taken["completion_mask"] & present[:, :, None]
    extras = {name: taken[name] for name in needed if name in taken and name != "rewards"}
    tokens = TokenBatch(taken["tokens"], taken["positions"], taken["segment_ids"])
    return PreferenceBatch(
        tokens, mask, present, taken["rewards"], taken.get("ref_log_probs"), taken.get("prev_log_probs"), extras
    )


def flat(batch: TokenBatch | Packed) -> TokenBatch | Packed:
    """The rows of a forward pass: TokenBatch [N, K, T] -> [N * K, T]."""
    if isinstance(batch, Packed):
        return batch
    rows = batch.tokens.shape[0] * batch.tokens.shape[1]
    return TokenBatch(*(None if x is None else x.reshape(rows, x.shape[2]) for x in batch))


class PreferencePacker:
    """config.packing for preferences: one copy of a prompt before all of its K responses, or padded rows.

    Args:
      setup: of the run.
      to_end: whether rows keep what an environment wrote at the end of a response, after the last token that is
        learned: a head that reads the last token needs it, a policy does not.
    """

    def __init__(self, setup: Setup, *, to_end: bool = False):
        self._packing, self._train, self._row_length, self._to_end = Packing(setup), setup.config.train, 0, to_end

    def fit(self, arrays: Arrays) -> None:
        """Makes rows as long as a prompt with its responses, if the records then need fewer columns than by default.

        So it is with pairs of full length: a second one would not fit into the default's two padded rows. The first
        batch's worth of records decides, in their order in the data: a resumed run decides alike.

        Args:
          arrays: of the training records.
        """
        if not self._packing.share_prefix:
            return
        _, responses, length = arrays["completion_mask"].shape
        size = self._train.batch_size
        batch = take_rows(arrays, np.arange(min(size, len(arrays["tokens"]))), size, set())
        group = arrays["tokens"].shape[2] + (responses - 1) * length
        columns = [self._pack(batch, self._train.micro_batches, x).rows.tokens.size for x in (0, group)]
        self._row_length = group if columns[1] < columns[0] else 0

    def __call__(self, batch: PreferenceBatch, micro_batches: int = 1) -> PreferenceBatch:
        """The batch with its rows packed, separately per micro-batch."""
        if self._packing.padded:
            return batch
        return batch._replace(batch=self._pack(batch, micro_batches, self._row_length))

    def _pack(self, batch: PreferenceBatch, micro_batches: int, row_length: int) -> Packed:
        count, responses, length = batch.completion_mask.shape
        # step.deal gives row i to micro-batch i % M: all responses of prompt i must go there, too.
        order = np.arange(count * responses).reshape(count // micro_batches, micro_batches, responses)
        order = order.swapaxes(1, 2).reshape(-1)
        tokens = TokenBatch(*(np.asarray(x)[order] for x in flat(batch.batch)[:3]))
        mask = np.asarray(batch.completion_mask).reshape(-1, length)[order]
        if self._to_end:
            mask = (tokens.segment_ids[:, -length:] > 0) & np.asarray(batch.present).reshape(-1, 1)[order]
        return self._packing.pack(tokens, mask, micro_batches, row_length=row_length)
