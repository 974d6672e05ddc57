"""--units: of two processes or more, rows move one by one, as they end, through storage units (AsyncFlow).

    python -m experiments.grpo_async ... --units=grpc://a:4001,grpc://b:4002 --role=unit --unit=0      # and --unit=1
    python -m experiments.grpo_async ... --units=grpc://a:4001,grpc://b:4002 --role=trainer            # and sampler

A sampler puts a row into unit (its number) mod N when it has ended, and a group, without its rows, into the link when
the group is of a batch. The trainer has the controller: it asks the units which columns of which rows are there, and
each task reads the columns that it needs of the rows that it takes. So rows are judged and scored while their own group
is sampled in another process. What the trainer's tasks write stays with it, since only they read it.

Who dies comes back. A unit has its rows on disk; a sampler makes the same rows again, which changes nothing; a trainer
asks for all that is there. Rows are forgotten when no resume needs them, or their group was thrown away.
"""

import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.parts.async_beats import wait
from experiments.parts.async_flow import Flow
from experiments.parts.async_groups import GroupRows
from experiments.parts.async_roles import PLACES_S, Sampler, Trainer, make_flow, pack, shared
from experiments.parts.async_rows import ROUTES, SAMPLED, TASKS, RowFlow, RowTrainer, Telling, routes_column
from experiments.parts.async_serving import secrets_of
from experiments.parts.run import Run
from experiments.parts.setup import Setup, replays_routes
from rl_jax.core.types import Params
from rl_jax.experience import admission
from rl_jax.flow import Group, Link
from rl_jax.flow.columns import Row, Task, TransferQueue
from rl_jax.flow.flight import LINGER_S
from rl_jax.flow.shelf import MAX_ROWS
from rl_jax.flow.stores import Values
from rl_jax.flow.units import Units
from rl_jax.rollout.lm.requests import Completion, Request

DRAWN = ("prompt", "sampled_log_probs", "raw_log_probs", "versions")  # what a batch needs besides SAMPLED
IN_UNITS = (*SAMPLED, *DRAWN)
PUT = (*IN_UNITS, ROUTES)
UNIT_TASKS = TASKS | {"sampler": Task((), PUT), "batch": Task(IN_UNITS)}


