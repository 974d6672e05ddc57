"""What environments answer: awaited, encoded and checked, so that one that fails ends its own episode alone. No jax.

    step = await answer(env.step, said, seconds=60)     # raises EnvironmentFailed from whatever env.step raises
    check_step(env, step)                               # and from a TypeError that names the class and the field

A wrong answer is a failure as an exception is, since what the model says may bring it about: a result that is no text,
a character that the tokenizer has not. It must not end the run. If all episodes of a step fail, the first error does.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STEP = ("messages", "reward", "done", "numbers", "anew")  # fields of rl_jax.envs.text.protocol.Step


class EnvironmentFailed(RuntimeError):
    """An environment raised, or its answer cannot be used; `__cause__` is what."""


async def answer(method: Callable, *arguments, seconds: float = 0.0) -> Any:
    """What an environment's method returns, awaited if it is a coroutine; for at most `seconds`, if that is not 0.

    Raises:
      EnvironmentFailed: from whatever it raised.
    """
    try:
        result = method(*arguments)
        if not inspect.isawaitable(result):
            return result
        if not seconds:
            return await result
        task = asyncio.ensure_future(result)
        try:
            # Unlike wait_for, it has an answer that came in time, while the sampler held the loop.
            await asyncio.wait({task}, timeout=seconds)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    except Exception as error:
        raise EnvironmentFailed(str(error)) from error
    late = TimeoutError(f"no answer within agent.max_seconds={seconds:g}")
    raise EnvironmentFailed(str(late)) from late


def encoded(method: Callable, *arguments) -> Any:
    """What a dialogue makes of messages or tokens.

    Raises:
      EnvironmentFailed: from whatever the tokenizer or the chat template raised.
    """
    try:
        return method(*arguments)
    except Exception as error:
        raise EnvironmentFailed(str(error)) from error


def check_step(env: Any, step: Any) -> None:
    """Checks what an environment's step returned; messages only if the episode goes on.

    Raises:
      EnvironmentFailed: from a TypeError or ValueError that names the environment's class and the field.
    """
    name = f"{type(env).__name__}.step"
    if not all(hasattr(step, field) for field in STEP):
        raise EnvironmentFailed from TypeError(f"{name} returned {step!r:.60}, which is no Step")
    check_reward(name, step.reward)
    if not isinstance(step.numbers, Mapping):
        raise EnvironmentFailed from TypeError(f"{name}: numbers={step.numbers!r:.60} must be a dict")
    for field, value in step.numbers.items():
        _number(f"{name}: numbers[{field!r}]", value)
    if not step.done:
        check_messages(name, step.messages)


def check_reward(name: str, reward: Any) -> None:
    """Raises EnvironmentFailed if a reward is no finite number. name: of the method that returned it."""
    if not math.isfinite(_number(f"{name}: reward", reward)):
        raise EnvironmentFailed from ValueError(f"{name}: reward={reward!r} must be a finite number")


def _number(what: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise EnvironmentFailed from TypeError(f"{what}={value!r:.60} must be a number")


def check_messages(name: str, messages: Any) -> None:
    """Raises EnvironmentFailed if messages are none of text. name: of the method that returned them."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise EnvironmentFailed from TypeError(f"{name}: messages={messages!r:.60} must be a list of dicts")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise EnvironmentFailed from TypeError(f"{name}: messages[{place}]={message!r:.60} must be a dict")
        for field in ("role", "content"):
            if not isinstance(value := message.get(field), str | None):
                wrong = f"{name}: messages[{place}][{field!r}]={value!r:.60} must be a text"
                raise EnvironmentFailed from TypeError(wrong)


def check_history(env: Any, step: Any) -> None:
    """Raises ValueError if a step begins the history anew and the environment has not said that it does so."""
    if step.anew and not getattr(env, "rewrites", False):
        raise ValueError(
            f"{type(env).__name__}.step has begun the history anew (Step.anew) unannounced: set `rewrites = True` in "
            "its class, so that a config's packing and overflow are checked before work starts"
        )
