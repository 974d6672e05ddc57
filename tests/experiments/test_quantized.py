"""config.rollout.weights and .cache: a run with a sampler in 8 bits, its gap, a mesh, a resume, what is refused."""

import json

import jax
import numpy as np
import pytest

from experiments import grpo
from experiments.parts import check_config, quantized
from experiments.parts.sampler import make_sampler
from experiments.parts.setup import make_setup
from rl_jax.core.types import path_name
from rl_jax.models.quantization import quantize_params
from rl_jax.training import sharding
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures

pytestmark = pytest.mark.usefixtures("kept_signals")
kept_signals, no_evaluations = small.kept_signals, small.no_evaluations
CORRECTED = dict(algorithm__behavior_weight=dict(fn="truncated"), reward__function=small.reward(small.sevens))


def _config(tmp_path, weights="int8", cache="int8", **fields):
    return small.config(tmp_path, rollout__weights=weights, rollout__cache=cache, **(CORRECTED | fields))


def _metrics(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if "sampler/gap_max" in row}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(algorithm__behavior_weight=dict(fn="none")), "behavior_weight.fn=truncated"),
        (dict(weights="int4"), "rollout.weights='int4' must be"),
        (dict(program="agents"), "experiments.agents samples without it"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path, fields, words):
    with pytest.raises(ValueError, match=words):
        check_config.check(_config(tmp_path, **fields))


def test_a_run_without_it_has_no_problems(tmp_path):
    assert not list(quantized.problems(small.config(tmp_path)))


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluations")
def test_a_run_has_a_gap_and_resumes_bit_for_bit(tmp_path):
    config = _config(tmp_path, train__steps=2, checkpoint__every=1, eval__every=0)
    grpo.run(config, tmp_path / "whole")
    assert small.cut_off(tmp_path / "whole", tmp_path / "parts") == 1
    grpo.run(config, tmp_path / "parts")
    whole, parts = _metrics(tmp_path / "whole"), _metrics(tmp_path / "parts")
    assert all(row["sampler/gap_max"] > 1e-4 and 0 < row["sampler/ess"] <= 1.0001 for row in whole.values())
    timed = ("_s", "_per_s", "second", "time", "mfu", "memory", "bytes", "rss")
    kept = {name for name in whole[2] if not name.endswith(timed) and isinstance(whole[2][name], float)}
    assert {"sampler/gap_max", "sampler/ess", "grad_norm"} <= kept
    assert {name: whole[2][name] for name in kept} == {name: parts[2].get(name) for name in kept}


def _sample(config):
    setup = make_setup(config)
    options = dict(completion_length=4, group_size=2, eos_ids=setup.task.tokenizer.eos_ids)
    generate = make_sampler(setup, 8, **options)
    params = setup.init_params()
    tokens, mask = np.full((8, 8), 5, np.int32), np.ones((8, 8), bool)
    rows = sharding.batch_sharding(setup.mesh)
    rollout = generate(params, *(jax.device_put(x, rows) for x in (tokens, mask)), jax.random.key(0))
    return generate, params, jax.device_get(rollout)


@pytest.mark.slow
def test_eight_devices_sample_what_one_does_and_hold_shards(tmp_path):
    """Also on a mesh of the rollouts' own: what is moved there are the quantised values."""
    _, params, one = _sample(_config(tmp_path))
    config = _config(tmp_path, mesh="data:2,fsdp:2,tensor:2", rollout__mesh="data:2,tensor:4")
    generate, params, many = _sample(config)
    np.testing.assert_array_equal(one.batch.tokens, many.batch.tokens)
    np.testing.assert_allclose(one.sampled_log_probs, many.sampled_log_probs, atol=2e-3)  # sums in another order
    held = generate.quantized(params)
    assert held is generate.quantized(params)  # once per update
    where_trained = make_setup(config)._replace(rollout=None)
    there = quantized.Quantizing(where_trained, lambda setup: None).quantized(params)
    for tree, mesh in ((held, "data:2,tensor:4"), (there, config.mesh)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree["layers"]):
            if path_name(path).endswith("kernel/values"):
                assert leaf.addressable_shards[0].data.size == leaf.size // 4
                assert dict(leaf.sharding.mesh.shape) == sharding.parse_mesh(mesh)
    expected = jax.jit(quantize_params, static_argnums=1)(jax.device_get(params), "int8")
    for left, again, right in zip(*map(jax.tree.leaves, (held, there, expected)), strict=True):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
        np.testing.assert_array_equal(np.asarray(again), np.asarray(right))
    del params, left, again, right, leaf
    assert generate._quantized is None  # none is kept beside the next ones
