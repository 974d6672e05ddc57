"""The record of one episode: what was said token by token, by whom, and what each turn earned. numpy on the host.

    prompt | sampled (turn 0) | observation | sampled (turn 1) | ...

The token ids only grow: what the policy sampled is never encoded again from its text. Where the history is rewritten
(the oldest turns are dropped), a new segment begins with a prompt of its own; every sampled token is in one segment.
`to_table` and `from_table` are the same as an Arrow table, for logs, replay and other processes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

KINDS = ("prompt", "sampled", "observation", "template")
DONE = "done"
LIMITS = ("turns", "tokens", "context")  # statuses of episodes that a limit has ended
STATUSES = ("running", DONE, *LIMITS, "error")
BRANCHING = ("parent", "shared")
LATER = (*BRANCHING, "extras")  # columns that older tables lack
PLAIN = ("prompt_id", "group", "sample", "status", "error", *BRANCHING)
_NO_IDS, _NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class Span(NamedTuple):
    """Neighbouring tokens of one origin.

    Attributes:
      kind: one of KINDS. "template": what a chat template writes around messages.
      ids: int32 [n].
      log_probs: float32 [n], of sampled tokens: under the distribution that was sampled from. Else [0].
      raw_log_probs: float32 [n], of sampled tokens: under the model itself. Else [0].
      versions: int32 [n], of sampled tokens: the policy's version that drew each. Else [0].
    """

    kind: str
    ids: np.ndarray
    log_probs: np.ndarray = _NO_LOG_PROBS
    raw_log_probs: np.ndarray = _NO_LOG_PROBS
    versions: np.ndarray = _NO_IDS


class Turn(NamedTuple):
    """One turn of the policy, and the environment's answer. Turn j is the j-th sampled span.

    Attributes:
      reward: of the environment for this turn.
      state_key: of the state in which the policy spoke, equal for equal states; "" if the environment has none.
      numbers: what the environment counts: calls, malformed, correct, ...
    """

    reward: float = 0.0
    state_key: str = ""
    numbers: dict[str, float] = {}


class Trajectory(NamedTuple):
    """One episode.

    Attributes:
      prompt_id: of the prompt, the same in every run.
      group: number of the group, whose trajectories are compared with each other.
      sample: 0 .. G - 1, the place in the group.
      segments: spans of each segment, each beginning with a prompt. One, unless history was rewritten.
      turns: one per sampled span, in order over all segments.
      status: one of STATUSES; how it ended.
      error: what the environment raised, for status "error".
      parent: the sample of the same group whose first `shared` turns this episode shares; -1: none.
      shared: number of turns that were sampled for the parent (rl_jax.experience.branching).
      extras: arrays [T, ...] by name, of the T tokens of the newest segment: "routes", the experts that ran.
    """

    prompt_id: str
    group: int
    sample: int
    segments: tuple[tuple[Span, ...], ...]
    turns: tuple[Turn, ...] = ()
    status: str = "running"
    error: str = ""
    parent: int = -1
    shared: int = 0
    extras: dict[str, np.ndarray] = {}

    @property
    def reward(self) -> float:
        """The sum over its turns."""
        return float(sum(turn.reward for turn in self.turns))

    def ids(self, segment: int = -1) -> np.ndarray:
        """int32 [T]. All tokens of a segment, by default the newest."""
        return np.concatenate([_NO_IDS, *(span.ids for span in self.segments[segment])])

    def sampled(self) -> list[Span]:
        """The sampled spans, one per turn."""
        return [span for spans in self.segments for span in spans if span.kind == "sampled"]

    def count(self, kind: str) -> int:
        """Number of tokens of one kind."""
        return sum(len(span.ids) for spans in self.segments for span in spans if span.kind == kind)

    def check(self) -> "Trajectory":
        """The trajectory itself.

        Raises:
          ValueError: if it breaks a rule of the record; names prompt, sample, segment and span.
        """
        where = f"trajectory of prompt {self.prompt_id!r}, sample {self.sample}"
        if self.status not in STATUSES:
            raise ValueError(f"{where}: status {self.status!r} is none of {', '.join(STATUSES)}")
        if not self.segments and self.status != "error":
            raise ValueError(f"{where}: it has no segment; the first one holds the prompt")
        for number, spans in enumerate(self.segments):
            if not spans or spans[0].kind != "prompt" or not len(spans[0].ids):
                raise ValueError(f"{where}, segment {number}: it must begin with a prompt of at least one token")
            for place, span in enumerate(spans):
                _check_span(span, f"{where}, segment {number}, span {place}")
        if len(self.turns) != len(self.sampled()):
            raise ValueError(f"{where}: {len(self.turns)} turns, but {len(self.sampled())} sampled spans")
        for name, values in self.extras.items():
            if len(values) != len(self.ids()):
                raise ValueError(f"{where}: {name} has {len(values)} values for the {len(self.ids())} tokens")
        return self


def _check_span(span: Span, where: str) -> None:
    if span.kind not in KINDS:
        raise ValueError(f"{where}: kind {span.kind!r} is none of {', '.join(KINDS)}")
    wanted = len(span.ids) if span.kind == "sampled" else 0
    for name in ("log_probs", "raw_log_probs", "versions"):
        if len(getattr(span, name)) != wanted:
            raise ValueError(
                f"{where}: {name} has {len(getattr(span, name))} values for {len(span.ids)} tokens of kind "
                f"{span.kind!r}; sampled tokens have one each, others none"
            )


def prompt(ids: Sequence[int]) -> Span:
    """The first span of a segment."""
    return Span("prompt", np.asarray(ids, np.int32))


def given(kind: str, ids: Sequence[int]) -> Span:
    """A span that the policy did not sample."""
    return Span(kind, np.asarray(ids, np.int32))


def sampled(
    ids: Sequence[int], log_probs: Sequence[float], raw_log_probs: Sequence[float] | None = None, version: int = 0
) -> Span:
    """A turn of the policy. raw_log_probs: None is log_probs. version: of the policy that drew all of it."""
    ids, log_probs = np.asarray(ids, np.int32), np.asarray(log_probs, np.float32)
    raw = log_probs if raw_log_probs is None else np.asarray(raw_log_probs, np.float32)
    return Span("sampled", ids, log_probs, raw, np.full(len(ids), version, np.int32))


def to_table(trajectories: Iterable[Trajectory]):
    """A pyarrow.Table with one row per trajectory (see `schema`)."""
    import pyarrow

    return pyarrow.Table.from_pylist([_to_row(t) for t in trajectories], schema=schema())


def from_table(table) -> list[Trajectory]:
    """The trajectories of a pyarrow.Table of `to_table`, equal to those that it was made of.

    Raises:
      ValueError: if a column is missing, or a row breaks a rule of the record.
    """
    missing = [name for name in schema().names if name not in (*table.column_names, *LATER)]
    if missing:
        raise ValueError(f"a table of trajectories lacks {', '.join(missing)}; it has {', '.join(table.column_names)}")
    return [_from_row(row).check() for row in table.to_pylist()]


def schema():
    """The pyarrow.Schema of `to_table`."""
    import pyarrow as pa  # slow to import

    spans = pa.struct(
        [
            ("segment", pa.int32()),
            ("kind", pa.string()),
            ("ids", pa.list_(pa.int32())),
            ("log_probs", pa.list_(pa.float32())),
            ("raw_log_probs", pa.list_(pa.float32())),
            ("versions", pa.list_(pa.int32())),
        ]
    )
    turns = pa.struct(
        [("reward", pa.float64()), ("state_key", pa.string()), ("numbers", pa.map_(pa.string(), pa.float64()))]
    )
    array = pa.struct([("dtype", pa.string()), ("shape", pa.list_(pa.int32())), ("data", pa.binary())])
    return pa.schema(
        [
            ("prompt_id", pa.string()),
            ("group", pa.int64()),
            ("sample", pa.int32()),
            ("status", pa.string()),
            ("error", pa.string()),
            ("parent", pa.int32()),
            ("shared", pa.int32()),
            ("spans", pa.list_(spans)),
            ("turns", pa.list_(turns)),
            ("extras", pa.map_(pa.string(), array)),
        ]
    )


def _to_row(trajectory: Trajectory) -> dict[str, Any]:
    spans = [
        {"segment": number, **{name: getattr(span, name) for name in Span._fields}}
        for number, segment in enumerate(trajectory.segments)
        for span in segment
    ]
    turns = [turn._asdict() | {"numbers": list(turn.numbers.items())} for turn in trajectory.turns]
    plain = {name: getattr(trajectory, name) for name in PLAIN}
    extras = [
        (name, {"dtype": values.dtype.str, "shape": list(values.shape), "data": values.tobytes()})
        for name, values in trajectory.extras.items()
    ]
    return plain | {"spans": spans, "turns": turns, "extras": extras}


def _from_row(row: dict[str, Any]) -> Trajectory:
    count = 1 + max((span["segment"] for span in row["spans"]), default=-1)
    segments: list[list[Span]] = [[] for _ in range(count)]
    for span in row["spans"]:
        ids, versions = (np.asarray(span[name], np.int32) for name in ("ids", "versions"))
        log_probs, raw = (np.asarray(span[name], np.float32) for name in ("log_probs", "raw_log_probs"))
        segments[span["segment"]].append(Span(span["kind"], ids, log_probs, raw, versions))
    extras = {
        name: np.frombuffer(array["data"], np.dtype(array["dtype"])).reshape(array["shape"]).copy()
        for name, array in row.get("extras") or ()
    }
    turns = tuple(Turn(turn["reward"], turn["state_key"], dict(turn["numbers"])) for turn in row["turns"])
    return Trajectory(
        row["prompt_id"],
        row["group"],
        row["sample"],
        tuple(tuple(spans) for spans in segments),
        turns,
        row["status"],
        row["error"],
        row.get("parent", -1),
        row.get("shared", 0),
        extras,
    )
