"""rl_jax.envs.text: tools from typed functions, what a model may say wrong, the calculator, recorded episodes."""

import json
import re
import sys
from typing import Optional, Union

import pytest

from rl_jax.envs import text
from rl_jax.envs.text.calculator import CALL, Calculator, calculate
from rl_jax.envs.text.tool_user import ToolUser
from rl_jax.envs.text.tools import call_all, has_call, tool_of
from rl_jax.rewards.sandbox import landlock
from rl_jax.rewards.sandbox.protocol import SandboxError
from rl_jax.tasks import calculator as task


def add(a: int, b: int = 1, note: str | None = None) -> int:
    """The sum of two numbers.

    Args:
      a: the first one.
    """
    if a == 13:
        raise RuntimeError("unlucky")
    return a + b


def echo(said: str):
    """What was said."""
    return said


TOOLS = {"add": tool_of(add)}


def answer(call) -> tuple[str, bool]:
    said = call if isinstance(call, str) else json.dumps(call)
    (only,) = call_all(TOOLS, f"Let me see. <tool_call>{said}</tool_call>")
    return only.text, only.malformed


def test_a_schema_is_the_functions_own():
    function = TOOLS["add"].schema["function"]
    assert (function["name"], function["description"]) == ("add", "The sum of two numbers.")
    assert function["parameters"]["properties"] == {
        "a": {"type": "integer", "description": "the first one."}, "b": {"type": "integer"}, "note": {"type": "string"}
    }  # fmt: skip
    assert function["parameters"]["required"] == ["a"]


def test_calls_are_answered_in_order():
    said = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call> and '
    said += '<tool_call>{"name": "add", "arguments": {"a": 5, "note": null}}</tool_call>'
    assert has_call(said) and [found.text for found in call_all(TOOLS, said)] == ["3", "6"]
    assert not has_call("3")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "a call is"),
        ({"name": "del"}, "there is no tool 'del'; there are add"),
        ({"name": "add"}, "missing: a"),
        ({"name": "add", "arguments": {"a": 1, "c": 2}}, "unknown: c"),
        ({"name": "add", "arguments": {"a": "1"}}, "a='1' is not of type integer"),
        ({"name": "add", "arguments": {"a": True}}, "a=True is not of type integer"),
        ({"name": "add", "arguments": [1]}, "must be an object"),
        ("[" * 100_000, "Error: "),
    ],
)
def test_a_malformed_call_is_an_observation(call, said):
    found, malformed = answer(call)
    assert malformed and found.startswith("Error: ") and said in found and len(found) <= 4000


def test_half_a_surrogate_pair_of_a_call_is_no_part_of_its_answer():
    for call in ({"name": "add", "arguments": {"\ud800": 1}}, {"name": "echo", "arguments": {"said": "\ud800"}}):
        (found,) = call_all({**TOOLS, "echo": tool_of(echo)}, f"<tool_call>{json.dumps(call)}</tool_call>")
        assert "?" in found.text and found.text.encode("utf-8")


def test_a_call_without_its_end_and_a_tool_that_raises_are_observations():
    (cut,) = call_all(TOOLS, '<tool_call>{"name": "add", "arguments": {"a": 1}}')
    assert cut.malformed and "</tool_call> is missing" in cut.text
    assert answer({"name": "add", "arguments": {"a": 13}}) == ("Error: RuntimeError: unlucky", False)


def test_a_result_that_json_has_not_is_an_observation():
    def pairs(a: int):
        """A table by pairs."""
        return {(a, 2): 3}

    (found,) = call_all({"pairs": tool_of(pairs)}, '<tool_call>{"name": "pairs", "arguments": {"a": 1}}</tool_call>')
    assert found.text.startswith("Error: TypeError: keys must be str") and not found.malformed


def test_a_type_that_may_be_none_can_be_spelled_in_three_ways():
    def maybe(a: int | None, b: Optional[list[int]], c: Union[None, str] = None):  # noqa: UP007, UP045
        """Something."""

    def either(a: int | str):
        """Something."""

    assert tool_of(maybe).types == {"a": int, "b": list, "c": str}
    with pytest.raises(ValueError, match="argument 'a': .* is not one of str, int"):
        tool_of(either)


def test_functions_that_cannot_be_tools_are_named():
    def untyped(a):
        """Something."""

    with pytest.raises(ValueError, match="tool 'untyped', argument 'a': no type is not one of str, int"):
        tool_of(untyped)
    with pytest.raises(ValueError, match="tool '<lambda>' has no docstring"):
        tool_of(lambda: 0)


def test_a_tool_user_ends_with_a_plain_message():
    env = text.tool_user(tools=(f"{__name__}:add",), price=0.5)
    assert env.reset({"prompt": "1 + 2?", "info": "{}"}, 0) == "1 + 2?" and env.tools == [TOOLS["add"].schema]
    step = env.step('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call><tool_call>x</tool_call>')
    assert [message["content"] for message in step.messages][0] == "3" and step.messages[0]["role"] == "tool"
    assert (step.reward, step.done, dict(step.numbers)) == (-1.0, False, {"calls": 2.0, "malformed": 1.0})
    assert env.step("3").done


