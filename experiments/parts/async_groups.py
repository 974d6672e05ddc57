"""The groups of an asynchronous run that were let in and not yet trained on: in the engine, or finished.

A group is one unit: its G rows are let in together and taken together. Row g of group n has the random numbers that
experiments.grpo gives it, in step 1 + n // B: which weights draw a token is all that asynchrony changes.
"""

import base64
import collections
from collections.abc import Sequence

import jax
import numpy as np

from experiments.parts.async_shares import WHOLE, Share
from experiments.parts.encoding import encode_prompts, whole_text
from experiments.parts.sampler import Attaching
from experiments.parts.setup import Setup, replays_routes, sampling_of
from rl_jax.core.types import Params
from rl_jax.experience import admission, trajectory
from rl_jax.experience.trajectory import Trajectory, Turn
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.requests import Completion, Request
from rl_jax.training import sharding

PREFILL_ROWS = 16  # contexts of interrupted rows that are read together
STATUS = {"eos": "done", "stop": "done", "length": "tokens"}
REASON = {"done": "eos", "tokens": "length"}


class GroupRows:
    """A group.

    Attributes:
      number: of its admission.
      record: its prompt's.
      rows: G Completions; None for a row that is not over.
    """

    def __init__(self, number: int, record: dict, size: int):
        self.number, self.record, self.rows = number, record, [None] * size

    @property
    def finished(self) -> bool:
        """Whether all rows have ended."""
        return all(row is not None for row in self.rows)

    def oldest(self, begun: Sequence[int]) -> int | None:
        """The version of its oldest token; None if it has none. begun: those of the rows that are not over."""
        ended = [int(row.versions.min()) for row in self.rows if row is not None and len(row.versions)]
        return min([*ended, *begun], default=None)


