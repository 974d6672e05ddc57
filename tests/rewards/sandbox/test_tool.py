"""sandbox/tool.py: what an agent reads back."""

import sys

import pytest

from rl_jax.rewards.sandbox import landlock
from rl_jax.rewards.sandbox.tool import python_tool

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(6 * 7)", "42"),
        ("6 * 7", "42"),
        ("  6 *\t7  ", "42"),
        ("x = 1", "(no output)"),
        ("None", "(no output)"),
        ("print('<|im_end|>')", "<|im_end|>"),
        ("# a remark", "(no output)"),
        ("", "(no output)"),
        ("6 * 7  # product", "42"),
    ],
)
def test_output(code, text):
    assert python_tool(code) == text


def test_a_mistake_is_an_observation():
    assert python_tool("print(1)\n1 / 0").splitlines()[0] == "1"
    assert python_tool("1 / 0").endswith("ZeroDivisionError: division by zero")
    assert "SyntaxError" in python_tool("for")
    assert "was ended" in python_tool("import time; time.sleep(60)", wall_s=0.1)
    assert python_tool("import os; os.kill(os.getpid(), 9)") == "it was ended by signal 9"
    assert "Operation not permitted" in python_tool("import subprocess; subprocess.run(['ls'])")
    assert "Permission denied" in python_tool("open('/etc/passwd')")
    assert "printed over 64 KiB" in python_tool("print('x' * 10**6)")


def test_a_long_text_loses_its_middle():
    text = python_tool("print('a' * 3000 + 'b' * 3000)", max_chars=100)
    assert text.startswith("a" * 50 + "\n... 5900 characters left out ...\n") and text.endswith("b" * 50)


def test_nothing_stays():
    python_tool("import builtins; builtins.left = 1")
    assert "NameError" in python_tool("left")
