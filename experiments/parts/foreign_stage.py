"""What the kinds of foreign rows (experiments.parts.foreign_kinds) work with: a stage, and the candidates they make."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import processes
from experiments.parts.encoding import pad_prompts, whole_text
from experiments.parts.judging import Judged, judge
from experiments.parts.setup import Setup
from rl_jax.core.types import Params, Rollout
from rl_jax.rollout.lm.requests import cut_at_stops
from rl_jax.selection import foreign_rows
from rl_jax.training import distributed


class Candidates(NamedTuple):
    """Rows that may go into groups.

    Attributes:
      judged: Judged of N * K rows, K per group, as they are to be trained on; judged as answers to their prompts.
      usable: bool [N, K]. Rows that are candidates.
      foreign: whether they were drawn for another prompt, or by another policy, than they are trained on.
      levels: float [N]. How much of its solution each group was given; None if that means nothing.
      metrics: further numbers of the entry, shown if rows of it are placed.
    """

    judged: Judged
    usable: np.ndarray
    foreign: bool = True
    levels: np.ndarray | None = None
    metrics: dict[str, float] = {}


class Stage(NamedTuple):
    """What a kind may use.

    Attributes:
      setup: of the run.
      scores: what scores rows, as experiments.parts.judging.judge takes it.
      generate: compiled (params, tokens, prompt_mask, key) -> Rollout.
      params: of the policy, in the rollouts' layout.
      key: of this entry in this step.
      clock: gets the laps rollout_s and reward_s.
      memory: foreign_rows.Memory.
      above: rewards above it are right.
      sampled: the step's rows before any of them was replaced.
      failures: int [2], counted here: candidates whose reward took too long, and those whose reward failed.
      single: () -> compiled (params, tokens, prompt_mask, key) -> Rollout, of one row for each of N * G prompts.
      guide: params of the reference policy, in the rollouts' layout; None if the caller has none.
    """

    setup: Setup
    scores: Any
    generate: Callable
    params: Params
    key: jax.Array
    clock: Any
    memory: Any
    above: float
    sampled: Judged
    failures: np.ndarray
    single: Callable[[], Callable] | None = None
    guide: Params | None = None

    @property
    def group_size(self) -> int:
        """G."""
        return self.setup.config.sample.group_size

    @property
    def ends(self) -> dict[str, Any]:
        """How rows end: keywords of selection.foreign_rows.lay_out."""
        return {"pad_id": self.setup.task.tokenizer.pad_id, "eos_ids": self.setup.task.tokenizer.eos_ids}

    def records(self, judged: Judged) -> list[dict]:
        """One record per group."""
        return judged.records[:: self.group_size]

    @property
    def num_groups(self) -> int:
        """N."""
        return self.setup.config.sample.prompts_per_step

    @property
    def own_prompts(self) -> np.ndarray:
        """int [n]. The groups whose rows this process encodes and judges."""
        return processes.rows_here(self.setup.mesh, self.num_groups)

    def draw(self, tokens: np.ndarray, mask: np.ndarray, key: jax.Array) -> Rollout:
        """Samples G completions for each of the step's prompts.

        Args:
          tokens: int32 [n, P] of this process's prompts, left-padded.
          mask: bool [n, P].
          key: a typed key.

        Returns:
          Rollout of N * G rows on every host.
        """
        return self._draw(self.generate, tokens, mask, key)

    def draw_each(
        self, rollout: Rollout, begins: list[list[int]], key: jax.Array, *, by_guide: bool = False
    ) -> Rollout:
        """Samples one continuation of each row.

        Args:
          rollout: N * G rows, of which the prompts are read.
          begins: N * G lists of ids, the beginnings of the answers; prompt and beginning must fit the largest bucket.
          key: a typed key.
          by_guide: whether the guide samples, instead of the policy.

        Returns:
          Rollout of N * G rows on every host, whose prompts have the beginnings in them.
        """
        prompts, size = foreign_rows.prompts_of(rollout), self.group_size
        mine = (self.own_prompts[:, None] * size + np.arange(size)).ravel()
        rows = [prompts.tokens[i][prompts.segment_ids[i] > 0].tolist() + begins[i] for i in mine]
        return self._draw(self.single(), *self.encode(rows), key, self.guide if by_guide else None)

    def draw_rows(self, tokens: np.ndarray, mask: np.ndarray, key: jax.Array) -> Rollout:
        """Samples one completion of each of N * G prompts: as `draw`, with G prompts for each of this process's n."""
        return self._draw(self.single(), tokens, mask, key)

    def _draw(
        self, generate: Callable, tokens: np.ndarray, mask: np.ndarray, key: jax.Array, params: Params | None = None
    ) -> Rollout:
        encoded = processes.own_to_mesh(self.setup.mesh, (tokens, mask))
        rollout = generate(self.params if params is None else params, *encoded, key)
        self.clock.lap("rollout_s", rollout)
        own, size = self.own_prompts, self.group_size
        places = (own[:, None] * size + np.arange(size)).ravel()
        rollout = self.stopped(processes.own_rows(self.setup.mesh, rollout))
        return distributed.gather_rows(rollout, places, self.num_groups * size)

    def stopped(self, rollout: Rollout) -> Rollout:
        """The rollout, whose rows end, finished, after the first of config.rollout.stop_strings."""
        tokenizer, stop_strings = self.setup.task.tokenizer, self.setup.config.rollout.stop_strings
        return cut_at_stops(rollout, whole_text(tokenizer), stop_strings, pad_id=tokenizer.pad_id)

    def judge(self, rollout: Rollout, records: Sequence[dict]) -> Judged:
        """Judges K rows of each group as answers to the group's record. rollout: N * K rows; records: N."""
        own, each = self.own_prompts, len(rollout.completion_mask) // self.num_groups
        rows = (own[:, None] * each + np.arange(each)).ravel()
        mine = jax.tree.map(lambda x: x[rows], rollout)
        judged = judge(self.setup, self.scores, mine, [records[i] for i in own], own, self.num_groups)
        self.clock.lap("reward_s")
        self.failures[:] += (judged.result.num_timeouts, judged.result.num_errors)
        return judged

    def encode(self, rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Prompts of this process given as ids: (tokens int32 [n, P], mask bool [n, P]), P one of the buckets.

        Raises:
          ValueError: if one is over the largest bucket.
        """
        buckets, pad_id = self.setup.config.rollout.prompt_buckets, self.setup.task.tokenizer.pad_id
        longest = distributed.largest(max(map(len, rows)))
        fitting = [bucket for bucket in sorted(buckets) if bucket >= longest]
        if not fitting:
            raise ValueError(
                f"a prompt with its hint has {longest} tokens, over the largest of rollout.prompt_buckets={buckets}: "
                "add a larger one"
            )
        tokens, mask = np.full((len(rows), fitting[0]), pad_id, np.int32), np.zeros((len(rows), fitting[0]), bool)
        for row, ids in enumerate(rows):
            tokens[row, fitting[0] - len(ids) :], mask[row, fitting[0] - len(ids) :] = ids, True
        return tokens, mask


def put(judged: Judged, source: Judged, targets: np.ndarray, sources: np.ndarray, pad_id: int) -> Judged:
    """`judged` with the rows `sources` of another in the place of its rows `targets`.

    Prompts of different buckets are left-padded to the wider ones. What only one of the two has (a component, token
    rewards) is 0 in the other's rows.
    """
    width = max(one.rollout.batch.tokens.shape[1] for one in (judged, source))
    into, rows = (one.rollout._replace(batch=pad_prompts(one.rollout.batch, width, pad_id)) for one in (judged, source))

    def place(x, y):
        x = np.array(x)
        x[targets] = np.zeros_like(x[targets]) if y is None else np.asarray(y)[sources]
        return x

    def field(name: str):
        x, y = getattr(into, name), getattr(rows, name)
        return jax.tree.map(place, x, y) if name == "batch" else None if x is None else place(x, y)

    records, completions = list(judged.records), list(judged.completions)
    for target, row in zip(targets, sources, strict=True):
        records[target], completions[target] = source.records[row], source.completions[row]
    result, other = judged.result, source.result
    result = result._replace(
        rewards=place(result.rewards, other.rewards),
        components={name: place(column, other.components.get(name)) for name, column in result.components.items()},
        failed=None if result.failed is None else place(result.failed, other.failed),
    )
    return Judged(Rollout(**{name: field(name) for name in Rollout._fields}), records, completions, result)


def rephrased(record: dict, write: Callable[[str], str]) -> dict:
    """The record with another question: write(the prompt), or for a chat write(the user's last message)."""
    messages = record.get("messages")
    if not messages:
        return record | {"prompt": write(record["prompt"])}
    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None or not isinstance(messages[last].get("content"), str):
        raise ValueError(f"the chat of the prompt {record['prompt']!r:.80} has no user's message with a text")
    changed = {**messages[last], "content": write(messages[last]["content"])}
    return record | {"messages": [*messages[:last], changed, *messages[last + 1 :]]}
