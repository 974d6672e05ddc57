"""Episodes on the continuous engine: their turns as requests, and their trajectories as a Rollout. numpy on the host.

Token t after the prompt of an episode is sampled with fold_in(fold_in(key, number), t), whatever stands between: the
first turn is drawn as a single-turn sample is, and later ones depend on their own episode only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from rl_jax.core.types import Params, Rollout, TokenBatch, Turns
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.requests import Completion, Request

SEGMENT = 2**20  # numbers of episodes are below it: each segment of an episode has random numbers of its own
LIMITS = ("turns", "tokens", "context")


class Turn(NamedTuple):
    """The tokens of one turn, int32 [n] and float32 [n] each; reason as in Completion."""

    number: int
    tokens: np.ndarray
    log_probs: np.ndarray
    raw_log_probs: np.ndarray
    reason: str


class EngineSampler:
    """Samples turns of many episodes (rl_jax.experience.episodes.Sampler).

    Args:
      engine: whose prompt_length holds whole contexts.
      params: of the policy.
      key: one typed key.
      stop_strings: texts that end a turn; they are looked for in the whole episode, so only for single turns.
      hold: whether slots keep the caches of rows between turns; needs a slot for every episode, and one device.
    """

    def __init__(
        self,
        engine: Engine,
        params: Params,
        key: chex.PRNGKey,
        *,
        stop_strings: tuple[str, ...] = (),
        hold: bool = False,
    ):
        self._engine, self._params, self._key = engine, params, key
        self._stop_strings, self._hold = stop_strings, hold

    def submit(self, draws: Sequence[Any]) -> None:
        """Queues turns (rl_jax.experience.episode.Draw). Raises ValueError if one does not fit the engine."""
        self._engine.submit([self._request(draw) for draw in draws], self._key)

    def _request(self, draw: Any) -> Request:
        unknown = np.zeros(len(draw.tokens), np.float32)
        return Request(
            draw.number,
            draw.prompt,
            len(draw.tokens) + draw.limit,
            stop_strings=self._stop_strings,
            tokens=draw.tokens,
            sampled_log_probs=unknown,
            raw_log_probs=unknown,
            seed=(draw.number if draw.seed is None else draw.seed) + SEGMENT * draw.segment,
            hold=self._hold and not draw.last,
        )

    def release(self, number: int) -> None:
        """Gives back the slot of an episode that has ended."""
        if self._hold:
            self._engine.abort((number,))

    def step(self) -> list[Turn]:
        """Decodes for a while; the turns that have ended."""
        return [_turn(completion) for completion in self._engine.step(self._params)]

    def close(self) -> None:
        """Leaves nothing in the engine, also after an error."""
        self._engine.abort()


class TwoSamplers:
    """A Sampler of two policies: draws with a number of at least `first` are the other one's.

    Args:
      own: EngineSampler of the policy that is trained.
      other: EngineSampler of its partners.
      first: the least number of a partner's draw.
    """

    def __init__(self, own: EngineSampler, other: EngineSampler, first: int):
        self._own, self._other, self._first, self._waiting = own, other, first, 0

    def submit(self, draws: Sequence[Any]) -> None:
        """As EngineSampler."""
        theirs = [draw for draw in draws if draw.number >= self._first]
        self._waiting += len(theirs)
        self._other.submit(theirs)
        self._own.submit([draw for draw in draws if draw.number < self._first])

    def release(self, number: int) -> None:
        """As EngineSampler."""
        self._own.release(number)

    def step(self) -> list[Turn]:
        """As EngineSampler."""
        found = self._other.step() if self._waiting else []
        self._waiting -= len(found)
        return found + self._own.step()

    def close(self) -> None:
        """As EngineSampler."""
        self._own.close()
        self._other.close()


def _turn(completion: Completion) -> Turn:
    before = len(completion.request.tokens)
    columns = (completion.tokens, completion.sampled_log_probs, completion.raw_log_probs)
    return Turn(completion.request.index, *(column[before:] for column in columns), completion.reason)


def as_rollout(
    trajectories: Sequence[Any],
    *,
    prompt_length: int,
    completion_length: int,
    pad_id: int,
    version: int | None = None,
    observations: bool = False,
    counts: Sequence[str] = (),
) -> Rollout:
    """One row per trajectory; completion_mask is True on sampled tokens only.

    The first prompt is padded on the left, everything after it on the right. Further segments follow in the same row,
    with segment ids and positions of their own, so that no token attends to another segment. A trajectory whose
    environment failed has nothing to train on.

    Args:
      trajectories: B of rl_jax.experience.trajectory.Trajectory.
      prompt_length: P.
      completion_length: C.
      pad_id: fills the rest.
      version: of the newest policy, if it did not sample all tokens. None: the Rollout has no versions.
      observations: whether completion_mask is True on the environment's tokens as well. This is a mistake; it is here
        so that its harm can be shown.
      counts: numbers of the turns that become arrays (Turns.counts).

    Returns:
      Rollout (numpy).

    Raises:
      ValueError: if a trajectory does not fit; names its prompt and sample.
    """
    rows, width = len(trajectories), prompt_length + completion_length
    tokens = np.full((rows, width), pad_id, np.int32)
    positions, segments = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.int32)
    sampled, raw, rewards = (np.zeros((rows, completion_length), np.float32) for _ in range(3))
    numbers, states = (np.full((rows, completion_length), -1, np.int32) for _ in range(2))
    observed = np.zeros((rows, completion_length), bool)
    counted = {name: np.zeros((rows, completion_length), np.float32) for name in counts}
    versions = np.full((rows, completion_length), 0 if version is None else version, np.int32)
    known: dict[tuple[int, str], int] = {}
    for row, trajectory in enumerate(trajectories):
        trained, turn = trajectory.status != "error", 0
        column = prompt_length - (len(trajectory.segments[0][0].ids) if trajectory.segments else 1)
        if column < 0 or column + sum(len(span.ids) for spans in trajectory.segments for span in spans) > width:
            raise ValueError(
                f"sample {trajectory.sample} of prompt {trajectory.prompt_id!r} does not fit a row of {prompt_length} "
                f"tokens of prompt and {completion_length} after it"
            )
        if not trajectory.segments:  # its environment failed at once: a row needs a token
            segments[row, column] = 1
        for segment, spans in enumerate(trajectory.segments):
            begin = column
            for span in spans:
                end = column + len(span.ids)
                tokens[row, column:end], segments[row, column:end] = span.ids, segment + 1
                positions[row, column:end] = np.arange(column - begin, end - begin)
                here = slice(column - prompt_length, end - prompt_length)
                if span.kind == "observation":
                    observed[row, here] = trained
                if span.kind == "sampled" and len(span.ids):
                    info = trajectory.turns[turn]
                    if trained:
                        sampled[row, here], raw[row, here] = span.log_probs, span.raw_log_probs
                        versions[row, here], numbers[row, here] = span.versions, turn
                        rewards[row, end - prompt_length - 1] = info.reward
                        for name, array in counted.items():
                            array[row, end - prompt_length - 1] = info.numbers.get(name, 0.0)
                        if info.state_key:
                            name = (trajectory.group, info.state_key)
                            states[row, here] = known.setdefault(name, len(known))
                turn += span.kind == "sampled"
                column = end
    statuses = np.array([trajectory.status for trajectory in trajectories])
    return Rollout(
        TokenBatch(tokens, positions, segments),
        (numbers >= 0) | observed if observations else numbers >= 0,
        sampled,
        raw,
        statuses == "done",
        np.isin(statuses, LIMITS),
        versions=None if version is None else versions,
        turns=Turns(numbers, rewards, states, counted),
    )
