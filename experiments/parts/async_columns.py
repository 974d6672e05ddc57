"""flow.columns=True: rewards, reference and policy log-probs are computed from the columns that are there (AsyncFlow).

    task        takes                                                            when
    judge       all rows that have ended; with a term that sees groups, groups   after a decode call, in a thread
    reference   micro-batches of rows that have ended, whatever their groups     when one is full, or its group is due
    policy      the same of rows that are sure to be in the batch                the same
    train       groups of the batch, with all columns                            as with flow.streaming

So while a batch is collected a row is judged and scored by the reference though its group, and groups before it, are
still sampled, in one process also if it is of a later batch. Rows that end beside the updates are judged when the next
step begins; between processes groups move, or with --units rows (async_units). A micro-batch has the shape of a
part of flow.streaming, and what is missing in it is filled up with copies: a row's log-probs are those of a run without
it, and so is the run. Between two steps nothing is on its way, so that the queue can be saved.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import action_mask, origin, policy
from experiments.parts.async_collect import AsyncCollector, Scoring
from experiments.parts.async_flow import part_of
from experiments.parts.async_groups import GroupRows
from experiments.parts.async_rows import ROUTES, TASKS, RowFlow, RowTrainer, routes_column
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts, whole_text
from experiments.parts.judging import judge_rows
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import needs_scores
from experiments.parts.rewards import Rewards, Rows
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup, replays_routes
from experiments.parts.training import to_mesh
from rl_jax.core.types import Packed, Rollout, TokenBatch, TokenScores
from rl_jax.flow.columns import Row
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.requests import NO_TOKENS, Completion, Request, as_rollout, cut_at_stops

ALL = 10**9  # groups, or rows
READ = ("response", "ended", ROUTES)  # of a row, by the tasks
WRITTEN = {  # by a forward: scores -> the value of its column, whose rows are the first axis
    "policy": lambda scores: scores,
    "reference": lambda scores: scores.log_probs,
}
COMPOSE = "rl_jax.rewards.compose"
ROW_WISE = {  # compositions in which a row's reward is that of the row alone
    *(f"{COMPOSE}:{name}" for name in ("weighted_sum", "gate", "veto", "product", "signed_geometric_mean")),
    *(f"{COMPOSE}:{name}" for name in ("saturation", "interactions", "clip", "by_source")),
    *("rl_jax.rewards.constraints:constrained", "rl_jax.rewards.constraints:mixture_of_judges"),
    *("rl_jax.rewards.brevity:gated_score", "rl_jax.rewards.brevity:concise_reward", "rl_jax.rewards.contrast:only"),
}


class Stored(Rewards):
    """What Rewards is to the judging of a part, if its rows were judged before.

    Args:
      rewards: that judged them.

    Attributes:
      rows: the part's, with the columns of `judge`.
    """

    def __init__(self, rewards: Rewards):
        self.failures, self.rows, self._judges = rewards.failures, [], None

    def __call__(self, rows: Rows) -> RewardResult:
        """The result that was stored."""
        return joined_results(self.rows)


class OnItsWay(NamedTuple):
    """What a task has begun.

    Attributes:
      task: name.
      numbers: of its rows.
      wait: () -> the columns that it writes, row by row.
    """

    task: str
    numbers: list[int]
    wait: Callable[[], list[dict[str, Any]]]


class ColumnCollector(AsyncCollector):
    """An AsyncCollector whose rows are judged and scored as their columns come. Arguments as there.

    Args:
      setup: of the run.
      rewards: scores the rows.
      packer: of the run.
      flow: tells of rows, and has the queue.
    """

    def __init__(self, setup: Setup, rewards: Rewards, packer: RolloutPacker, flow: RowFlow | RowTrainer):
        super().__init__(setup, Stored(rewards), packer, flow)
        self._judging, self._queue, self._size = rewards, flow.queue, setup.config.sample.group_size
        self._rows = part_of(setup.config) * self._size  # of a micro-batch
        self._judged_by = self._size if rewards.sees_groups else 1
        self._reads = {name: TASKS[name].reads for name in WRITTEN}
        if setup.config.algorithm.reference_schedule.fn != "fixed":  # it is another one at the next step
            self._reads["reference"] = TASKS["policy"].reads
        if replays_routes(setup.config):
            self._reads["policy"] = (*self._reads["policy"], ROUTES)
        self._scoring, self._forwards = None, ()
        self._chosen: list[GroupRows] = []  # of the part that comes next
        self._begun: list[OnItsWay] = []

    def __call__(
        self, clock: Clock, scoring: Scoring
    ) -> Iterator[tuple[Collected, TokenBatch | Packed, TokenScores | None, np.ndarray | None]]:
        """See AsyncCollector."""
        self._scoring, config = scoring, self._setup.config
        needed = {"policy": needs_scores(config) or scoring.looks, "reference": policy.needs_ref_log_probs(config)}
        self._forwards = tuple(task for task, is_needed in needed.items() if is_needed)
        with self._flow.telling(self._turn):
            self._turn()
            for groups in self._flow.parts():
                self._chosen += groups
                self._enter(groups)
                rows = [number for group in groups for number in self._numbers(group)]
                self._queue.put("admission", {n: {"version": self._flow.counters.version} for n in rows})
                self._turn()
                if len(self._chosen) * self._size == self._rows:
                    yield self._part(clock)
            self._receive(lambda: False)

    def _numbers(self, group: GroupRows) -> range:
        return range(group.number * self._size, (group.number + 1) * self._size)

    # --- What the tasks do ------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """After a decode call: rows that have ended come in, and each task takes what it can."""
        alive = [*self._flow.groups(), *self._chosen]
        numbers = {group.number for group in alive}
        gone = [row for row in self._known() if row // self._size not in numbers]  # thrown away, or trained on
        self._queue.forget(gone)
        self._enter(alive)
        self._judge()
        for task in self._forwards:
            while self._forward(task, self._rows):
                pass

    def _known(self) -> list[int]:
        """Rows that have come and, of one process, all that were let in: also those that never ended."""
        admitted = self._flow.counters.admitted * self._size  # 0 if another process lets them in
        return sorted({*self._queue.numbers(), *range(self._queue.below, admitted)})

    def _enter(self, groups: Sequence[GroupRows]) -> None:
        found = {}
        for group in groups:
            for number, row in zip(self._numbers(group), group.rows, strict=True):
                if row is not None and number not in self._queue:
                    found[number] = {"record": json.dumps(group.record), "response": row.tokens, "ended": row.reason}
                    found[number] |= routes_column(row)
        if found:
            self._queue.put("sampler", found)

    def _judge(self) -> None:
        if rows := self._queue.take("judge", ALL * self._judged_by, at_least=1, group=self._judged_by):
            rollout, records = self._rollout(rows)
            work = (judge_rows, self._setup, self._judging, rollout, records, self._judged_by)
            future = self._flow.thread.submit(*work)
            self._begin("judge", rows, lambda: split_results(future.result().result))

    def _forward(self, task: str, at_least: int) -> bool:
        """Begins a micro-batch of log-probs; False if there are fewer rows."""
        rows = self._queue.take(task, self._rows, self._reads[task], at_least=at_least)
        if not rows:
            return False
        full = np.minimum(np.arange(self._rows), len(rows) - 1)
        batch = jax.tree.map(lambda x: x[full], self._rollout(rows)[0].batch)
        scoring = self._scoring
        params = scoring.params if task == "policy" else action_mask.reference_of(scoring.ref_params)
        scores = scoring.programs.score(params, to_mesh(self._setup, batch))  # it is not waited for here
        self._begin(task, rows, lambda: unstacked(task, jax.device_get(WRITTEN[task](scores)), len(rows)))
        return True

    def _rollout(self, rows: Sequence[Row]) -> tuple[Rollout, list[dict]]:
        """(rollout, records) of rows, one record each. Without the sampler's log-probs, which no task reads."""
        setup, tokenizer = self._setup, self._setup.task.tokenizer
        records = [json.loads(row.values["record"]) for row in rows]
        completions = [completion(**{name: row.values.get(name) for name in READ}) for row in rows]
        fixed = dict(completion_length=setup.config.rollout.completion_length, pad_id=tokenizer.pad_id)
        rollout = as_rollout(completions, *encode_prompts(setup, records), **fixed)
        stops = setup.config.rollout.stop_strings
        return cut_at_stops(rollout, whole_text(tokenizer), stops, pad_id=tokenizer.pad_id), records

    def _begin(self, task: str, rows: Sequence[Row], wait: Callable[[], list[dict[str, Any]]]) -> None:
        self._begun.append(OnItsWay(task, [row.number for row in rows], wait))

    def _receive(self, enough: Callable[[], bool]) -> None:
        """Writes what tasks have begun, in their order, until it is enough."""
        while self._begun and not enough():
            task, numbers, wait = self._begun.pop(0)
            found = zip(numbers, wait(), strict=True)
            self._queue.put(task, {number: columns for number, columns in found if number in self._queue})

    # --- What is trained --------------------------------------------------------------------------------------------

    def _part(self, clock: Clock) -> tuple[Collected, TokenBatch | Packed, TokenScores | None, np.ndarray | None]:
        """The groups that were chosen, once all of their columns are there."""
        groups, self._chosen = self._arranged(self._chosen), []
        numbers = [number for group in groups for number in self._numbers(group)]
        written = {task: TASKS[task].writes[0] for task in self._forwards}
        columns = (*TASKS["train"].reads, *written.values())
        for task in self._forwards:
            while set(numbers) & set(self._queue.ready(task, self._reads[task])):
                self._forward(task, 1)
        self._receive(lambda: set(numbers) <= set(self._queue.ready("train", columns)))
        taken = self._queue.take("train", len(numbers), columns, group=self._size, numbers=numbers)
        self._queue.forget(numbers)
        self._rewards.rows = taken
        collected = self._judged(groups, clock)
        rows = to_mesh(self._setup, self._packer.to_score(collected.judged.rollout))
        found = {task: stacked([row.values[column] for row in taken]) for task, column in written.items()}
        return collected, rows, found.get("policy"), found.get("reference")

    def joined(self, parts: Sequence[Collected]) -> Collected:
        """See AsyncCollector; with the rows that wait for each task of this step, and those that it has had so far."""
        collected = super().joined(parts)
        for task in ("judge", *self._forwards, "train"):
            waiting = len(self._queue.ready(task, self._reads.get(task)))
            collected.metrics[f"flow/rows/{task}_waiting"] = float(waiting)
            collected.metrics[f"flow/rows/{task}_taken"] = float(self._queue.taken[task])
        return collected


