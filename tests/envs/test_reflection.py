"""envs/text/reflection.py: the reward of a reflection is what the next trial gains, and the actor reads only those."""

import asyncio
import json

import pytest

from rl_jax.envs.text.reflection import Reflection


def begun(heard=None, words=(), **settings):
    """An episode of the reflector, whose actor says `words`; without them the scripted one."""
    env = Reflection(length=3, side="r", most=6, **settings)

    async def actor(text):
        heard.append(text)
        return said.pop(0)

    said = list(words)
    env.partner = actor if words else None
    record = {"prompt": "raaa1:", "info": json.dumps({"side": "r", "hidden": "aab", "first": "aaa"})}
    begin = env.reset(record, 0)
    return env, asyncio.run(begin) if words else begin


def told(step):
    return "".join(message["content"] for message in step.messages)


def test_a_reflection_earns_the_next_return_less_this_one():
    heard = []
    env, first = begun(heard, ["bbb", "aba", "zz", "abb", "aab"])
    assert first == "rbbb1:"
    steps = [asyncio.run(env.step(said)) for said in ("aba", "x y0", "", "b0")]
    assert [told(step) for step in steps] == ["aba1:", "?0:", "abb2:", ""]
    returns = [1 / 3, 1 / 3, 0, 2 / 3, 1]
    gains = [b - a for a, b in zip(returns, returns[1:], strict=False)]
    assert [step.reward for step in steps] == pytest.approx(gains) == [step.numbers["gain"] for step in steps]
    assert heard == ["a3:", "aba>", "0>", ">", "b0>"]  # its own dialogue: no return, nothing but reflections
    assert [step.numbers["malformed"] for step in steps] == [0, 1, 1, 0]
    assert steps[-1].done and sum(step.reward for step in steps) == pytest.approx(1 - returns[0])


def test_returns_that_stay_the_same_earn_nothing_and_a_task_is_one_that_failed():
    env, first = begun([], ["aab", *["aab"] * 3])
    assert first == "raab2:" and env.hidden == "aaa"  # the hidden word would have been found at once
    assert [asyncio.run(env.step("abb")).reward for _ in range(3)] == [0.0, 0.0, 0.0]


def test_the_scripted_actor_does_what_it_is_told():
    env, first = begun()
    steps = [env.step("bab"), env.step("aab")]
    assert first == "raaa2:" and told(steps[0]) == "bab2:" and steps[1].done
    assert [step.reward for step in steps] == pytest.approx([0, 1 / 3])


def test_the_actors_side_is_for_the_warm_start():
    env = Reflection(length=2)
    env.reset({"prompt": "a2:", "info": json.dumps({"side": "a", "hidden": "ab", "first": "ba"})}, 0)
    step = env.step("bb")
    assert told(step) in ("ab>", "ba>") and step.reward == 0 and env.step("ab").reward == 1
    with pytest.raises(ValueError, match="side='x'"):
        Reflection(side="x")
