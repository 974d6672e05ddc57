"""Environments behind an OpenEnv server (PyPI openenv-core): what the model says becomes an action, by HTTP.

config.agent.env = dict(fn="rl_jax.envs.text.adapters.openenv:OpenEnv", url="http://localhost:8000")
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from rl_jax.envs.text.adapters.problems import number_of
from rl_jax.envs.text.protocol import Step


class OpenEnv:
    """One session of the server per instance. numbers: none but what the observation has in `numbers`.

    Args:
      url: of the server.
      action: the field of the action that what the model says goes into.
      observation: the field of the observation that the model reads; "": all of it as JSON.
      numbers: further fields of the observation to count.
      timeout_s: for one answer of the server, a limit of the connection's own beside agent.max_seconds.
    """

    def __init__(
        self,
        *,
        url: str,
        action: str = "message",
        observation: str = "",
        numbers: tuple[str, ...] = (),
        timeout_s: float = 60.0,
    ):
        from openenv.core.generic_client import GenericEnvClient

        self._open = lambda: GenericEnvClient(base_url=url, message_timeout_s=timeout_s).sync()
        self._client = None
        self._action, self._observation, self._numbers = action, observation, tuple(numbers)

    def _text(self, found: Any) -> str:
        seen = found.observation
        text = seen.get(self._observation, "") if self._observation else seen
        return text if isinstance(text, str) else json.dumps(text, default=str)

    async def reset(self, record: Mapping[str, Any], seed: int):
        """The first observation. The server draws from the seed, if it can."""
        if self._client is None:
            self._client = self._open()
            await asyncio.to_thread(self._client.connect)
        found = await asyncio.to_thread(self._client.reset, seed=number_of(record, seed))
        return [{"role": "user", "content": self._text(found)}]

    async def step(self, said: str) -> Step:
        """The next observation."""
        found = await asyncio.to_thread(self._client.step, {self._action: said})
        numbers = {name: float(found.observation.get(name) or 0.0) for name in self._numbers}
        messages = [{"role": "user", "content": self._text(found)}]
        return Step(messages, float(found.reward or 0.0), bool(found.done), numbers)

    def close(self) -> None:
        """Ends the session."""
        if self._client is not None:
            self._client.close()
            self._client = None
