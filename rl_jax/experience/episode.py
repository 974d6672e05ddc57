"""One episode in the making: its limits, the turns that it asks for, and the trajectory that it becomes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.data.checks import utf8
from rl_jax.experience import trajectory
from rl_jax.experience.trajectory import Span, Trajectory, Turn

OVERFLOW = ("end", "cut", "drop_oldest")


class Limits(NamedTuple):
    """The limits of an episode.

    Attributes:
      turns: the most turns.
      context: the most tokens of a segment that the model reads, sampled ones included.
      row: the most tokens of an episode after its prompt, over all segments.
      turn_tokens: the most tokens that a turn samples. 0: what fits.
      tokens: the most tokens that an episode samples. 0: what fits.
      observation: the most tokens of an answer; a longer one is cut. 0: what fits.
      overflow: what happens if an answer does not fit. "end": the episode ends. "cut": the answer is shortened.
        "drop_oldest": a new segment begins without the oldest turns.
      seconds: of the clock that a coroutine environment may take for one answer, a guard against one that hangs: the
        episode's environment has failed then. 0: any. What a tool computes is limited by its own CPU seconds.
    """

    turns: int
    context: int
    row: int
    turn_tokens: int = 0
    tokens: int = 0
    observation: int = 0
    overflow: str = "end"
    seconds: float = 0.0


class Ask(NamedTuple):
    """One episode to play.

    Attributes:
      number: of the row, unique in a call; it decides which random numbers are used.
      record: the prompt's, with "id".
      group: whose episodes are compared.
      sample: the place in the group.
      seed: of the environment, equal in a group.
      after: (number of another episode, turn): it begins there, before that turn (play's `saved`). None: at the prompt.
    """

    number: int
    record: Mapping[str, Any]
    group: int
    sample: int
    seed: int
    after: tuple[int, int] | None = None


class Draw(NamedTuple):
    """A turn to sample.

    Attributes:
      number: of the episode.
      segment: number of its segment.
      prompt: int32 [p], the segment's beginning.
      tokens: int32 [n], what follows it so far. The next token is the segment's n-th: its random number is n's.
      limit: the most tokens to sample.
      last: whether the episode certainly ends with this turn.
      seed: of the random numbers; None: the number.
    """

    number: int
    segment: int
    prompt: np.ndarray
    tokens: np.ndarray
    limit: int
    last: bool
    seed: int | None = None


class Drawn(NamedTuple):
    """What was sampled for an episode's Draw; reason is "eos", "stop" or "length"."""

    number: int
    tokens: np.ndarray
    log_probs: np.ndarray
    raw_log_probs: np.ndarray
    reason: str


class Episode:
    """A trajectory in the making.

    Attributes:
      segments: spans, as in Trajectory.
      turns: as in Trajectory.
      status: as in Trajectory.

    Args:
      ask: the episode.
      version: of the policy that samples.
    """

    def __init__(self, ask: Ask, version: int):
        self._ask, self._version = ask, version
        self.segments: list[list[Span]] = []
        self.turns: list[Turn] = []
        self.status = "running"
        self._parent = -1, 0

    def begin(self, ids: Sequence[int]) -> None:
        """Begins a segment with a prompt."""
        self.segments.append([trajectory.prompt(ids)])

    def copy(self, ask: Ask | None = None) -> "Episode":
        """The episode so far, which may go on otherwise. ask: whose episode the copy is; None: the same."""
        other = Episode(ask or self._ask, self._version)
        other.segments, other.turns = [list(spans) for spans in self.segments], list(self.turns)
        if ask is not None:
            other._parent = self._ask.sample, len(self.turns)
        return other

    def count(self, kind: str) -> int:
        """Number of tokens of a kind."""
        return sum(len(span.ids) for spans in self.segments for span in spans if span.kind == kind)

    def _used(self) -> tuple[int, int]:
        """Tokens of the newest segment, and of the whole row without its first prompt."""
        lengths = [sum(len(span.ids) for span in spans) for spans in self.segments]
        return lengths[-1], sum(lengths) - len(self.segments[0][0].ids)

    def left(self, limits: Limits) -> int:
        """Tokens that still fit."""
        segment, row = self._used()
        return min(limits.context - segment, limits.row - row)

    def room(self, limits: Limits) -> int:
        """The most tokens that the next turn may sample."""
        room = self.left(limits)
        room = min(room, limits.turn_tokens) if limits.turn_tokens else room
        return min(room, limits.tokens - self.count("sampled")) if limits.tokens else room

    def fits(self, number: int, limits: Limits) -> bool:
        """Whether `number` more tokens leave place for at least one sampled one."""
        return number < self.left(limits)

    def _anew(self, number: int, limits: Limits) -> np.ndarray | None:
        """The beginning of a new segment: the prompt, and the newest turns; None if not even the last turn fits.

        It has at most half of what an answer of `number` tokens leaves, if that is possible: else every turn would
        begin a segment.
        """
        spans = self.segments[-1][1:]
        starts = [place for place, span in enumerate(spans) if span.kind == "sampled"]
        starts = starts if len(self.segments) > 1 else starts[1:]
        row, chosen = self._used()[1], None
        for place in starts:
            kept = np.concatenate([self.segments[0][0].ids, *(span.ids for span in spans[place:])]).astype(np.int32)
            if len(kept) + number >= limits.context or row + len(kept) + number >= limits.row:
                continue
            chosen = kept
            if 2 * len(kept) <= limits.context - number:
                break
        return chosen

    def fits_anew(self, number: int, limits: Limits) -> bool:
        """Whether an answer of `number` tokens fits behind a new beginning."""
        return self._anew(number, limits) is not None

    def can_begin(self, number: int, limits: Limits) -> bool:
        """Whether a new segment of `number` tokens leaves place for at least one sampled one."""
        return 0 < number < min(limits.context, limits.row - self._used()[1])

    def draw(self, number: int, limit: int, last: bool) -> Draw:
        """The next turn to sample."""
        first, *rest = self.segments[-1]
        tokens = np.concatenate([np.zeros(0, np.int32), *(span.ids for span in rest)])
        return Draw(number, len(self.segments) - 1, first.ids, tokens.astype(np.int32), limit, last)

    def add_turn(self, drawn: Drawn, step: Any, state_key: str) -> None:
        """Adds a turn of the policy and what the environment made of it (a protocol.Step)."""
        self.segments[-1].append(trajectory.sampled(drawn.tokens, drawn.log_probs, drawn.raw_log_probs, self._version))
        self.turns.append(Turn(float(step.reward), state_key, {k: float(v) for k, v in step.numbers.items()}))

    def add_reward(self, reward: float) -> None:
        """Adds to the reward of the last turn."""
        turn = self.turns[-1]
        self.turns[-1] = turn._replace(reward=turn.reward + float(reward))

    def observe(self, ids: Sequence[int], limits: Limits) -> None:
        """Adds an answer; in a new segment if it does not fit."""
        if not self.fits(len(ids), limits):
            self.begin(self._anew(len(ids), limits))
        if len(ids):
            self.segments[-1].append(trajectory.given("observation", ids))

    def ended(self) -> Trajectory:
        """The trajectory."""
        segments = tuple(tuple(spans) for spans in self.segments)
        place = self._name(), self._ask.group, self._ask.sample
        return Trajectory(*place, segments, tuple(self.turns), self.status, "", *self._parent)

    def failed(self, cause: BaseException | None) -> Trajectory:
        """The trajectory of an episode whose environment raised `cause`."""
        self.status = "error"
        return self.ended()._replace(error=utf8(f"{type(cause).__name__}: {cause}"))

    def _name(self) -> str:
        return str(self._ask.record.get("id", ""))
