"""experiments/parts/sample_groups.py: what dynamic sampling keeps, in which order, and what stays as it was without
it."""

import types

import jax
import numpy as np
import pytest

from experiments.parts import sample_groups
from experiments.parts.clock import Clock
from experiments.parts.judging import Judged
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.rewards.pool import RewardResult
from rl_jax.training import sharding
from tests.experiments.small import config as small_config

SIZE, LENGTH = 2, 3


class Prompts:
    """Given batches, and the prompts that the feedback was about."""

    def __init__(self, batches):
        self.batches, self.told = iter(batches), []

    def __next__(self):
        return [record | {"index": record["id"]} for record in next(self.batches)]

    def recall(self, records):
        return {"prompt_ids": np.array([record["index"] for record in records])}

    def feedback(self, seen):
        self.told.append(seen)

    def metrics(self):
        return {"prompts/told": [seen.ids for seen in self.told]}


@pytest.fixture
def stage(tmp_path, monkeypatch):
    return staged(tmp_path, monkeypatch, SIZE)


def staged(tmp_path, monkeypatch, size):
    """collect() on prompts that carry their own rewards: (call, keys of the batches that were sampled)."""
    config = small_config(tmp_path, sample__group_size=size, sample__prompts_per_step=2)
    task = types.SimpleNamespace(tokenizer=types.SimpleNamespace(pad_id=9))
    mesh = sharding.make_mesh(sharding.parse_mesh(""))
    setup = types.SimpleNamespace(config=config, task=task, mesh=mesh, rollout=None)
    keys = []

    def generate(params, tokens, prompt_mask, key):
        keys.append(key)
        return tokens

    def judge(setup, pool, rollout, records, here, count):
        rewards = np.concatenate([np.float32(r["rewards"][: len(rollout) * size // len(records)]) for r in records])
        rows, width = len(rewards), records[0]["width"]
        each = len(rewards) // len(records)
        ids = np.repeat([r["id"] for r in records], each)
        tokens = np.broadcast_to(ids[:, None], (rows, width + LENGTH)).astype(np.int32)
        blank = np.ones((rows, LENGTH), np.float32)
        rollout = Rollout(
            TokenBatch(tokens, tokens, tokens), blank > 0, -blank, -blank, np.ones(rows, bool), np.zeros(rows, bool)
        )
        components = {} if records[0].get("failed") else {"correct": rewards}
        texts = [f"{i}.{j}" for i in ids for j in range(1)]
        result = RewardResult(rewards, components, 1, 2, None)
        return Judged(rollout, [r for r in records for _ in range(each)], texts, result)

    monkeypatch.setattr(sample_groups, "judge", judge)
    monkeypatch.setattr(sample_groups, "encode_prompts", lambda setup, records: (records, None))

    def call(batches, max_batches=1, greedy=None, references=None):
        with config.unlocked():
            config.sample.dynamic_sampling.max_batches = max_batches
        prompts = Prompts(batches)
        samplers = sample_groups.Samplers(generate, greedy, references)
        collect = sample_groups.Collector(setup, None, prompts, samplers)
        return collect(None, jax.random.key(0), Clock(), "reference"), list(prompts.batches)

    return call, keys


def prompt(name, *rewards, width=2, **more):
    return {"id": name, "rewards": rewards, "width": width, **more}


BATCHES = [
    [prompt(1, 1, 1), prompt(2, 0, 1)],
    [prompt(3, 0, 0), prompt(4, 1, 0, width=2)],
    [prompt(5, 1, 0), prompt(6, 0, 1)],
]


def test_without_dynamic_sampling_a_batch_is_taken_as_it_is(stage):
    call, keys = stage
    found, left = call(BATCHES)
    assert [r["id"] for r in found.judged.records] == [1, 1, 2, 2] and len(left) == 2
    assert found.metrics == {"prompts/told": [[1, 2]]} and found.greedy_rewards is None
    np.testing.assert_array_equal(found.named["prompt_ids"], [1, 1, 2, 2])
    assert len(keys) == 1 and (jax.random.key_data(keys[0]) == jax.random.key_data(jax.random.key(0))).all()
    assert (found.judged.result.num_timeouts, found.judged.result.num_errors) == (1, 2)


def test_groups_without_a_spread_are_replaced(stage):
    call, keys = stage
    found, left = call(BATCHES, max_batches=3)
    judged = found.judged
    assert [r["id"] for r in judged.records] == [2, 2, 4, 4]
    np.testing.assert_array_equal(judged.result.rewards, [0, 1, 1, 0])
    np.testing.assert_array_equal(judged.result.components["correct"], [0, 1, 1, 0])
    np.testing.assert_array_equal(judged.rollout.batch.tokens[:, 0], [2, 2, 4, 4])
    assert len(left) == 1, "it stops as soon as the step is full"
    told = found.metrics.pop("prompts/told")
    assert told == [[1, 2, 3, 4]], "once per step, about the dropped groups as well"
    assert found.metrics == {"sampling/batches": 2, "sampling/dropped": 0.5}
    assert (judged.result.num_timeouts, judged.result.num_errors) == (2, 4), "failures of dropped groups count"
    assert not (jax.random.key_data(keys[0]) == jax.random.key_data(keys[1])).all()


def test_groups_of_one_are_kept(tmp_path, monkeypatch):
    """As DAPO's code has it: they have no spread, and no batch of them would ever be enough."""
    call, keys = staged(tmp_path, monkeypatch, 1)
    found, left = call([[prompt(1, 1), prompt(2, 0)], [prompt(3, 1), prompt(4, 0)]], max_batches=2)
    assert [r["id"] for r in found.judged.records] == [1, 2] and len(left) == len(keys) == 1
    assert found.metrics["sampling/dropped"] == 0.0


def test_a_step_that_cannot_be_filled_keeps_its_shape(stage):
    call, _ = stage
    found, _ = call(BATCHES, max_batches=1 + 0)
    assert len(found.judged.records) == 4
    found, left = call([BATCHES[0], [prompt(7, 1, 1), prompt(8, 0, 0)]], max_batches=2)
    assert [r["id"] for r in found.judged.records] == [2, 2, 1, 1] and not left
    assert found.metrics["sampling/dropped"] == 0.75


def test_more_than_enough_groups_are_cut_to_the_first(stage):
    call, _ = stage
    found, _ = call([BATCHES[0], BATCHES[2]], max_batches=2)
    assert [r["id"] for r in found.judged.records] == [2, 2, 5, 5]


def test_prompts_of_different_widths_are_padded_on_the_left(stage):
    call, _ = stage
    wide = [prompt(4, 1, 0, width=4, failed=True), prompt(3, 0, 0, width=4)]
    found, _ = call([BATCHES[0], wide], max_batches=2)
    tokens, segments = found.judged.rollout.batch.tokens, found.judged.rollout.batch.segment_ids
    assert tokens.shape == (4, 4 + LENGTH)
    np.testing.assert_array_equal(tokens[0], [9, 9, 2, 2, 2, 2, 2])  # pad_id
    np.testing.assert_array_equal(segments[0], [0, 0, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(tokens[2], [4] * 7)
    # A batch whose reward function failed throughout has no components: 0 there.
    np.testing.assert_array_equal(found.judged.result.components["correct"], [0, 1, 0, 0])


def test_rewards_of_references_stand_on_every_row_of_their_prompt(stage):
    call, _ = stage
    asked = []

    def references(params, tokens, prompt_mask, key):
        asked.append(params)
        return tokens

    found, _ = call([BATCHES[0]], references=references)
    rewards = [r["rewards"][:SIZE] for r in BATCHES[0]]
    np.testing.assert_array_equal(found.named["reference_rewards"], np.repeat(rewards, SIZE, axis=0))
    assert asked == ["reference"] and found.metrics["reward/references"] == np.mean(rewards)


def test_greedy_rewards_stand_on_every_row_of_their_prompt(stage):
    call, _ = stage
    seen = []

    def greedy(params, tokens, prompt_mask, key):
        seen.append([r["id"] for r in tokens])
        return tokens[:1]  # half as many rows: one a prompt

    found, _ = call(BATCHES, greedy=greedy)
    assert seen == [[1, 2]]
    np.testing.assert_array_equal(found.greedy_rewards, [1, 1, 0, 0])
