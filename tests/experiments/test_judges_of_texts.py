"""Judges that ask in their own way: listwise (RewardAnything), stimulus (DSP), evolving (MPO); their configs."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from configs.preferences import dsp, mpo, reward_anything
from experiments.parts import check_config, judges
from experiments.parts import policy as policy_parts
from experiments.parts.judges import voting
from experiments.parts.judges.evolving import read_criteria
from experiments.parts.rewards import Rows, make_rewards
from experiments.parts.setup import make_setup
from rl_jax import preferences, tasks
from rl_jax.preferences import assessments, judge_task
from tests.experiments import small
from tests.experiments.test_judges import LENGTH, PROMPTS, asked, judged_rows


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    config = small.config(tmp_path_factory.mktemp("task")).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    return make_setup(config)


# --- Lists ---------------------------------------------------------------------------------------------------------


def test_a_list_is_graded_at_once_as_the_principle_says(setup, monkeypatch):
    def says(question):
        principle, prompt, *answers = question.split("\n")
        lengths = [len(answer.partition(") ")[2]) for answer in answers]
        return "?" if prompt == "30-4=" else " ".join(str(min(n, 5) if "long" in principle else 6 - n) for n in lengths)

    calls = asked(monkeypatch, says)
    texts = ["3", "333", "3", "33", "26", "2"]
    rows = judged_rows(setup.task.tokenizer, ["1+2="] * 4 + ["30-4="] * 2, texts)
    options = dict(path="", template="{prompt}\n{answers}")
    found = judges.listwise(setup, principle="be long", **options)(rows)
    np.testing.assert_allclose(found.rewards, [0, 0.5, 0, 0.25, 0.5, 0.5])
    assert found.components["unparsed"].tolist() == [0, 0, 0, 0, 1, 1]
    assert sorted(len(question.split("\n")) - 2 for question in calls[0]) == [2, 3], "equal answers once"
    other = judges.listwise(setup, principle="be short", **options)(rows)
    np.testing.assert_allclose(other.rewards[:4], [1, 0.5, 1, 0.75])
    infos = [{"principle": "be short"}] * 6
    own = judges.listwise(setup, principle="be long", **options)(
        judged_rows(setup.task.tokenizer, ["1+2="] * 6, ["3"] * 5 + ["33"], infos)
    )
    np.testing.assert_allclose(own.rewards, [1] * 5 + [0.75])
    with pytest.raises(ValueError, match="low=5 must be below high=1, and most=4"):
        judges.listwise(setup, path="", low=5, high=1, most=4)
    told = assessments.write([0.2, 0.9])
    calls = asked(monkeypatch, lambda question: told)
    rows = judged_rows(setup.task.tokenizer, ["1+2="] * 2, ["3", "33"])
    found = judges.listwise(setup, path="", template="assessed")(rows)
    assert "answer with JSON" in calls[0][0] and sorted(found.rewards) == [0, 1], "the scores of an assessment are read"


def test_a_judge_of_lists_learns_grades_and_their_order(tmp_path):
    data = dict(name="principles", kind="rankings", num_prompts=20, data_dir=str(tmp_path))
    source = judge_task.load(data=data, form="list").data_source("sft_train")
    orders = set()
    for i in range(len(source)):
        record = source[i]
        info = json.loads(record["info"])
        scores = judge_task.read_scores(record["completion"], 4)
        assert judge_task.verdict(record["prompt"], record["completion"], info)["reward"] == 1.0
        assert scores[int(np.argmax(info["answer"]))] == 5 and scores[int(np.argmin(info["answer"]))] == 1
        back = " ".join(str(6 - int(x)) for x in scores)
        assert judge_task.verdict("", back, info)["reward"] == -1.0
        assert judge_task.verdict("", "5 5", info) == dict(reward=-1.0, right=0.0, parsed=0.0)
        orders.add(tuple(scores))
    assert len(orders) > 5
    assert judge_task.agreement([1, 1, 2], [0.1, 0.5, 0.9]) == pytest.approx(2 / 3)
    rng = np.random.default_rng(0)
    for _ in range(5):
        one, other = rng.permutation(6), rng.permutation(6)
        assert judge_task.agreement(one, other) == pytest.approx(kendalltau(one, other).statistic)


# --- Hints ---------------------------------------------------------------------------------------------------------


def test_a_hint_is_worth_what_the_frozen_model_answers(setup, monkeypatch):
    said = {"1+2=3": ("", "=3", "=4", "5"), "1+2=4=5": ("=3",) * 4, "30-4=26": ("",) * 4, "30-4=2=2=7": ("",) * 4}
    monkeypatch.setattr(voting, "make_votes", lambda *_: lambda texts: [said[text] for text in texts])
    infos = [{"answer": 3}] * 2 + [{"answer": 26}] * 2

    def graded(judge):
        """The judge with the workers of a run's rewards, which here are this process."""
        judge.grade = rewards.grader(*judge.graded_by)
        return judge

    rewards = make_rewards(setup)
    judge = graded(judges.stimulus(setup, path="", answer="{hint}{output}"))
    found = judge(judged_rows(setup.task.tokenizer, infos=infos))
    np.testing.assert_allclose(found.rewards, [0.5, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(found.components["spread"], [0.5, 0, 0, 0])
    own = judges.stimulus(setup, path="", answer="{output}", reward=f"{__name__}:of_length", keywords=dict(scale=2.0))
    np.testing.assert_allclose(graded(own)(judged_rows(setup.task.tokenizer, infos=infos)).rewards, [2.5, 4, 0, 0])
    failing = graded(judges.stimulus(setup, path="", answer="{output}", reward=f"{__name__}:of_first"))
    found = failing(judged_rows(setup.task.tokenizer, infos=infos))
    np.testing.assert_allclose(found.rewards, [0.75, 1.0, 0.0, 0.0])  # of an empty answer it raises: failure_reward
    np.testing.assert_allclose(found.components["failed"], [0.25, 0, 1, 1])
    mistaken = judges.stimulus(
        setup, path="", answer="{output}", reward=f"{__name__}:of_length", keywords=dict(scal=2.0)
    )
    with pytest.raises(RuntimeError, match="failed on all 16 texts that it was given: .*of_length.*scal"):
        graded(mistaken)(judged_rows(setup.task.tokenizer, infos=infos))
    for bad, said_then in ((dict(votes=0), "votes=0 must be at least 1"), (dict(reward="nice"), "reward='nice' is no")):
        with pytest.raises(ValueError, match=said_then):
            judges.stimulus(setup, path="", **bad)


def of_first(prompt, completion, info):
    """A reward that fails on an empty answer."""
    return float(bool(completion[0]))


def of_length(prompt, completion, info, *, scale):
    """A reward of its own."""
    return scale * len(completion)


def test_hints_are_first_steps_and_half_of_them_wrong(tmp_path):
    of = dict(name="arithmetic", num_operands=(4, 4), digits=1, num_train=60, num_test=5, data_dir=str(tmp_path))
    source = tasks.load("rl_jax.tasks.hinted:load", of=of).data_source("sft_train")
    plain = tasks.load(**of).data_source("sft_train")
    right = [source[i]["completion"] == plain[i]["completion"].split("=")[0] + "=" for i in range(len(plain))]
    assert all(source[i]["completion"].count("=") == 1 for i in range(len(plain))) and 20 < sum(right) < 45
    exact = tasks.load("rl_jax.tasks.hinted:load", of=of, steps=2, wrong_share=0.0).data_source("test")[0]
    assert exact["completion"].count("=") == 2 and exact["prompt"] == tasks.load(**of).data_source("test")[0]["prompt"]
    with pytest.raises(ValueError, match="steps=0 must be 1 or more"):
        tasks.load("rl_jax.tasks.hinted:load", of=of, steps=0)


# --- Rubrics -------------------------------------------------------------------------------------------------------

TEXTS = dict(
    score="S|{completion}|{criterion}", prescreen="P|{completion}|{score}", refine="R|{completion}", merge="M|{rubrics}"
)


def test_a_rubric_grades_and_is_rewritten(setup, monkeypatch):
    calls = []

    def says(question):
        kind, *rest = question.split("|")
        calls.append(question)
        if kind == "S":
            return {"short": str(10 - len(rest[0])), "seven": "10" if "7" in rest[0] else "no"}[rest[1]]
        if kind == "P":
            return "bad" if float(rest[1]) < 0.5 else "ok"
        return "text\n- seven\n-  \n" if kind == "R" else "- seven\n- short\n- seven"

    asked(monkeypatch, says)
    judge = judges.evolving(setup, path="", rubric=("short",), samples=1, retrain_every=2, **TEXTS)
    rows = judged_rows(setup.task.tokenizer)
    np.testing.assert_allclose(judge(rows).rewards, [0.9, 0.7, 0.8, 0.5])
    assert [judge.learner.due() for _ in range(4)] == [False, True, False, True]
    metrics = judge.learn(rows, np.zeros(4))
    assert metrics == dict(bad=0.0, refined=1.0, criteria=2.0, merged=1.0) and "R|3" in calls
    assert calls[-1] == "M|- short\n\n- seven" and judge.learner.criteria == ("seven", "short")
    after = judge(rows)
    np.testing.assert_allclose(after.rewards, [0.45, 0.35, 0.4, 0.75])
    np.testing.assert_allclose(after.components["unparsed"], [0.5, 0.5, 0.5, 0])
    judge.learn(rows, np.zeros(4))
    assert calls[-2] == "R|3", "gradings that are bad come first: the first of three"


def test_a_rubric_goes_through_a_checkpoint(setup, monkeypatch):
    asked(monkeypatch, lambda question: "nothing")
    made = [judges.evolving(setup, path="", rubric=(text, "é"), retrain_every=3, **TEXTS) for text in ("a b", "c")]
    made[0].learner.due()
    made[1].learner.set_carried(made[0].learner.carried())
    assert made[1].learner.criteria == ("a b", "é") and made[1].learner.seen == 1
    rows = judged_rows(setup.task.tokenizer, PROMPTS)
    found = made[0].learn(rows, np.zeros(4))
    assert found["merged"] == found["refined"] == 0.0 and made[0].learner.criteria == ("a b", "é"), "nothing was said"
    assert not any(judges.evolving(setup, path="", rubric="a".split(), retrain_every=0).learner.due() for _ in range(3))
    for bad, said in (
        (dict(rubric="text"), "rubric='text': give a sequence"),
        (dict(rubric=("x",), samples=0), "samples=0, most=8 and high=10 must be at least 1"),
        (dict(rubric=("x" * 9_000,)), "has 9000 bytes, more than 8192"),
    ):
        with pytest.raises(ValueError, match=said):
            judges.evolving(setup, path="", **bad)
    assert read_criteria("- a\nb\n - c \n- a\n-\n") == ["a", "c"]


# --- Configs -------------------------------------------------------------------------------------------------------


def test_a_warm_start_composes_without_its_judges(setup):
    """Its terms are added up: by_source and gated_score name a judge, which it does not ask."""
    config = setup.config.copy_and_resolve_references().unlock()
    config.judge = dict(assessed=dict(fn="pointwise", path="nowhere"))
    config.reward.terms = dict(right=dict(fn="task"))
    table = dict(open=dict(assessed=1.0), sums=dict(right=1.0))
    rows = judged_rows(setup.task.tokenizer, infos=[{"answer": 3}] * 2 + [{"answer": 26}] * 2)
    rows.records[0]["source"] = "open"
    for record in rows.records[1:]:
        record["source"] = "sums"
    for compose in (
        dict(fn="by_source", table=table),
        dict(fn="rl_jax.rewards.brevity:gated_score", by="right", score="assessed"),
        dict(fn="weighted_sum"),
    ):
        config.reward.compose = compose
        with make_rewards(setup._replace(config=config), judged=False) as rewards:
            result = rewards(Rows(rows.rollout, rows.records, rows.completions, 2))
        np.testing.assert_allclose(result.rewards, [1, 0, 1, 0])
        assert "assessed" not in result.components


@pytest.mark.parametrize(
    ("module", "arg"),
    [
        *((mpo, arg) for arg in (None, "fixed,smoke")),
        *((dsp, arg) for arg in (None, "smoke")),
        *((reward_anything, arg) for arg in (None, "judge", "judge_rl,smoke", "short", "assessed", "judge,assessed")),
    ],
)
def test_their_configs_can_run(module, arg):
    config = module.get_config(arg)
    check_config.check(config)
    policy_parts.check_choices(config)
    assert bool(config.judge) != ("judge" in (arg or ""))


def test_a_group_of_reward_anything_is_one_question():
    """Red before: groups of 8 became two questions, whose grades are not comparable."""
    for arg in (None, "smoke", "short", "assessed"):
        config = reward_anything.get_config(arg)
        assert config.sample.group_size == config.judge.listed.most == 4


def test_a_policys_prompts_come_from_preferences(tmp_path):
    config = reward_anything.get_config("short")
    config.task.data.update(num_prompts=20, data_dir=str(tmp_path))
    source = tasks.load(**config.task.to_dict()).data_source("train")
    best = preferences.load(**config.task.data.to_dict()).data_source("train")
    assert source[0]["prompt"] == best[0]["prompt"] and source[0]["completion"] == best[0]["responses"][0]
    assert json.loads(source[0]["info"])["principle"] == "Lists should be short."
    with pytest.raises(ValueError, match="choose one of judge, judge_rl, short, not judge, short"):
        reward_anything.get_config("judge,short")