def stacked(rows: Sequence[Any]) -> Any:
    """Trees of single rows as one of [B, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def unstacked(task: str, values: Any, count: int) -> list[dict[str, Any]]:
    """The column that a forward writes, row by row. values: a tree of [rows, ...], of which the first `count` count."""
    (column,) = TASKS[task].writes
    return [{column: jax.tree.map(lambda leaf, row=row: leaf[row], values)} for row in range(count)]


def completion(response: np.ndarray, ended: str, routes: np.ndarray | None) -> Completion:
    """A row of which only the tokens are known, why it ended, and which experts ran, if they were recorded."""
    nothing = np.zeros(len(response), np.float32)
    return Completion(Request(0, NO_TOKENS, len(response)), response, nothing, nothing, ended, routes=routes)


def split_results(result: RewardResult) -> list[dict[str, Any]]:
    """The columns of `judge`, row by row.

    A result does not say why each row failed. So of those that failed the first num_timeouts count as late, whichever
    were, and all have the message of the first one. How many rows failed is right in every step, and so are the
    rewards; but if rows that are judged together are trained on in several steps, a failure may count as late or as an
    error, and its message be shown, in another step than its own.
    """
    count = len(result.rewards)
    failed = np.zeros(count, bool) if result.failed is None else result.failed
    nth = np.cumsum(failed)  # among those that failed, from 1
    rows = []
    for row in range(count):
        late = bool(failed[row] and nth[row] <= result.num_timeouts)
        said = {
            "components": {name: float(column[row]) for name, column in result.components.items()},
            "failed": None if result.failed is None else bool(failed[row]),
            "late": late,
            "wrong": bool(failed[row]) and not late,
            "error": result.first_error if failed[row] else None,
        }
        rows.append({"reward": float(result.rewards[row]), "judgement": json.dumps(said)})
    return rows


def joined_results(rows: Sequence[Row]) -> RewardResult:
    """The result of rows with the columns of `split_results`, whose kinds of failures and message may be others'."""
    said = [json.loads(row.values["judgement"]) for row in rows]
    names = sorted({name for one in said for name in one["components"]})
    failed = [one["failed"] for one in said]
    return RewardResult(
        np.array([row.values["reward"] for row in rows], np.float32),
        {name: np.array([one["components"].get(name, 0.0) for one in said], np.float32) for name in names},
        sum(one["late"] for one in said),
        sum(one["wrong"] for one in said),
        next((one["error"] for one in said if one["error"] is not None), None),
        None if None in failed else np.array(failed, bool),
    )


