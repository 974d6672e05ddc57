"""preferences/principled.py: the principle decides, negated or not; the config that trains on it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import principles
from experiments.parts import check_config
from rl_jax import preferences, tasks
from rl_jax.losses.reward_model import rankings
from rl_jax.preferences import principled


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("principles"))
    source = preferences.load("principles", num_prompts=40, data_dir=folder).data_source("train")
    assert source.kind == "pairs" and source.num_skipped == 0
    return [source[i] for i in range(len(source))]


def test_the_preferred_answer_is_the_one_that_the_principle_asks_for(records):
    kinds = set()
    for record in records:
        principle, question = record["prompt"].split("\n")
        chosen, rejected = (len(text.split()) for text in record["responses"])
        short = ("short" in principle) != principle.startswith(principled.NEGATION)
        assert (chosen < rejected) == short and question.endswith(":")
        kinds.add((short, record["info"]["negated"]))
    assert len(kinds) == 4


def test_without_the_principle_the_same_question_has_both_answers(records):
    tastes = {}
    for record in records:
        chosen, rejected = (len(text.split()) for text in record["responses"])
        tastes.setdefault(record["prompt"].split("\n")[1], set()).add(chosen < rejected)
    assert all(found == {True, False} for found in tastes.values())


def test_a_policy_sees_the_question_and_its_judge_the_principle_too(records, tmp_path):
    """Of one taste, after demonstrations of both; the judge reads a prompt that the reward model was trained on."""
    shown = {record["prompt"] for record in records}
    wanted = {"Lists should be long.", principled.NEGATION + "lists should be short."}
    options = dict(num_prompts=40, data_dir=str(tmp_path), judged_by=1)
    task = tasks.load("rl_jax.preferences.prompt_task:load", data=dict(name="principles", **options))
    source = task.data_source("train")
    assert len(source) == len(records)
    assert {json.loads(source[i]["info"])["user"] for i in range(len(source))} == {0, 1}
    for i in range(len(source)):
        info = json.loads(source[i]["info"])
        assert info["judge_prompt"] in shown and info["principle"] in wanted
        assert info["judge_prompt"] == f"{info['principle']}\n{source[i]['prompt']}"


def test_one_reward_follows_every_principle_and_one_that_does_not_read_it_is_right_half_of_the_time(records):
    """Bradley-Terry on a slope of the length for each principle's text, and on a single slope."""
    names = sorted({record["info"]["principle"] for record in records})
    own = np.array([names.index(record["info"]["principle"]) for record in records])
    words = np.array([[len(text.split()) for text in record["responses"]] for record in records]) - 2.5
    present = jnp.ones(words.shape, bool)

    @jax.jit
    def fitted(read):
        def loss(slopes):
            return jnp.mean(rankings.bradley_terry((read @ slopes)[:, None] * words, present).loss)

        return jax.lax.fori_loop(0, 100, lambda _, slopes: slopes - 0.3 * jax.grad(loss)(slopes), jnp.zeros(len(names)))

    accuracy = {}
    for name, read in (("reads", np.eye(len(names))[own]), ("blind", np.ones((len(own), len(names))))):
        slopes = np.asarray(fitted(read))
        gaps = np.diff((read @ slopes)[:, None] * words)[:, 0]
        accuracy[name] = np.mean(gaps < 0)
        if name == "reads":
            short = np.array([("short" in x) != x.startswith(principled.NEGATION) for x in names])
            assert len(names) == 4 and ((slopes < 0) == short).all(), dict(zip(names, slopes, strict=True))
    assert accuracy["reads"] == 1.0 and abs(accuracy["blind"] - 0.5) < 0.05, accuracy


def test_a_world_without_principles_is_refused():
    with pytest.raises(ValueError, match="judged_by=2 must be 0 or 1, or -1 for none"):
        preferences.load("principles", judged_by=2)
    with pytest.raises(ValueError, match="world='sums' has no principles; length, order have"):
        preferences.load("principles", world="sums")
    with pytest.raises(ValueError, match="negated_share=2 must be in"):
        preferences.load("principles", negated_share=2)


@pytest.mark.parametrize("arg", [None, "order", "blind,smoke", "policy", "reversed,smoke"])
def test_its_config_can_run(arg):
    config = principles.get_config(arg)
    check_config.check(config)
    data = config.task.data if config.program == "ppo" else config.data
    assert (data.name == "principles") == ("blind" not in (arg or ""))
    with pytest.raises(ValueError, match="leave out policy"):
        principles.get_config("blind,policy")
