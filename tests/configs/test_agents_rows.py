"""configs/agents_rows.py, agents_papers.py: each paper's words fit their worlds; what cannot be together is refused."""

import itertools
import random

import pytest

from configs import agents_papers, agents_rows
from experiments.parts import check_config, players, policy
from rl_jax.envs.text.recorded import segments

FILES = {paper: file for file in (agents_rows, agents_papers) for paper in file.ONE_OF}
WORDS = [(paper, word) for paper, file in FILES.items() for words in file.ONE_OF[paper] for word in words]
CASES = [(paper, None) for paper in FILES] + [case for case in WORDS if case[1] != "bilevel"]


@pytest.mark.parametrize(("paper", "word"), CASES)
def test_every_word_has_a_world_that_fits(paper, word):
    """Prompts and every new beginning fit the bucket, and nine of ten episodes of a mediocre player the row."""
    config = FILES[paper].get_config(",".join(filter(None, (paper, word, "smoke"))))
    assert config.name == paper
    check_config.check(config)
    players.check(config)
    policy.check_choices(config)
    env, rng, fits = players.environment_of(config)(), random.Random(0), []
    for prompt, info in itertools.islice(env.problems(rng), 40):
        found = segments(env, prompt, info, rng, config.task.expert_share)
        assert max(len(one.first) for one in found) + 1 <= max(config.rollout.prompt_buckets)
        texts = sum(len(first) + 1 + sum(map(len, turns)) + (len(turns) + 1) // 2 for first, turns, _ in found)
        fits.append(texts - len(prompt) - 1 <= config.rollout.completion_length)
        assert sum(len(turns) + 1 for _, turns, _ in found) // 2 <= config.agent.max_turns
    assert sum(fits) >= 36


def test_a_replaced_history_has_no_oldest_turns_to_drop():
    """An overflow would begin with the first prompt, which the world has replaced."""
    config = agents_rows.get_config("iterresearch,smoke")
    config.agent.overflow = "drop_oldest"
    with pytest.raises(ValueError, match="agent.overflow='drop_oldest': agent.env=.*Research' begins segments anew"):
        players.check(config)
    config = agents_rows.get_config("iterresearch,mono,smoke")
    config.agent.overflow = "drop_oldest"
    players.check(config)


def test_words_without_a_paper_name_theirs():
    assert agents_rows.get_config("dense,grpo,smoke").name == "multi_turn_guide"
    assert agents_rows.get_config().name == "tau2"


def test_a_reflector_pays_for_leaving_the_warm_start():
    config = agents_papers.get_config("retroformer,smoke")
    config.algorithm.measure_kl = False
    assert policy.needs_ref_log_probs(config) and config.algorithm.reward_kl_coef == 0.2
    config.algorithm.reward_kl_coef = 0.0
    assert not policy.needs_ref_log_probs(config)


def test_the_other_file_refuses_what_does_not_go_together():
    assert agents_papers.get_config().name == "webagent_r1"
    with pytest.raises(ValueError, match=r"\['zero'\] is no word of retroformer, which has \[\]"):
        agents_papers.get_config("retroformer,zero")
    with pytest.raises(ValueError, match="webagent_r1, retroformer: one paper at a time"):
        agents_papers.get_config("webagent_r1,retroformer")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("tau2,comas", "tau2, comas: one paper at a time"),
        ("tau2,dense", r"\['dense'\] is no word of tau2, which has \['careless', 'modelled'\]"),
        ("tau2,careless,modelled", "careless, modelled: one of them at a time"),
        ("dense,half", "half, dense: one of them at a time"),
    ],
)
def test_words_that_do_not_go_together(words, says):
    with pytest.raises(ValueError, match=says):
        agents_rows.get_config(words)


def test_the_grid_is_the_papers():
    points = list(agents_rows.sweep_grid())
    assert len(points) == 12 and points[0] == {"argument": "sparse,rloo"}
    rows = {64 * point["sft.steps"] + 128 * point["train.steps"] for point in agents_rows.sweep_ratio()}
    assert rows == {51_200}
    for point in agents_rows.sweep_size():
        config = agents_rows.get_config(f"multi_turn_guide,{point['argument']}")
        size = agents_rows.SIZES[point["argument"]]
        assert config.agent.env.rooms == config.task.settings.rooms == size["rooms"]
        assert config.agent.max_turns == 2 * size["quest"]
    ppo = agents_rows.get_config("multi_turn_guide,bilevel,dense,smoke")
    assert ppo.program == "ppo" and ppo.critic.advantage.turn_discount == 1.0 and ppo.agent.env.density == 1.0