@pytest.mark.parametrize("expression", ["", "12*", "*3", "1**2", "1+2+3", "__import__('os')", "9" * 10 + "*1", "1/2"])
def test_the_calculator_takes_two_numbers_only(expression):
    with pytest.raises(ValueError, match="is not NUMBER OPERATOR NUMBER"):
        calculate(expression)


def test_an_episode_of_the_calculator():
    env = Calculator(price=0.1)
    record = {"prompt": "12*34=", "info": json.dumps({"answer": 408})}
    assert env.reset(record, 0) == "12*34="
    called, malformed = env.step("c12*34"), env.step("c12*")
    assert [called.messages[0]["content"], malformed.messages[0]["content"]] == ["?408=", "?!="]
    assert (called.reward, called.done, called.numbers["malformed"]) == (-0.1, False, 0)
    assert (malformed.reward, malformed.numbers) == (-0.1, {"calls": 1, "malformed": 1, "correct": 0})
    assert (env.step("408").reward, env.step("409").reward, env.step("").reward) == (1.0, 0.0, 0.0)
    assert env.step("408").done and {key for step in (called, env.step("1")) for key in step.numbers} == {
        "calls", "malformed", "correct"
    }  # fmt: skip


def test_a_broken_calculator_is_random_and_the_same_for_a_seed():
    env, record = Calculator(broken=True), {"prompt": "12*34=", "info": '{"answer": 408}'}

    def first(seed):
        env.reset(record, seed)
        return env.step("c12*34").messages[0]["content"]

    assert len({first(seed) for seed in range(8)}) > 4 and first(3) == first(3)


def test_recorded_episodes_call_as_often_as_asked(tmp_path):
    made = task.load(digits=2, num_train=400, num_test=50, call_share=0.5, data_dir=str(tmp_path))
    turns = [json.loads(made.data_source("sft_train")[i]["info"])["recorded_turns"] for i in range(400)]
    called = [found for found in turns if found[0].startswith(CALL)]
    good = [found for found in called if re.fullmatch(r"\?\d+=", found[1])]
    assert 0.4 < len(called) / 400 < 0.6 and 0.3 < len(good) / len(called) < 0.7
    assert all(calculate(found[0].removeprefix(CALL)) == int(found[2]) for found in good)
    prompts = [{made.data_source(split)[i]["prompt"] for i in range(50)} for split in ("train", "test")]
    assert not prompts[0] & prompts[1] and "recorded_turns" not in made.data_source("test")[0]["info"]
    assert all(made.tokenizer.encode("".join(found)) for found in turns)
    with pytest.raises(ValueError, match="num_train=4000 and num_test=1000 must be 1 or more, at most 4900 in all"):
        task.load(digits=2, num_train=4000, num_test=1000)


def scaled(a: int, *, factor: int, sandbox: str = "x") -> int:
    """A number times a factor."""
    return a * factor


def test_keyword_only_arguments_are_settings_that_the_model_does_not_see():
    env = ToolUser([{"fn": "tests.envs.test_text_tools:scaled", "factor": 3}])
    (schema,) = env.tools
    assert set(schema["function"]["parameters"]["properties"]) == {"a"}
    said = '<tool_call>{"name": "scaled", "arguments": {"a": 2}}</tool_call>'
    assert env.step(said).messages[0]["content"] == "6"
    refused = env.step(said.replace('"a": 2', '"a": 2, "sandbox": "none"'))
    assert "unknown: sandbox" in refused.messages[0]["content"] and refused.numbers["malformed"] == 1
    with pytest.raises(ValueError, match="tool 'scaled': factor needs a value"):
        ToolUser([scaled])
    with pytest.raises(ValueError, match="tool 'scaled': factr is no setting of it; .*: factor, sandbox"):
        ToolUser([{"fn": scaled, "factr": 1}])
    with pytest.raises(ValueError, match="names no function"):
        ToolUser([{"name": "x"}])


def code(text):
    """A call of the Python tool."""
    return f"<tool_call>{json.dumps({'name': 'python_tool', 'arguments': {'code': text}})}</tool_call>"


@pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")
def test_a_python_tool_runs_in_the_sandbox():
    """What it may take is the config's to say; a program that hangs, or reads a secret, is an answer."""
    path = "rl_jax.rewards.sandbox.tool:python_tool"
    env = ToolUser([{"fn": path, "sandbox": "landlock", "cpu_s": 0.2}], price=0.5)
    assert list(env.tools[0]["function"]["parameters"]["properties"]) == ["code"]
    step = env.step(code("sum(range(10))") + code("while True: pass") + code("open('/etc/passwd').read()"))
    total, ended, secret = (message["content"] for message in step.messages)
    assert total == "45" and ended == "it took over 0.2 s of CPU and was ended" and "PermissionError" in secret
    assert step.reward == -1.5 and step.numbers == {"calls": 3.0, "malformed": 0.0}


def test_a_sandbox_that_fails_is_no_answer_of_the_model(monkeypatch):
    def broken(backend):
        raise SandboxError("no sandbox holds here")

    monkeypatch.setattr("rl_jax.rewards.sandbox.start.kept", broken)
    env = ToolUser(["rl_jax.rewards.sandbox.tool:python_tool"])
    with pytest.raises(SandboxError, match="no sandbox holds here"):
        env.step(code("1"))
