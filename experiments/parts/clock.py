"""How long the stages of a step take."""

import time

import jax

from rl_jax.training import compilation


class Clock:
    """Seconds by stage of one step: lap("rollout_s", arrays) is the time since the previous lap."""

    def __init__(self):
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, arrays=()) -> None:
        """Ends a stage once `arrays`, its results, are ready. This also keeps simulated devices in step."""
        jax.block_until_ready(arrays)
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._last = now

    def totals(self, num_tokens: int) -> dict[str, float]:
        """The stages; step_s, their sum; tokens_per_s, num_tokens over that; compile_s of the process so far."""
        seconds = self._last - self._start
        compiled = {"compile_s": compilation.compile_seconds()}
        return self._laps | {"step_s": seconds, "tokens_per_s": float(num_tokens) / seconds} | compiled
