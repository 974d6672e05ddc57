"""experiments.control.asynchronous as processes: trainer, policy workers, actors. The bits are those of one process.

    ... --role=trainer --link=grpc://127.0.0.1:4000 --link_secrets=S      V-trace; publishes weights by version
    ... --role=policy --link=grpc://127.0.0.1:4000 --listen=grpc://127.0.0.1:4001 --link_secrets=S
    ... --role=actor --actor=0 --link=grpc://127.0.0.1:4001 --link_secrets=S       and --actor=1 ...

A policy worker gets weights from the trainer by their version (with the free schedule: the newest), acts for its
actors, and puts a segment when it is made, on its own disk first. Its share of the ring are the groups g with
g mod policies = index, and a group's forward is the same whoever does it. Any of them may be killed and started again
by the same command: the trainer finds what it had not trained on in its link, a policy worker its last segment, which
says where every environment is, and an actor is told.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.parts.async_beats import TRAINER, Beat, Ended, Waiting, Watch, say_end, wait
from experiments.parts.async_shared import differences, oldest_resumed, shared_fields
from experiments.parts.control_actors import kept_versions, layout_of, make_actors
from rl_jax.flow import Group, Link, payload
from rl_jax.flow.requests import RequestServer
from rl_jax.flow.rows import from_table, to_table
from rl_jax.rollout.actors.sampler import Schedule, Segment, make_segment
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import stored_config
from rl_jax.training.checkpoint import StopSignal

KEY = b"rl_jax.control"  # of a table's metadata: where the environments are after it, and the config
POLL_S = 1.0
SHARED = ("seed", "env", "sample", "actors", "flow", "network", "algorithm", "train")  # of the config
OWN = ("actors.count", "actors.kind", "actors.timeout_s", "actors.restarts", "flow.timeout_s")  # may differ


def shared(config) -> dict[str, Any]:
    """The fields that all sides must have alike: name -> JSON value."""
    return shared_fields(config, SHARED, OWN)


def name_of(policy: int) -> str:
    """Of a policy worker, and of its folder in the workdir."""
    return f"policy_{policy}"


def keep_of(config) -> int:
    """How many versions a link has to keep readable."""
    return max(2, kept_versions(config))


def check_roles(config) -> None:
    """Raises ValueError if several processes cannot do what one does."""
    if config.actors.policies > 1 and config.flow.schedule != "counted":
        raise ValueError(
            f"actors.policies={config.actors.policies} with flow.schedule={config.flow.schedule!r}: each would take "
            "new weights by its own clock, and one segment would have two schedules; take 'counted', or one policy"
        )


def check_replay(config, folder: pathlib.Path) -> None:
    """Raises ValueError if the run in `folder` had another config than the one that repeats it."""
    path = folder / "config.json"
    theirs = shared(ConfigDict(stored_config(path))) if path.exists() else {}
    if differ := differences(shared(config), theirs):
        raise ValueError(f"--replay={folder}: that run had another config ({differ}): give the same")


def check_flags(config, given) -> None:
    """Raises ValueError if the flags of experiments.control.asynchronous do not fit each other or the config.

    Args:
      config: of the program.
      given: absl's flags.
    """
    if given.replay and given.role != "both":
        raise ValueError(f"--replay={given.replay}: one process repeats a run, also one of several; leave out --role")
    for name, role, count in (("policy", "policy", config.actors.policies), ("actor", "actor", config.actors.count)):
        index = getattr(given, name)
        if index and given.role != role:
            raise ValueError(f"--{name}={index} is for --role={role}, and this is --role={given.role}")
        if not 0 <= index < count:
            field = "actors.policies" if name == "policy" else "actors.count"
            raise ValueError(f"--{name}={index}: {field}={count}, so it is one of 0 to {count - 1}")
    if given.listen and given.role != "policy":
        raise ValueError(f"--listen={given.listen} is for --role=policy, and this is --role={given.role}")
    if given.role == "actor" and not (given.link.startswith("grpc") and given.link_secrets):
        raise ValueError(
            f"--role=actor --link={given.link}: an actor calls its policy worker; give --link=grpc://HOST:PORT, as in "
            "its --listen, and --link_secrets=FOLDER"
        )


def pack(config, segment: Segment, policy: int) -> Group:
    """A policy worker's part of a segment as it travels."""
    layout = layout_of(config)._replace(share=(policy, config.actors.policies))
    row = {name: np.asarray(value) for name, value in segment.rows._asdict().items()}
    row["versions"] = np.asarray(segment.versions, np.int64)
    said = {"after": [segment.after[env] for env in layout.own], "config": shared(config)}
    table, number = to_table([row]), (segment.number - 1) * config.actors.policies + policy
    words = {**(table.schema.metadata or {}), KEY: json.dumps(said)}
    return Group(number, segment.number, table.replace_schema_metadata(words))


