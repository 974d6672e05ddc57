"""The protocol of environments of text: what the model says in, messages and a reward out.

    class Guess:                                        # one instance plays one episode after another
        def reset(self, record, seed):                  # record: the prompt's, {"prompt", "info", ...}
            ...
            return [{"role": "user", "content": "Guess my number from 1 to 8."}]
        def step(self, said):                           # the model's message as text
            return Step([{"role": "user", "content": "higher"}], reward=0.0)

The G episodes of a group get the same record and the same seed, so they begin with the same messages. What the model
does wrong (no number, a malformed call) is an observation. An exception means that the environment itself failed, and
so does a return value that cannot be used: no Step, a reward that is no finite number, messages that are not of text.
`reset` and `step` may be coroutine functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

Message = Mapping[str, str]  # {"role": "user" | "tool" | "system", "content": text}


class Step(NamedTuple):
    """The answer to what the model said.

    Attributes:
      messages: what the model reads next; read only if the episode goes on.
      reward: of this turn.
      done: whether the episode has ended.
      numbers: counts of this turn by name (calls, malformed, correct); logged as sums per episode.
      anew: whether `messages` stand for all that was before: the model reads them in place of its history. A new
        segment begins with them; an environment that does this says so with `rewrites = True`.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    numbers: Mapping[str, float] = {}
    anew: bool = False


@runtime_checkable
class TextEnv(Protocol):
    """One episode at a time. Optional methods:

    state_key() -> str: equal for equal states, called before each of the model's turns; for credit per state. "" is a
      key as any other.
    right_answer() -> str: what the model had to say, of this episode; for credit that asks how probable it is.
    copy() -> another environment in the same state, for episodes that branch; without it copy.deepcopy.
    rewrites: bool, whether a Step may begin the history anew; without it False, and such a Step is an error.
    cut() -> float: a last reward when a limit has ended the episode; without it 0.
    close() -> None: once, when the instance is no longer needed.
    """

    def reset(self, record: Mapping[str, Any], seed: int) -> Sequence[Message]:
        """Begins an episode; all randomness of the episode comes from `seed`. Returns the first messages."""

    def step(self, said: str) -> Step:
        """The answer to the model's message."""
