"""All actor workers of a run, seen as E environments in a ring of groups; one that dies is started again."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.rollout.actors.stage import Ledger, Message
from rl_jax.rollout.actors.workers import ActorError, LostError


class Layout(NamedTuple):
    """Which worker steps which environment. No result depends on `workers`, nor on `share`.

    Environments are numbered; a block is `block` of them in a row, always stepped by one worker. The blocks are cut
    into `ring` groups: while one group is stepped, the policy acts for another.

    Attributes:
      num_envs: E.
      block: n.
      ring: R.
      workers: A, of each share.
      share: (i, N): of N policy workers this is i, which has the groups g with g mod N = i.
    """

    num_envs: int
    block: int
    ring: int
    workers: int
    share: tuple[int, int] = (0, 1)

    def check(self) -> "Layout":
        """Itself. Raises ValueError if the environments do not divide into blocks, groups and workers."""
        sizes = f"sample.num_envs={self.num_envs}"
        if self.num_envs % (self.block * self.ring):
            raise ValueError(
                f"{sizes} must be a multiple of actors.block={self.block} x actors.ring={self.ring}: every group of "
                "the ring has as many blocks"
            )
        if self.workers > self.per_group:
            raise ValueError(
                f"actors.count={self.workers} must be at most {self.per_group}, the blocks of a group ({sizes}, "
                f"actors.block={self.block}, actors.ring={self.ring}): a worker without environments does nothing"
            )
        if self.share[1] > self.ring:
            raise ValueError(
                f"actors.policies={self.share[1]} must be at most actors.ring={self.ring}: a policy worker acts for "
                "whole groups of the ring"
            )
        return self

    @property
    def groups(self) -> range:
        """The groups of this share."""
        return range(self.share[0], self.ring, self.share[1])

    @property
    def own(self) -> list[int]:
        """The environments of this share, in the order of a segment's rows."""
        return self.envs([block for group in self.groups for block in self.blocks(group)])

    @property
    def per_group(self) -> int:
        """Blocks of a group, K."""
        return self.num_envs // (self.block * self.ring)

    def blocks(self, group: int) -> range:
        """The blocks of a group."""
        return range(group * self.per_group, (group + 1) * self.per_group)

    def blocks_of(self, worker: int, groups: Sequence[int]) -> list[int]:
        """The blocks of these groups that a worker has."""
        blocks = [block for group in groups for block in self.blocks(group)]
        return [block for block in blocks if (block % self.per_group) % self.workers == worker]

    def envs(self, blocks: Sequence[int]) -> list[int]:
        """The environments of these blocks."""
        return [block * self.block + i for block in blocks for i in range(self.block)]


class Fleet:
    """The workers, and every environment's past.

    Args:
      start: worker -> a started worker (workers.ThreadWorker, workers.ProcessWorker).
      layout: who has what.
      empty: no actions, [0, ...], of the environments' own dtype.
      timeout_s: longest silence of a worker.
      restarts: how often a worker may die before it answers once.
    """

    def __init__(
        self, start: Callable, layout: Layout, empty: np.ndarray, *, timeout_s: float = 60.0, restarts: int = 3
    ):
        self.layout, self.ledger, self.restarted = layout.check(), Ledger(layout.num_envs), 0
        self.empty = empty
        self._start, self._timeout_s, self._restarts = start, timeout_s, restarts
        self._asked = [deque() for _ in range(layout.workers)]  # without an answer, oldest first
        self._deaths = [0] * layout.workers
        self._workers = [None] * layout.workers

    def begin(self) -> list[np.ndarray]:
        """Starts every worker where the ledger says. Returns each worker's observations, its groups one by one."""
        for worker in range(self.layout.workers):
            self._workers[worker] = self._start(worker)
            self.ask(worker, self._restore(worker))
        return [self.answer(worker).arrays[0] for worker in range(self.layout.workers)]

    def envs_of(self, worker: int, groups: Sequence[int] | None = None) -> list[int]:
        """The environments of a worker: of these groups, or all of the share."""
        return self.layout.envs(self.layout.blocks_of(worker, self.layout.groups if groups is None else groups))

    def ask(self, worker: int, message: Message) -> None:
        """Sends a message. Each is answered once, in order."""
        self._asked[worker].append(message)
        try:
            self._workers[worker].send(message)
        except LostError as error:
            self._again(worker, error)

    def answer(self, worker: int) -> Message:
        """The answer to the oldest message of a worker. If it has died, another one takes its place and answers.

        Raises:
          ActorError: if an environment has raised, or the workers die again and again.
        """
        while True:
            try:
                result = self._workers[worker].receive(self._timeout_s)
            except LostError as error:
                self._again(worker, error)
                continue
            if result.kind == "error":
                raise ActorError(f"actor {worker}, environments {self.envs_of(worker)}: {result.meta['text']}")
            self._deaths[worker] = 0
            self._asked[worker].popleft()
            return result

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.close()

    def _restore(self, worker: int) -> Message:
        return self.ledger.restore_message(self.envs_of(worker), self.empty)

    def _again(self, worker: int, error: LostError) -> None:
        """Starts a worker again where the ledger says, and asks again what it has not answered."""
        while True:
            self._workers[worker].close()
            self._deaths[worker] += 1
            self.restarted += 1
            if self._deaths[worker] > self._restarts:
                raise ActorError(
                    f"actor {worker} was lost {self._deaths[worker]} times in a row "
                    f"(actors.restarts={self._restarts}): {error}"
                ) from error
            try:
                self._workers[worker] = fresh = self._start(worker)
                fresh.send(self._restore(worker))
                restored = fresh.receive(self._timeout_s)
                if restored.kind == "error":
                    raise ActorError(f"actor {worker}, started again: {restored.meta['text']}")
                for message in self._asked[worker]:
                    fresh.send(message)
                return
            except LostError as again:
                error = again
