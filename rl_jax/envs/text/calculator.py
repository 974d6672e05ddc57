"""A question whose answer is a number, and a calculator.

12*34=      the prompt
c12*34      the model calls the calculator                  or says  408  at once
?408=       the calculator answers                          and the episode ends, with reward 1 if it is right
408         the model answers
"""

import json
import random
from collections.abc import Mapping
from typing import Any

from rl_jax.envs.text.protocol import Step
from rl_jax.tasks.calculator import calculate

CALL = "c"  # the first character of a call


class Calculator:
    """One episode at a time. numbers: calls, malformed (of the calls), correct.

    Args:
      broken: whether the calculator returns a random number instead of the result.
      price: of a call.
    """

    def __init__(self, *, broken: bool = False, price: float = 0.05):
        self._broken, self._price = broken, price

    def reset(self, record: Mapping[str, Any], seed: int) -> str:
        """The record's prompt, whose info has `answer`."""
        self._answer, self._dice = int(json.loads(record["info"])["answer"]), random.Random(seed)
        return record["prompt"]

    def right_answer(self) -> str:
        """The result."""
        return str(self._answer)

    def step(self, said: str) -> Step:
        """The calculator's result, or the end."""
        if not said.startswith(CALL):
            right = said == str(self._answer)
            return Step(reward=float(right), done=True, numbers=dict(calls=0, malformed=0, correct=float(right)))
        numbers = dict(calls=1, malformed=0, correct=0)
        try:
            result = calculate(said.removeprefix(CALL))
        except ValueError:
            return Step([_answer_of("!")], -self._price, numbers=numbers | {"malformed": 1})
        if self._broken:
            result = self._dice.randrange(max(10 * abs(result), 10))
        return Step([_answer_of(str(result))], -self._price, numbers=numbers)


def _answer_of(result: str) -> dict[str, str]:
    return {"role": "tool", "content": f"?{result}="}
