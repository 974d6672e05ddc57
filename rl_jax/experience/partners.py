"""The other side of an episode, which a model plays, too: a dialogue of its own that nobody trains on.

An environment with an attribute `partner` gets one before each reset: `said = await env.partner("K:")`. It sees only
what the environment tells it, so neither side reads the other's secrets.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from rl_jax.experience.episode import Ask, Draw, Limits

PARTNER = 2**19  # numbers of the draws of partners begin here


class Partner:
    """Speaks for the other side of one episode.

    Args:
      dialogues: rl_jax.tokenizers.dialogue.Dialogues.
      draw: Draw -> awaitable Drawn.
      ask: the episode.
      limits: of the episode.
      started: () -> whether the episode has its prompt. What is said before is the same in the whole group, since a
        group begins with one prompt: its random numbers are the group's.
    """

    def __init__(
        self,
        dialogues: Any,
        draw: Callable[[Draw], Awaitable],
        ask: Ask,
        limits: Limits,
        started: Callable[[], bool],
    ):
        self._dialogues, self._draw, self._ask, self._limits, self._started = dialogues, draw, ask, limits, started
        self._talk, self._last = None, None
        self._prompt, self._rest = np.zeros(0, np.int32), np.zeros(0, np.int32)

    async def __call__(self, told: str | Sequence) -> str:
        """What it says to `told`, a text or messages; "" if nothing more fits its context."""
        if self._talk is None:
            self._talk = self._dialogues.start(told)
            self._prompt = np.asarray(self._talk.ids, np.int32)
        else:
            messages = [{"role": "user", "content": told}] if isinstance(told, str) else list(told)
            self._talk, ids = self._talk.answer(self._last, messages)
            self._rest = np.concatenate([self._rest, np.asarray(ids, np.int32)])
        limit = min(self._limits.context - len(self._prompt), self._limits.row) - len(self._rest)
        limit = min(limit, self._limits.turn_tokens) if self._limits.turn_tokens else limit
        if limit < 1:
            return ""
        owner = self._ask.number if self._started() else self._ask.group
        place = 0 if self._started() else 1
        number = PARTNER + self._ask.number
        draw = Draw(number, place, self._prompt, self._rest, limit, True, seed=PARTNER + owner)
        drawn = await self._draw(draw)
        self._last = drawn.tokens
        self._rest = np.concatenate([self._rest, drawn.tokens])
        return self._talk.said(drawn.tokens)
