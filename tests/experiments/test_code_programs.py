"""Rewards that run programs, through the programs that train: one step each."""

import importlib
import json
import shutil
import sys

import numpy as np
import pytest

from configs.preferences import rrhf_code
from experiments import online_dpo
from rl_jax.rewards.sandbox import landlock
from tests.experiments import test_configs_started as starting
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("kept_signals"),
    pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock"),
]
without_evaluation = starting.without_evaluation


@pytest.mark.parametrize("name", ["code_tests", "r1_fuzz", "multi_swe"])
def test_grpo(tmp_path, name):
    if name == "multi_swe" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    config = importlib.import_module(f"configs.tasks.{name}").get_config("smoke")
    row, samples = starting.started(config, tmp_path, completion_length=8, prompt_buckets=(160,))
    (term,) = config.reward.terms
    assert np.isfinite(row[f"reward/{term}"]) and len({sample["prompt"] for sample in samples}) > 2


def test_rrhf_on_run_time(tmp_path, monkeypatch):
    monkeypatch.setattr(online_dpo, "make_evaluate", lambda setup, rewards: lambda params: ({}, []))
    config = starting.with_few_records(rrhf_code.get_config("smoke"), tmp_path)
    config.rollout.update(completion_length=40)
    config.sft.update(steps=0)
    config.train.update(steps=1)
    config.eval.every = 0
    config.log.update(progress=False, tensorboard=False)
    online_dpo.run(config.lock(), tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert np.isfinite(row["loss"]) and row["step"] == 1 and row["reward/mean"] == 0  # an untrained model
