"""experiments/parts/meter.py: model FLOPs against the compiler's count, what is counted of a batch, and the rates."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import meter, peaks, profiling
from experiments.parts.meter import Meter, train_flops, work_of
from experiments.plan import chips, flops
from rl_jax.core.types import Packed, PolicyBatch, PreferenceBatch, TokenBatch
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.ppo import PPOBatch

SMALL = TransformerConfig(
    vocab_size=512, embed_dim=128, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=32, mlp_dim=256
)
CPU = types.SimpleNamespace(device_kind="cpu", process_index=0, memory_stats=lambda: None)


def rows(*lengths: int, width: int = 8) -> TokenBatch:
    """One row per length, padded on the right."""
    segments = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    return TokenBatch(segments, np.where(segments, np.arange(width), 0).astype(np.int32), segments)


@pytest.mark.parametrize(
    "change", [{}, dict(tied_head=False, gated_mlp=False, num_heads=8, num_kv_heads=1)], ids=["llama", "others"]
)
def test_the_formula_is_the_compilers_count(change):
    """Of one layer: a loop's body is counted once. Plain attention also computes the pairs that the mask hides."""
    config, (count, length) = dataclasses.replace(SMALL, **change), (2, 64)
    model = make_transformer(config)
    params = jax.eval_shape(model.init, jax.random.key(0))
    ids = jax.ShapeDtypeStruct((count, length), jnp.int32)

    def loss(params, batch):
        return jnp.sum(model.unembed(params, model.apply(params, batch)) ** 2)

    lowered = jax.jit(jax.grad(loss)).lower(params, TokenBatch(ids, ids, ids))
    tokens = count * length
    wanted = train_flops(config, tokens=tokens, pairs=tokens * length, scored=tokens)
    assert lowered.cost_analysis()["flops"] == pytest.approx(wanted, rel=0.08)


def test_the_formula_is_the_plans():
    config = dataclasses.replace(SMALL, num_layers=3)
    planned = flops.expected_train_flops(config, rows=2, prompt_length=32, completion_length=96)
    pairs = 2 * 3 * 128**2 / 2
    ours = train_flops(config, tokens=256, pairs=pairs, scored=192)
    assert planned - ours == 2 * 2 * config.embed_dim * config.vocab_size * 96  # the head's second forward


def test_frozen_weights_need_no_gradient_of_their_own():
    of = lambda **fields: train_flops(SMALL, **dict(tokens=10, pairs=0, scored=0) | fields)  # noqa: E731
    assert of(only_adapters=True) == of() * 2 / 3
    assert of(tokens=0, pairs=7, only_adapters=True) == of(tokens=0, pairs=7) == 3 * 4 * 4 * 32 * 7


def test_weights_are_those_of_the_models_products():
    model = dataclasses.replace(SMALL, num_layers=3, num_experts=4, experts_per_token=4)
    shapes = jax.eval_shape(make_transformer(model).init, jax.random.key(0))
    products = [x.size for path, x in jax.tree_util.tree_leaves_with_path(shapes["layers"]) if "norm" not in str(path)]
    assert meter.body_weights(model) == sum(products)
    assert meter.body_weights(dataclasses.replace(model, experts_per_token=1)) < sum(products)


def batches() -> dict:
    """The same rows of 5 and 3 tokens, of which 2 and 1 are scored, as the programs train on them."""
    tokens = rows(5, 3)
    mask = np.zeros((2, 4), bool)
    mask[0, :2] = mask[1, 0] = True
    packed = rows(8)._replace(segment_ids=np.array([[1] * 5 + [2] * 3]), positions=np.array([[0, 1, 2, 3, 4, 0, 1, 2]]))
    part = jax.tree.map(lambda x: x[None], packed)
    of_parts = Packed(part, *[np.zeros((1, 3), np.int32)] * 2, np.array([3]), *[np.zeros((1, 2, 4), np.int32)] * 2)
    policy = PolicyBatch(tokens, mask, mask, None, mask, None)
    pair = jax.tree.map(lambda x: x[None], (tokens, mask))
    return {
        "policy": policy,
        "packed": policy._replace(batch=of_parts),
        "ppo": PPOBatch(policy, mask, mask),
        "preference": PreferenceBatch(*pair, np.ones((1, 2), bool), np.ones((1, 2))),
        "sft": (tokens, mask),
        "sft with seeds": (tokens, mask, np.arange(2)),
        "on the mesh": jax.tree.map(jnp.asarray, policy),
    }


@pytest.mark.parametrize("name", list(batches()))
def test_what_is_counted_of_each_programs_batch(name):
    assert work_of(batches()[name], (0, 0)) == (8, 2 * (15 + 6), 3)


def test_absent_responses_do_not_count():
    """They are rows like others (preference_data.take_rows repeats a record), of which only `present` tells."""
    batch = batches()["preference"]
    of_two = jax.tree.map(lambda x: np.concatenate([x, x]), batch)
    assert work_of(of_two, (0,)) == (16, 2 * (15 + 6), 6)
    whole = of_two._replace(present=np.array([[True, True], [False, False]]))
    assert work_of(whole, (0,)) == work_of(jax.tree.map(jnp.asarray, whole), (0,)) == (8, 15 + 6, 3)
    assert work_of(of_two._replace(present=np.array([[True, False], [False, True]])), (0,)) == (8, 15 + 6, 3)
    assert work_of(batch._replace(present=np.array([[False, True]])), (0,)) == (3, 6, 1)


