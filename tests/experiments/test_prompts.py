"""Prompts with memory through a program: moved by feedback, resumed bit for bit, not moved by compiling ahead."""

import json
import shutil
import types

import numpy as np
import pytest

from configs.prompts import fleming_r1
from experiments import grpo
from experiments.parts import policy
from experiments.parts.judging import Judged
from experiments.parts.prompts import feedback_of, make_prompts
from experiments.parts.sample_groups import Collector
from experiments.parts.setup import make_setup
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.experience import PromptStream, PromptTable, sources
from rl_jax.rewards.pool import RewardResult
from rl_jax.runs.logging import read_jsonl
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

# A weight per prompt, a value and a shortest answer of each, prompts drawn again: all that is carried between steps.
MOVING = dict(
    sample__prompts=dict(fn="by_success", decay=0.9),
    sample__memory=dict(on=True, successes=1, last=True),
    sample__dynamic_sampling__max_batches=2,
    algorithm__shaping=dict(fn="shorter_than_before"),
    algorithm__advantage=dict(fn="tracked_relative"),
    algorithm__trackers__baseline=dict(fn="beta_values"),
    reward__function=small.reward(small.has_a_seven),
    train__steps=4,
    checkpoint__every=2,
    eval__every=100,
)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_with_moving_prompts_resumes_bit_for_bit(tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    streams, drawn = [], []
    make, ahead = policy.make_prompts, Collector.compile_ahead

    def noted(*args, **kwargs):
        streams.append(make(*args, **kwargs))
        return streams[-1]

    def left_alone(self, *args):
        before = streams[-1].get_state()
        result = ahead(self, *args)
        assert streams[-1].get_state() == before, "compiling ahead moved the prompts"
        drawn.append(before["source"]["draws"])
        return result

    monkeypatch.setattr(policy, "make_prompts", noted)
    monkeypatch.setattr(Collector, "compile_ahead", left_alone)
    monkeypatch.setattr(grpo, "make_evaluate", lambda setup, rewards: lambda params: ({}, []))
    config = small.config(tmp_path, **MOVING)
    grpo.run(config, whole)
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoints" / "4")
    (parts / "final.json").unlink()
    grpo.run(config, parts)
    for name in ("metrics.jsonl", "final.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert streams[1].get_state() == streams[0].get_state() and drawn[0] == 0 < drawn[1]
    rows = read_jsonl(whole / "metrics.jsonl")
    state = streams[0].get_state()
    assert len(state["source"]["successes"]) == 100 == len(state["source"]["failures"])
    groups = 8 * sum(int(row["sampling/batches"]) for row in rows if row["step"])
    assert sum(state["source"]["visits"]) == groups, "dropped groups give feedback, too"
    assert sum(entry["visits"] for entry in state["memory"].values()) == groups
    assert any(entry["best_length"] for entry in state["memory"].values())
    assert all(entry["last"]["log_probs"] for entry in state["memory"].values())
    last = rows[-1]
    assert 0 < last["prompts/success"] < 1 and 1 < last["prompts/effective"] < 100 and 0 < last["prompts/visited"] < 1
    assert last["tracker/baseline/successes"] != last["tracker/baseline/failures"]


def test_a_stream_is_of_the_config(tmp_path):
    setup = make_setup(small.config(tmp_path, sample__prompts=dict(fn="staged", column="num_operands", start=1.0)))
    records = setup.task.data_source("train")
    batch = next(make_prompts(setup, records, batch_size=8))
    assert len({record["id"] for record in batch}) == 8 and {"prompt", "id", "source", "index"} <= set(batch[0])
    with setup.config.unlocked():
        setup.config.sample.prompts = dict(fn="staged", column="level")
    said = r"RecordSource\('arithmetic', 'train', 100 records\), record 0, field 'level'"
    with pytest.raises(ValueError, match=said):
        make_prompts(setup, records, batch_size=8)


def test_best_lengths_need_a_memory(tmp_path):
    config = small.config(tmp_path, algorithm__shaping=dict(fn="shorter_than_before"))
    with pytest.raises(ValueError, match="needs best_lengths.* --config.sample.memory.on=true does"):
        policy.check_choices(config)


def judged(rewards, components, first=0):
    """Groups of two samples of the prompts `first`, `first` + 1, ..."""
    rewards = np.float32(rewards)
    count = len(rewards)
    mask = np.arange(3)[None] <= np.arange(count)[:, None] % 3
    rows = TokenBatch(*[np.zeros((count, 5), np.int32)] * 3)
    rollout = Rollout(rows, mask, *[np.zeros(mask.shape)] * 2, *[mask[:, 0]] * 2)
    records = [{"index": first + i // 2, "id": f"p{first + i // 2}"} for i in range(count)]
    result = RewardResult(rewards, {name: np.float32(x) for name, x in components.items()}, 0, 0, None)
    return Judged(rollout, records, [f"{first}.{i}" for i in range(count)], result)


def test_feedback_is_of_all_batches():
    batches = [judged([2.0, -1.0, 0.25, 0.5], {}), judged([5.0, 5.0], {"math/correct": [1.0, 0.0]}, first=7)]
    seen = feedback_of(batches, 2)
    np.testing.assert_array_equal(seen.indices, [0, 1, 7])
    assert seen.ids == ["p0", "p1", "p7"] and seen.completions == [["0.0", "0.1"], ["0.2", "0.3"], ["7.0", "7.1"]]
    np.testing.assert_array_equal(seen.rewards, [[2.0, -1.0], [0.25, 0.5], [5.0, 5.0]])
    np.testing.assert_array_equal(seen.success, [[1.0, 0.0], [0.25, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(seen.lengths, [[1, 2], [3, 1], [1, 2]])
    json.dumps(seen.ids)


def test_what_says_nothing_of_a_prompt_is_no_failure_at_it():
    """A verifier that was late, an environment that failed, a success that was played before: the others' mean."""
    batch = judged([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], {})
    batch = batch._replace(result=batch.result._replace(failed=np.arange(8) == 1))
    for record, status in zip(batch.records, ("done", "done", "error", *["done"] * 5), strict=True):
        record["episode"] = types.SimpleNamespace(status=status)
    batch.records[4]["replayed"] = True
    seen = feedback_of([batch], 2)
    almost = np.nextafter(np.float32(1), np.float32(0))  # not kept as a success
    np.testing.assert_array_equal(seen.success, [[1.0, almost], [almost, 1.0], [0.0, 0.0], [1.0, 1.0]])


def test_a_group_of_which_nothing_is_known_is_not_reported():
    """Red before: where the verifier failed on all rows, curricula counted as many failures of the policy."""
    batch = judged([1.0, 0.0, 0.0, 0.0], {})
    batch = batch._replace(result=batch.result._replace(failed=np.arange(4) >= 2))
    seen = feedback_of([batch], 2)
    assert seen.ids == ["p0"] and seen.completions == [["0.0", "0.1"]] and seen.newest is None
    np.testing.assert_array_equal(seen.success, [[1.0, 0.0]])
    records = [{"prompt": str(i), "info": "{}"} for i in range(2)]
    stream = PromptStream(records, sources.by_success(PromptTable(records)), batch_size=2)
    stream.feedback(seen)
    assert stream.get_state()["source"]["visits"] == [1, 0]
    before, _ = stream.get_state(), stream.metrics()
    nothing = feedback_of([batch._replace(result=batch.result._replace(failed=np.ones(4, bool)))], 2)
    stream.feedback(nothing)
    assert not nothing.ids and stream.get_state() == before and stream.metrics() == {}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_two_stages_of_multiple_choice(tmp_path, monkeypatch):
    """Fleming-R1 on a file of one's own: after the first stage only questions that are not yet answered come."""
    questions = tmp_path / "questions.jsonl"
    rows = [{"prompt": f"{i}? (A) 1 (B) 2 ", "answer": "AB"[i % 2], "completion": "(A)"} for i in range(40)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = fleming_r1.get_config("scratch")
    config.task.update(path=str(questions), data_dir=str(tmp_path / "data"))
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.rollout.update(completion_length=4, prompt_buckets=(32,))
    config.sft.update(steps=80, batch_size=16, eval_every=80)
    config.sft.optimizer.learning_rate = 1e-2  # it answers (A), which half of the questions are
    config.train.update(steps=6, micro_batches=1)
    config.sample.update(prompts_per_step=8, group_size=4)
    config.sample.prompts.steps = 3
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    config.checkpoint.every = 100  # of the warm start, too
    streams, make = [], policy.make_prompts
    monkeypatch.setattr(policy, "make_prompts", lambda *a, **k: streams.append(make(*a, **k)) or streams[-1])
    monkeypatch.setattr(grpo, "make_evaluate", lambda setup, rewards: lambda params: ({}, []))
    grpo.run(config.lock(), tmp_path / "run")
    state = streams[0].get_state()["source"]
    rows = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["step"]]
    count = len(state["successes"])
    assert 30 < count < 40 and state["draws"] == 6, "a tenth is held out"
    assert [row["prompts/effective"] == count for row in rows[:2]] == [True, True]
    assert all(row["prompts/effective"] < count for row in rows[3:]), "the second stage has left some out"
    assert 0 < np.count_nonzero(np.array(state["successes"]) > state["failures"]) < count
