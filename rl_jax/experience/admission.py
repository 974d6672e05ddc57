"""Bounded staleness in two numbers, as pure functions of counters: who may begin, which groups make the next batch.

    eta   how far generation may run ahead: at version v at most (eta + v + 1) B groups were ever let in
    age   the oldest version that a trained row may hold: v - (version of its oldest token) <= age

v counts the policy's updates, B is the groups per batch. AReaL (arXiv 2505.24298, section 5.1) bounds the first only: a
slow group is overtaken and can be of any age when it is trained on. No clock and no state: a run that goes on from a
snapshot of these numbers has the same bounds.

    order    the next batch                                                     bound
    ready    the B oldest finished groups; waits while an age is at stake       age
    oldest   the B oldest groups; waits until these have finished               eta
    drop     the B oldest finished groups; older ones than eta are thrown away  eta, and data biased to short answers
"""

from collections.abc import Sequence
from typing import NamedTuple

ORDERS = ("ready", "oldest", "drop")


class Rule(NamedTuple):
    """What a run may do.

    Attributes:
      batch: B, groups per batch.
      eta: versions that generation may run ahead; 0 is synchronous.
      age: the oldest a trained row may be, in versions; at least eta. Only `ready` reads it.
      order: one of ORDERS.
      max_running: the most groups that are sampled at once; 0 is no limit of its own.
    """

    batch: int
    eta: int = 2
    age: int = 8
    order: str = "ready"
    max_running: int = 0

    def check(self) -> "Rule":
        """The rule itself. Raises ValueError if it bounds nothing, naming the field."""
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r} is none of {', '.join(ORDERS)}")
        least = {"batch": 1, "eta": 0, "max_running": 0, "age": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name}={getattr(self, name)} must be {value} or more")
        if self.order == "ready" and self.age < self.eta:
            raise ValueError(
                f"age={self.age} must be at least eta={self.eta}: generation that runs {self.eta} versions ahead makes "
                "rows of that age"
            )
        return self

    @property
    def bound(self) -> int:
        """The oldest that a trained row can be, in versions; 0 if sampling waits for every update."""
        return self.age if self.order == "ready" and self.eta else self.eta


class Counters(NamedTuple):
    """What was counted so far.

    Attributes:
      version: v, updates of the policy.
      admitted: groups that were let in; the next one has this number.
      taken: groups that batches have taken.
      dropped: groups that were thrown away.
    """

    version: int = 0
    admitted: int = 0
    taken: int = 0
    dropped: int = 0


class Group(NamedTuple):
    """A group that was let in, and neither taken nor dropped.

    Attributes:
      number: the order in which groups were let in.
      oldest: version of its oldest token; that of the policy if it has none yet.
      finished: whether all of its rows have ended.
    """

    number: int
    oldest: int
    finished: bool


def room(rule: Rule, counters: Counters, groups: Sequence[Group]) -> int:
    """How many groups may be let in now.

    (eta + v + 1) B - admitted + dropped, and no more at once than max_running.

    Args:
      rule: of the run.
      counters: so far.
      groups: those inside.
    """
    ahead = (rule.eta + counters.version + 1) * rule.batch - (counters.admitted - counters.dropped)
    if rule.max_running:
        ahead = min(ahead, rule.max_running - sum(not group.finished for group in groups))
    return max(ahead, 0)


def too_old(rule: Rule, version: int, groups: Sequence[Group]) -> list[int]:
    """Numbers of the groups that `drop` throws away: v - oldest > eta. None in the other orders."""
    if rule.order != "drop":
        return []
    return sorted(group.number for group in groups if version - group.oldest > rule.eta)


def next_batch(rule: Rule, counters: Counters, groups: Sequence[Group]) -> list[int] | None:
    """Numbers of the B groups of the next batch, ascending; None if the trainer has to wait.

    `ready` waits even if B groups have finished, if without it one of those left behind could not be trained in time.
    Batch v + j has room for B, so of the groups left at most j B may be due by then:

        #{g left: oldest_g + age <= v + j} <= j B     for j = 0, ..., eta - 1

    (for larger j it always holds: at most eta B are left). To wait for the groups that are due now, j = 0, is not
    enough: more than B may fall due at once.

    Args:
      rule: of the run.
      counters: so far.
      groups: those inside.
    """
    return _rest(rule, counters, groups, rule.batch)


def next_group(rule: Rule, counters: Counters, groups: Sequence[Group], left: int) -> int | None:
    """Number of a group that the next batch is sure to have, whatever else finishes; None if the trainer has to wait.

    For a trainer that takes a batch group by group: called until a batch is there, at one version, it takes the groups
    of `next_batch`, and the last one when `next_batch` would take them all. With `oldest` they come in their own order;
    else a group is sure if, of all those inside that come before it, finished or not, fewer than `left` do.

    Args:
      rule: of the run.
      counters: so far.
      groups: those inside, without those of this batch that were taken before.
      left: how many groups the batch lacks.
    """
    if rule.order == "oldest":
        first = min(groups, default=None)
        return first.number if first is not None and first.finished else None
    in_order = sorted(groups, key=_by_age)
    if (rest := _rest(rule, counters, groups, left)) is None:
        rest = [group.number for group in in_order[:left]]
    return next((group.number for group in in_order if group.finished and group.number in rest), None)


def _by_age(group: Group) -> tuple[int, int]:
    return group.oldest, group.number


def _rest(rule: Rule, counters: Counters, groups: Sequence[Group], size: int) -> list[int] | None:
    """The last `size` groups of the next batch; see `next_batch`."""
    if rule.order == "oldest":
        first = sorted(groups)[:size]
        return [group.number for group in first] if len(first) == size and all(g.finished for g in first) else None
    ready = sorted((group for group in groups if group.finished), key=_by_age)[:size]
    if len(ready) < size:
        return None
    chosen = {group.number for group in ready}
    if rule.order == "ready":
        slack = [group.oldest + rule.age - counters.version for group in groups if group.number not in chosen]
        if any(sum(left <= j for left in slack) > j * rule.batch for j in range(rule.eta)):
            return None
    return sorted(chosen)