def make_collector(setup: Setup, rewards: Rewards, packer: RolloutPacker, flow: Any) -> AsyncCollector:
    """What collects a step's rows, by config.flow.columns. The arguments are those of AsyncCollector."""
    return (ColumnCollector if setup.config.flow.columns else AsyncCollector)(setup, rewards, packer, flow)


def problems(config: ConfigDict) -> list[str]:
    """Why rows of this config cannot be judged and scored one by one, as sentences with the remedy; [] if they can."""
    found = {
        "flow.streaming=False: its parts are the micro-batches: set it to True": not config.flow.streaming,
        f"packing.mode={config.packing.mode!r}: packed rows are of another shape each time: take 'padded'": (
            config.packing.mode != "padded"
        ),
    }
    reasons = [reason for reason, is_wrong in found.items() if is_wrong]
    reasons += coupled(config.reward.compose.to_dict()) if config.reward.terms else []
    return [f"flow.columns=True scores rows as they end: {reason}" for reason in reasons]


def coupled(spec: Any, field: str = "reward.compose") -> list[str]:
    """Compositions that may couple rows, within others too, as sentences with the remedy; [] if none does.

    Args:
      spec: of config.reward.compose: a name, a function, or a mapping with its keywords.
      field: of the config.
    """
    fields = dict(spec) if isinstance(spec, Mapping) else {"fn": spec}
    name = origin.named(fields["fn"])
    found = coupled(fields["of"], f"{field}.of") if "of" in fields else []
    if (name if ":" in name else f"{COMPOSE}:{name}") in ROW_WISE:
        return found
    remedy = f"take one of {COMPOSE}, or set flow.columns=False"
    return [f"{field}={name!r}: it may read the rows beside a row, which are others in a micro-batch: {remedy}", *found]
