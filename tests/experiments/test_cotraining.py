"""judges/cotraining.py: a reward model is updated on right answers and the same ones made wrong (Cooper)."""

import json
import os
import re
import types

import numpy as np
import pytest

from configs.preferences import cooper
from experiments.parts import check_config, judges
from experiments.parts import policy as policy_parts
from experiments.parts.judges import cotraining
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import make_setup
from rl_jax.rewards.arithmetic import score as verify
from rl_jax.tasks.arithmetic import ALPHABET
from tests.experiments.judge_runs import reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.test_judges import LENGTH, judged_rows

PROMPTS = ("1+2=", "1+2=", "1+2=", "30-4=", "30-4=", "9+9=")
COMPLETIONS = ("4", "3", "1=3", "26", "25", "17")
ANSWERS = (3, 3, 3, 26, 26, 18)
LABELS = np.float32([0, 1, 1, 1, 0, 0])


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    config = small_config(tmp_path_factory.mktemp("task")).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    return make_setup(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return reward_run(tmp_path_factory.mktemp("run") / "rm", ALPHABET, scale=1.0)


def rows(tokenizer, prompts=PROMPTS, completions=COMPLETIONS, answers=ANSWERS):
    infos = [{"answer": a, "judge_prompt": f"{a}={prompt}"} for a, prompt in zip(answers, prompts, strict=True)]
    return judged_rows(tokenizer, prompts, completions, infos)


def by_rule(records, texts):
    """The task's own reward, here."""
    rows = zip(records, texts, strict=True)
    return np.float32([verify(r["prompt"], text, json.loads(r["info"]))["reward"] for r, text in rows])


def seen_by(judge, monkeypatch):
    """What `learn` hands to the reward model: (prompts, pairs, live)."""
    calls, judge.verify = [], by_rule
    monkeypatch.setattr(judge._judge, "learn_texts", lambda *given: calls.append(given) or {"loss": 0.0})
    return calls


def test_a_prompt_gives_its_first_right_answer_and_the_same_made_wrong(setup, folder, monkeypatch):
    judge = judges.cotrained(setup, path=folder, batch_size=4)
    calls = seen_by(judge, monkeypatch)
    metrics = judge.learn(rows(setup.task.tokenizer), LABELS)
    ((prompts, pairs, live),) = calls
    assert prompts == ["3=1+2=", "26=30-4=", "18=9+9="]  # with the reference answer
    assert live == [True, True, False] and metrics["pairs"] == pytest.approx(2 / 3)
    assert [pair[0] for pair in pairs] == ["3", "26", ""]
    for (right, wrong), length in zip(pairs[:2], (1, 2), strict=True):
        assert len(wrong) == length and sum(a != b for a, b in zip(right, wrong, strict=True)) == 1
    judge.learn(rows(setup.task.tokenizer), LABELS)
    assert calls[1] == calls[0]  # what is drawn depends on the step and the answer alone


def deadly(prompt, completion, info):
    """A rule that one answer is too much for, and another ends the process that it runs in."""
    if completion == "27":
        raise OverflowError(completion)
    if completion == "19":
        os._exit(3)  # as a reward of generated code may
    return {"reward": float(completion == str(info["answer"]))}


def refuse_then_kill(answer, rng):
    return {"26": "27", "18": "19", "3": "4"}[answer]


@pytest.mark.parametrize("terms", [{}, {"task": {"fn": "task"}}])
def test_the_rule_reads_the_wrong_answers_in_the_workers_of_the_run(setup, folder, monkeypatch, terms):
    """Red before: it ran in the training process, which a rule that raises, hangs or exits took with it."""
    config = setup.config.copy_and_resolve_references().unlock()
    config.reward.update(function=f"{__name__}:deadly", num_workers=1, terms=terms)
    config.judge = dict(verify=dict(fn="cotrained", path=str(folder), retrain_every=1))
    config.judge.verify.corrupt = f"{__name__}:refuse_then_kill"
    given = rows(setup.task.tokenizer, ("1+2=", "30-4=", "9+9="), ("3", "26", "18"), (3, 26, 18))
    calls = []
    with make_rewards(make_setup(config)) as rewards:
        (judge,) = rewards._judges.by_name.values()
        monkeypatch.setattr(judge._judge, "learn_texts", lambda *given: calls.append(given) or {"loss": 0.0})
        components = {"task": np.ones(3, np.float32)}
        metrics = rewards.learn(
            types.SimpleNamespace(**vars(given), result=types.SimpleNamespace(components=components, failed=None))
        )
    ((_, pairs, live),) = calls
    assert live == [True, False, False] and pairs[0] == ("3", "4")
    assert metrics == {"judge/verify/loss": 0.0} | {
        "judge/verify/pairs": pytest.approx(1 / 3),
        "judge/verify/unverified": pytest.approx(2 / 3),
    }


def test_without_a_right_answer_the_rule_is_not_asked(setup, folder, monkeypatch):
    judge = judges.cotrained(setup, path=folder)
    calls = seen_by(judge, monkeypatch)
    assert judge.learn(rows(setup.task.tokenizer), 0 * LABELS)["pairs"] == 0 and calls[0][2] == [False] * 3


def test_an_assistant_may_write_the_wrong_answer_and_one_that_is_right_does_not_count(setup, folder, monkeypatch):
    questions = []

    def make_ask(*given):
        def ask(texts):
            questions.append(list(texts))
            return ["2=3" if "1+2" in text else "27" for text in texts]

        return ask

    monkeypatch.setattr(cotraining, "make_ask", make_ask)
    judge = judges.cotrained(setup, path=folder, assistant="lm", template="{prompt}{completion}?")
    calls = seen_by(judge, monkeypatch)
    judge.learn(rows(setup.task.tokenizer), LABELS)
    assert questions == [["1+2=3?", "30-4=26?"]]
    assert calls[0][1] == [("", ""), ("26", "27"), ("", "")] and calls[0][2] == [False, True, False]


@pytest.mark.slow
def test_it_learns_what_is_right_for_prompts_that_it_has_not_seen(setup, folder):
    """Sums of 3: other digits are worse after some updates; with the pairs turned round they would be better."""
    tokenizer = setup.task.tokenizer
    judge = judges.cotrained(setup, path=folder, retrain_every=1, learning_rate=1e-2)
    judge.verify = by_rule
    seen, other = ["1+2=", "2+1=", "5-2=", "9-6="], ["7-4=", "8-5="]

    def gap():
        right = judge(rows(tokenizer, other, ["3", "3"], (3, 3))).rewards
        wrong = judge(rows(tokenizer, other * 4, list("11447799"), (3,) * 8)).rewards
        return right.mean() - wrong.mean()

    before, losses = gap(), []
    for _ in range(10):
        assert judge.learner.due()
        losses.append(judge.learn(rows(tokenizer, seen, ["3"] * 4, (3,) * 4), np.ones(4, np.float32))["loss"])
    assert before < 0.1 and losses[0] > 0.3 and losses[-1] < 0.1, (before, losses)
    assert gap() > 3, (before, gap())


def test_what_cannot_be_verified_is_refused(setup, folder):
    bare = setup._replace(task=setup.task._replace(reward_fn=None))
    with pytest.raises(ValueError, match="cotrained: the task has no reward of its own"):
        judges.cotrained(bare, path=folder)
    assert judges.cotrained(bare, path=folder, retrain_every=0).learner is None


@pytest.mark.parametrize("word", ["", "smoke"])
def test_without_its_model_the_command_that_trains_it_is_named(setup, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = cooper.get_config(word or None).judge.verify.path
    model = ",".join(["model", *([word] if word else [])])
    assert path == f"runs/{cooper.get_config(model).name}", "where the command puts it without a --workdir, too"
    said = f"python -m experiments.reward_model --config=configs/preferences/cooper.py:{model} --workdir={path}"
    with pytest.raises(FileNotFoundError, match=re.escape(f"train a reward model with {said}") + "$"):
        judges.cotrained(setup, path=path)


def test_its_configs_can_run():
    for arg in (None, "model", "frozen", "smoke", "model,smoke"):
        config = cooper.get_config(arg)
        check_config.check(config)
        if config.program == "grpo":
            assert policy_parts.needs_ref_log_probs(config)
            assert config.judge.verify.retrain_every == int(arg != "frozen")
    with pytest.raises(ValueError, match="model, frozen: the control has the same model"):
        cooper.get_config("model,frozen")
