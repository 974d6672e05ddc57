"""flow.columns=True: where rows come from, one by one as they end, and the queue in which their columns fill.

RowFlow is what async_flow.Flow is to a run without it, RowTrainer what async_roles.Trainer is. In one process a row is
in the queue when it has ended, before its group has (if it ends beside the updates, when the next step begins), and the
queue is saved with the rows in flight. Of two processes the link carries groups, so a row is there when its group is,
while later ones are sampled; all rows of a step are trained in it, so nothing is saved: groups that a trainer took and
did not train on wait in the link again. With --units rows move by themselves: async_units.
"""

import concurrent.futures
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from experiments.parts import origin
from experiments.parts.async_flow import Flow
from experiments.parts.async_groups import GroupRows, table_of_text, text_of_table
from experiments.parts.async_roles import Trainer
from experiments.parts.async_shared import shared_fields
from experiments.parts.setup import Setup
from rl_jax.flow.columns import Task, TransferQueue
from rl_jax.rollout.lm.requests import Completion

SAMPLED = ("record", "response", "ended")
ROUTES = "routes"  # the experts that ran, of runs with model.replay_routes: the policy's scores depend on them
TASKS = {
    "sampler": Task((), (*SAMPLED, ROUTES)),
    "admission": Task((), ("version",)),  # of the policy that a row is trained on, once it is sure to be
    "judge": Task(SAMPLED, ("reward", "judgement")),
    "reference": Task(SAMPLED, ("ref_log_probs",)),
    "policy": Task((*SAMPLED, "version"), ("scores",)),
    "train": Task(("version", "reward", "judgement")),  # and the columns that a step needs
}

# Of the config: what a column's values depend on, of a row whose tokens are given.
GROUPS = ("reward", "judge", "rollout", "packing", "model", "task")
REFERENCE = "algorithm.reference_"


class Telling:
    """Calls back when rows have come."""

    _tell: Callable[[], None] | None = None

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Calls `tell` after each look at the rows within."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None

    def _told(self) -> None:
        if self._tell is not None:
            self._tell()


class RowFlow(Flow, Telling):
    """A Flow that says which rows have ended, and calls back after each decode call.

    Attributes:
      queue: TransferQueue of TASKS.
      thread: that judges, one for the whole run: a reward worker ends with the thread that has started it.
    """

    def __init__(self, setup: Setup, *args, **fields):
        super().__init__(setup, *args, **fields)
        self.queue, self._part = TransferQueue(TASKS), 1  # parts of one group
        self.thread, self._digest = concurrent.futures.ThreadPoolExecutor(1), digest_of(setup.config)

    def __exit__(self, *error) -> None:
        self.thread.shutdown(cancel_futures=True)  # what is judged now ends first
        super().__exit__(*error)

    def _step(self) -> None:
        super()._step()
        self._told()

    def groups(self) -> list[GroupRows]:
        """Those that were let in and not taken, with the rows that have ended."""
        return self._groups.groups

    def get_state(self) -> dict[str, Any]:
        """See Flow; with the queue."""
        words, tables = self.queue.state()
        columns = {column: text_of_table(table) for column, table in tables.items()}
        return super().get_state() | {"queue": words, "columns": columns, "columns_config": self._digest}

    def set_state(self, state: dict[str, Any]) -> None:
        """See Flow. The queue of a run that had none, or another reward (--fork), is filled from the rows again."""
        super().set_state(state)
        if "queue" in state and state.get("columns_config") == self._digest:
            tables = {column: table_of_text(text) for column, text in state["columns"].items()}
            self.queue.restore(state["queue"], tables)


class RowTrainer(Trainer):
    """A Trainer that takes its groups one by one.

    Attributes:
      queue: TransferQueue of TASKS; empty between two steps.
      thread: see RowFlow.
    """

    def __init__(self, *args, **fields):
        super().__init__(*args, **fields)
        self.queue, self._part = TransferQueue(TASKS, guards=False), 1  # the link knows who was here
        self.thread = concurrent.futures.ThreadPoolExecutor(1)

    def __exit__(self, *error) -> None:
        self.thread.shutdown(cancel_futures=True)
        super().__exit__(*error)

    def telling(self, tell: Callable[[], None]) -> contextlib.AbstractContextManager:
        """See RowFlow; nothing is decoded here."""
        return contextlib.nullcontext()

    def groups(self) -> list[GroupRows]:
        """See RowFlow; none."""
        return []


def routes_column(row: Completion) -> dict[str, Any]:
    """The column of a row's recorded experts; {} if it has none."""
    return {} if row.routes is None else {ROUTES: row.routes}


def digest_of(config) -> str:
    """A digest of the fields that the values of columns depend on: the same tokens under others get other ones."""
    fields = shared_fields(config, (*GROUPS, "algorithm"), origin.MAY_CHANGE)
    fields = {name: value for name, value in fields.items() if name.startswith((REFERENCE, *(f"{g}." for g in GROUPS)))}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
