"""Tasksets of verifiers (PyPI verifiers, its v1): a task's prompt, one answer, and the task's own reward methods.

    config.agent.env = dict(fn="rl_jax.envs.text.adapters.verifiers:Verifiers", taskset="my_tasks:make")

Harnesses, runtimes and tool servers of verifiers are left out: they speak to a model by HTTP. What needs a runtime is
not scored, as in its own offline scoring.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from rl_jax.core.binding import resolve
from rl_jax.envs.text.adapters.problems import number_of
from rl_jax.envs.text.protocol import Step


class Verifiers:
    """One task an episode. numbers: correct (a reward of 1 or more), and the task's metrics.

    Args:
      taskset: "module:function" that makes a verifiers.v1.Taskset.
      most: how many tasks are read, of an infinite taskset too; problem n is task n % most.
    """

    def __init__(self, *, taskset: str, most: int = 10_000):
        import verifiers.v1 as vf

        self._vf = vf
        self._tasks = list(itertools.islice(iter(resolve(taskset)()), most))
        if not self._tasks:
            raise ValueError(f"taskset={taskset!r} has no task")

    def reset(self, record: Mapping[str, Any], seed: int):
        """The task's prompt."""
        self._task = self._tasks[number_of(record, seed) % len(self._tasks)]
        data = self._task.data
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        return [*system, {"role": "user", "content": data.prompt_text}]

    async def step(self, said: str) -> Step:
        """The end, with the sum of the task's weighted rewards."""
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.trace import AgentInfo, TraceTask
        from verifiers.v1.types import AssistantMessage, UserMessage

        data = self._task.data
        asked = MessageNode(parent=None, message=UserMessage(content=data.prompt_text), sampled=False)
        answered = MessageNode(parent=0, message=AssistantMessage(content=said), sampled=True)
        trace = self._vf.Trace(
            task=TraceTask(type=type(self._task).__name__, data=data),
            agent=AgentInfo(config=self._vf.AgentConfig()),
            nodes=[asked, answered],
            is_completed=True,
        )
        await self._task.score(trace)
        reward = sum(found.value for found in trace.rewards.values() if found is not None)
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return Step(reward=float(reward), done=True, numbers={"correct": float(reward >= 1), **metrics})
