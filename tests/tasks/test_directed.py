"""tasks/directed.py: directions before the prompts, and the reward that each of them asks for."""

import json
import math

import pytest

from rl_jax import tasks
from rl_jax.rewards import lexicon
from rl_jax.tasks import directed

NAME = "rl_jax.tasks.directed:load"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    of = dict(name="stories", num_stories=40, data_dir=str(tmp_path_factory.mktemp("data")))
    return tasks.load(NAME, of=of, marks="abc", low=-45.0, high=45.0, length=40)


def test_every_record_comes_once_with_each_direction(task):
    source = task.data_source("test")
    assert len(source) % 3 == 0 and len(source) > 0
    first = [source[i] for i in range(3)]
    assert [record["prompt"][0] for record in first] == ["a", "b", "c"]
    assert [record["source"] for record in first] == ["-45", "+0", "+45"]
    assert len({record["prompt"][1:] for record in first}) == 1 and source[3]["prompt"][1:] != first[0]["prompt"][1:]
    assert len({source[i]["prompt"] for i in range(len(source))}) == len(source)
    assert source[-1]["prompt"].startswith("c")
    task.tokenizer.encode(first[0]["prompt"], bos=True)  # the marks are letters of its alphabet


def test_demonstrations_vary_in_length(tmp_path):
    """The stories of the config are all as long, so that a direction could not choose a shorter sample."""
    of = dict(name="stories", num_stories=40, data_dir=str(tmp_path))
    plain, drawn = (
        tasks.load(NAME, of=of, marks="ab", demonstrations=kind).data_source("sft_train") for kind in ("whole", "drawn")
    )
    for i in range(len(plain)):
        long, own = plain[i]["completion"], drawn[i]["completion"]
        assert long.startswith(own) and own.endswith(".") and drawn[i]["prompt"] == plain[i]["prompt"]
    assert {plain[i]["completion"].count(".") for i in range(len(plain))} == {3}
    assert {drawn[i]["completion"].count(".") for i in range(len(plain))} == {1, 2, 3}


def test_best_demonstrations_are_what_the_direction_asks_for(tmp_path):
    """Rejection sampling by v . r among the cuts, against every cut's own sum of both rewards."""
    of = dict(name="stories", num_stories=40, data_dir=str(tmp_path))
    source = tasks.load(NAME, of=of, marks="abc", demonstrations="best").data_source("sft_train")
    plain = tasks.load(NAME, of=of, marks="abc").data_source("sft_train")
    lengths = {"-45": [], "+0": [], "+45": []}
    for i in range(len(source)):
        whole, angle = plain[i]["completion"], math.radians(float(source[i]["source"]))
        ends = [place + 1 for place, letter in enumerate(whole) if letter == "."]
        ways = [whole[:end] for end in ends]
        found = [math.cos(angle) * lexicon.text_score(way) + math.sin(angle) * len(way) / 64 for way in ways]
        assert len(ways) == 3 and source[i]["completion"] == ways[found.index(max(found))]
        lengths[source[i]["source"]].append(len(source[i]["completion"]))
    short, neutral, long = lengths.values()
    assert all(a <= b <= c for a, b, c in zip(short, neutral, long, strict=True))  # as any sum of two rewards has it
    assert sum(short) < sum(neutral) < sum(long)


def test_the_reward_is_the_directions_sum_of_both(task):
    record = task.data_source("test")[0]
    prompt, info = record["prompt"][1:], json.loads(record["info"])

    def paid(mark, text):
        return task.reward_fn(mark + prompt, text, info, **task.reward_kwargs)

    happy = " She was glad."
    own = paid("b", happy)["task"]
    assert paid("b", happy)["reward"] == pytest.approx(own)  # angle 0 is the task's reward alone
    for mark, sign in (("a", -1), ("c", 1)):
        found, verbosity = paid(mark, happy), min(len(happy) / 40, 1.0)
        assert found["verbosity"] == verbosity and found["task"] == own
        assert found["reward"] == pytest.approx(math.sqrt(0.5) * (own + sign * verbosity))
    long = happy * 5
    assert paid("c", long)["verbosity"] == 1.0
    assert (
        paid("c", long)["reward"] > paid("c", happy)["reward"]
        and paid("a", long)["reward"] < paid("a", happy)["reward"]
    )


def test_one_direction_at_angle_0_is_the_task():
    """The letter is all that a direction of (1, 0) adds: rejection sampling by it is best of N on the first reward."""
    fields = dict(of="rl_jax.rewards.lexicon:score", keywords={}, marks="xy", angles=(0.0, 90.0), length=10)
    prompt, text = "A dog.", " It was good."
    own = directed.directed(f"x{prompt}", text, {}, **fields)
    assert own["reward"] == own["task"] == lexicon.score(prompt, text, {})["reward"]
    assert directed.directed(f"y{prompt}", text, {}, **fields)["reward"] == pytest.approx(1.0)


@pytest.mark.parametrize("fields", [dict(marks="a"), dict(marks="aa"), dict(length=0)])
def test_what_does_not_fit_is_refused(fields):
    with pytest.raises(ValueError, match="two different letters or more"):
        tasks.load(NAME, of=dict(name="stories"), **fields)


def test_an_unknown_kind_of_demonstrations_is_refused():
    with pytest.raises(ValueError, match="none of whole, drawn, best"):
        tasks.load(NAME, of=dict(name="stories"), demonstrations="worst")
