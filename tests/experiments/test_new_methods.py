"""Methods that lean on what a run carries or measures, through the program: memory, schedules, terms of a reward."""

import json

import pytest

from configs.experience import copo, d3s
from configs.methods import dcpo
from experiments import grpo
from rl_jax.runs.logging import read_jsonl
from tests.experiments import small
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  a fixture


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_they_run(tmp_path):
    """One run of two steps with the slots of all three that do not exclude each other."""
    config = small.config(tmp_path, train__steps=2, eval__every=100, checkpoint__every=100)
    first, second, third = dcpo.get_config("smoke"), d3s.get_config("smoke"), copo.get_config("smoke")
    with config.unlocked():
        for name in ("surrogate", "aggregate", "advantage"):
            config.algorithm[name] = first.algorithm[name]
        config.algorithm.trackers.baseline = first.algorithm.trackers.baseline
        config.algorithm.token_weight = second.algorithm.token_weight
        config.schedules = second.schedules
        config.reward.terms, config.reward.compose = third.reward.terms, third.reward.compose
        config.reward.terms.right = dict(fn=f"{small.__name__}:even_length")
        config.train.minibatches = 2
    grpo.run(config, tmp_path / "run")
    rows = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row["step"]]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["tracker/baseline/visits"] < rows[1]["tracker/baseline/visits"] and "reward/entropy" in rows[1]
    assert rows[0]["schedule/row_share"] < rows[1]["schedule/row_share"]
    assert json.loads((tmp_path / "run" / "final.json").read_text())