def test_windows_shared_prompts_and_what_reads_no_tokens():
    assert work_of((rows(5, 3), np.ones((2, 1))), (0, 2))[1] == (15 + 6) + (9 + 5)
    # A prompt of 3 tokens, once for two completions of 2: each of their tokens sees the prompt and itself.
    shared = TokenBatch(*[np.array([[1, 1, 1, 2, 2, 3, 3, 0]])] * 3)._replace(
        positions=np.array([[0, 1, 2, 3, 4, 3, 4, 0]])
    )
    assert work_of((shared, np.ones((1, 1))), (0,))[:2] == (7, 6 + 2 * 9)
    assert work_of(np.ones(3), (0,)) is None and work_of({"x": 1}, (0,)) is None


def test_rates_are_of_one_step_and_one_device():
    given, (tokens, pairs, scored) = batches()["policy"], (8, 21, 3)
    found = Meter([CPU, CPU], lambda: SMALL)
    found.count(given)
    found.count(given)
    told = found.rates({"train_s": 2.0, "tokens_per_s": 30.0})
    once = train_flops(SMALL, tokens=tokens, pairs=pairs, scored=scored)
    assert told == {
        "tokens_per_s_per_device": 15.0,
        "train_tokens_per_s_per_device": 2 * tokens / 2.0 / 2,
        "train_flops_per_s_per_device": pytest.approx(2 * once / 2.0 / 2),
    }
    assert found.rates({"train_s": 2.0}) == {}, "counted anew in each step"
    found.count(given, head=False)
    only = train_flops(SMALL, tokens=tokens, pairs=pairs, scored=0)
    assert found.rates({"train_s": 1.0})["train_flops_per_s_per_device"] == pytest.approx(only / 2)


def test_devices_that_only_sample_count_in_the_whole_step_and_not_in_the_updates():
    full = types.SimpleNamespace(**vars(CPU) | {"memory_stats": lambda: {"bytes_in_use": 9, "peak_bytes_in_use": 9}})
    part = types.SimpleNamespace(**vars(CPU) | {"memory_stats": lambda: {"bytes_in_use": 1, "peak_bytes_in_use": 1}})
    found = Meter([part], lambda: SMALL, [full, full, full], peak=1e9)
    found.count(batches()["sft"])
    told = found.rates({"train_s": 2.0, "tokens_per_s": 32.0})
    assert (told["tokens_per_s_per_device"], told["train_tokens_per_s_per_device"]) == (8.0, 4.0)
    assert told["mfu"] == pytest.approx(told["train_flops_per_s_per_device"] / 1e9) and told["bytes_in_use"] == 9.0


def test_mfu_needs_a_peak():
    for device, peak, wanted in ((CPU, 0.0, 0), (CPU, 1e9, 1e9), ("NVIDIA H200", 0.0, 989.4e12)):
        device = CPU if device is CPU else types.SimpleNamespace(**vars(CPU) | {"device_kind": device})
        found = Meter([device], lambda: SMALL, peak=peak)
        found.count(batches()["sft"])
        told = found.rates({"train_s": 0.5})
        assert ("mfu" in told) == bool(wanted)
        if wanted:
            assert told["mfu"] == pytest.approx(told["train_flops_per_s_per_device"] / wanted)


def test_memory_is_the_fullest_devices():
    def device(process, **stats):
        return types.SimpleNamespace(device_kind="x", process_index=process, memory_stats=lambda: stats)

    devices = [device(0, bytes_in_use=3, peak_bytes_in_use=9), device(0, bytes_in_use=5, peak_bytes_in_use=7)]
    assert meter.memory([*devices, device(1, bytes_in_use=99)]) == {"bytes_in_use": 5.0, "peak_bytes_in_use": 9.0}
    assert Meter(devices, None).rates({}) == {"bytes_in_use": 5.0, "peak_bytes_in_use": 9.0}
    assert meter.memory([CPU]) == {} and meter.memory([]) == {}


def test_the_peaks_are_those_of_the_plans():
    kinds = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
    assert {name: peaks.peak_flops(kinds[name]) for name in chips.CHIPS} == {n: c.flops for n, c in chips.CHIPS.items()}


def test_peaks_have_sources():
    assert all(1e14 < flops < 1e15 and source.count("/") >= 2 for flops, source in peaks.PEAKS.values())
    assert peaks.peak_flops("cpu") == 0.0 and peaks.peak_flops("cpu", 5e10) == 5e10


@pytest.mark.parametrize(("text", "steps"), [("3:5", (3, 5)), (" 4 ", (4, 4))])
def test_the_flag_is_the_configs_field(text, steps):
    from ml_collections import ConfigDict

    config = ConfigDict(dict(log=dict(progress=False))).lock()
    profiling.set_steps(config, text, "experiments.control.ppo")
    assert config.log.profile_steps == steps
