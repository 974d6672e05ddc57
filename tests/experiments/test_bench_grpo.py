"""experiments.bench.grpo: the work is what it says, our side does all of it, and a peer's failure is told."""

import json
import sys

import numpy as np
import pytest

from experiments.bench import grpo

SIZES = dict(layers=1, d=16, ff=32, heads=2, kv=1, head_dim=8, vocab=32)


def test_ragged_lengths_are_heavy_tailed():
    lengths = grpo.make_lengths("ragged", 32, 64, np.random.default_rng(0))
    assert max(lengths) == 64 and min(lengths) == 4
    assert 0.75 <= np.mean(np.array(lengths) <= 16) <= 0.85
    assert grpo.make_lengths("uniform", 3, 64, np.random.default_rng(0)) == [64] * 3


@pytest.mark.parametrize("shape", grpo.SHAPES)
def test_the_work_is_the_same_at_every_call(shape):
    def make():
        return grpo.make_work(shape, SIZES, prompts=2, group_size=3, steps=2, beta=0.1)

    work = make()
    assert work == make() == json.loads(json.dumps(work))
    found = [prompt for batch in work["prompts"] for prompt in batch]
    assert len(found) == 4 and np.shape(work["lengths"]) == (2, 6)
    assert {len(prompt) for prompt in found} == {grpo.SHAPES[shape][0]} or shape == "ragged_prompts"
    assert max(map(max, found)) < SIZES["vocab"]


@pytest.mark.slow
def test_our_side_samples_the_lengths_and_makes_every_update(monkeypatch):
    work = grpo.make_work("ragged_prompts", SIZES, prompts=2, group_size=4, steps=3, beta=0.04)
    seen = []
    judged = grpo.judged
    monkeypatch.setattr(grpo, "judged", lambda rollout, size: seen.append(rollout) or judged(rollout, size))
    found = grpo.run_ours(work)
    assert [rollout.completion_mask.sum(axis=1).tolist() for rollout in seen] == work["lengths"]
    assert found["compile_count"][0] >= found["compile_count"][-1], "compiled after the first step"
    assert all(len(found[name]) == 3 and min(found[name]) > 0 for name in ("step_s", "rollout_s", "update_s"))


@pytest.mark.slow
def test_a_peer_that_fails_is_told_with_its_error():
    with pytest.raises(RuntimeError, match="(?s)tunix .* ended with 1: .*No module named 'tunix'"):
        work = grpo.make_work("uniform", SIZES, prompts=1, group_size=1, steps=1, beta=0.0)
        grpo.run_apart("tunix", [sys.executable, str(grpo.PEERS["tunix"])], work)


def test_a_first_step_that_counts_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(grpo, "measure", lambda *_, **__: {})
    with pytest.raises(SystemExit):
        grpo.main(["--warmup=0"])
    assert "--warmup=0 must be at least 1: the first step compiles" in capsys.readouterr().err


def test_an_unknown_peer_is_refused(capsys):
    with pytest.raises(SystemExit):
        grpo.main(["--peer", "x=python"])
    assert "['x'] is none of tunix, trl" in capsys.readouterr().err
