"""WebRL (arXiv 2411.02337): its squared loss, tasks made of failed ones, what is kept, and the two kinds of rows."""

import json
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.experience import webrl
from experiments.parts import check_config, foreign_evolved
from experiments.parts.foreign_rows import Memory
from experiments.parts.foreign_stage import Candidates
from rl_jax import tasks
from rl_jax.losses.policy import regression
from rl_jax.selection import evolving
from tests.selection.test_rewriting import SIZE, judged_of, value


def test_the_loss_is_the_square_of_each_row_and_its_minimum_the_tilted_reference():
    rng = np.random.default_rng(0)
    log_probs, old, ref = (np.float32(rng.uniform(-2, 0, (3, 5))) for _ in range(3))
    advantages = np.repeat(np.float32([[0.7], [-0.4], [0.1]]), 5, axis=1)
    mask = np.arange(5) < np.array([[5], [2], [3]])
    found = regression.toward_advantage(log_probs, old, advantages, mask, ref_log_probs=ref, beta=0.5)
    for row, length in enumerate((5, 2, 3)):
        gap = sum(float(log_probs[row, t]) - float(ref[row, t]) for t in range(length))
        np.testing.assert_allclose(found.loss[row, length - 1], (0.5 * gap - advantages[row, 0]) ** 2, rtol=1e-5)
        assert not np.asarray(found.loss[row])[np.arange(5) != length - 1].any()
    np.testing.assert_allclose(found.ratio[0], np.exp(log_probs[0] - old[0]), rtol=1e-5)

    start, actions = jnp.array([0.3, -0.2, 0.5]), jnp.arange(3)
    prior = jax.nn.log_softmax(start)[:, None]
    values = np.array([0.6, -0.5, 0.2])
    values -= 0.5 * np.log(np.sum(np.exp(prior[:, 0] + values / 0.5)))  # advantages of the soft optimum

    def total(logits):
        pi = jax.nn.log_softmax(logits)[actions][:, None]
        ones = jnp.ones((3, 1), bool)
        spread = jnp.asarray(values, jnp.float32)[:, None]
        return regression.toward_advantage(pi, pi, spread, ones, ref_log_probs=prior, beta=0.5).loss.sum()

    np.testing.assert_allclose(jax.grad(total)(start + values / 0.5), 0, atol=1e-5)
    assert np.abs(jax.grad(total)(start)).max() > 0.1
    with pytest.raises(ValueError, match="beta=0 must be above 0"):
        regression.toward_advantage(log_probs, old, advantages, mask, ref_log_probs=ref, beta=0)


def test_new_tasks_are_made_of_failed_ones():
    failed = [{"prompt": prompt} for prompt in ("12+50-7=", "33-8=")]
    made = [evolving.similar_sum(failed, random.Random(seed)) for seed in range(40)]
    for record in made:
        info = json.loads(record["info"])
        assert value(record["prompt"]) == info["answer"] == int(record["completion"].split("=")[-1])
        assert len(info["steps"]) + 1 == info["num_operands"] in (2, 3)
        numbers = {int(x) for x in record["prompt"].removesuffix("=").replace("-", "+").split("+")}
        assert numbers <= {12, 50, 7, 33, 8}
    assert len({record["prompt"] for record in made}) > 15
    # One of three terms is asked for, of which -6 comes first: a sum begins without a sign.
    draws = iter(([4, 5, -6], -6, 5, -4))
    made = evolving.similar_sum([{"prompt": "4+5-6="}], SimpleNamespace(choice=lambda _: next(draws)))
    assert made["prompt"] == "6+5-4=" and made["completion"] == "11=7"
    assert json.loads(made["info"]) == {"answer": 7, "num_operands": 3, "steps": ["11", "7"]}
    for bad, said in (([{"prompt": "two"}], "'two' is no sum"), ([], "needs a failed task")):
        with pytest.raises(ValueError, match=said):
            evolving.similar_sum(bad, random.Random(0))


def test_new_instructions_have_the_words_of_failed_ones():
    texts = ["cat dog?", "fig?"]
    made = [evolving.similar_words(texts, random.Random(seed)) for seed in range(200)]
    words = [one.split() for one in made]
    assert {len(one) for one in words} == {1, 2} and all(len(set(one)) == len(one) for one in words)
    assert set(sum(words, [])) == {"cat", "dog", "fig"} and len(set(made)) == 9  # 3, and 6 pairs
    assert evolving.similar_words(["a b a"], random.Random(0)).split() in (["a", "b"], ["b", "a"])
    with pytest.raises(ValueError, match="needs an instruction"):
        evolving.similar_words(["?", ""], random.Random(0))
    assert evolving.instructions_in("Two: `cat?` and ` dog fig `\n``") == ["cat?", "dog fig"]
    assert evolving.instructions_in(" cat?\n") == ["cat?"] and evolving.instructions_in("  ") == []


