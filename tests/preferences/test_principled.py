"""preferences/principled.py: the principle decides, negated or not; the config that trains on it."""

import pytest

from configs.preferences import principles
from experiments.parts import check_config
from rl_jax import preferences
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


def test_a_world_without_principles_is_refused():
    with pytest.raises(ValueError, match="world='sums' has no principles; length, order have"):
        preferences.load("principles", world="sums")
    with pytest.raises(ValueError, match="negated_share=2 must be in"):
        preferences.load("principles", negated_share=2)


@pytest.mark.parametrize("arg", [None, "order", "blind,smoke"])
def test_its_config_can_run(arg):
    config = principles.get_config(arg)
    check_config.check(config)
    assert (config.data.name == "principles") == ("blind" not in (arg or ""))
