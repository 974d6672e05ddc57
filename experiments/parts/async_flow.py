"""Asynchronous generation in one process: who begins, when a batch starts, when new weights enter (config.flow).

schedule="counted"   decode calls are the clock: a train step lasts train_ticks of them. Same seed, same bits.
schedule="free"      the wall clock decides how many decode calls fit beside a train step; each count is logged
--replay=RUN         the counts of RUN's schedule.jsonl: the same bits as RUN

in_flight="interrupt"   new weights stop all rows; they go on with caches computed anew
in_flight="drain"       what was let in ends under the old weights first
in_flight="keep"        rows go on with the caches of the old weights
"""

import concurrent.futures
import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.parts import logged, policy
from experiments.parts.async_clock import Fleet
from experiments.parts.async_groups import GroupRows, Groups, make_engine, make_place
from experiments.parts.async_shares import WHOLE, Share, shares_clock, shares_of
from experiments.parts.run import Step
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup
from rl_jax.core.types import Params
from rl_jax.experience import admission
from rl_jax.experience.admission import Counters, Rule
from rl_jax.runs import disk
from rl_jax.runs.logging import cut_back, read_jsonl

LOG = "schedule.jsonl"
PAUSE_S = 0.001  # between two looks at a train step, if there is nothing to sample


def rule_of(config, share: Share = WHOLE) -> Rule:
    """The staleness rule of config.flow, for a sampler's share of every batch."""
    flow = config.flow
    return Rule(config.sample.prompts_per_step // share.count, flow.eta, flow.age, flow.order, flow.max_running).check()


def part_of(config) -> int:
    """Groups of a micro-batch: with flow.streaming they are trained as soon as they are there."""
    return config.sample.prompts_per_step // config.train.micro_batches


class Flow:
    """Samples groups beside the training.

    It is the run's data, too (Run.restore): its state has the counters, the prompts' position, and every row that was
    begun and not trained on.

    Args:
      setup: of the run.
      prompts: endless batches of records (policy.own_prompts).
      workdir: of the run; gets schedule.jsonl.
      replay: folder of a run whose schedule is followed; None follows config.flow.schedule.
      share: the groups that this process samples, if there are several samplers.
      exchange: of a sampler that shares its clock with others (async_clock.Fleet).

    Attributes:
      rule: admission.Rule.
      counters: admission.Counters.
      ticks: decode calls so far.
      order: numbers of the batch's groups so far, in its order.
      dropped: numbers of the groups that were thrown away since the last new weights, by which they were too old.
    """

    def __init__(
        self,
        setup: Setup,
        prompts,
        workdir: pathlib.Path,
        replay: pathlib.Path | None = None,
        share: Share = WHOLE,
        exchange: Callable | None = None,
    ):
        settings = setup.config.flow
        self._settings, self._path, self.prompts = settings, workdir / LOG, prompts
        one_clock = shares_clock(setup.config)
        self.rule, self.counters, self.ticks = rule_of(setup.config, WHOLE if one_clock else share), Counters(), 0
        self.order, self.dropped = [], []
        found = shares_of(setup.config, share) if one_clock else [share]
        self._engines = [make_engine(setup, resumes=self.rule.bound > 0) for _ in found]
        streams = [prompts, *(policy.own_prompts(setup)[1] for _ in found[1:])]
        members = [Groups(setup, *own) for own in zip(self._engines, streams, found, strict=True)]
        self._groups = members[0]
        if one_clock:
            by_index = dict(zip([own.index for own in found], members, strict=True))
            self._groups = Fleet(by_index, settings.samplers, self.rule.batch, exchange)
        self._place, self._params, self._is_warm = make_place(setup), None, False
        self._part = part_of(setup.config)
        self._recorded = None if replay is None else read_schedule(replay)
        self._free = settings.schedule == "free" and replay is None
        self._pool = concurrent.futures.ThreadPoolExecutor(1) if self._free else None
        self._event: dict[str, Any] = {}
        self._logs = False  # whether this process has added to schedule.jsonl
        self._dropped: list[int] = []
        self._train_s = 0.0

    def __enter__(self) -> "Flow":
        return self

    def __exit__(self, *error) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for engine in self._engines:
            with contextlib.suppress(Exception):
                engine.abort()

    def looks(self, step: Step) -> bool:
        """Whether rows are scored before the updates: for the group view, or for the sampler's gap by lag."""
        return step.evaluates or (self._settings.measure and self.rule.bound > 0)

    def timings(self, step: Step, collected: Collected, learn: Any) -> dict[str, float]:
        """The timings of one step; the engine's programs are counted in the place of the sampler's. learn: AtOnce.

        Of the lap train_s, which is that of `beside`, train_s keeps the updates; beside_s is what they did not cover.
        """
        found = logged.timings(step, collected, learn.programs._replace(generate=self))
        return found | {"train_s": self._train_s, "beside_s": max(found["train_s"] - self._train_s, 0.0)}

    def _cache_size(self) -> int:
        return sum(engine.compile_count() for engine in self._engines)

    def begun(self, version: int, params: Params) -> "Flow":
        """The flow itself, whose sampler has the weights of `version`."""
        self.publish(version, params)
        return self

    # --- The trainer's side -----------------------------------------------------------------------------------------

    def publish(self, version: int, params: Params) -> None:
        """New weights enter the sampler: it draws with them from the next decode call on.

        Args:
          version: updates so far.
          params: of the policy. They are read until the next train step, which may donate them.
        """
        if self._free:  # the train step that runs beside the sampler donates its own
            params = jax.tree.map(jnp.copy, params)
        self._params, self.dropped = self._place(params), []
        self.counters = self.counters._replace(version=version)
        if not self._is_warm:
            for engine in self._engines:
                engine.warm_up(self._params)
            self._is_warm = True
        if self._settings.in_flight == "interrupt":
            self._groups.hold()
        self._groups.go_on()

    def parts(self, size: int = 0) -> Iterator[list[GroupRows]]:
        """The next batch: the whole of it, or with flow.streaming parts of it, each as soon as it is there.

        Args:
          size: groups of a part; 0 is that of a micro-batch.
        """
        if not self._settings.streaming:
            yield self.take()
            return
        self.order, found = [], []
        while (left := self.rule.batch - len(self.order)) > 0:
            self._admit()
            while (number := admission.next_group(self.rule, self.counters, self._inside(), left)) is None:
                self._call()
            self.order.append(number)
            found += self._groups.take([number])
            if left == 1:
                self._compose()
            if len(found) == (size or self._part):
                yield found
                found = []

    def take(self) -> list[GroupRows]:
        """The groups of the next batch; decodes until they are there."""
        self._admit()
        while (numbers := admission.next_batch(self.rule, self.counters, self._inside())) is None:
            self._call()
        self.order = numbers
        self._compose()
        return self._groups.take(numbers)

    def _compose(self) -> None:
        """Notes the groups of a batch."""
        self._event = {"step": self.counters.version + 1, "start": self.ticks, "groups": self.order}
        self.counters = self.counters._replace(taken=self.counters.taken + len(self.order))

    def beside(self, train: Callable, *arguments) -> Any:
        """Trains, and samples meanwhile with the weights of before. Returns what `train` returns.

        Args:
          train: called once, in a thread of its own if the schedule is free.
          *arguments: of `train`.
        """
        start, result = self.ticks, None
        if self._free:
            future = self._pool.submit(self._timed, train, *arguments)
            while not future.done():
                if not self._call(idle_ok=True):
                    time.sleep(PAUSE_S)
            result = future.result()
        else:
            for _ in range(self._calls_beside()):
                if not self._call(idle_ok=True):
                    break
        self._event["beside"] = self.ticks - start
        self._drain()
        self._log()
        return result if self._free else self._timed(train, *arguments)

    def _timed(self, train: Callable, *arguments) -> Any:
        """Trains. With the free schedule the seconds are those of its own thread, slower for the sampling beside it."""
        start = time.perf_counter()
        result = jax.block_until_ready(train(*arguments))
        self._train_s = time.perf_counter() - start
        return result

    def _calls_beside(self) -> int:
        """How many decode calls fit beside this train step."""
        if self._recorded is None:
            return self._settings.train_ticks
        step = self._event["step"]
        row = self._recorded.get(step)
        if row is None:
            raise RuntimeError(f"--replay: the recorded run has no step {step}; it has {len(self._recorded)} steps")
        for name in ("start", "groups"):
            if row[name] != self._event[name]:
                raise RuntimeError(
                    f"--replay: step {step} has {name}={self._event[name]}, the recorded run {row[name]}: its config, "
                    "code or seed is another"
                )
        return row["beside"]

    def _drain(self) -> None:
        """Ends all rows that were let in, if new weights may not enter them."""
        while self._settings.in_flight == "drain" and not self._groups.idle:
            self._step()

    # --- The sampler's side -----------------------------------------------------------------------------------------

    def _inside(self) -> list[admission.Group]:
        """The groups, less those that are too old."""
        groups = self._groups.inside(self.counters.version)
        if not (old := admission.too_old(self.rule, self.counters.version, groups)):
            return groups
        self._dropped += self._groups.drop(old)
        self.dropped += old
        self.counters = self.counters._replace(dropped=self.counters.dropped + len(old))
        return [group for group in groups if group.number not in old]

    def _call(self, *, idle_ok: bool = False) -> bool:
        """Lets groups in and makes one decode call. Returns False if there is nothing to sample."""
        self._admit()
        if not self._groups.idle:
            self._step()
            return True
        if idle_ok:
            return False
        raise RuntimeError(f"no group can be let in, and none is sampled: {self.counters}, {self.rule}")

    def _admit(self) -> None:
        for _ in range(admission.room(self.rule, self.counters, self._inside())):
            self._groups.admit(self.counters.admitted)
            self.counters = self.counters._replace(admitted=self.counters.admitted + 1)

    def _step(self) -> None:
        self._groups.step(self._params, self.counters.version)
        self.ticks += 1

    # --- What is logged and saved -----------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Counts of the step that ends; {} for a synchronous run."""
        dropped, self._dropped = self._dropped, []
        if not self.rule.bound:
            return {}
        groups = self._groups.inside(self.counters.version)
        found = {
            "flow/ticks": float(self.ticks),
            "flow/finished": float(sum(group.finished for group in groups)),
            "flow/running": float(sum(not group.finished for group in groups)),
        }
        if self.rule.order == "drop":
            rows = max(len(dropped), 1)
            found |= {"flow/dropped": float(self.counters.dropped), "flow/dropped_length": sum(dropped) / rows}
        return found

    def _log(self) -> None:
        """Adds the step's decisions to schedule.jsonl."""
        row = self._event | {"end": self.ticks, "admitted": self.counters.admitted, "dropped": self.counters.dropped}
        with disk.named(self._path):
            if not self._logs:  # an attempt that died before its first checkpoint may have logged this step
                cut_back(self._path, self.counters.version)
                self._logs = True
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def get_state(self) -> dict[str, Any]:
        """A JSON value with the counters, the prompts' position and every row that was begun."""
        return {"counters": list(self.counters), "ticks": self.ticks, "groups": self._groups.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state, and forgets what was logged after it.

        Raises:
          ValueError: if it is the state of a run of two processes.
        """
        if "groups" not in state:
            raise ValueError("this run was begun as two processes: go on with --role=trainer and --role=sampler")
        self.counters, self.ticks = Counters(*state["counters"]), state["ticks"]
        self._groups.set_state(state["groups"])
        cut_back(self._path, self.counters.version)


def read_schedule(folder: pathlib.Path) -> dict[int, dict]:
    """The decisions of a run, by step.

    Raises:
      ValueError: if the folder has none.
    """
    path = next((path for path in (folder / LOG, folder / "sampler" / LOG) if path.exists()), None)
    if path is None:
        raise ValueError(f"--replay={folder}: it has no {LOG}; name the workdir of a run of experiments.grpo_async")
    return {row["step"]: row for row in read_jsonl(path)}
