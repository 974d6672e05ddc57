"""tasks/toys.py and toy_kinds.py: the right answers are paid in full by the config's terms, the wrong ones are not."""

import importlib
import json
import random

import pytest

from rl_jax import tasks
from rl_jax.core import binding
from rl_jax.rewards import actions, exact, overlap, terms
from rl_jax.tasks import geoquery, toy_kinds, toys
from tests.paths import shared_data

CONFIGS = (
    "toolrl", "reasoning_sql", "vlm_r1", "star_r1", "infigui_aepo", "rubric_anchors", "klcf", "resume_grpo",
    "mixed_r1", "multirole_r1", "vla_r1", "lucy_skg", "rlsqm", "bleuberi",
)  # fmt: skip


def total(config, prompt, completion, info):
    """The weighted sum of a config's item terms."""
    value = 0.0
    for term in terms.load_terms(config.reward.terms.to_dict(), binding.resolve):
        if not term.is_group:
            result = term.fn(prompt, completion, info, **term.keywords)
            value += term.weight * (result["reward"] if isinstance(result, dict) else result)
    return value


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_right_answers_earn_more_than_wrong_ones(name):
    if name == "bleuberi" and overlap._LIBRARIES["sacrebleu"] is None:
        pytest.skip("sacrebleu is not installed")
    config = importlib.import_module(f"configs.tasks.{name}").get_config()
    rng, best = random.Random(0), 0.0
    for _ in range(100):
        for kind in config.task.kinds:
            toy = toy_kinds.KINDS[kind](rng)
            info = toy.info | {"source": kind}
            assert len(toy.prompt) < config.rollout.prompt_buckets[-1]
            assert max(map(len, (toy.right, *toy.wrong))) < config.rollout.completion_length
            right = total(config, toy.prompt, toy.right, info)
            wrong = [total(config, toy.prompt, text, info) for text in toy.wrong if text != toy.right]
            # Some demonstrations lack only what is no item term (views), or what BMAS does not see (echoes).
            assert right >= max(wrong, default=0.0) - 1e-9 and right > min(wrong, default=-9.0), (toy, right, wrong)
            best = max(best, right)
    assert best >= 0.9


def test_one_letter_is_the_answer_to_a_choice():
    rng = random.Random(0)
    for _ in range(50):
        toy = toy_kinds.choices(rng)
        paid = [exact.choice(toy.prompt, text, toy.info)["reward"] for text in (toy.right, *toy.wrong)]
        assert paid == [1.0, *[0.0] * 4] and len(toy.prompt) <= 24 >= max(map(len, toy.wrong)), toy


def test_every_action_of_a_gesture_is_paid():
    rng = random.Random(0)
    for _ in range(50):
        toy = toy_kinds.gestures(rng)
        paid = [actions.by_type(toy.prompt, text, toy.info)["reward"] for text in (toy.right, *toy.wrong)]
        assert paid[0] == 1.0 > max(paid[1:]) and toy.info["steps"] == len(toy.info["actions"]), toy
        assert len(toy.prompt) <= 26 and max(map(len, (toy.right, *toy.wrong))) < 44


@pytest.mark.slow
def test_records_of_a_mixture(tmp_path):
    task = tasks.load("toys", kinds=("boxes", "clicks"), num_train=60, num_test=20, data_dir=str(tmp_path))
    rows = {split: [task.data_source(split)[i] for i in range(n)] for split, n in (("train", 60), ("test", 20))}
    assert {row["source"] for row in rows["train"]} == {"boxes", "clicks"} and task.reward_fn is None
    assert all(json.loads(row["info"])["source"] == row["source"] for row in rows["train"])
    prompts = {split: {r["prompt"] for r in found if r["source"] == "boxes"} for split, found in rows.items()}
    assert prompts["test"] and not prompts["train"] & prompts["test"]
    shown = [task.data_source("sft_train")[i]["completion"] for i in range(60)]
    same = sum(a == b["completion"] for a, b in zip(shown, rows["train"], strict=True))
    assert 15 < same < 45  # half of them
    assert toys.make(kinds=["boxes"], num_train=5, num_test=2, imperfect=0.0, seed=1) == toys.make(
        kinds=["boxes"], num_train=5, num_test=2, imperfect=0.0, seed=1
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(kinds=("boxes", "call")), "no kind call; the kinds are calls, "),
        (dict(kinds=()), "at least one"),
        (dict(kinds=("boxes", "boxes")), "different names"),
        (dict(num_test=0), "at least 1"),
        (dict(imperfect=1.5), r"in \[0, 1\]"),
    ],
)
def test_bad_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        toys.load(**fields)


def test_geoquery(tmp_path):
    folder = shared_data("sql/geography.json.gz").parent
    task = tasks.load("geoquery", path=str(folder), max_characters=160, data_dir=str(tmp_path))
    source = task.data_source("train")
    assert source.report["num_failing"] == 5 and source.report["num_empty"] == 28
    for index in range(0, len(source), 40):
        row = source[index]
        assert task.reward_fn(row["prompt"], row["completion"], json.loads(row["info"]))["reward"] == 1.0
    with pytest.raises(ValueError, match="geography.json.gz is missing"):
        geoquery.load(path=str(tmp_path))
