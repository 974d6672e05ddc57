"""Tasksets of verifiers (PyPI verifiers, its v1): a task's prompt, one answer, and the task's own reward methods.

    config.task = dict(name="rl_jax.envs.text.adapters.problems:load", num_train=10_000, num_test=200)
    config.agent.env = dict(fn="rl_jax.envs.text.adapters.verifiers:Verifiers", taskset="my_tasks:make")

Harnesses, runtimes and tool servers of verifiers are left out: they speak to a model by HTTP. What needs a runtime is
not scored, as in its own offline scoring.
"""

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.core.binding import resolve
from rl_jax.envs.text.adapters.problems import FIRST_TEST, number_of
from rl_jax.envs.text.protocol import Step
from rl_jax.tasks.record_files import held_out


@functools.cache  # there are as many environments as a step has episodes
def split(taskset: str, most: int, test_share: float) -> tuple[list, list]:
    """(train, test): the tasks whose prompts have the smallest hashes are held out, at least one, and never all."""
    tasks = list(itertools.islice(iter(resolve(taskset)()), most))
    keys = []
    for place, task in enumerate(tasks):
        try:
            keys.append(json.dumps([_message(said) for said in _chat(task.data)]))
        except ValueError as error:
            raise ValueError(f"taskset={taskset!r}, task {place}: {error}") from error
    chosen = held_out(keys, test_share)
    if not chosen:
        raise ValueError(
            f"taskset={taskset!r}: {len(set(keys))} distinct prompts among {len(tasks)} tasks, of at least 2: the "
            "evaluation needs one that is not trained"
        )
    placed = list(zip(tasks, keys, strict=True))
    return [task for task, key in placed if key not in chosen], [task for task, key in placed if key in chosen]


def _chat(data: Any) -> list:
    """What a task asks, as verifiers' messages."""
    from verifiers.v1.types import SystemMessage, UserMessage

    system = [SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    is_chat = isinstance(data.prompt, Sequence) and not isinstance(data.prompt, str)
    return [*system, *(data.prompt if is_chat else [UserMessage(content=data.prompt or "")])]


def _message(said: Any) -> dict[str, str]:
    """A message of verifiers as the model reads it.

    Raises:
      ValueError: if it has more than text.
    """
    parts = said.content if isinstance(said.content, list) else []
    if getattr(said, "tool_calls", None) or any(part.type != "text" for part in parts):
        raise ValueError(f"the {said.role}'s message has images or calls of tools; what a model reads here is of texts")
    content = "\n".join(part.text for part in parts) if parts else said.content
    return {"role": said.role, "content": content or ""}


class Verifiers:
    """One task an episode. numbers: correct (a reward of 1 or more), and the task's other metrics.

    Args:
      taskset: "module:function" that makes a verifiers.v1.Taskset.
      most: how many tasks are read, of an infinite taskset too.
      test_share: of the distinct prompts, held out for the numbers of the test split; at least one prompt. A hash of
        the prompt decides, whatever the order. Problem n is task n % (number of tasks of its split).
    """

    def __init__(self, *, taskset: str, most: int = 10_000, test_share: float = 0.1):
        import verifiers.v1  # noqa: F401 - an error here, not in an episode

        if not 0 < test_share < 1:
            raise ValueError(f"test_share={test_share} must be between 0 and 1")
        self._source = taskset, most, test_share  # not the tasks: an episode that branches copies its environment
        split(*self._source)

    def reset(self, record: Mapping[str, Any], seed: int):
        """The task's prompt."""
        number = number_of(record, -1)
        if number < 0:  # a seed would not tell whether this is an evaluation
            raise ValueError(
                "the record's info has no number: set config.task.name to rl_jax.envs.text.adapters.problems:load"
            )
        train, test = split(*self._source)
        tasks, number = (test, number - FIRST_TEST) if number >= FIRST_TEST else (train, number)
        self._task = tasks[number % len(tasks)]
        return [_message(said) for said in _chat(self._task.data)]

    async def step(self, said: str) -> Step:
        """The end, with the sum of the task's weighted rewards."""
        import verifiers.v1 as vf
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.trace import AgentInfo, TraceTask
        from verifiers.v1.types import AssistantMessage

        data = self._task.data
        messages = [*_chat(data), AssistantMessage(content=said)]
        last = len(messages) - 1
        nodes = [
            MessageNode(parent=place - 1 if place else None, message=message, sampled=place == last)
            for place, message in enumerate(messages)
        ]
        trace = vf.Trace(
            task=TraceTask(type=type(self._task).__name__, data=data),
            agent=AgentInfo(config=vf.AgentConfig()),
            nodes=nodes,
            is_completed=True,
        )
        await self._task.score(trace)
        reward = sum(found.value for found in trace.rewards.values() if found is not None)
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return Step(reward=float(reward), done=True, numbers={**metrics, "correct": float(reward >= 1)})