def test_what_is_kept():
    success = [0.0, 0.05, 0.4, 0.75, 0.8, 1.0]
    assert evolving.learnable(np.array(success)).tolist() == [0.05 <= p <= 0.75 for p in success]
    with pytest.raises(ValueError, match="low=0.8 and high=0.75"):
        evolving.learnable(np.zeros(1), low=0.8)
    for wrong in (dict(low=-0.1), dict(high=1.5)):
        with pytest.raises(ValueError, match="must be shares in this order"):
            evolving.learnable(np.zeros(1), **wrong)
    assert evolving.learnable(np.array([0.0, 0.5, 1.0]), low=0, high=1).all()
    assert evolving.learnable(np.array([0.4, 0.5]), low=0.5, high=0.5).tolist() == [False, True]
    probs = [[0.9, 0.9, 0.1], [0.99, 0.99, 0.99], [0.2, 0.9, 0.9], [0.5, 0.7, 0.7], [0.53, 0.01, 0.01], [0.4, 1, 1]]
    mask = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0]], bool)
    # Geometric means .9, .99, .42, .53 and .4; the fourth row has no token.
    kept = [True, False, False, False, True, False]
    assert evolving.familiar(np.log(probs), mask).tolist() == kept
    assert evolving.familiar(np.where(mask, np.log(probs), np.nan), mask).tolist() == kept
    # Rounding above a probability of 1 is 1; a row without a token is nobody's, whatever the bounds.
    rounded = evolving.familiar(np.full((2, 3), 1e-4), np.array([[1, 1, 1], [0, 0, 0]], bool), low=0.0, high=1.0)
    assert rounded.tolist() == [True, False]


def test_solved_tasks_make_room_for_new_ones(monkeypatch):
    prompts = ["1+3=", "9-4=", "2+2=", "5+5="]
    first = judged_of(prompts, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]], 1)
    for record in first.records:
        record["info"] = json.dumps({"answer": 0})
    monkeypatch.setattr(foreign_evolved, "encode_prompts", lambda setup, records: (records, None))
    said = []

    def judge(drawn, records):
        said[:] = records
        return judged_of([r["prompt"] for r in records], [[1, 1, 1, 1], [0] * 4, [0, 0, 1, 1], [1, 1, 1, 1]], 7)

    stage = SimpleNamespace(
        group_size=SIZE, above=0.0, key=jax.random.key(0), setup=None, own_prompts=np.arange(4), memory=Memory(),
        records=lambda judged: judged.records[::SIZE], draw=lambda *_: None, judge=judge,
    )  # fmt: skip
    assert foreign_evolved.evolved(stage, first, np.ones(4, bool)) is None  # nothing has failed before this step
    found = foreign_evolved.evolved(stage, first, np.array([1, 1, 1, 0], bool))
    asked = [record["prompt"] for record in said]
    assert asked[:2] == prompts[:2] and asked[3] == "5+5=" and asked[2] != "2+2="  # solved and wanted: the third
    assert set(asked[2].removesuffix("=").split("+")) <= {"1", "3"}
    assert json.loads(said[2]["info"])["answer"] == value(asked[2])
    assert found.usable.tolist() == [[False] * 4, [False] * 4, [True] * 4, [False] * 4] and not found.foreign
    assert found.metrics == {"asked": 1.0, "made": 1.0, "success": 0.5, "kept": 1.0}
    kept = stage.memory.answers.get(foreign_evolved.FAILED)["successes"]
    assert [record["prompt"] for record in kept] == ["1+3=", "1+3="]
    restored = Memory()
    restored.restore(json.loads(json.dumps(stage.memory.state())))
    assert restored.answers.get(foreign_evolved.FAILED)["successes"] == kept


def test_a_chat_asks_the_task_by_which_it_is_graded(monkeypatch):
    """Red before: the old question was asked, since it stood in the messages, and the new one graded."""
    chat = [dict(role="system", content="Add."), dict(role="user", content="2+2=")]
    rows = judged_of(["1+3=", "2+2="], [[0] * 4, [1] * 4], 1)
    for record in rows.records:
        record |= {
            "info": json.dumps({"answer": 0}),
            "messages": [chat[0], dict(role="user", content=record["prompt"])],
        }
    asked = []
    monkeypatch.setattr(foreign_evolved, "encode_prompts", lambda setup, records: (asked.extend(records), None))
    stage = SimpleNamespace(
        group_size=SIZE, above=0.0, key=jax.random.key(0), setup=None, own_prompts=np.arange(2), memory=Memory(),
        records=lambda judged: judged.records[::SIZE], draw=lambda *_: None,
        judge=lambda drawn, records: judged_of([r["prompt"] for r in records], [[0] * 4, [0, 0, 1, 1]], 7),
    )  # fmt: skip
    foreign_evolved.evolved(stage, rows, np.ones(2, bool))  # from now on one has failed
    foreign_evolved.evolved(stage, rows, np.ones(2, bool))
    new = asked[1]
    assert new["prompt"] != "2+2=" and json.loads(new["info"])["answer"] == value(new["prompt"])
    assert new["messages"] == [chat[0], dict(role="user", content=new["prompt"])]
    assert asked[0]["messages"][1]["content"] == "1+3=" and rows.records[-1]["messages"] == chat


