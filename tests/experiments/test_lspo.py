"""configs/preferences/latent.py:werewolf (LSPO): its smallest run by experiments.online_dpo, three iterations."""

import json
import math

import pytest

from configs.preferences import latent
from experiments import online_dpo
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_pairs_are_of_two_clusters_by_their_regret(tmp_path):
    """Kuhn poker's judge is held by tests/selection/test_latent_strategies.py; the program is the same."""
    config = latent.get_config("werewolf,smoke")
    config.task.data_dir = str(tmp_path / "data")
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.judge.strategies.solver.update(traversals=10, updates=20)
    config.sft.steps = 0
    config.eval.every = 0
    config.log.update(progress=False, tensorboard=False)
    online_dpo.run(config.lock(), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 2 and math.isfinite(rows[-1]["loss"])
    assert 0 < rows[-1]["selection/kept"] <= 1 and rows[-1]["reward/std"] > 0
    assert 0 < rows[-1]["selection/gap"] < 4, "a difference of regrets of a game of at most one point"
    clusters = [row["judge/strategies/clusters"] for row in rows if row["step"]]
    assert clusters == [3.0, 4.0], "the first iteration has 2, and each step begins the next one"
