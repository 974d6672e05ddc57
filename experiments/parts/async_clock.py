"""Several samplers under one clock: at each decode call all know which groups have ended, and decide alike.

    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=trainer
    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=sampler --sampler=0      # and --sampler=1

Sampler i of N has the groups of place p with p mod N = i, in an engine of its own. After each decode call it says what
has changed in its groups, and waits for the others to have made theirs. So admission, batches and the decode call at
which new weights enter are the same functions of the same counters in every sampler: nobody asks anybody. In one
process the N engines take turns. A sampler that was killed makes its calls again and says the same.

A delay line needs no such clock (async_shares).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.parts.async_groups import GroupRows, Groups
from experiments.parts.async_shares import Share, names_of
from rl_jax.core.types import Params
from rl_jax.experience import admission
from rl_jax.flow import Link

PAUSE_S = 0.002  # between two looks at what the others have said
AGAIN = 500  # looks, after which a word is said again: a trainer that came back may have lost it
UNBEGUN = -1  # in place of the version of the oldest token, while there is none
KEPT = 2  # versions of which what was said is said again, for those who come back from their last state

Change = tuple[int, int, int, int, bool]  # version, call, number, version of the oldest token, whether it has ended


class Fleet:
    """What Groups is to one sampler, for several under one clock. Some of them may be in other processes.

    Args:
      members: the samplers of this process, by index.
      count: N.
      batch: B, groups per batch.
      exchange: (call, this process's changes) -> the others' changes of this call; None if there are no others.
    """

    def __init__(
        self,
        members: Mapping[int, Groups],
        count: int,
        batch: int,
        exchange: Callable[[int, Sequence[Change]], list[Change]] | None = None,
    ):
        self._members, self._count, self._batch, self._exchange = dict(members), count, batch, exchange
        self._call, self._seen, self._said = 0, {}, []

    @property
    def idle(self) -> bool:
        """Whether nobody has anything to sample."""
        return all(ended for _, ended in self._seen.values())

    @property
    def groups(self) -> list[GroupRows]:
        """See Groups; those that are sampled here."""
        return [group for member in self._members.values() for group in member.groups]

    def _owner(self, number: int) -> int:
        return number % self._batch % self._count

    def _parts(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        """The numbers of each member here."""
        return {i: [n for n in numbers if self._owner(n) == i] for i in self._members}

    def inside(self, version: int) -> list[admission.Group]:
        """See Groups; of all samplers."""
        return [
            admission.Group(number, version if oldest == UNBEGUN else oldest, ended)
            for number, (oldest, ended) in self._seen.items()
        ]

    def admit(self, number: int) -> None:
        """See Groups. The samplers let it in, and its own samples it."""
        self._seen[number] = (UNBEGUN, False)
        if (owner := self._owner(number)) in self._members:
            step, place = divmod(number, self._batch)
            self._members[owner].admit(step * (self._batch // self._count) + place // self._count)

    def step(self, params: Params, version: int) -> None:
        """One decode call of every sampler that has something to sample."""
        self._call += 1
        changes = []
        for member in self._members.values():
            if not member.idle:
                member.step(params, version)
            for group in member.inside(UNBEGUN):
                if self._seen[group.number] != (group.oldest, group.finished):
                    changes.append((version, self._call, *group))
        self._said = [change for change in self._said if change[0] > version - KEPT] + changes
        if self._exchange is not None:
            changes = changes + self._exchange(self._call, self._said)
        for _, _, number, oldest, ended in changes:
            self._seen[number] = (oldest, ended)

    def take(self, numbers: Sequence[int]) -> list[GroupRows]:
        """See Groups; returns those that were sampled here."""
        for number in numbers:
            del self._seen[number]
        found = {group.number: group for i, own in self._parts(numbers).items() for group in self._members[i].take(own)}
        return [found[number] for number in numbers if number in found]

    def drop(self, numbers: Sequence[int]) -> list[int]:
        """See Groups; the lengths of the rows that were sampled here."""
        for number in numbers:
            del self._seen[number]
        return [length for i, own in self._parts(numbers).items() for length in self._members[i].drop(own)]

    def hold(self) -> None:
        """See Groups."""
        for member in self._members.values():
            member.hold()

    def go_on(self) -> None:
        """See Groups."""
        for member in self._members.values():
            member.go_on()

    def get_state(self) -> dict[str, Any]:
        """A JSON value with the rows that are sampled here, and what is known of the others."""
        return {
            "members": {str(i): member.get_state() for i, member in self._members.items()},
            "seen": [[number, *known] for number, known in self._seen.items()],
            "said": self._said,
            "call": self._call,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state. Raises ValueError if it is of other samplers."""
        if state.get("members", {}).keys() != {str(i) for i in self._members}:
            raise ValueError("the rows in flight that were saved are of other samplers: keep flow.samplers and --role")
        for i, member in self._members.items():
            member.set_state(state["members"][str(i)])
        self._seen = {number: (oldest, ended) for number, oldest, ended in state["seen"]}
        self._said, self._call = [tuple(change) for change in state["said"]], state["call"]


def word_of(index: int) -> str:
    """What a sampler's changes are said under."""
    return f"clock_{index}"


def make_exchange(
    link: Link, share: Share, wait: Callable[[Callable[[], Any], str, str], Any]
) -> Callable[[int, Sequence[Change]], list[Change]]:
    """Makes exchange(call, changes so far of this sampler) -> the others' changes of this call.

    What a sampler says last has the changes of this version and the one before: others may have missed a word, or come
    back from a state. It is said until a trainer has it, and again while the others are waited for.

    Args:
      link: the sampler's side.
      share: this sampler.
      wait: (look, what, name of the sampler) -> the first true result of look.
    """
    others = [index for index in range(share.count) if index != share.index]

    def exchange(call: int, said: Sequence[Change]) -> list[Change]:
        found: list[Change] = []
        looks, is_said = 0, False

        def look(index: int) -> list | None:
            nonlocal looks, is_said
            if not is_said or looks % AGAIN == 0:
                is_said = link.say(word_of(share.index), [call, list(said)])
            looks += 1
            word = _heard(link, index, call)  # pauses if there is none
            return word if is_said else None

        for index in others:
            what = f"decode call {call} of sampler {index}"
            word = wait(lambda index=index: look(index), what, names_of(share.count)[index])
            found += [tuple(change) for change in word if change[1] == call]
        return found

    return exchange


def _heard(link: Link, index: int, call: int) -> list | None:
    """The changes of a sampler that has made this call; None if it has not."""
    word = link.hear(word_of(index))
    if word is None or word[0] < call:
        time.sleep(PAUSE_S)
        return None
    return word[1] or [[0, UNBEGUN, 0, 0, False]]  # true, and of no call
