"""Worlds of text: an environment answers what the model says (protocol); tools are typed functions (tools).

A config names an environment, `config.agent.env = dict(fn="calculator", price=0.1)`; one of your own is "module:Class".
"""

from rl_jax.envs.text.protocol import Step, TextEnv
from rl_jax.envs.text.worlds import calculator, one_answer, tool_user

__all__ = ["Step", "TextEnv", "calculator", "one_answer", "tool_user"]
