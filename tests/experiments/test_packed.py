"""config.packing in the loop of experiments.grpo: the same run, whichever rows its forwards see."""

import json
import math
import types

import numpy as np
import pytest

from configs import ppo_common
from experiments import grpo, ppo
from experiments.parts import packers
from rl_jax.core.types import TokenBatch
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, no_evaluations, reward, sevens  # noqa: F401  a fixture

LOOSE = dict(rel_tol=1e-3, abs_tol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_is_the_same_padded_and_with_shared_prefixes(tmp_path):
    settings = dict(
        reward__function=reward(sevens),
        train__epochs=2,
        train__minibatches=2,
        train__micro_batches=2,
        algorithm__kl_coef=0.1,
        train__steps=2,
        checkpoint__every=100,
    )
    logged = {}
    for mode in ("padded", "shared_prefix"):
        config = small_config(tmp_path, packing__mode=mode, packing__row_length=24, **settings)
        config.train.optimizer.eps = 1e-3  # Adam would divide rounding by its own size
        grpo.run(config, tmp_path / mode)
        logged[mode] = [json.loads(line) for line in (tmp_path / mode / "metrics.jsonl").read_text().splitlines()]
    for plain, found in zip(logged["padded"], logged["shared_prefix"], strict=True):
        assert set(found) - set(plain) == ({"packing/occupancy"} if found["step"] else set())
        for name, value in plain.items():
            if not name.startswith(("sampler/gap", "ratio/first")):  # rounding itself
                assert math.isclose(value, found[name], **LOOSE), (name, found["step"], value, found[name])
    last = logged["shared_prefix"][-1]
    assert 0.3 < last["packing/occupancy"] <= 1 and last["ratio/first_max_dev"] < 1e-4
    assert last["grad_norm"] > 1e-3 and last["kl/k3"] > 1e-6, "nothing moved, so nothing was compared"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_of_ppo_is_the_same_padded_and_packed(tmp_path):
    """With a critic on the policy's trunk; one of its own, over shared prefixes, is in test_ppo.py: eight devices."""
    mode, settings = "packed", dict(
        reward__function=reward(sevens),
        train__epochs=2,
        train__minibatches=2,
        train__micro_batches=2,
        algorithm__reward_kl_coef=0.1,
        train__steps=2,
        checkpoint__every=100,
    )
    rate, logged = ppo_common.common.optimizer(learning_rate=1e-2, eps=1e-3), {}  # Adam would divide rounding by itself
    for name in ("padded", mode):
        config = small_config(tmp_path, packing__mode=name, packing__row_length=24, **settings).unlock()
        config.train.optimizer.update(rate)
        critic = dict(shared=True, optimizer=rate, micro_batches=1, bootstrap_truncated=True)
        ppo.run(ppo_common.with_critic(config, **critic).lock(), tmp_path / name)
        logged[name] = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    for plain, found in zip(logged["padded"], logged[mode], strict=True):
        assert set(found) - set(plain) == ({"packing/occupancy"} if found["step"] else set())
        for name, value in plain.items():
            if not name.startswith(("sampler/gap", "ratio/first")):  # rounding itself
                assert math.isclose(value, found[name], **LOOSE), (name, found["step"], value, found[name])
    last = logged[mode][-1]
    assert 0.3 < last["packing/occupancy"] <= 1 and last["ratio/first_max_dev"] < 1e-4
    assert abs(last["value/mean"]) > 1e-3 and last["value/loss"] > 1e-3 and last["kl/k3"] > 1e-6


def test_what_cannot_be_packed_is_refused(tmp_path):
    config = small_config(tmp_path, packing__mode="dense")
    with pytest.raises(ValueError, match="packing.mode='dense' is none of padded, packed, shared_prefix"):
        grpo.run(config, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]


@pytest.mark.parametrize(
    ("mode", "fields", "length"),
    [
        ("packed", dict(), 16 + 8),
        ("shared_prefix", dict(), 16 + 8),  # a group of 4 fills 8 + 4 x 4: twice 12
        ("shared_prefix", dict(sample__group_size=3), 8 + 3 * 4),
        ("shared_prefix", dict(sample__group_size=3, packing__row_length=30), 30),
        ("shared_prefix", dict(sample__group_size=1), 24),
    ],
)
def test_row_lengths(tmp_path, mode, fields, length):
    config = small_config(tmp_path, packing__mode=mode, packing__min_rows=2, **fields)
    setup = types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={"data": 1, "fsdp": 1}))
    tokens = np.ones((2, 12), np.int32)
    batch = TokenBatch(tokens, np.broadcast_to(np.arange(12, dtype=np.int32), (2, 12)), tokens)
    rollout = types.SimpleNamespace(batch=batch, completion_mask=np.ones((2, 4), bool))
    found = packers.RolloutPacker(setup).to_score(rollout)
    assert found.rows.tokens.shape == (1, 2, length)


def test_every_mode_is_known():
    assert packers.MODES == ("padded", "packed", "shared_prefix")