class Groups:
    """The groups of a run, over one engine.

    Args:
      setup: of the run.
      engine: continuous.Engine.
      prompts: endless batches of records, whose position is part of the state.
      share: the groups that this process samples, if there are several samplers.
    """

    def __init__(self, setup: Setup, engine: Engine, prompts, share: Share = WHOLE):
        self._setup, self._engine, self._prompts, self._share = setup, engine, prompts, share
        self._size, self._batch = setup.config.sample.group_size, setup.config.sample.prompts_per_step
        self._inside: dict[int, GroupRows] = {}
        self._next_records: list[dict] = []
        self._held: list[Request] = []
        self._keys: dict[int, jax.Array] = {}

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing to sample."""
        return self._engine.idle

    @property
    def groups(self) -> list[GroupRows]:
        """Those that were let in and not taken, as far as their rows have ended."""
        return list(self._inside.values())

    def inside(self, version: int) -> list[admission.Group]:
        """What admission sees of the groups. version: of the policy now."""
        begun: dict[int, list[int]] = {}
        oldest_of = self._engine.begun() | {r.index: int(r.versions[0]) for r in self._held if len(r.versions)}
        for index, oldest in oldest_of.items():
            begun.setdefault(index // self._size, []).append(oldest)
        found = []
        for number, group in self._inside.items():
            oldest = group.oldest(begun.get(number, ()))
            found.append(admission.Group(number, version if oldest is None else oldest, group.finished))
        return found

    def admit(self, number: int) -> None:
        """Lets the next prompt in, as group `number` of this process."""
        number = self._share.number(number, self._batch)
        if not self._next_records:
            self._next_records = self._share.of_batch(list(next(self._prompts)))
        record = self._next_records.pop(0)
        self._inside[number] = GroupRows(number, record, self._size)
        prompt = self._prompt(record)
        first = (number % self._batch) * self._size
        requests = [self._request(number, sample, prompt, seed=first + sample) for sample in range(self._size)]
        self._engine.submit(requests, self._key(number))

    def _prompt(self, record: dict) -> np.ndarray:
        tokens, mask = encode_prompts(self._setup, [record])
        return tokens[0][mask[0]].astype(np.int32)

    def _request(self, number: int, sample: int, prompt: np.ndarray, **fields) -> Request:
        settings = self._setup.config.rollout
        fields |= {"stop_strings": tuple(settings.stop_strings)}
        return Request(number * self._size + sample, prompt, settings.completion_length, **fields)

    def _key(self, number: int) -> jax.Array:
        """The key with which experiments.grpo samples the step of group `number`."""
        step = number // self._batch + 1
        if step not in self._keys:
            self._keys = {old: key for old, key in self._keys.items() if old > step - 64}
            base = jax.random.fold_in(jax.random.key(self._setup.config.seed), step)
            self._keys[step] = jax.random.split(base, 3)[0]
        return self._keys[step]

    def step(self, params: Params, version: int) -> None:
        """One decode call of the engine."""
        for completion in self._engine.step(params, version):
            number, sample = divmod(completion.request.index, self._size)
            self._inside[number].rows[sample] = completion

    def take(self, numbers: Sequence[int]) -> list[GroupRows]:
        """Removes finished groups and returns them."""
        return [self._inside.pop(number) for number in numbers]

    def drop(self, numbers: Sequence[int]) -> list[int]:
        """Throws groups away, running or not. Returns the lengths of their rows so far."""
        indices = {number * self._size + sample for number in numbers for sample in range(self._size)}
        parts = [*self._engine.abort(indices), *(request for request in self._held if request.index in indices)]
        self._held = [request for request in self._held if request.index not in indices]
        parts += [row for group in self.take(numbers) for row in group.rows if row is not None]
        return [len(part.tokens) for part in parts]

    def hold(self) -> None:
        """Takes all rows out of the engine, with what they have so far."""
        self._held += [completion.resumed() for completion in self._engine.abort()]

    def go_on(self) -> None:
        """Puts the rows that are held back into the engine, oldest group first. Caches are computed anew."""
        held, self._held = sorted(self._held, key=lambda request: request.index), []
        for request in held:
            self._engine.submit([request], self._key(request.index // self._size))

    # --- Snapshot ---------------------------------------------------------------------------------------------------

    def get_state(self) -> dict:
        """A JSON value with all rows, finished or not, and the prompts' position. The caches are computed anew."""
        self.hold()
        held = {request.index: request for request in self._held}
        rows = [
            trajectory_of(group, sample, row or held[group.number * self._size + sample])
            for group in self._inside.values()
            for sample, row in enumerate(group.rows)
        ]
        self.go_on()
        return {
            "records": [[group.number, group.record] for group in self._inside.values()],
            "next_records": list(self._next_records),
            "rows": to_text(rows),
            "prompts": self._prompts.get_state(),
        }

    def set_state(self, state: dict) -> None:
        """Continues from a state; the rows enter the engine with `go_on`.

        Raises:
          ValueError: if the rows are of a run with other sizes, as after --fork.
        """
        rows = of_text(state["rows"])
        self._check_sizes(rows)
        self._prompts.set_state(state["prompts"])
        self._next_records = list(state["next_records"])
        self._inside = {number: GroupRows(number, record, self._size) for number, record in state["records"]}
        for row in rows:
            group, prompt = self._inside[row.group], row.segments[0][0].ids
            seed = (row.group % self._batch) * self._size + row.sample
            request = self._request(row.group, row.sample, prompt, seed=seed)
            drawn = row.sampled()[0] if row.turns else trajectory.sampled((), ())
            request = request._replace(
                tokens=drawn.ids,
                sampled_log_probs=drawn.log_probs,
                raw_log_probs=drawn.raw_log_probs,
                versions=drawn.versions,
            )
            if row.status == "running":
                self._held.append(request)
            else:
                group.rows[row.sample] = completion_of(row)

    def _check_sizes(self, rows: Sequence[Trajectory]) -> None:
        length = self._setup.config.rollout.completion_length
        sizes = set(collections.Counter(row.group for row in rows).values()) - {self._size}
        longest = max((row.count("sampled") for row in rows), default=0)
        wrong = [f"groups of {size} rows, not of sample.group_size={self._size}" for size in sorted(sizes)]
        if longest > length:
            wrong.append(f"a row of {longest} tokens, above rollout.completion_length={length}")
        records = replays_routes(self._setup.config)
        if any(("routes" in row.extras) != records for row in rows if row.status != "running"):
            other = "without" if records else "with"
            wrong.append(f"rows {other} recorded experts, and model.replay_routes={records}")
        if wrong:
            raise ValueError(
                f"the rows in flight that were saved do not fit this config ({'; '.join(wrong)}): keep these fields, "
                "or begin a new run from the params, --config.init_from=WORKDIR"
            )


