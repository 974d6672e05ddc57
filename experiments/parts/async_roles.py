"""One run as two processes: a trainer, and a sampler that owns the clock. The bits are those of one process.

    python -m experiments.grpo_async ... --workdir=runs/async --role=trainer
    python -m experiments.grpo_async ... --workdir=runs/async --role=sampler     # the same config

The sampler lets groups in, decodes, and decides which groups make a batch and at which decode call new weights enter:
it does what Flow does in one process, and waits where the trainer is late. The trainer takes batch after batch. Either
may be killed between any two messages, and comes back by the same command: groups are on the trainer's disk before a
sampler is told so, and the sampler writes its own state whenever new weights have entered.
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from experiments.parts import async_shards, logged, origin
from experiments.parts.async_beats import TRAINER, Beat, Waiting, Watch, say_end, wait
from experiments.parts.async_clock import make_exchange
from experiments.parts.async_flow import Flow, part_of, rule_of
from experiments.parts.async_groups import GroupRows, completion_of, trajectory_of
from experiments.parts.async_shared import differences, oldest_resumed, shared_fields
from experiments.parts.async_shares import WHOLE, Share, check_several, names_of, shares_clock
from experiments.parts.run import Run, Step
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup, replays_routes
from rl_jax.core.types import Params
from rl_jax.experience import trajectory
from rl_jax.experience.admission import Counters
from rl_jax.flow import Group, Link
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.training.checkpoint import StopSignal

KEY = b"rl_jax.async"  # of a table's metadata: the record of a group, and what the sampler counted
POLL_S = 1.0
PLACES_S = 0.02
KEPT = 3  # states of a sampler: a trainer is at most one version ahead of it
SHARED = ("seed", "task", "sample", "rollout", "flow")  # of the config: rows depend on it, and the weights do not tell
OWN = ("task.data_dir", "flow.measure", *origin.MAY_CHANGE)  # may differ all the same


class Trainer:
    """What Flow is to a loop, if the sampler is another process.

    Args:
      setup: of the run.
      prompts: of the run; only what is known of records is asked of it, the sampler draws them.
      link: the trainer's side.
      checkpoints: folder of the run's checkpoints; groups are forgotten when none of the newest needs them.

    Attributes:
      rule: admission.Rule.
      counters: admission.Counters; only version and taken count here.
    """

    def __init__(self, setup: Setup, prompts, link: Link, checkpoints: pathlib.Path, stop: StopSignal | None = None):
        check_two(setup.config)
        self._stop = stop
        self._settings, self._link, self._checkpoints = setup.config.flow, link, checkpoints
        self._keep = setup.config.checkpoint.keep
        self._shared, self._beat = shared(setup.config), Beat(link, TRAINER)
        self._watch = Watch(link, names_of(setup.config.flow.samplers))
        self.rule, self.counters, self.prompts = rule_of(setup.config), Counters(), prompts
        self._part, self._taken, self._dropped, self._metrics = part_of(setup.config), [], set(), {}

    def __enter__(self) -> "Trainer":
        self._beat.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._beat.__exit__(*error)
        say_end(self._link, error[0])
        self._link.close()

    def _cache_size(self) -> int:
        return 0

    def looks(self, step: Step) -> bool:
        """See Flow."""
        return step.evaluates or (self._settings.measure and self.rule.bound > 0)

    def timings(self, step: Step, collected: Collected, learn: Any) -> dict[str, float]:
        """See Flow."""
        return logged.timings(step, collected, learn.programs._replace(generate=self))

    def begun(self, version: int, params: Params) -> "Trainer":
        """See Flow. What a trainer before this one took after this version waits again."""
        self._link.resume(version)
        self.publish(version, params)
        return self

    def publish(self, version: int, params: Params) -> None:
        """See Flow. A copy leaves, shard by shard: the next train step may donate the buffers."""
        if self._taken:
            self._link.acknowledge(version, [group.number for group in self._taken], sorted(self._dropped))
            self._taken, self._dropped = [], set()
        self.counters = self.counters._replace(version=version)
        self._link.publish(version, async_shards.cut(params))
        self._beat.reached(version)

    def parts(self) -> Iterator[list[GroupRows]]:
        """The next batch: the whole of it, or with flow.streaming parts of it, each as soon as it is there."""
        size = self.rule.batch
        part = self._part if self._settings.streaming else size
        for first in range(self.counters.version * size, (self.counters.version + 1) * size, part):
            yield self._take(first, part)
        self.counters = self.counters._replace(taken=self.counters.taken + size)

    def _take(self, first: int, size: int) -> list[GroupRows]:
        """The next groups of the sampler. first: what the sampler counts them from."""
        step = self.counters.version + 1
        several = self._settings.samplers > 1
        taken = wait(
            lambda: self._look(first, size),
            self._settings.timeout_s,
            f"groups of step {step} from the sampler{'s' if several else ''}",
            self._watch.give_up(self._stop),
            watch=self._watch,
        )
        self._taken += taken
        found = [unpack(group) for group in taken]
        for group, said in found:
            self._check_shared(group.number, said.get("config", {}))
            self._dropped.update(said.get("dropped", ()))
        self._metrics = {} if several else found[-1][1]["metrics"]  # a sampler counts its own share only
        if {said["step"] for _, said in found} != {step}:
            steps = sorted({said["step"] for _, said in found})
            raise RuntimeError(f"step {step} got groups that the sampler made for steps {steps}: the two runs differ")
        return [group for group, _ in found]

    def _look(self, first: int, size: int, timeout_s: float = POLL_S) -> list[Group]:
        """These groups, if they are there."""
        if self._settings.samplers == 1:
            return self._link.take(size, timeout_s)
        # One may be ahead: then what has finished first need not be of this batch, or part.
        return self._take_places(range(first, first + size))

    def _take_places(self, places: range) -> list[Group]:
        """The groups that their samplers counted so; [] if they are not all there."""
        there = dict(self._link.waiting())
        if any(place not in there for place in places):
            time.sleep(PLACES_S)
            return []
        return self._link.take(len(places), numbers=[there[place] for place in places])

    def _check_shared(self, number: int, theirs: dict[str, Any]) -> None:
        """Raises ValueError if a group was sampled with another config than this side's; names the fields."""
        if said := differences(self._shared, theirs):
            raise ValueError(
                f"group {number} comes from a sampler with another config ({said}): start both sides with the same "
                "--config and fields, in a new workdir"
            )

    def beside(self, train: Callable, *arguments) -> Any:
        """Trains; the sampler samples meanwhile by itself."""
        return train(*arguments)

    def metrics(self) -> dict[str, float]:
        """What the sampler counted, with this batch."""
        return self._metrics

    def get_state(self) -> dict[str, Any]:
        """A JSON value. Rows and prompts are in the sampler's state. Forgets groups that no resume needs."""
        if (oldest := self._resumed_from()) is not None:
            self._link.settle(oldest)
        return {"counters": list(self.counters)}

    def _resumed_from(self) -> int | None:
        return oldest_resumed(self._checkpoints, self._keep)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state. Raises ValueError if it is that of one process."""
        if "groups" in state:
            raise ValueError("this run was begun as one process: go on without --role")
        self.counters = Counters(*state["counters"])


def check_two(config) -> None:
    """Raises ValueError if two processes cannot do what one does.

    The sampler does not see rewards, so the choice of prompts cannot learn from them. And it saves its state at every
    version, which computes all caches anew, so that none is kept.
    """
    check_several(config)
    sample = config.sample
    if sample.prompts.fn != "shuffled" or sample.memory.on:
        what = f"sample.prompts={sample.prompts.fn!r}" if sample.prompts.fn != "shuffled" else "sample.memory.on=True"
        raise ValueError(
            f"{what}: rewards are known to the trainer and prompts are drawn by the sampler; leave out --role, or take "
            "'shuffled' prompts without a memory"
        )
    if config.flow.in_flight == "keep":
        raise ValueError(
            "flow.in_flight='keep': a sampler that can be killed saves every version, and caches are not saved; leave "
            "out --role, or take 'interrupt' or 'drain'"
        )


def shared(config) -> dict[str, Any]:
    """The fields that both sides must have alike: name -> JSON value."""
    found = shared_fields(config, SHARED, OWN)
    return found | {"model.replay_routes": True} if replays_routes(config) else found


def pack(group: GroupRows, finished: int, said: dict[str, Any]) -> Group:
    """A group as it travels: the table of its trajectories, with its record and `said` beside."""
    table = trajectory.to_table([trajectory_of(group, sample, row) for sample, row in enumerate(group.rows)])
    words = json.dumps({"record": group.record, **said})
    return Group(group.number, finished, table.replace_schema_metadata({KEY: words}))


def unpack(group: Group) -> tuple[GroupRows, dict[str, Any]]:
    """The group of `pack`, and what was said beside.

    Raises:
      ValueError: if it is something else.
    """
    metadata = group.table.schema.metadata or {}
    if KEY not in metadata:
        raise ValueError(f"group {group.number} was not put by a sampler of experiments.grpo_async")
    said, rows = json.loads(metadata[KEY]), trajectory.from_table(group.table)
    found = GroupRows(group.number, said.pop("record"), len(rows))
    found.rows = [completion_of(row) for row in rows]
    return found, said


class Sampler:
    """The other side of a Trainer: its messages, and its states on disk.

    Args:
      setup: of the run.
      link: the sampler's side.
      folder: its own: states and schedule.jsonl.
      share: the groups that it samples.
      stop: once it is received, this side ends after the batch that it is at, which the trainer may need to end its
        step; what it waits for otherwise is given up.
    """

    def __init__(
        self,
        setup: Setup,
        link: Link,
        folder: pathlib.Path,
        share: Share = WHOLE,
        stop: StopSignal | None = None,
    ):
        check_two(setup.config)
        self._setup, self._link, self._folder, self._share = setup, link, folder, share
        self._shared = shared(setup.config)
        disk.lock(folder)
        self._wait = Waiting(link, setup.config.flow.timeout_s, stop, names_of(share.count))

    def restore(self, flow: Flow) -> int:
        """Puts back the newest state, if any. Returns its version, or the trainer's if it is a new run."""
        states = self._states()
        if not states:
            return self._first()
        flow.set_state(json.loads(states[-1][1].read_text(encoding="utf-8")))
        return states[-1][0]

    def _first(self) -> int:
        what = "the trainer's first weights"
        version = self._wait(lambda: self._link.slices(timeout_s=POLL_S), what).version
        if version != 0:
            raise ValueError(
                f"the trainer is at version {version}, and {self._folder} has no state of a sampler: bring back that "
                "folder, or start both anew"
            )
        return 0

    def save(self, flow: Flow) -> None:
        """Writes the state of this version; the last few are kept."""
        path = self._folder / f"state_{flow.counters.version:08}.json"
        write_atomically(path, json.dumps(flow.get_state()).encode())
        for _, old in self._states()[:-KEPT]:
            old.unlink()

    def _states(self) -> list[tuple[int, pathlib.Path]]:
        return sorted((int(path.stem.removeprefix("state_")), path) for path in self._folder.glob("state_*.json"))

    def put(self, flow: Flow, groups: list[GroupRows]) -> None:
        """Hands groups of a batch over, in its order. What was counted is said with the last of them."""
        size, batch = flow.rule.batch, self._setup.config.sample.prompts_per_step
        metrics = flow.metrics() if len(flow.order) == size else {}
        said = {"step": flow.counters.version + 1, "metrics": metrics, "config": self._shared, "dropped": flow.dropped}
        places = [flow.counters.version * size + flow.order.index(group.number) for group in groups]
        order = places if size == batch else [self._share.number(place, batch) for place in places]
        packed = [self._packed(group, number, said) for group, number in zip(groups, order, strict=True)]
        what = f"room for the groups of step {said['step']}"
        self._wait(lambda: self._link.put(packed, POLL_S), what)

    def _packed(self, group: GroupRows, finished: int, said: dict[str, Any]) -> Group:
        return pack(group, finished, said)

    def weights(self, version: int) -> Params:
        """The trainer's weights of this version, on this side's mesh, which may be another; waits for them.

        Raises:
          Ended: if the trainer has ended before.
        """
        what = f"the trainer's weights of version {version}"

        def look() -> Params | None:
            with contextlib.suppress(FileNotFoundError):  # a trainer that comes back withdraws versions
                slices = self._link.slices(version, POLL_S)
                return slices and async_shards.place(slices, self._setup.param_shardings)

        return self._wait(look, what)

    def make_flow(self, prompts) -> Flow:
        """What samples. prompts: of the run."""
        return Flow(self._setup, prompts, self._folder, share=self._share, exchange=self.exchange())

    def exchange(self) -> Callable | None:
        """Of Flow, if the samplers share a clock."""
        return make_exchange(self._link, self._share, self._wait.together) if shares_clock(self._setup.config) else None

    def stopping(self) -> bool:
        """Whether this process is to end."""
        return self._wait.stopping

    def close(self) -> None:
        """Ends this side."""
        self._link.close()
        disk.unlock(self._folder)


def make_flow(
    setup: Setup,
    prompts,
    loop: Run,
    *,
    replay: pathlib.Path | None = None,
    link: Link | None = None,
    kinds: tuple[type[Flow], type[Trainer]] = (Flow, Trainer),
) -> Flow | Trainer:
    """What gives a loop its groups: the first of `kinds` in one process, the second with a link."""
    if link is None:
        return kinds[0](setup, prompts, loop.workdir, replay)
    return kinds[1](setup, prompts, link, loop.workdir / "checkpoints", loop.stop)