def unpack(group: Group) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, what was said beside) of `pack`. Raises ValueError if it is something else."""
    metadata = dict(group.table.schema.metadata or {})
    if KEY not in metadata:
        raise ValueError(f"group {group.number} was not put by a policy worker of experiments.control.asynchronous")
    return from_table(group.table)[0], json.loads(metadata[KEY])


class LinkedSegments:
    """Segments of policy workers in other processes: what Feed takes them from in a trainer.

    Args:
      config: of the program.
      link: the trainer's side.
      checkpoints: folder of the run's checkpoints; segments are forgotten when none of the newest needs them.

    Attributes:
      kept: see OwnSegments.
      notes: see OwnSegments.
    """

    def __init__(self, config, link: Link, checkpoints: pathlib.Path, stop: StopSignal | None = None):
        self._stop = stop
        check_roles(config)
        self._config, self._link, self._checkpoints = config, link, checkpoints
        names = [name_of(policy) for policy in range(config.actors.policies)]
        self._beat, self._watch = Beat(link, TRAINER), Watch(link, names)
        self._stack, self._step, self._taken = contextlib.ExitStack(), 0, []
        self.kept, self.notes = kept_versions(config), config.flow.schedule == "free"

    def begin(self, step: int, weights: dict[int, np.ndarray], episodes: list) -> None:
        """See OwnSegments. What a trainer before this one took after this step waits again."""
        self._stack.enter_context(self._beat)
        self._step = step
        self._link.resume(step)
        for version, params in weights.items():
            self._link.publish(version, {"params": params})
            self._beat.reached(version)

    def take(self) -> Segment:
        """The next segment, of the parts of all policy workers."""
        number, count = self._step + 1, self._config.actors.policies
        which = range((number - 1) * count, number * count)
        what = f"segment {number} from the policy workers"
        take = lambda: self._link.take(count, POLL_S, which)  # noqa: E731
        given_up = self._watch.give_up(self._stop)
        self._taken = wait(take, self._config.flow.timeout_s, what, given_up, watch=self._watch)
        parts = [unpack(group) for group in self._taken]
        for policy, (_, said) in enumerate(parts):
            if differ := differences(shared(self._config), said["config"]):
                raise ValueError(
                    f"{what}: {name_of(policy)} has another config ({differ}): start all sides with the same --config "
                    "and fields, in a new workdir"
                )
        return self._together(number, parts)

    def _together(self, number: int, parts: list[tuple[dict, dict]]) -> Segment:
        """One segment of the policy workers' parts."""
        layout, count = layout_of(self._config), len(parts)
        own = [layout._replace(share=(policy, count)).own for policy in range(count)]
        order = np.argsort(np.concatenate(own))
        rows = {name: np.concatenate([part[name] for part, _ in parts])[order] for name in Transitions._fields}
        after = [None] * layout.num_envs
        for envs, (_, said) in zip(own, parts, strict=True):
            for env, episode in zip(envs, said["after"], strict=True):
                after[env] = episode
        return Segment(number, Transitions(**rows), parts[0][0]["versions"], after)

    def publish(self, version: int, params: np.ndarray) -> None:
        """See OwnSegments. The segment that this version was trained on is used."""
        self._link.acknowledge(version, [group.number for group in self._taken])
        self._step, self._taken = version, []
        self._link.publish(version, {"params": np.array(params)})
        self._beat.reached(version)

    def settle(self) -> None:
        """Forgets the segments that no resume needs."""
        if (oldest := oldest_resumed(self._checkpoints, self._config.checkpoint.keep)) is not None:
            self._link.settle(oldest)

    def close(self, error: type[BaseException] | None = None) -> None:
        """Tells the policy workers that this is the end, unless an error is."""
        self._stack.close()
        say_end(self._link, error)
        self._link.close()


