"""Configs that no other test starts: each through its program, one step, at sizes that share compiled programs."""

import importlib
import json

import numpy as np
import pytest

from configs.preferences import process_rewards
from configs.prompts import fleming_r1
from configs.tasks import intuitor
from experiments import grpo, ppo
from rl_jax.tasks.arithmetic import ALPHABET
from tests.experiments.judge_runs import SMALL, model_run, reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

PROGRAMS = {"grpo": grpo, "ppo": ppo}


@pytest.fixture(autouse=True)
def without_evaluation(monkeypatch):
    """It is another program to compile, and the same for all of them."""
    for module in (grpo, ppo.play_groups):
        monkeypatch.setattr(module, "make_evaluate", lambda setup, rewards: lambda params: ({}, []))


def with_few_records(config, tmp_path):
    """The small model of the runs that judge, and few records: tens of thousands take longer than a run."""
    config.model.update(SMALL)
    task = config.task.get("of", config.task)  # of a task on another one's records
    task.data_dir = str(tmp_path / "data")
    for name in ("num_train", "num_test", "num_texts", "num_problems"):
        if name in task:
            task[name] = 200
    return config


def started(config, tmp_path, prompts=4, **rollout):
    """(the last row of metrics.jsonl of one step, the rows of samples.jsonl)."""
    with_few_records(config, tmp_path)
    config.rollout.update(**rollout)
    config.sft.steps = 0
    config.train.steps = 1
    config.sample.update(prompts_per_step=prompts, group_size=4)
    config.eval.update(every=0, num_prompts=16, batch_size=16)
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False, sample_rows=4 * prompts)
    PROGRAMS[config.program].run(config.lock(), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 1 and np.isfinite(rows[-1]["loss"]) and rows[-1]["reward/errors"] == 0
    assert len(samples) == 4 * prompts
    return rows[-1], samples


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("name", ["cls_rl", "mr_rlvr", "rlpt", "visual_jigsaw", "math"])
def test_a_task(tmp_path, name):
    config = importlib.import_module(f"configs.tasks.{name}").get_config("smoke")
    row, samples = started(config, tmp_path, completion_length=8, prompt_buckets=(160,))
    for term in config.reward.terms:
        assert np.isfinite(row[f"reward/{term}"]), term
    assert len({sample["prompt"] for sample in samples}) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_multiple_choice_without_a_file(tmp_path):
    row, samples = started(fleming_r1.get_config("smoke"), tmp_path, completion_length=8)
    assert "reward/right" in row and row["prompts/effective"] > 50
    assert all("? A " in sample["prompt"] and sample["info"]["answer"] in "ABC" for sample in samples)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("word", ["clip_delta", "fine_grained", "otb", "tulu3"])
def test_rewards_of_steps(tmp_path, word):
    config = process_rewards.get_config(f"{word},smoke")
    for judge in config.judge.values():
        judge.path = reward_run(tmp_path / "steps", ALPHABET, reads="steps", scale=1.0)
        judge.separator = "="
    if word == "tulu3":
        config.critic.init_from = reward_run(tmp_path / "rm", ALPHABET)
    row, _ = started(config, tmp_path, completion_length=8, prompt_buckets=(24,))
    if word == "tulu3":
        assert row["reward/verified/weighted"] == 10 * row["reward/verified"] and np.isfinite(row["value/loss"])
    elif word != "otb":
        assert row["reward/steps"] != 0.0
    assert ("reward/whole" in row) == (word == "fine_grained")


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_reward_without_labels(tmp_path):
    config = with_few_records(intuitor.get_config("smoke"), tmp_path)
    config.init_from = config.judge.sure.path = model_run(tmp_path / "start", config.copy_and_resolve_references())
    row, _ = started(config, tmp_path, completion_length=8, prompt_buckets=(24,))
    assert row["reward/mean"] == row["reward/sure"] > 0.0 and "reward/task" in row
