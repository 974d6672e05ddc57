"""The environments of one actor worker, with automatic reset, and how they are found again after a loss. No jax."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Message(NamedTuple):
    """What goes between the hub and a worker.

    Attributes:
      kind: what to do, or what was done.
      meta: JSON values.
      arrays: numpy arrays.
    """

    kind: str
    meta: dict[str, Any] = {}
    arrays: Sequence[np.ndarray] = ()


class Episode(NamedTuple):
    """An environment's state as its past.

    Attributes:
      number: of the episode, from 0; with the environment's number and the run's seed it gives the episode's seed.
      actions: what was done since its start.
    """

    number: int
    actions: list


def episode_seed(seed: int, env: int, number: int) -> int:
    """The seed of episode `number` of environment `env` in a run with this seed, from 0 to 2^31 - 1."""
    return int(np.random.SeedSequence([seed, env, number]).generate_state(1)[0] & 0x7FFFFFFF)


class Stage:
    """The environments of one worker.

    Args:
      make_env: () -> envs.host_worlds.HostEnv.
      seed: of the run.
    """

    def __init__(self, make_env: Callable[[], Any], seed: int):
        self._make, self._seed = make_env, seed
        self._envs, self._numbers, self._now = {}, {}, {}

    def handle(self, message: Message) -> Message:
        """Does what a message asks: "restore" or "step".

        "restore" has meta {"envs": [[env, episode, steps], ...]} and the actions of all of them, one after the other;
        the answer has the observations. "step" has meta {"envs": [env, ...]} and actions [k, ...]; the answer has what
        `step` returns.
        """
        if message.kind == "restore":
            actions = iter(np.array(message.arrays[0]))  # a copy, as in `step`
            for env, number, steps in message.meta["envs"]:
                self.restore(env, Episode(number, [next(actions) for _ in range(steps)]))
            return Message("restored", {}, [self.observations([env for env, _, _ in message.meta["envs"]])])
        if message.kind == "step":
            return Message("stepped", {}, self.step(message.meta["envs"], message.arrays[0]))
        raise ValueError(f"an actor was sent {message.kind!r}: it knows restore and step")

    def restore(self, env: int, episode: Episode) -> None:
        """Puts environment `env` where it was after these actions of this episode."""
        if env not in self._envs:
            self._envs[env] = self._make()
        self._begin(env, episode.number)
        for action in episode.actions:
            self._now[env], _, terminated, truncated = self._envs[env].step(action)
            if terminated or truncated:
                raise RuntimeError(
                    f"environment {env} ended episode {episode.number} earlier than it did before: it is not a "
                    "function of its seed and its actions, so a run in it cannot be resumed exactly"
                )

    def observations(self, envs: Sequence[int]) -> np.ndarray:
        """What these environments show now: float32 [k, *shape]."""
        return np.stack([np.asarray(self._now[env], np.float32) for env in envs])

    def step(self, envs: Sequence[int], actions: np.ndarray) -> list[np.ndarray]:
        """One step of each of these environments; one that ends starts its next episode.

        Args:
          envs: their numbers, k of them.
          actions: [k, ...].

        Returns:
          [observation to act on next float32 [k, *shape], the step's own observation, reward float32 [k], terminated
          bool [k], truncated bool [k]].
        """
        last, rewards, ends = [], [], []
        # A copy of the actions: they may be read-only, and an environment may write into them.
        for env, action in zip(envs, np.array(actions), strict=True):
            self._now[env], reward, terminated, truncated = self._envs[env].step(action)
            last.append(np.array(self._now[env], np.float32))  # a copy: the next reset may write into it
            rewards.append(reward)
            ends.append((terminated, truncated))
            if terminated or truncated:
                self._begin(env, self._numbers[env] + 1)
        ends = np.asarray(ends, bool)
        return [self.observations(envs), np.stack(last), np.asarray(rewards, np.float32), ends[:, 0], ends[:, 1]]

    def _begin(self, env: int, number: int) -> None:
        self._numbers[env] = number
        self._now[env] = self._envs[env].reset(episode_seed(self._seed, env, number))


class Ledger:
    """Every environment's state as its past, kept by the hub: what a checkpoint holds, and a worker that comes back.

    Args:
      num_envs: E.
    """

    def __init__(self, num_envs: int):
        self.episodes = [Episode(0, []) for _ in range(num_envs)]

    def add(self, envs: Sequence[int], actions: np.ndarray, ended: np.ndarray) -> None:
        """Notes one step: actions [k, ...] as the environments took them, ended bool [k]."""
        for env, action, over in zip(envs, actions, ended, strict=True):
            if over:
                self.episodes[env] = Episode(self.episodes[env].number + 1, [])
            else:
                self.episodes[env].actions.append(action)

    def restore_message(self, envs: Sequence[int], empty: np.ndarray) -> Message:
        """The message that puts these environments where they are. empty: no actions, [0, ...]."""
        found = [self.episodes[env] for env in envs]
        actions = [np.asarray(action, empty.dtype) for episode in found for action in episode.actions]
        meta = {"envs": [[env, each.number, len(each.actions)] for env, each in zip(envs, found, strict=True)]}
        return Message("restore", meta, [np.stack(actions) if actions else empty])

    def get_state(self) -> list:
        """JSON values."""
        return [[each.number, [np.asarray(action).tolist() for action in each.actions]] for each in self.episodes]

    def set_state(self, state: list, dtype: np.dtype) -> None:
        """Takes what `get_state` gave. dtype: of the actions."""
        self.episodes = [Episode(number, [np.asarray(x, dtype) for x in actions]) for number, actions in state]