class PolicyWorker:
    """Acts for its actors with the weights that the trainer publishes. Use it in a `with`.

    Args:
      config: of the program.
      link: its side of the link to the trainer.
      folder: its own: its last segments.
      act: the actors' forward.
      index: which policy worker, from 0.
      total: number of segments.
      server: where its actors come to; None starts them here.
      stop: once it is received, this worker ends after the segment that it is at, which the trainer may need to end
        its step; what it waits for from the trainer is given up.

    Attributes:
      complete: whether all segments were made, at the end.
    """

    def __init__(
        self,
        config,
        link: Link,
        folder: pathlib.Path,
        act: Callable,
        *,
        index: int,
        total: int,
        server: RequestServer | None,
        stop: StopSignal | None = None,
    ):
        check_roles(config)
        count, flow = config.actors.policies, config.flow
        self._config, self._link, self._folder, self._index, self._total = config, link, folder, index, total
        disk.lock(folder)
        self._server, self.complete = server, False
        self._fleet, self._acting = make_actors(config, folder, act, share=(index, count), server=server)
        self._free = flow.schedule == "free"
        self._schedule = Schedule(config.sample.num_steps, None if self._free else flow.delay)
        self._wait = Waiting(link, flow.timeout_s, stop)
        self._held, self._seen = (-1, None), -1  # the version that acts, and the last one that was newest
        self._beat = Beat(link, name_of(index))

    def __enter__(self) -> "PolicyWorker":
        self._beat.__enter__()
        return self

    def __exit__(self, kind, error, trace) -> bool:
        self._beat.__exit__(kind, error, trace)
        ended = kind is None or kind is Ended
        if self._server is not None and ended:  # after an error the actors wait for the next one
            self._server.close(self.complete)
        self._fleet.close()
        self._link.close()
        disk.unlock(self._folder)
        return ended

    def segments(self) -> Iterator[int]:
        """The numbers of the segments to make: after the last one that was made, whose part is put again."""
        made = sorted(self._folder.glob("segment_*.arrow"))
        last = 0
        if made:
            group = payload.from_bytes(made[-1].read_bytes(), made[-1])
            last = group.finished
            self._check_past(last)
            self._put(group)
            layout, ledger = self._fleet.layout, self._fleet.ledger
            state = ledger.get_state()
            for env, episode in zip(layout.own, unpack(group)[1]["after"], strict=True):
                state[env] = episode
            ledger.set_state(state, self._fleet.empty.dtype)
        else:
            self._first()
        if last < self._total:
            self._acting.begin()
        for number in range(last + 1, self._total + 1):
            if self._wait.stopping:
                return
            yield number
        self.complete = True

    def _check_past(self, last: int) -> None:
        """Raises ValueError if the trainer has neither trained on the segments before `last` nor has them."""
        self._wait(lambda: self._look(POLL_S)[0] >= 0, "the trainer's weights")
        version, count = self._seen, self._config.actors.policies
        wanted = [(number - 1) * count + self._index for number in range(version + 1, last)]

        def known() -> tuple | None:
            with contextlib.suppress(ConnectionError):  # it may have been killed meanwhile, and come back
                return (self._link.known(wanted),)

        if wanted and not self._wait(known, "the trainer")[0] >= set(wanted):
            raise ValueError(
                f"{self._folder} has made {last} segments, and the trainer is at version {version} without them: it "
                "is another run; give both another workdir, or bring back the trainer's"
            )

    def _first(self) -> None:
        """Raises ValueError if the trainer is not at its beginning."""
        self._wait(lambda: self._look(POLL_S)[0] >= 0, "the trainer's first weights")
        if self._seen != 0:
            raise ValueError(
                f"the trainer is at version {self._seen}, and {self._folder} has no segment of a policy worker: bring "
                "back that folder, or start all anew"
            )

    def make(self, number: int) -> Segment:
        """Samples a segment."""
        return make_segment(number, self._acting, self._fleet.ledger, self._schedule, self._weights)

    def put(self, segment: Segment) -> None:
        """Hands over this worker's part of a segment. It is in its own folder before."""
        group = pack(self._config, segment, self._index)
        path = self._folder / f"segment_{segment.number:08}.arrow"
        write_atomically(path, payload.to_bytes(group))
        for old in sorted(self._folder.glob("segment_*.arrow"))[:-2]:
            old.unlink()
        self._put(group)

    def _put(self, group: Group) -> None:
        if self._free:  # what `counted` need not: it waits for a version before it acts
            wanted = group.finished - 1 - self._config.flow.ahead
            what = f"weights of version {wanted} or newer"
            self._wait(lambda: self._look(POLL_S)[0] >= wanted, what)
        self._wait(lambda: self._link.put([group], POLL_S), f"room for segment {group.finished}")

    def _weights(self, version: int | None) -> tuple[int, np.ndarray]:
        """See make_segment."""
        if version is None:
            if self._look(0.0)[1] is None:
                self._wait(lambda: self._look(POLL_S)[0] >= 0, "the trainer's first weights")
        elif version != self._held[0]:
            what = f"the trainer's weights of version {version}"
            self._held = version, self._wait(lambda: self._link.weights(version, POLL_S), what)["params"]
        return self._held

    def _look(self, timeout_s: float) -> tuple[int, np.ndarray | None]:
        """Takes the newest weights, if they are new. Returns what is held."""
        if (found := self._link.newest(self._seen, timeout_s)) is not None:
            self._seen = found[0]
            if found[0] > self._held[0]:  # if not, the trainer has gone back, and goes the same way again
                self._held = found[0], found[1]["params"]
        return self._held
