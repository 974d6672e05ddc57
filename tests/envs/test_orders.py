"""envs/text/orders.py: what wins and how long it takes, new instructions on old pages, demonstrations of an author."""

import itertools
import json
import random

import pytest

from rl_jax.envs.text import recorded
from rl_jax.envs.text.orders import Orders
from rl_jax.envs.text.site import Site
from rl_jax.selection import evolving
from tests.envs.test_site import HOME, INFO

TWO = {"prompt": f"cat top?{HOME}", "info": json.dumps(INFO | {"wanted": "cat top"})}  # prices 4 and 1


def played(*said, most=8):
    env = Orders(most=most)
    env.reset(TWO, 0)
    return [env.step(one) for one in said]


def test_the_prices_win_in_the_order_of_the_instruction_only():
    way = ("1", "1", "b", "b", "0", "1")
    assert [step.reward for step in played(*way, "x41")] == [0] * 6 + [1]
    for wrong in ("x14", "x4", "x1", "x411"):
        steps = played(*way, wrong)
        assert steps[-1].done and steps[-1].reward == 0
    assert played(*way, "x41", most=6)[5].done and not any(step.anew for step in played(*way))


def test_an_expert_needs_three_turns_and_for_the_second_thing_two_to_four():
    env, rng, turns = Orders(), random.Random(0), {1: set(), 2: set()}
    for prompt, info in itertools.islice(env.problems(rng), 200):
        (found,) = recorded.segments(env, prompt, info, rng, 1.0)
        wanted = info["wanted"].split()
        where = [next(shelf for shelf in info["shelves"] if thing in info["things"][shelf]) for thing in wanted]
        expected = 3 if len(wanted) == 1 else 5 if where[0] == where[1] else 7
        assert sum(found.rewards) == 1 and len(found.rewards) == expected
        assert prompt.startswith(f"{info['wanted']}?0{info['shelves'][0]} ") and len(set(wanted)) == len(wanted)
        turns[len(wanted)].add(expected)
    assert turns == {1: {3}, 2: {5, 7}}
    with pytest.raises(ValueError, match="things=0 must be 1 or more"):
        Orders(things=0)


def test_a_new_instruction_keeps_the_pages_or_cannot_be_done():
    env = Orders()
    made = env.instructed(TWO, " egg  cat?")
    assert made["prompt"] == f"egg cat?{HOME}" and json.loads(made["info"]) == INFO | {"wanted": "egg cat"}
    assert env.instruction(made) == "egg cat?" and env.instruction(TWO) == "cat top?"
    for text in ("", "?", "cow", "cat cow", "cat cat", "cat dog eel", "cat?dog"):
        assert env.instructed(TWO, text) is None
    assert Orders(things=3).instructed(TWO, "cat dog eel") and Site().instructed(TWO, "cat dog") is None
    assert Site().instructed(TWO, "dog")["prompt"] == f"dog?{HOME}"
    env.reset(made, 0)
    assert [env.step(said).reward for said in ("2", "0", "b", "b", "1", "1", "x64")] == [0] * 6 + [1]


def test_demonstrations_of_an_author_are_made_of_two_instructions(tmp_path):
    options = dict(world="rl_jax.envs.text.orders:Orders", num_train=6, num_test=2, data_dir=str(tmp_path))
    plain, task = recorded.load(**options), recorded.load(**options, written=5)
    records = [task.data_source("sft_train")[i] for i in range(11)]
    assert records[:6] == [plain.data_source("sft_train")[i] for i in range(6)] and len(task.data_source("train")) == 6
    for one in records[6:]:
        assert one["prompt"][0] == "~" and one["prompt"].count("?") == 2 and one["completion"][-1] == "?"
        said, read = one["completion"][:-1].split(), one["prompt"][1:].replace("?", " ").split()
        assert said and set(said) <= set(read) and "recorded_turns" not in json.loads(one["info"])
        assert all(task.tokenizer.decode(task.tokenizer.encode(text)) == text for text in (one["prompt"], "x41~"))
    assert evolving.instructions_in(records[6]["completion"]) == [records[6]["completion"]]
