"""Who is there: heartbeats of the processes of one run, and what a process prints while it waits for another.

A process says a word that changes every BEAT_S seconds. Who waits looks when the word changed last, on its own clock:
the clocks of two machines differ. A beat says that a process lives; only the version in it tells of progress.
"""

import contextlib
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from experiments.parts.stops import STOPPED
from rl_jax.flow import Link
from rl_jax.training.checkpoint import StopSignal

BEAT_S = 5.0
END_S = 5.0  # that the end of a beat waits for what is being said
SILENT_S = 4 * BEAT_S  # without a beat, and a process counts as silent
TELL_S = 30.0  # of waiting, until the first line; the next ones come after 60, 120, ...
TRAINER = "trainer"  # who beats


class Ended(Exception):
    """The trainer has ended, or this process is to end while it waits for one."""


class Beat:
    """Says that this process is there, from a thread. Use it in a `with`, around all that the link is used for.

    Args:
      link: to the others.
      name: of this process: "trainer", "sampler_0".
    """

    def __init__(self, link: Link, name: str):
        self._link, self._name, self._over, self._version = link, name, threading.Event(), None
        self._thread = threading.Thread(target=self._say, name=f"beat of {name}", daemon=True)

    def __enter__(self) -> "Beat":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._over.set()
        self._thread.join(END_S)  # a call to a machine that is gone can last minutes; the thread dies with the process

    def reached(self, version: int) -> None:
        """The next beats say that this process is at this version: who waits for a later one sees its progress."""
        self._version = version

    def _say(self) -> None:
        start, count = secrets.token_hex(4), 0  # a process that comes back begins with another word
        while True:
            with contextlib.suppress(OSError, RuntimeError):  # a full disk, here or there, is met by the process itself
                self._link.say(word_of(self._name), [start, count, self._version])
            count += 1
            if self._over.wait(BEAT_S):
                return


def word_of(name: str) -> str:
    """The name of a process's beat, as a word of a link."""
    return f"beat_{name}"


def say_end(link: Link, error: type[BaseException] | None = None) -> None:
    """The trainer's last word, at which all others end.

    Args:
      link: the trainer's side.
      error: what ends it. After an Exception it says nothing: who starts it again expects the others to be there, and
        they wait for it as after a kill.
    """
    if error is None or not issubclass(error, Exception):
        link.say("end", secrets.token_hex(8))


class Watch:
    """When others were heard last.

    Args:
      link: to them.
      names: theirs.
      clock: seconds, always growing.

    Attributes:
      moved: on this clock, when one of them was first seen at another version than before, the last time.
    """

    def __init__(self, link: Link, names: Sequence[str], clock: Callable[[], float] = time.monotonic):
        self._link, self._clock = link, clock
        self._last = {name: (None, clock()) for name in names}
        self.moved = -math.inf

    def look(self) -> str:
        """Who is there, in words: "sampler_0 is there; sampler_1: silent for 40 s"."""
        now, found = self._clock(), []
        for name, (word, when) in self._last.items():
            said = self._link.hear(word_of(name))
            if said is not None and said != word:
                if word is not None and said[2:] != word[2:]:
                    self.moved = now
                self._last[name] = word, when = said, now
            if word is None:
                found.append(f"{name}: not heard yet")
            else:
                found.append(f"{name} is there" if now - when <= SILENT_S else f"{name}: silent for {now - when:.0f} s")
        return "; ".join(found)

    def all_silent(self) -> bool:
        """Whether none of them has said anything for SILENT_S."""
        self.look()
        return all(map(self._is_silent, self._last))

    def is_silent(self, name: str) -> bool:
        """Whether this one has not said anything for SILENT_S."""
        self.look()
        return self._is_silent(name)

    def _is_silent(self, name: str) -> bool:
        return self._clock() - self._last[name][1] > SILENT_S

    def give_up(self, stop: StopSignal | None) -> Callable[[], None]:
        """Of `wait`: ends this process, as one that was stopped, if it is to stop and all of them are gone.

        What it waits for would end its step, after which it would save: without it, the newest checkpoint counts.
        """

        def ended() -> None:
            if stop is not None and stop.received and self.all_silent():
                print(f"stopped while waiting for {', '.join(self._last)}, who are gone", file=sys.stderr, flush=True)
                raise SystemExit(STOPPED)

        return ended