class Places:
    """The store of a trainer's queue: columns of samplers are read from the units, its own tasks' are here.

    Args:
      units: of the run.
    """

    def __init__(self, units: Units):
        self._units, self._own = units, Values()

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """See flow.stores.Store; of columns that this process writes."""
        self._own.put(rows)

    def get(self, numbers: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """See flow.stores.Store."""
        remote = [column for column in columns if column in PUT]
        found = self._units.get(numbers, remote) if remote else [{} for _ in numbers]
        own = self._own.get(numbers, [column for column in columns if column not in PUT])
        return [one | other for one, other in zip(found, own, strict=True)]

    def forget(self, numbers: Iterable[int]) -> None:
        """See flow.stores.Store. The units keep what a checkpoint needs."""
        self._own.forget(numbers)


class UnitTrainer(Telling, RowTrainer):
    """A RowTrainer whose rows are in storage units before their group has ended.

    Args:
      units: of the run.
      setup: of the run.
      *fixed: further arguments of Trainer.

    Attributes:
      queue: TransferQueue of UNIT_TASKS; between two steps it has the rows of later batches.
    """

    def __init__(self, units: Units, setup: Setup, *fixed, **fields):
        super().__init__(setup, *fixed, **fields)
        config = setup.config
        self.queue = TransferQueue(UNIT_TASKS, guards=False, store=Places(units))
        self._shared = shared_with(units, config)
        self._units, self._size, self._steps = units, config.sample.group_size, config.train.steps
        self._of_batch = PUT if replays_routes(config) else IN_UNITS
        self._kept: dict[int, list[int]] = {}  # step -> its groups, whose rows the units still have
        units.run, units.wait = run_of(config), self._wait_for_unit

    def _wait_for_unit(self, look: Callable[[], Any], what: str) -> Any:
        fixed = (self._settings.timeout_s, what, self._watch.give_up(self._stop))
        return wait(look, *fixed, watch=self._watch)

    def begun(self, version: int, params: Params) -> "UnitTrainer":
        """See Trainer. From now on units that are told to stop wait until this process leaves."""
        super().begun(version, params)
        if version < self._steps:
            self._poll()
        return self

    def __exit__(self, *error) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._units.end(LINGER_S, complete=self.counters.version >= self._steps and not any(error))
            self._units.close()

    def groups(self) -> list[GroupRows]:
        """See RowFlow: those of which a row is there. Without their rows, which are in the queue already."""
        return [GroupRows(n, {}, self._size) for n in sorted({row // self._size for row in self.queue.numbers()})]

    def _numbers(self, groups: Iterable[int]) -> list[int]:
        return [group * self._size + sample for group in groups for sample in range(self._size)]

    def _poll(self) -> None:
        """Asks the units what is new, and lets the tasks take it."""
        there, gone = self._units.news()
        used = {group for groups in self._kept.values() for group in groups}
        fresh = {row: columns for row, columns in there.items() if row // self._size not in used}
        self.queue.announce(fresh)
        self.queue.forget(gone)
        if fresh or gone:
            self._told()

    def _look(self, first: int, size: int) -> list[Group]:
        self._poll()
        if found := super()._look(first, size, timeout_s=0.0):
            return found
        time.sleep(PLACES_S)
        return []

    def _take(self, first: int, size: int) -> list[GroupRows]:
        """See Trainer; their rows are read from the units, which have had them before the link had the groups."""
        groups = super()._take(first, size)
        self._poll()
        numbers = self._numbers(group.number for group in groups)
        if missing := sorted(set(numbers) - set(self.queue.ready("batch", self._of_batch))):
            index = missing[0] % len(self._units)
            raise LookupError(
                f"row {missing[0]} of group {missing[0] // self._size} is not in storage unit {index}, and its group "
                f"is in the link: bring back that unit's folder, or start all sides in a new workdir"
            )
        rows = iter(self.queue.take("batch", len(numbers), self._of_batch, numbers=numbers))
        for group in groups:
            group.rows = [completion_of(sample, next(rows)) for sample in range(self._size)]
        self._kept.setdefault(self.counters.version + 1, []).extend(group.number for group in groups)
        return groups

    def get_state(self) -> dict[str, Any]:
        """See Trainer. Rows that no resume needs are forgotten, those of this checkpoint at a later save."""
        state = super().get_state()
        old = [step for step in self._kept if step <= (self._resumed_from() or 0)]
        # A save waits for no unit: one that is away is asked again with the next save.
        if self._units.forget(self._numbers(group for step in old for group in self._kept[step]), waits=False):
            for step in old:
                del self._kept[step]
        return state | {"kept": list(self._kept.items())}

    def set_state(self, state: dict[str, Any]) -> None:
        """See Trainer."""
        super().set_state(state)
        self._kept = {step: list(groups) for step, groups in state.get("kept", [])}


class UnitFlow(Flow):
    """A sampler's Flow that hands over each row when it has ended. Arguments as there, after `units`."""

    def __init__(self, units: Units, setup: Setup, *args, **fields):
        super().__init__(setup, *args, **fields)
        self._units, self._size, self._steps = units, setup.config.sample.group_size, setup.config.train.steps
        self._put: set[int] = set()  # rows, of the groups that are inside
        self._sends = True

    def _step(self) -> None:
        super()._step()
        if self._sends:
            self.send()

    def beside(self, train: Callable, *arguments) -> Any:
        """See Flow. Nobody waits for the rows that end beside the last step."""
        self._sends = self.counters.version + 1 < self._steps
        try:
            return super().beside(train, *arguments)
        finally:
            self._sends = True

    def send(self, taken: Sequence[GroupRows] = ()) -> None:
        """Puts rows that have ended into the units: those of the groups inside, and of those just taken."""
        groups = [*self._groups.groups, *taken]
        self._put &= {row for group in groups for row in self._numbers(group.number)}
        found = {
            row: columns_of(group, ended)
            for group in groups
            for row, ended in zip(self._numbers(group.number), group.rows, strict=True)
            if ended is not None and row not in self._put
        }
        if found:
            self._units.put(found)
            self._put |= found.keys()

    def _numbers(self, group: int) -> range:
        return range(group * self._size, (group + 1) * self._size)

    def _inside(self) -> list[admission.Group]:
        before = {group.number for group in self._groups.groups}
        found = super()._inside()
        if thrown := before - {group.number for group in self._groups.groups}:
            self._units.forget(row for group in sorted(thrown) for row in self._numbers(group))
        return found


class UnitSampler(Sampler):
    """A Sampler whose rows travel by themselves; a group in the link has none. Arguments as there, after `units`."""

    def __init__(self, units: Units, setup: Setup, *fixed, **fields):
        check(setup.config, len(units))
        super().__init__(setup, *fixed, **fields)
        self._units, self._shared = units, shared_with(units, setup.config)
        units.run, units.wait = run_of(setup.config), self._wait

    def make_flow(self, prompts) -> UnitFlow:
        """See Sampler."""
        return UnitFlow(self._units, self._setup, prompts, self._folder, share=self._share, exchange=self.exchange())

    def put(self, flow: UnitFlow, groups: list[GroupRows]) -> None:
        """See Sampler; the rows are in the units first, also if they ended before this process began."""
        flow.send(groups)
        super().put(flow, groups)

    def _packed(self, group: GroupRows, finished: int, said: dict[str, Any]) -> Group:
        return pack(GroupRows(group.number, group.record, 0), finished, said)

    def close(self) -> None:
        """See Sampler."""
        super().close()
        self._units.close()


def columns_of(group: GroupRows, row: Completion) -> dict[str, Any]:
    """A row as it travels."""
    drawn = {name: getattr(row, name) for name in DRAWN[1:]}
    record = {"record": json.dumps(group.record), "response": row.tokens, "ended": row.reason}
    return record | {"prompt": row.request.prompt} | drawn | routes_column(row)


def completion_of(sample: int, row: Row) -> Completion:
    """The row of `columns_of`; its request has no more than the prompt."""
    values = row.values
    request = Request(sample, values["prompt"], len(values["response"]))
    drawn = (values["response"], values["sampled_log_probs"], values["raw_log_probs"])
    return Completion(request, *drawn, values["ended"], values["versions"], values.get(ROUTES))


def check(config, count: int = 1) -> None:
    """Raises ValueError if a run with this config cannot have storage units, or not so few. count: of units."""
    if not config.flow.columns:
        raise ValueError(
            "--units: rows are judged and scored one by one: set --config.flow.columns=True, or leave it out"
        )
    if config.flow.schedule != "counted":
        raise ValueError(
            f"--units: flow.schedule={config.flow.schedule!r}: a sampler that comes back would make other rows than "
            "those that the units have: take 'counted', or leave out --units"
        )
    if (rows := -(-most_rows(config) // count)) > MAX_ROWS:
        saves = config.checkpoint
        raise ValueError(
            f"--units: with checkpoint.every={saves.every} and checkpoint.keep={saves.keep} each of {count} storage "
            f"units must keep {rows} rows, so that the run can be resumed, and holds {MAX_ROWS}: save more often, keep "
            "fewer checkpoints, or give more units"
        )


def most_rows(config) -> int:
    """Rows that all units together keep at most: those that a resume may need, and those that are sampled ahead.

    A save forgets the rows up to the oldest of the newest `keep` checkpoints that are complete. The newest complete one
    is two saves old, if the one before is still being written; and rows come until the next save.
    """
    batch = config.sample.prompts_per_step * config.sample.group_size
    saves, steps = config.checkpoint, config.train.steps
    trained = steps if saves.keep is None else min(steps, (saves.keep + 2) * saves.every)
    return batch * (trained + config.flow.eta + 1)


def shared_with(units: Units, config) -> dict[str, Any]:
    """What both sides must have alike."""
    return shared(config) | {"--units": len(units)}


def run_of(config) -> str:
    """A word that runs with other rows do not have."""
    return hashlib.sha256(json.dumps(shared(config), sort_keys=True).encode()).hexdigest()


def make_flow_of(
    setup: Setup,
    prompts,
    loop: Run,
    replay: pathlib.Path | None = None,
    link: Link | None = None,
    units: Units | None = None,
) -> Flow | Trainer:
    """What gives a loop its groups, by config.flow.columns. units: of the run; the others are those of make_flow."""
    kinds = (RowFlow, RowTrainer) if setup.config.flow.columns else (Flow, Trainer)
    if units is not None:
        check(setup.config, len(units))
        kinds = (RowFlow, functools.partial(UnitTrainer, units))
    return make_flow(setup, prompts, loop, replay=replay, link=link, kinds=kinds)


def make_sampler(setup: Setup, units: Units | None, *fixed) -> Sampler:
    """A sampler's side, by whether there are units. fixed: the arguments of Sampler after setup."""
    return Sampler(setup, *fixed) if units is None else UnitSampler(units, setup, *fixed)


def make_units(role: str, workdir: pathlib.Path, addresses: str, folder: str | None) -> Units | None:
    """The client of the units; None without --units.

    Args:
      role: of this process.
      workdir: of the run.
      addresses: --units, with commas between them.
      folder: --link_secrets.

    Raises:
      ValueError: if an address or a secret cannot be.
    """
    if not addresses:
        return None
    if role == "both":
        raise ValueError(f"--units={addresses}: one process has no storage units; give --role")
    known = secrets_of(workdir, addresses, folder)
    return Units(addresses.split(","), token=known.token, tls_root=known.certificate)
