"""The environments that a config names without an import path."""

from collections.abc import Sequence

from rl_jax.envs.text.calculator import Calculator
from rl_jax.envs.text.one_answer import OneAnswer
from rl_jax.envs.text.tool_user import ToolUser


def one_answer() -> OneAnswer:
    """A single turn: the task's prompt, the model's answer, and the task's reward for it."""
    return OneAnswer()


def calculator(*, broken: bool = False, price: float = 0.05) -> Calculator:
    """A question about a number, and a calculator: see calculator.Calculator."""
    return Calculator(broken=broken, price=price)


def tool_user(*, tools: Sequence[str], price: float = 0.0) -> ToolUser:
    """The task's prompt, and typed functions as tools, "module:function" each: see tool_user.ToolUser."""
    return ToolUser(tools, price=price)