def wait(
    look: Callable[[], Any],
    patience_s: float,
    what: str,
    ended: Callable[[], None] = lambda: None,
    *,
    watch: Watch,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """The first true result of `look`, which waits a little itself. Prints a line when that takes long.

    Args:
      look: asks once.
      patience_s: seconds without progress of those who may bring it, until it is an error. A trainer that came back at
        an earlier checkpoint makes its last steps again, however long that takes.
      what: that is waited for, for messages.
      ended: raises an exception if the other side has ended.
      watch: of those who may bring it.
      clock: seconds, always growing.

    Raises:
      TimeoutError: if nothing comes in time.
    """
    begun, looked, tell_s = clock(), -math.inf, TELL_S
    while not (result := look()):
        ended()
        waited = clock() - begun
        if waited - looked >= BEAT_S:  # often, so that it is known when a word changed last
            watch.look()
            looked = waited
        if clock() - max(begun, watch.moved) > patience_s:
            raise TimeoutError(
                f"waited for {what}, and nothing new has come for flow.timeout_s={patience_s} s ({watch.look()}): "
                "start who is silent again, then this process; if all are there and slow, set flow.timeout_s higher"
            )
        if waited > tell_s:
            print(f"waiting for {what} for {waited:.0f} s ({watch.look()})", file=sys.stderr, flush=True)
            tell_s *= 2
    return result


class Waiting:
    """How a process waits for its trainer: until what it looks for comes, or the trainer says that it has ended.

    Args:
      link: its side of the link.
      patience_s: seconds, until it is an error.
      stop: once it is received, what is waited for is given up (but see `together`).
      others: names of the processes that end a batch together with this one.
      clock: of the watch over them.
    """

    def __init__(
        self,
        link: Link,
        patience_s: float,
        stop: StopSignal | None = None,
        others: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        self._link, self._patience, self._stop = link, patience_s, stop
        self._others = Watch(link, others, clock)
        self._end, self._watch = self._last_end(), Watch(link, [TRAINER])

    def _last_end(self) -> str | None:
        """What was said when a trainer ended last; "" as long as none can be asked."""
        said = self._link.hear("end")
        return "" if self._link.lost_s() else said

    @property
    def stopping(self) -> bool:
        """Whether this process is to end."""
        return self._stop is not None and self._stop.received

    def check(self) -> None:
        """Raises Ended if the trainer has said so since this side began."""
        said = self._last_end()
        if self._end == "":  # no trainer was there when this side began: what is said first is of an earlier one
            self._end = said
        elif said not in (None, "", self._end):
            raise Ended

    def __call__(self, look: Callable[[], Any], what: str) -> Any:
        """The first true result of `look`; see `wait`.

        Raises:
          Ended: if the trainer has ended, or this process is to end.
        """

        def ended() -> None:
            self.check()
            if self.stopping:
                raise Ended

        return self._result(look, what, ended)

    def together(self, look: Callable[[], Any], what: str, other: str) -> Any:
        """The same for processes that end a batch together: a signal does not end this, unless the other one is gone.

        It may have had its signal before it began the batch, which then nobody ends.
        """

        def ended() -> None:
            self.check()
            if self.stopping and self._others.is_silent(other):
                raise Ended

        return self._result(look, what, ended)

    def _result(self, look: Callable[[], Any], what: str, ended: Callable[[], None]) -> Any:
        found = wait(look, self._patience, what, ended, watch=self._watch)
        if self._end == "":  # a trainer is there: what it says from now on is its end
            self._end = self._last_end()
        return found
