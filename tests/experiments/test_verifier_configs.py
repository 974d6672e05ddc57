"""Configs of verifiable rewards (configs/tasks): their terms and composition on right and wrong answers, and a run."""

import importlib
import json
import random

import numpy as np
import pytest

from experiments import grpo
from experiments.parts.judges import generative
from experiments.parts.judging import Judged
from experiments.parts.rewards import Rows, make_rewards
from experiments.parts.setup import make_setup
from rl_jax.core.types import Rollout
from rl_jax.tasks import toy_kinds


def tiny(name, tmp_path, *words):
    config = importlib.import_module(f"configs.tasks.{name}").get_config(",".join(["smoke", *words]))
    config.task.update(num_train=60, num_test=20, data_dir=str(tmp_path))
    config.model.update(embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16)
    config.sft.steps = 0
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    return config.lock()


def rewards_of(name, tmp_path, groups, *words):
    """float32 [B]: the composed rewards of groups [(kind, toy, texts)], of equally many texts each."""
    texts = [text for _, _, group in groups for text in group]
    mask = np.arange(200) < np.array([len(text) for text in texts])[:, None]
    rollout = Rollout(None, mask, None, None, np.ones(len(mask), bool), np.zeros(len(mask), bool))
    records = [
        {"prompt": toy.prompt, "info": json.dumps(toy.info | {"source": kind}), "source": kind}
        for kind, toy, group in groups
        for _ in group
    ]
    with make_rewards(make_setup(tiny(name, tmp_path, *words))) as score:
        found = score(Rows(rollout, records, texts, len(groups[0][2])))
    assert found.first_error is None and np.isfinite(found.rewards).all()
    return found.rewards.reshape(len(groups), -1).tolist()


def toy(kind, seed=0):
    return toy_kinds.KINDS[kind](random.Random(seed))


@pytest.mark.slow
def test_diversity_counts_behind_the_accuracy_only(tmp_path):
    view = toy("views")
    wrong = "<answer>nothing</answer> as a cook, as a nurse, as a child"
    plain = f"<answer>{view.info['answer']}</answer>"
    texts = [plain, plain, view.right, wrong]
    ((first, second, several, diverse),) = rewards_of("multirole_r1", tmp_path, [("views", view, texts)])
    assert 1.0 <= first == second < several and diverse == 0.0
    ((*_, several, diverse),) = rewards_of("multirole_r1", tmp_path, [("views", view, texts)], "accuracy")
    assert (several, diverse) == (1.0, 0.0)


@pytest.mark.slow
def test_each_source_is_scored_by_its_own_term(tmp_path):
    kinds = ("boxes", "screening", "echoes")
    groups = [(kind, found, (found.right, "x")) for kind in kinds for found in [toy(kind)]]
    for right, wrong in rewards_of("mixed_r1", tmp_path, groups):
        assert right == pytest.approx(1.0) and wrong < 0.3


@pytest.mark.slow
def test_a_model_assesses_what_no_rule_checks(tmp_path, monkeypatch):
    """WeThink's hybrid reward: boxes and decisions by rule, open sentences by the model's verdict, whatever it is."""
    asked = []

    def make_ask(*_):
        return lambda texts: [asked.append(text) or str(int("odd" in text)) for text in texts]

    monkeypatch.setattr(generative, "make_ask", make_ask)
    toys = [(kind, toy(kind)) for kind in ("boxes", "screening", "echoes")]
    rows = [(kind, found, text) for kind, found in toys for text in (found.right, "odd")]
    records = [
        {"prompt": found.prompt, "info": json.dumps(found.info | {"source": kind}), "source": kind}
        for kind, found, _ in rows
    ]
    texts = [text for *_, text in rows]
    mask = np.arange(80) < np.array([len(text) for text in texts])[:, None]
    rollout = Rollout(None, mask, None, None, np.ones(len(mask), bool), np.zeros(len(mask), bool))
    with make_rewards(make_setup(tiny("wethink", tmp_path))) as rewards:
        scored = rewards(Rows(rollout, records, texts, 2))
        found = rewards.finish(Judged(rollout, records, texts, scored)).result
    np.testing.assert_allclose(found.rewards, [1, 0, 1, 0, 0, 1], atol=1e-6)
    assert f"{toys[2][1].prompt}|odd=" in asked, "it sees question and answer"
    assert found.components["assessed/unparsed"].tolist() == [0] * 6


@pytest.mark.slow
def test_penalties_are_clipped_unless_heavy(tmp_path):
    found = next(t for seed in range(20) if (t := toy("screening", seed)).right == "reject")
    groups = [("screening", found, ("reject", "hire", "maybe"))]
    assert rewards_of("resume_grpo", tmp_path, groups) == [[1.0, -0.5, 0.0]]
    assert rewards_of("resume_grpo", tmp_path, groups, "heavy") == [[1.0, -20.0, 0.0]]


@pytest.mark.slow
def test_the_veto_of_the_rubric(tmp_path):
    letter = toy("letters")
    hacked = letter.right.replace("thanks", "thanks " * 4) + "!"
    groups = [("letters", letter, (letter.right, hacked))]
    ((honest, vetoed),) = rewards_of("rubric_anchors", tmp_path, groups)
    assert honest > 0.8 and vetoed == 0.0
    ((honest, paid),) = rewards_of("rubric_anchors", tmp_path, groups, "plain")
    assert paid > honest


@pytest.mark.slow
def test_a_signed_geometric_mean_of_two_terms(tmp_path):
    way = toy("paths")
    groups = [("paths", way, (way.right, *way.wrong[:1]))]  # and the same way back
    ((right, back),) = rewards_of("lucy_skg", tmp_path, groups)
    ((right_sum, back_sum),) = rewards_of("lucy_skg", tmp_path, groups, "sum")
    assert right == pytest.approx(1.0) == right_sum and back < 0
    near = 2 * back_sum + 1  # (near - 1) / 2 is the sum, as the heading is -1
    assert back == pytest.approx(-(near**0.5), abs=1e-5)


@pytest.mark.slow
def test_votes_need_no_label(tmp_path):
    config = importlib.import_module("configs.tasks.evol_rl").get_config("smoke")
    config.task.update(num_train=20, num_test=10, data_dir=str(tmp_path))
    config.reward.num_workers = 0
    texts = ["1=3=7", "2=7", "1=3=8", "no"]
    mask = np.arange(12) < np.array([len(text) for text in texts])[:, None]
    rollout = Rollout(None, mask, None, None, np.ones(4, bool), np.zeros(4, bool))
    records = [{"prompt": "1+2+4=", "info": json.dumps({"answer": 8})}] * 4
    with make_rewards(make_setup(config.lock())) as score:
        found = score(Rows(rollout, records, texts, 4))
    majority, minority = found.rewards[:2], found.rewards[2:]
    assert (majority >= 0.5).all() and minority.tolist() == [-0.5, -1.0]  # 7 is wrong, and the label all the same
    assert found.components["right"].tolist() == [0, 0, 1, 0]


@pytest.mark.slow
def test_two_steps_of_a_mixture(tmp_path):
    config = tiny("mixed_r1", tmp_path / "data")
    with config.unlocked():
        config.train.steps, config.checkpoint.every = 2, 100
        config.eval.update(every=2, num_prompts=8, batch_size=8)
        config.sample.update(prompts_per_step=4)
    grpo.run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "loss" in row]
    assert len(trained) == 2
    for term in config.reward.terms:
        assert all(np.isfinite(row[f"reward/{term}"]) for row in trained)