def test_the_policy_writes_tasks_of_those_that_failed(monkeypatch):
    """It reads two of them; the first new task that it has written in full, and that fits, is asked."""
    prompts = ["1+3=", "9-4=", "2+2=", "5+5="]
    first = judged_of(prompts, [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]], 1)
    for record in first.records:
        record["info"] = json.dumps({"answer": 0})
    monkeypatch.setattr(foreign_evolved, "encode_prompts", lambda setup, records: (records, None))
    calls, writes = [], [["?"] * 4, ["?"] * 4, ["no", "1+3=", "1+3+9-4=", "3+9="], ["", "9-4=", "1+3=", "07+1="]]

    def judge(drawn, records):
        calls.append([record["prompt"] for record in records])
        if len(calls) == 1:
            asked = judged_of(prompts, np.zeros((4, SIZE)), 2)
            return asked._replace(completions=[text for of_group in writes for text in of_group])
        return judged_of([r["prompt"] for r in records], [[0] * 4, [0] * 4, [0, 0, 0, 1], [1, 1, 1, 1]], 7)

    rollout = SimpleNamespace(prompt_buckets=(6,))
    task = SimpleNamespace(tokenizer=SimpleNamespace(encode=lambda text, bos: [1, *text]))
    setup = SimpleNamespace(task=task, config=SimpleNamespace(rollout=rollout))
    stage = SimpleNamespace(
        group_size=SIZE, above=0.0, key=jax.random.key(0), setup=setup, own_prompts=np.arange(4), memory=Memory(),
        records=lambda judged: [dict(record) for record in judged.records[::SIZE]], draw=lambda *_: None, judge=judge,
    )  # fmt: skip
    assert foreign_evolved.written(stage, first, np.ones(4, bool)) is None  # nothing has failed before this step
    found = foreign_evolved.written(stage, first, np.ones(4, bool))
    assert calls[0][:2] == prompts[:2] and {*calls[0][2:]} <= {"=1+3=9-4=", "=9-4=1+3="}
    assert calls[1] == ["1+3=", "9-4=", "3+9=", "5+5="]  # too long, seen, malformed: none of these
    assert found.usable.tolist() == [[False] * 4, [False] * 4, [True] * 4, [False] * 4]
    assert found.metrics == {"asked": 2.0, "made": 1.0, "success": 0.25, "kept": 1.0}


def test_a_written_sum_is_read_with_its_answer():
    record = evolving.read_sum(" 12-7+5=\n")
    assert record["prompt"] == "12-7+5=" and record["completion"] == "5=10"
    assert json.loads(record["info"]) == {"answer": 10, "num_operands": 3, "steps": ["5", "10"]}
    assert [evolving.read_sum(text) for text in ("12=", "12-7", "", "1+x=", "07+1=", "1+02=", "3+5=8")] == [None] * 7


def test_a_small_model_is_shown_how_a_task_is_made(tmp_path):
    of = dict(name="arithmetic", num_operands=(3, 3), digits=1, num_train=20, num_test=5, data_dir=str(tmp_path))
    task = tasks.load("rl_jax.tasks.self_judged:load", of=of, made=True)
    plain = tasks.load("rl_jax.tasks.self_judged:load", of=of).data_source("sft_train")
    shown, problems = task.data_source("sft_train"), task.data_source("train")
    assert len(shown) == 60 and len(plain) == 40 and len(problems) == 20
    assert [shown[i] for i in range(40)] == [plain[i] for i in range(40)]
    for place in range(20):
        record, two = shown[40 + place], [problems[place]["prompt"], problems[(place + 1) % 20]["prompt"]]
        assert record["prompt"] == "=" + "".join(two) and evolving.read_sum(record["completion"])
        assert task.tokenizer.decode(task.tokenizer.encode(record["prompt"])) == record["prompt"]


def test_the_config_takes_the_policy_or_a_rule():
    own, rules = webrl.get_config("smoke"), webrl.get_config("rules,smoke")
    assert own.foreign.evolved.fn.endswith(":written") and own.task.made
    assert rules.foreign.evolved.fn.endswith(":evolved") and not rules.task.made
    for config in (own, rules):
        check_config.check(config)


def test_only_familiar_answers_are_replayed(monkeypatch):
    rows = judged_of(["1+2=", "9-4="], np.ones((2, SIZE)), 3)
    usable = np.array([[True] * SIZE, [True] * 2 + [False] * 2])
    monkeypatch.setattr(foreign_evolved, "replay", lambda *_, size: Candidates(rows, usable))
    means = np.log([0.4, 0.6, 0.9, 0.97, 0.7, 0.1, 0.7, 0.7])
    scored = np.repeat(means[:, None], 2, axis=1)
    monkeypatch.setattr(foreign_evolved, "_scorer", lambda *_: lambda params, batch: scored)
    config = SimpleNamespace(score=SimpleNamespace(chunk=0))
    stage = SimpleNamespace(setup=SimpleNamespace(config=config), params=None)
    found = foreign_evolved.familiar_replay(stage, rows, np.ones(2, bool))
    assert found.usable.tolist() == [[False, True, True, False], [True, False, False, False]]
    assert found.metrics == {"familiar": 0.5}
