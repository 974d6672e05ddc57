"""Where the policy runs: `Remote` answers the requests of all actors in one forward, `Inline` lets each act by itself.

What is random in a step is a function of (the run's key, the step t, the block), so that it depends neither on who acts
nor on how many. Remote's forward is always of a whole group of the ring; Inline's is of a single block.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.rollout.actors.fleet import Fleet
from rl_jax.rollout.actors.stage import Message, Stage
from rl_jax.rollout.envs.steps import Transitions


class Piece(NamedTuple):
    """Consecutive steps that one version of the weights acts in.

    Attributes:
      first: the first step t.
      last: the step after the last.
      version: of the weights.
      params: float32 [P].
    """

    first: int
    last: int
    version: int
    params: np.ndarray


def make_act(agent, unravel: Callable, key: jax.Array, *, block: int) -> Callable:
    """The compiled forward of an actor.

    Args:
      agent: models.agents.actor_critic.Agent.
      unravel: float32 [P] -> the agent's params.
      key: typed PRNG key of the run.
      block: n, environments of a block.

    Returns:
      act(params [P], t, blocks [K], observations [K n, *shape]) -> (outputs [K n, ...], actions [K n, ...], the
      environments' own actions [K n, ...]).
    """
    distribution = agent.distribution

    @jax.jit
    def act(params, t, blocks, observations):
        outputs = agent.policy(unravel(params), observations)
        own = jax.random.fold_in(key, t)
        noise = jax.vmap(lambda b: distribution.noise(jax.random.fold_in(own, b), (block,)))(blocks)
        actions = distribution.sample(outputs, noise.reshape(-1, *noise.shape[2:]))
        return outputs, actions, distribution.to_env(actions)

    return act


def as_rows(steps: Sequence[Sequence[np.ndarray]]) -> Transitions:
    """T steps of k environments, each (observations [k, ...], next observations, outputs, actions, rewards, terminated,
    truncated), as Transitions [k, T]."""
    return Transitions(*(np.stack(leaf, axis=1) for leaf in zip(*steps, strict=True)))


class Remote:
    """The policy worker: collects a group's requests, acts for all of them, goes on to the next group of the ring.

    Args:
      fleet: the actors.
      act: of `make_act`.
    """

    by_steps = True  # weights may change at every step without a cost

    def __init__(self, fleet: Fleet, act: Callable):
        self._fleet, self._act = fleet, act
        layout = fleet.layout
        self._workers, self._ring = range(layout.workers), range(len(layout.groups))  # groups by place in the share
        self._blocks = [np.asarray(layout.blocks(group), np.int32) for group in layout.groups]
        self._envs = [[fleet.envs_of(w, [group]) for w in self._workers] for group in layout.groups]
        # Rows of a group as the workers give them -> by their numbers.
        self._order = [np.argsort(np.concatenate(envs), kind="stable") for envs in self._envs]
        self._now = [None] * len(layout.groups)

    def begin(self) -> None:
        """Starts the actors where the ledger says."""
        shown = self._fleet.begin()
        for group in self._ring:
            parts = []
            for worker, observations in zip(self._workers, shown, strict=True):
                position = {env: i for i, env in enumerate(self._fleet.envs_of(worker))}
                parts.append(observations[[position[env] for env in self._envs[group][worker]]])
            self._now[group] = np.concatenate(parts)[self._order[group]]

    def segment(self, pieces: Iterator[Piece]) -> Transitions:
        """The steps of these pieces, of all environments: Transitions [E, T]."""
        ring = self._ring
        kept, asked = [[] for _ in ring], [None for _ in ring]
        for piece in pieces:
            params = jnp.asarray(piece.params)
            for t in range(piece.first, piece.last):
                for group in ring:
                    self._settle(group, asked, kept)
                    asked[group] = self._request(group, params, t)
        for group in ring:
            self._settle(group, asked, kept)
        groups = [as_rows(steps) for steps in kept]
        return Transitions(*(np.concatenate(leaves) for leaves in zip(*groups, strict=True)))

    def _request(self, group: int, params: jax.Array, t: int):
        """Acts for a group and sends its actions. Returns what is known of the step."""
        shown = self._now[group]
        outputs, actions, own = (np.asarray(x) for x in self._act(params, t, self._blocks[group], shown))
        by_worker, start = own[_ranks(self._envs[group])], 0
        for worker, envs in zip(self._workers, self._envs[group], strict=True):
            self._fleet.ask(worker, Message("step", {"envs": envs}, [by_worker[start : start + len(envs)]]))
            start += len(envs)
        return shown, outputs, actions, own

    def _settle(self, group: int, asked: list, kept: list) -> None:
        """Waits for a group's step, and notes it."""
        if asked[group] is None:
            return
        shown, outputs, actions, own = asked[group]
        by_worker, start, parts = own[_ranks(self._envs[group])], 0, []
        for worker, envs in zip(self._workers, self._envs[group], strict=True):
            arrays = self._fleet.answer(worker).arrays
            self._fleet.ledger.add(envs, by_worker[start : start + len(envs)], arrays[3] | arrays[4])
            start += len(envs)
            parts.append(arrays)
        now, last, rewards, terminated, truncated = (
            np.concatenate(leaf)[self._order[group]] for leaf in zip(*parts, strict=True)
        )
        kept[group].append((shown, last, outputs, actions, rewards, terminated, truncated))
        self._now[group], asked[group] = now, None


def _ranks(envs: Sequence[Sequence[int]]) -> np.ndarray:
    """For each environment, as the workers list them, its row in the group."""
    flat = np.concatenate(envs)
    return flat - flat.min()


class Inline:
    """Each actor has the policy, and steps all its environments by itself: one message for many steps.

    Args:
      fleet: the actors; their stages are `Acting`.
    """

    by_steps = False  # every change of weights is a message

    def __init__(self, fleet: Fleet):
        self._fleet = fleet
        self._order = np.argsort(np.concatenate([fleet.envs_of(w) for w in range(fleet.layout.workers)]))

    def begin(self) -> None:
        """Starts the actors where the ledger says."""
        self._fleet.begin()

    def segment(self, pieces: Iterator[Piece]) -> Transitions:
        """The steps of these pieces, of all environments: Transitions [E, T]."""
        fleet, done = self._fleet, []
        workers = range(fleet.layout.workers)
        for piece in pieces:
            for worker in workers:
                meta = {"first": piece.first, "last": piece.last}
                fleet.ask(worker, Message("act", meta, [np.asarray(piece.params)]))
            parts = []
            for worker in workers:
                *rows, own = fleet.answer(worker).arrays
                rows = Transitions(*rows)
                for t in range(piece.last - piece.first):
                    fleet.ledger.add(fleet.envs_of(worker), own[:, t], rows.terminated[:, t] | rows.truncated[:, t])
                parts.append(rows)
            done.append(Transitions(*(np.concatenate(leaf)[self._order] for leaf in zip(*parts, strict=True))))
        return Transitions(*(np.concatenate(leaves, axis=1) for leaves in zip(*done, strict=True)))


class Acting(Stage):
    """A stage that has the policy, for Inline.

    Args:
      make_env: as Stage's.
      seed: as Stage's.
      act: of `make_act`.
      block: n. Which blocks it has, "restore" says: all environments of each.
    """

    def __init__(self, make_env: Callable, seed: int, act: Callable, block: int):
        super().__init__(make_env, seed)
        self._act, self._block, self._blocks = act, block, {}

    def handle(self, message: Message) -> Message:
        """Also "act": steps first to last with these params, of all its environments. The answer has Transitions'
        arrays [k, T] and the environments' own actions [k, T, ...]."""
        if message.kind == "restore":
            self._blocks = {}
            for env, *_ in message.meta["envs"]:
                self._blocks.setdefault(env // self._block, []).append(env)
        if message.kind != "act":
            return super().handle(message)
        params, done = jnp.asarray(message.arrays[0]), []
        for block, envs in self._blocks.items():
            number, steps, taken = np.asarray([block], np.int32), [], []
            for t in range(message.meta["first"], message.meta["last"]):
                shown = self.observations(envs)
                outputs, actions, own = (np.asarray(x) for x in self._act(params, t, number, shown))
                _, last, rewards, terminated, truncated = self.step(envs, own)
                steps.append((shown, last, outputs, actions, rewards, terminated, truncated))
                taken.append(own)
            done.append([*as_rows(steps), np.stack(taken, axis=1)])
        return Message("acted", {}, [np.concatenate(leaf) for leaf in zip(*done, strict=True)])