def completion_of(row: Trajectory) -> Completion:
    """The row as the engine gave it back; its request has no more than the prompt."""
    drawn = row.sampled()[0] if row.turns else trajectory.sampled((), ())
    request = Request(row.sample, row.segments[0][0].ids, len(drawn.ids))
    values = (drawn.ids, drawn.log_probs, drawn.raw_log_probs)
    return Completion(request, *values, REASON[row.status], drawn.versions, row.extras.get("routes"))


def trajectory_of(group: GroupRows, sample: int, row: Completion | Request) -> Trajectory:
    """A row as the record that travels: its status is "running" if it is a request."""
    prompt = row.prompt if isinstance(row, Request) else row.request.prompt
    spans = [trajectory.prompt(prompt)]
    if len(row.tokens):
        spans.append(trajectory.Span("sampled", row.tokens, row.sampled_log_probs, row.raw_log_probs, row.versions))
    status = "running" if isinstance(row, Request) else STATUS[row.reason]
    turns = (Turn(),) * (len(spans) - 1)
    routes = getattr(row, "routes", None)  # of a request they are recorded anew
    extras = {} if routes is None else {"routes": routes}
    return Trajectory(
        str(group.record.get("id", "")), group.number, sample, (tuple(spans),), turns, status, extras=extras
    )


def to_text(rows: Sequence[Trajectory]) -> str:
    """Trajectories as text (`text_of_table`)."""
    return text_of_table(trajectory.to_table(rows))


def of_text(text: str) -> list[Trajectory]:
    """The trajectories of `to_text`."""
    return trajectory.from_table(table_of_text(text))


def text_of_table(table) -> str:
    """A pyarrow.Table as text: its Arrow stream in base64, for a checkpoint's JSON."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def table_of_text(text: str):
    """The table of `text_of_table`."""
    import pyarrow as pa

    with pa.ipc.open_stream(base64.b64decode(text)) as stream:
        return stream.read_all()


def make_engine(setup: Setup, *, resumes: bool) -> Engine:
    """The engine of a run whose rows may be interrupted: its contexts are whole rows.

    Args:
      setup: of the run.
      resumes: False if no row is ever interrupted; then it is the engine of experiments.grpo.
    """
    settings, tokenizer, sample = setup.config.rollout, setup.task.tokenizer, setup.config.sample
    mesh, longest = (setup.rollout or setup).mesh, max(settings.prompt_buckets)
    length = longest + settings.completion_length
    slots = settings.engine.slots or sample.prompts_per_step * sample.group_size
    options = {"steps": setup.config.flow.decode_steps} if setup.config.flow.decode_steps else {}
    if resumes:
        rows = min(PREFILL_ROWS, slots)
        options |= {"prefill_rows": rows, "stored_prompts": 2 * rows}
    if setup.config.flow.samplers > 1:
        # Programs of one shape: in smaller ones, for fewer rows, the last bit of a log-prob may differ, and how many
        # rows there are depends on the number of samplers.
        options |= {"sizes": (slots,), "prefill_rows": 1, "refill": slots}
    return Engine(
        sharding.model_on_mesh(setup.model, mesh),
        slots=slots,
        prompt_length=length - 1 if resumes else longest,
        length=length,
        sampling=sampling_of(settings),
        eos_ids=tokenizer.eos_ids,
        rows_sharding=sharding.batch_sharding(mesh) if mesh.size > 1 else None,
        decode_text=whole_text(tokenizer),
        **options,
    )


def make_place(setup: Setup) -> Attaching:
    """params -> what the model runs on, adapters attached, in the rollouts' layout."""
    return Attaching(setup, lambda params: params)
