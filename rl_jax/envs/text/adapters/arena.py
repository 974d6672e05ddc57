"""The games of TextArena (PyPI textarena), for one player, or for two with a partner (config.agent.partner).

config.agent.env = dict(fn="rl_jax.envs.text.adapters.arena:TextArena", game="GuessTheNumber-v0-raw")
"""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rl_jax.envs.text.adapters.problems import number_of
from rl_jax.envs.text.protocol import Step


class _Draws:
    """One episode's states of the generators of `random` and numpy.random, which games seed and draw from."""

    def __init__(self, seed: int):
        self._own = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The process draws from this episode's states; no `await` inside, or others would, too."""
        others = random.getstate(), np.random.get_state()
        self._set(self._own)
        try:
            yield
        finally:
            self._own = random.getstate(), np.random.get_state()
            self._set(others)

    @staticmethod
    def _set(states: tuple) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])


class TextArena:
    """One game an episode. numbers: correct (the game's reward is above 0), invalid (an invalid move ended it).

    Args:
      game: of textarena's registry; "-raw" has no wrappers of its own.
      players: 1 or 2. In games of two the model sits on seat number % 2, and a partner on the other one.
    """

    def __init__(self, *, game: str, players: int = 1):
        import textarena

        if players not in (1, 2):
            raise ValueError(f"players={players} must be 1 or 2")
        self._make = lambda: textarena.make(game)
        self._players, self.partner = players, None
        try:
            with _Draws(0).in_place():
                self._make()
        except ValueError as error:
            raise ValueError(f"game={game!r}: {error}") from error

    async def reset(self, record: Mapping[str, Any], seed: int):
        """The rules, and what happened before the model's first move."""
        if self._players == 2 and self.partner is None:
            raise ValueError("a game of two needs config.agent.partner")
        number = number_of(record, seed)
        self._seat, self._over, seed = number % self._players, False, number % 2**31
        self._draws = _Draws(seed)
        with self._draws.in_place():
            self._game = self._make()
            self._game.reset(num_players=self._players, seed=seed)
        told = await self._until_own()
        return [{"role": "user", "content": "The game is over." if self._over else told}]

    async def step(self, said: str) -> Step:
        """What the game says next, or the end with its reward."""
        if not self._over:  # a partner may have ended it before the first move
            self._move(said)
        told = "" if self._over else await self._until_own()
        if not self._over:
            return Step([{"role": "user", "content": told}], numbers={"correct": 0.0, "invalid": 0.0})
        with self._draws.in_place():
            rewards, info = self._game.close()
        reward = float((rewards or {}).get(self._seat, 0.0))
        invalid = float(bool((info or {}).get(self._seat, {}).get("invalid_move")))
        return Step(reward=reward, done=True, numbers={"correct": float(reward > 0), "invalid": invalid})

    def _move(self, said: str) -> None:
        with self._draws.in_place():
            self._over, _ = self._game.step(said)

    async def _until_own(self) -> str:
        """Lets the partner move until it is the model's turn, and returns what the model sees."""
        while not self._over:
            with self._draws.in_place():
                player, seen = self._game.get_observation()
            text = (
                "\n".join(text for sender, text, *_ in seen if sender != player) if not isinstance(seen, str) else seen
            )
            if player == self._seat:
                return text
            self._move(await self.partner(text))
        return ""
