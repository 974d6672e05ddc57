"""experiments/plan: what needs no TPU compiler; `.ci/run` compiles for a slice."""

import dataclasses
import functools
import importlib
import itertools
import json
import math
import subprocess
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from configs import plans
from experiments.plan import chips, cli, flops, hlo, programs, runs, stored
from rl_jax.models.transformer.model import TransformerConfig
from rl_jax.training import sharding
from tests.paths import REPO_ROOT

PLANS = sorted((REPO_ROOT / "experiments/plan/plans").glob("*.json"))
MESH = {"data": 2, "fsdp": 2, "tensor": 2}


def mesh():
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * 3)


# What the compiled text says.


def test_collectives_of_a_compiled_loop():
    """Sums over one axis, 5 turns: 2 (n - 1) / n bytes a byte, over that axis, five times."""

    def body(x, _):
        return jax.lax.psum(jnp.sin(x), "tensor"), None

    def call(x):
        return jax.lax.scan(body, x, None, length=5)[0]

    spec = PartitionSpec(("data", "fsdp"))
    with jax.set_mesh(mesh()):
        mapped = jax.jit(jax.shard_map(call, in_specs=spec, out_specs=spec, check_vma=False))
        text = mapped.lower(jnp.zeros((8, 128))).compile().as_text()
    (found,) = hlo.collectives(text, MESH)
    size = 8 // 4 * 128 * 4
    assert found == hlo.Collective("all-reduce", ("tensor",), 5 * 2 * size / 2, 5)
    assert hlo.by_axes([found, found]) == {"all-reduce over tensor": 2 * found.bytes}


def test_a_gather_of_what_is_sharded_over_two_axes():
    sharded = NamedSharding(mesh(), PartitionSpec(("data", "fsdp"), None))
    whole = NamedSharding(mesh(), PartitionSpec())
    text = jax.jit(lambda x: x, in_shardings=sharded, out_shardings=whole).lower(jnp.zeros((8, 16))).compile().as_text()
    found = hlo.collectives(text, MESH)
    assert {one.kind for one in found} == {"all-gather"}
    assert {axis for one in found for axis in one.axes} == {"data", "fsdp"}


TPU_TEXT = """HloModule jit_step

%fused (p: bf16[4,8]) -> bf16[4,64] {
  %all-gather.1 = bf16[4,64]{1,0:T(8,128)} all-gather(%p), channel_id=7, replica_groups=mesh['a'=1,'b'=8] {'b'}
}

%done (p: bf16[4,8]) -> bf16[4,64] {
  %all-gather.2 = bf16[4,64]{1,0:T(8,128)} all-gather(%p), channel_id=7, replica_groups=mesh['a'=1,'b'=8] {'b'}
}

%cond (arg: (s32[])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%x, %constant.1), direction=LT
}

%body (arg: (s32[])) -> (s32[]) {
  %fusion.1 = bf16[4,64] fusion(%x), kind=kCustom, calls=%fused
  %fusion.2 = bf16[4,64] fusion(%x), kind=kCustom, calls=%done
}

ENTRY %main (arg: f32[2]) -> f32[2] {
  %while.1 = (s32[]) while(%t), condition=%cond, body=%body, metadata={op_name="x"}
  %all-reduce.1 = f32[16]{0} all-reduce(%y), channel_id=9, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
}
"""


@pytest.mark.parametrize("counter", ["s32", "u32"])
def test_a_collective_in_pieces_counts_once_a_loop(counter):
    """The counter of the loop in which XLA sends a weight around under its product is unsigned."""
    text = TPU_TEXT.replace("s32[]{:T(128)} constant(3)", f"{counter}[]{{:T(128)}} constant(3)")
    found = {one.kind: one for one in hlo.collectives(text, MESH)}
    assert found["all-gather"] == hlo.Collective("all-gather", tuple(MESH), 3 * 4 * 64 * 2 * 7 / 8, 3)
    assert found["all-reduce"] == hlo.Collective("all-reduce", ("data",), 2 * 16 * 4 / 2, 1)


# Compiled for fsdp:4 by libtpu 0.0.42.1, cut to what tells of its collectives: the train step of configs/plans.py:1b,
# but of 4 layers of width 512 (4 heads, 2 key heads, MLP 2048), 4096 tokens, 2 micro-batches, 3 slices of the head.
COMPILED = {kind: REPO_ROOT / f"tests/experiments/compiled_text/train_{kind}.txt" for kind in ("v5e", "v5p")}
SENT_BY_FOUR = 245_468_388.0  # by both compilers, which cut their collectives in different pieces


@functools.cache
def compiled_for(chip):
    return hlo.collectives(COMPILED[chip].read_text(), {"fsdp": 4})


@pytest.mark.parametrize("chip", COMPILED)
def test_a_kernel_s_metadata_ends_no_computation(chip):
    """What stands behind a splash kernel counts; a reader that stops at its "}}" finds 173 MB of 245."""
    found = compiled_for(chip)
    assert sum(one.bytes for one in found) == SENT_BY_FOUR
    # The MLP's three matrices of each of 4 layers, 2 micro-batches, once forward and once for the backward pass.
    matrix = 512 * 2048 * 2 * (3 / 4) * 4 * 2
    gathers = [one for one in found if one.kind == "all-gather" and one.bytes == matrix]
    assert len(gathers) == 6 and all(one.times == 8 and one.axes == ("fsdp",) for one in gathers)


@pytest.mark.parametrize("chip", COMPILED)
def test_a_scatter_that_is_written_as_a_reduction(chip):
    """The layers' gradients of an MLP matrix: three quarters of it leave a chip, not six."""
    matrix = 512 * 2048 * 2 * (3 / 4) * 4 * 2
    found = {one.kind: 0.0 for one in compiled_for(chip)}
    for one in compiled_for(chip):
        found[one.kind] += one.bytes
    assert found["reduce-scatter"] > 2 * matrix
    assert found["reduce-scatter"] + found["all-reduce"] / 2 >= 3 * matrix


def test_synchronous_and_asynchronous_bytes():
    """In chained pieces a gather is asynchronous; one whose start was taken back (async_collective_name) is not."""
    found = compiled_for("v5e")
    overlapping = [one for one in found if not one.synchronous]
    assert {one.kind for one in overlapping} == {"all-gather"}
    assert sum(one.bytes for one in overlapping) == 92_798_976.0
    text = COMPILED["v5e"].read_text()
    assert "async_collective_name=" in text and "chain_id=" in text
    (started,) = hlo.collectives(
        TPU_TEXT.split("%fused")[0] + "ENTRY %main (a: f32[2]) -> f32[2] {\n"
        "  %s = (bf16[4,8], bf16[4,64]) all-gather-start(%p), channel_id=7, replica_groups=[1,8]<=[8]\n}\n",
        MESH,
    )
    assert started == hlo.Collective("all-gather", tuple(MESH), 4 * 64 * 2 * 7 / 8, 1, synchronous=False)


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("(f32[256]{0}, f32[1024]{0}) all-gather-start(%p)", 1024 * 3),
        ("((f32[256]{0:T(8,128)}, f32[128]{0}), (f32[1024]{0}, f32[512]{0})) all-gather-start(%p, %q)", 1536 * 3),
        ("(f32[1024]{0}, f32[512]{0}) all-gather(%p, %q)", 1536 * 3),
        ("(f32[1024]{0}, f32[256]{0}, u32[]) reduce-scatter-start(%p)", 256 * 3 * 4),
        ("((f32[1024]{0}), f32[256]{0}) reduce-scatter-start(%p)", 256 * 3 * 4),
        ("f32[256]{0} reduce-scatter(%p)", 256 * 3 * 4),
        ("(f32[256]{0}, f32[64]{0}) all-reduce-start(%p, %q)", 320 * 2 * 3),
        ("(f32[64]{0}, f32[64]{0}, u32[], u32[]) collective-permute-start(%p)", 64 * 4),
    ],
    ids=str,
)
def test_a_start_counts_what_it_makes(line, sent):
    """Its shape has the operands, too; several arrays in one collective are tuples in it."""
    text = f"ENTRY %m (a: f32[2]) -> f32[2] {{\n  %x = {line}, replica_groups={{{{0,1,2,3}}}}\n}}\n"
    assert [one.bytes for one in hlo.collectives(text, {"fsdp": 4})] == [sent]


@pytest.mark.parametrize(
    ("constant", "known", "times"), [(3, "", 3), (0, "", 1), (0, "10", 10), (3, "10", 10), (None, "10", 10)]
)
def test_a_loop_turns_as_often_as_the_text_says(constant, known, times):
    """A loop that counts down compares with 0; its known_trip_count decides."""
    text = TPU_TEXT.replace("s32[]{:T(128)} constant(3)", f"s32[]{{:T(128)}} constant({constant})")
    if known:
        count = f', backend_config={{"known_trip_count":{{"n":"{known}"}},"flag":1}}'
        text = text.replace('metadata={op_name="x"}', f'metadata={{op_name="x"}}{count}')
    found = {one.kind: one for one in hlo.collectives(text, MESH)}
    assert found["all-gather"].times == times


def test_chains_of_one_channel_are_counted_each():
    """A weight's two gathers, in lines one way and across: jax gives all of a shard_map's collectives one channel."""
    line = "  %g.{} = bf16[4,{}] all-gather(%p), channel_id=1, replica_groups=[4,2]<=[8]"
    line += ', frontend_attributes={{chain_id="{}"}}'
    pieces = [line.format(i, width, chain) for i, (width, chain) in enumerate([(16, 0), (16, 0), (64, 1), (64, 1)])]
    found = hlo.collectives("ENTRY %m (a: f32[2]) -> f32[2] {\n" + "\n".join(pieces) + "\n}\n", MESH)
    assert [(one.bytes, one.synchronous) for one in found] == [(4 * 16 * 2 / 2, False), (4 * 64 * 2 / 2, False)]


def test_the_peak_of_a_tpu_is_the_allocator_s_and_elsewhere_the_sum():
    memory = dict(argument_size_in_bytes=4, output_size_in_bytes=3, alias_size_in_bytes=2, temp_size_in_bytes=10)
    memory = types.SimpleNamespace(**memory, peak_memory_in_bytes=11)
    assert hlo.peak_bytes(memory, "tpu") == 11 and hlo.peak_bytes(memory, "cpu") == 15
    memory.peak_memory_in_bytes = 0
    assert hlo.peak_bytes(memory, "tpu") == 15, "a compiler that does not tell"


def test_text_that_cannot_be_read_is_refused():
    gather = "  %g = bf16[4,64] all-gather(%p), channel_id=7\n"
    with pytest.raises(ValueError, match="line 2 of the HLO is a collective outside of every computation"):
        hlo.collectives(f"HloModule x\n{gather}", MESH)
    entry = "ENTRY %m (a: f32[2]) -> f32[2] {\n  %w = (s32[]) while(%t), condition=%c, body=%absent\n}\n"
    with pytest.raises(ValueError, match="no computation 'absent', which is the body of a loop"):
        hlo.collectives(entry, MESH)
    with pytest.raises(ValueError, match="no computation 'cond', which is the condition of a loop"):
        hlo.collectives(TPU_TEXT.replace("%cond (", "%other ("), MESH)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("%body (", "the HLO has no ENTRY computation"),
        ("  %fusion.2", "the HLO ends inside the computation 'body'"),
        ("  %all-reduce.1", "the HLO ends inside the computation 'main'"),
        ("HloModule", "the HLO has no ENTRY computation"),
    ],
)
def test_a_text_that_was_cut_off_is_refused(end, words):
    """Not read as a program that sends less."""
    with pytest.raises(ValueError, match=words):
        hlo.collectives(TPU_TEXT[: TPU_TEXT.index(end)], MESH)


@pytest.mark.parametrize("named", ["branch_computations={%a, %b}", "true_computation=%a, false_computation=%b"])
def test_the_branches_of_a_conditional_count(named):
    gather = "  %g = bf16[4,64] all-gather(%p), channel_id={}, replica_groups=[1,8]<=[8]\n"
    branches = "".join(f"%{name} (p: s32[]) -> s32[] {{\n{gather.format(i)}}}\n" for i, name in enumerate("ab"))
    entry = f"ENTRY %m (a: s32[]) -> s32[] {{\n  %c = s32[] conditional(%i, %x, %y), {named}\n}}\n"
    assert len(hlo.collectives(branches + entry, MESH)) == 2


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}, x", [[0, 1, 2, 3]]),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
        ("to_apply=%add", [[0, 1, 2, 3]]),
    ],
    ids=["listed", "iota", "transposed", "named", "named both", "pairs", "everyone"],
)
def test_groups_in_every_form(line, groups):
    assert hlo.device_groups(line, 4) == groups


# FLOPs.


def test_loops_are_multiplied_out():
    a = jnp.zeros((8, 8))
    one = 2 * 8**3
    assert flops.count(jax.make_jaxpr(lambda x: x @ a)(a)) == one
    scanned = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c @ a, None), x, None, length=7)[0])(a)
    assert flops.count(scanned) == 7 * one
    looped = jax.make_jaxpr(lambda n, x: jax.lax.fori_loop(0, n, lambda i, c: c @ a, x))(3, a)
    assert flops.count(looped, while_turns=11) == 11 * one
    branched = jax.make_jaxpr(lambda p, x: jax.lax.cond(p, lambda c: c @ a @ a, lambda c: c, x))(True, a)
    assert flops.count(branched) == 2 * one
    assert flops.count(jax.make_jaxpr(jax.jit(jax.checkpoint(lambda x: x @ a)))(a)) == one


def test_products_of_one_device_count_for_all():
    a, rows = jnp.zeros((8, 8)), PartitionSpec(("data", "fsdp", "tensor"))
    split = jax.shard_map(lambda x: x @ x.T, mesh=mesh(), in_specs=rows, out_specs=rows)
    assert flops.count(jax.make_jaxpr(split)(a)) == 8 * 2 * 8  # each a row with itself


def small(**changes):
    """(config, its model's) of a dense model small enough to trace at once."""
    config = plans.get_config("8b")
    config.rollout.update(completion_length=384, prompt_buckets=(128,))
    config.score.chunk = 128
    config.sample.update(prompts_per_step=8, group_size=4)
    config.train.update(minibatches=2, micro_batches=2)
    model = programs.model_config(config)
    sizes = dict(vocab_size=4096, embed_dim=512, num_layers=4, num_heads=4, num_kv_heads=2, mlp_dim=2048)
    return config, dataclasses.replace(model, **sizes | changes)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "none"])
def test_flops_of_a_train_step_are_those_of_the_formula(remat):
    config, model = small(remat=remat, attention="dot_product")
    setup = programs.describe(config, model, mesh())
    planned = programs.train(setup, 16)
    counted = flops.count(planned.jaxpr(setup.mesh), while_turns=planned.while_turns)
    wanted = flops.expected_train_flops(model, rows=16, prompt_length=128, completion_length=384)
    assert counted == pytest.approx(wanted, rel=0.05)
    model = dataclasses.replace(model, remat="none")
    once = flops.expected_train_flops(model, rows=16, prompt_length=128, completion_length=384)
    once -= 16 * 2 * model.embed_dim * model.vocab_size * 384  # the head's second forward
    assert runs.model_flops("train", setup, 16) == pytest.approx(once, rel=0.05)
    assert runs.model_flops("train", setup, 12) == pytest.approx(0.75 * once, rel=0.05)  # of rows, not micro-batches


# Programs.


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("name", ["train", "score", "decode"])
def test_programs_lower_for_an_accelerator_that_is_not_there(name, platform):
    config, model = small(attention="splash" if platform == "tpu" else "dot_product")
    setup = programs.describe(config, model, mesh())
    planned = {"train": programs.train, "score": programs.score, "decode": programs.decode}[name](setup, 16)
    with jax.set_mesh(setup.mesh):
        traced = jax.jit(planned.call, **planned.keywords).trace(*planned.arguments)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("tpu_custom_call" in text) == (platform == "tpu")
    assert "stablehlo.while" in text


def recipe(name: str, **changes):
    """(config, model) of a recipe whose rows and model are small enough to trace."""
    config = importlib.import_module(f"configs.recipes.{name}").get_config()
    config.rollout.update(completion_length=128, prompt_buckets=(128,))
    config.score.chunk = 128
    return config, dataclasses.replace(small(num_layers=1, dtype="float32", attention="dot_product")[1], **changes)


@pytest.mark.slow
def test_a_planned_update_of_pairs_changes_no_shape_and_has_the_metrics_of_dpo():
    config, model = recipe("tulu3_dpo")
    config.train.update(batch_size=16, micro_batches=2)
    setup = programs.describe(config, model, mesh())
    assert list(runs.programs_of(config)) == ["train", "score"] and runs.step_rows(config) == (32, 32)
    planned = runs.make_planned("train", setup)
    state, metrics = jax.eval_shape(planned.call, *planned.arguments)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, planned.arguments[0])
    assert "rewards/accuracy" in metrics and planned.arguments[1].ref_log_probs.shape == (16, 2, 128)
    scored = runs.make_planned("score", setup)
    assert jax.eval_shape(scored.call, *scored.arguments).log_probs.shape == (32, 128)
    config.algorithm.reference = {}
    assert runs.make_planned("train", setup).arguments[1].ref_log_probs is None


def test_a_warm_start_is_a_program_of_its_run():
    config, model = small(attention="dot_product", num_layers=1, dtype="float32")
    config.sft.update(steps=1, batch_size=16, micro_batches=2)
    setup = programs.describe(config, model, mesh())
    assert list(runs.programs_of(config)) == ["train", "score", "decode"]
    planned = runs.make_planned("sft", setup)
    state, metrics = jax.eval_shape(planned.call, *planned.arguments)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, planned.arguments[0])
    assert "entropy" in metrics and runs.update_rows("sft", config) == 16
    config.sft.loss.fn = "drawn"
    with pytest.raises(ValueError, match="sft.loss.fn='drawn'"):
        runs.make_planned("sft", setup)


@pytest.mark.parametrize(("name", "slots", "prompts"), [("continuous", 0, 8), ("continuous", 8, 2), ("lockstep", 8, 8)])
def test_a_rollout_is_planned_for_the_rows_that_are_sampled_at_once(name, slots, prompts):
    config, _ = small()
    config.rollout.engine.update(name=name, slots=slots)
    assert runs.sampled_prompts(config) == prompts


def with_rollout_mesh(weights: str = "", cache: str = "", dtype: str = "bfloat16"):
    """A small run on fsdp:8 that samples on data:2,tensor:4, as shapes on the simulated devices."""
    config, model = small(attention="dot_product", num_layers=2, num_kv_heads=4, dtype=dtype)
    config.mesh = "fsdp:8"
    config.rollout.update(mesh="data:2,tensor:4", weights=weights, cache=cache)
    return programs.describe(config, model, sharding.make_mesh(sharding.parse_mesh(config.mesh)))


def test_rollouts_on_a_mesh_of_their_own_are_planned_there():
    setup = with_rollout_mesh()
    assert list(runs.programs_of(setup.config)) == ["train", "score", "decode", "move"]
    sampler = programs.sampling(setup)
    assert sampler.mesh.shape["tensor"] == 4 and sampler.mesh.shape["fsdp"] == 1
    kernel = sampler.param_shapes["layers"]["up"]["kernel"]
    assert kernel.dtype == jnp.bfloat16 and setup.param_shapes["layers"]["up"]["kernel"].dtype == jnp.float32
    planned = runs.make_planned("decode", sampler)
    assert {x.sharding.mesh.shape["tensor"] for x in jax.tree.leaves(planned.arguments)} == {4}
    assert runs.make_planned("train", setup).arguments[0].params["layers"]["up"]["kernel"].sharding.mesh == setup.mesh
    config, model = small(num_layers=2, num_kv_heads=4)
    alone = programs.describe(config, model, mesh())
    assert programs.sampling(alone) is alone and "move" not in runs.programs_of(config)
    # Weights are read in the same width, a chip has half of those of tensor:2, and as many rows' keys and values.
    both = [cli.moved_bytes("decode", x, runs.make_planned("decode", x), 1) for x in (alone, sampler)]
    caches = [384 * cli.cache_bytes(x, 8) for x in (alone, sampler)]
    assert both[1] - caches[1] == pytest.approx((both[0] - caches[0]) / 2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["", "int8"])
def test_the_planned_move_is_the_one_that_runs(weights):
    """Its bytes, and where the weights lie afterwards. Not in bfloat16, which a CPU sends as float32."""
    setup = with_rollout_mesh(weights, dtype="float32")
    planned = runs.make_planned("move", setup)
    figures = cli.compile_one(planned, setup.rollout.mesh)
    sent = stored.by_axis(figures["sent_bytes"])
    leaves = planned.arguments[0]
    total = sum(x.size * x.dtype.itemsize for x in leaves)
    # An eighth is sent seven eighths of the way, and then to the one other device that wants the same quarter.
    assert sum(sent.values()) == pytest.approx((7 / 64 + 1 / 8) * total, rel=0.07)
    values = [jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding) for x in leaves]
    wanted = jax.tree.leaves(programs.sampling(setup).param_shardings)
    assert all(x.sharding == to for x, to in zip(planned.call(values), wanted, strict=True))
    whole = 4 * sum(x.size for x in jax.tree.leaves(setup.param_shapes))
    assert total == whole if not weights else total < 0.6 * whole  # the embedding keeps its width
    assert cli.moved_bytes("move", setup, planned, 1) == pytest.approx(total / 8 + total / 4, rel=0.02)


def test_a_sampler_in_8_bits_is_planned_so():
    setup = with_rollout_mesh("int8", "int8")
    sampler = programs.sampling(setup)
    assert sampler.param_shapes["layers"]["up"]["kernel"].values.dtype == jnp.int8
    plain = programs.sampling(with_rollout_mesh())
    width = programs.model_config(setup.config).head_dim  # of bfloat16, and now a byte each beside a float32 scale
    assert cli.cache_bytes(sampler, 8) == cli.cache_bytes(plain, 8) * (width + 4) / (2 * width)
    planned = runs.make_planned("decode", sampler)
    text = str(planned.jaxpr(sampler.mesh))
    assert "i8[" in text and "i8[" not in str(runs.make_planned("decode", plain).jaxpr(plain.mesh))


@pytest.mark.slow
def test_a_planned_critic_predicts_values_and_adapters_alone_are_trained():
    """The critic has a head; frozen weights have no moments, and no gradient among the FLOPs that a step needs."""
    config, model = recipe("tulu3_rlvr")
    config.critic.micro_batches, config.sample.prompts_per_step = 2, 16
    setup = programs.describe(config, model, mesh())
    assert list(runs.programs_of(config)) == ["train", "score", "decode", "critic"]
    planned = runs.make_planned("critic", setup)
    state, metrics = jax.eval_shape(planned.call, *planned.arguments)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, planned.arguments[0])
    assert "value/loss" in metrics and "value_head" in state.params
    full = runs.model_flops("train", setup, 16)
    assert 0 < runs.model_flops("critic", setup, 16) < full
    config.model.lora.rank = 4
    adapted = programs.describe(config, model, mesh())
    assert cli.optimizer_bytes(adapted) < 0.1 * cli.optimizer_bytes(setup)
    assert 0.6 * full < runs.model_flops("train", adapted, 16) < 0.75 * full


def test_the_planned_step_is_the_one_that_runs():
    """Same shapes in, a state of the same shapes out, and it compiles here."""
    config, model = small(attention="dot_product", num_layers=2, dtype="float32")
    setup = programs.describe(config, model, mesh())
    planned = programs.train(setup, 16)
    state, metrics = jax.eval_shape(planned.call, *planned.arguments)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), planned.arguments[0]
    )
    assert {"loss", "grad_norm", "kl/k3"} <= set(metrics)


@functools.cache
def cpu_figures():
    """The figures of a small train step, compiled for the CPU's simulated devices."""
    config, model = small(attention="dot_product", num_layers=2, dtype="float32")
    setup = programs.describe(config, model, mesh())
    return setup, cli.compile_one(programs.train(setup, 16), setup.mesh)


@pytest.mark.slow
def test_figures_of_a_compiled_step():
    setup, figures = cpu_figures()
    assert figures["argument_bytes"] >= cli.tree_bytes(setup.param_shapes, setup.param_shardings) * 3
    assert figures["peak_bytes"] > figures["temporary_bytes"] > 0
    assert any("fsdp" in name for name in figures["sent_bytes"])


def test_bytes_of_a_device_s_shards():
    shapes = {"a": jax.ShapeDtypeStruct((8, 4), jnp.float32), "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
    specs = {"a": PartitionSpec("fsdp", "tensor"), "b": PartitionSpec()}
    shardings = {name: NamedSharding(mesh(), spec) for name, spec in specs.items()}
    assert cli.tree_bytes(shapes, shardings) == 8 * 4 * 4 / 4 + 6


# The page.


def a_plan(**changes):
    train = {
        "argument_bytes": 2**30, "temporary_bytes": 3 * 2**30, "peak_bytes": 4 * 2**30, "compile_s": 20.0,
        "sent_bytes": {"all-gather over fsdp": 5e9, "all-reduce over fsdp": 1e9}, "flops": 1e15, "moved_bytes": 1e10,
        "synchronous_bytes": {"all-reduce over fsdp": 1e9},
        "compute_s": 2.0, "memory_s": 0.5, "links_s": 1.0, "synchronous_s": 0.2, "step_s": 2.2, "mfu": 1.0,
    }  # fmt: skip
    found = {
        "command": "python -m experiments.plan --config=configs/plans.py:8b --topology=v5e:8x8 --save=x/a.json",
        "config": "plan_8b", "model": "x/llama-3.1-8b", "topology": "v5e:8x8", "mesh": "fsdp:64", "step_rows": 512,
        "chip_bytes": 16 * 2**30, "parameters": 8e9, "parameter_bytes": 2**29, "optimizer_bytes": 2**30, "rows": 256,
        "tokens": [1024, 3072], "micro_batches": 4, "programs": {"train": train},
        "largest_micro_batch": 64, "libtpu": "0.0.42.1",
    }  # fmt: skip
    return found | changes


def with_train(**changes):
    return a_plan(programs={"train": a_plan()["programs"]["train"] | changes})


def test_report_and_table(tmp_path):
    said = cli.report(a_plan())
    for words in ("peak 4.00 GiB", "set by compute", "all-gather over fsdp 5 GB", "that fits: 64 rows", "8.00B"):
        assert words in said
    refused = a_plan(programs={"train": {"refused": "total memory (24.67G) exceeds 15.75G", "compile_s": 9.0}})
    assert "does not fit: total memory (24.67G) exceeds 15.75G" in cli.report(refused)
    rollout = a_plan(programs={"decode": a_plan()["programs"]["train"] | {"cache_bytes": 2**31}})
    assert "the cache is 2.00 of them" in cli.report(rollout)
    assert "peak 17.00 GiB per chip, which does NOT fit" in cli.report(with_train(peak_bytes=17 * 2**30))
    for name, one in {"a": a_plan(), "b": refused, "c": rollout, "d": with_train(peak_bytes=17 * 2**30)}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    rows = [line for line in stored.table(tmp_path).splitlines() if line.startswith("| ")][1:]
    assert rows[0] == (
        "| a | llama-3.1-8b | v5e-64 (v5e:8x8) | fsdp:64 | train | 256 (64) | 4.00 (1.50) of 16 | fsdp 6 "
        "| 1 | 2.2 (compute) | 100% | 64 |"
    )
    assert "refused: total memory (24.67G)" in rows[1]
    assert "| decode | 512 | 4.00 (0.50) of 16 |" in rows[2]
    assert "| 17.00 (1.50) of 16: **does not fit** |" in rows[3]
    assert stored.table(tmp_path).count("\n    python -m experiments.plan ") == 4


@pytest.mark.parametrize(
    ("topology", "name"),
    [("v5e:8x8", "v5e-64"), ("v5p:4x4x4", "v5p-128"), ("v4:2x2x2", "v4-16"), ("v6e:4x4", "v6e-16")],
)
def test_slices_are_named_as_they_are_booked(topology, name):
    assert stored.slice_name(topology) == name


# The plans that are kept.


def test_continuous_integration_plans_a_step_and_a_rollout_again():
    assert "make plan-check " in (REPO_ROOT / ".ci/run").read_text()
    make = ["make", "-n", "--no-print-directory", "plan-check", "VENV_TPU=v"]
    said = subprocess.run(make, cwd=REPO_ROOT, capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "v/bin/python -m experiments.plan --check=experiments/plan/plans/ci.json"
    kept = stored.load(REPO_ROOT / "experiments/plan/plans/ci.json")
    assert kept["topology"] == "v5e:4x4" and all("peak_bytes" in kept["programs"][name] for name in ("train", "decode"))


def test_the_page_of_the_stored_plans_is_what_they_give():
    folder, command = REPO_ROOT / "experiments/plan/plans", "python -m experiments.plan --table=experiments/plan/plans"
    assert (folder / "README.md").read_text() == stored.table(folder), f"run {command}"


def test_the_stored_plans_cover_sizes_and_slices():
    plans_ = {path.stem: stored.load(path) for path in PLANS}
    trained = [found for found in plans_.values() if "train" in found["programs"]]
    trained = {(found["config"], stored.slice_name(found["topology"])) for found in trained}
    sizes, slices = ("plan_1b", "plan_8b", "plan_32b"), ("v5e-16", "v5e-64", "v5e-256", "v5p-128")
    assert trained >= set(itertools.product(sizes, slices))
    names = [name for found in plans_.values() for name in found["programs"]]
    assert {"score", "decode"} <= set(names) and len(names) >= 12
    for topology in ("v5e:8x8", "v5p:4x4x4"):
        assert any(
            found["config"] == "plan_8b" and found["topology"] == topology and "largest_micro_batch" in found
            for found in plans_.values()
        )
    refused = plans_["13b_v5e_16"]["programs"]["train"]["refused"]
    assert "exceeds available HBM (15.75G)" in refused
    for name, found in plans_.items():
        assert f"--save=experiments/plan/plans/{name}.json" in found["command"]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_flops_of_a_stored_train_step_are_those_of_the_formula(path):
    found = stored.load(path)
    one = found["programs"].get("train", {})
    if "flops" not in one:
        assert "refused" in one or "train" not in found["programs"]
        return
    model = programs.model_config(plans.get_config(found["config"].removeprefix("plan_").replace("_", ",")))
    prompt, completion = found["tokens"]
    wanted = flops.expected_train_flops(model, rows=found["rows"], prompt_length=prompt, completion_length=completion)
    assert one["flops"] == pytest.approx(wanted, rel=0.02)
    model = dataclasses.replace(model, remat="none")
    wanted = flops.expected_train_flops(model, rows=found["rows"], prompt_length=prompt, completion_length=completion)
    wanted -= found["rows"] * 2 * model.embed_dim * model.vocab_size * completion  # the head's second forward
    assert one["model_flops"] == pytest.approx(wanted, rel=0.02)


def test_growth_beside_the_stored_plan():
    kept = a_plan()
    assert stored.growth(kept, kept) == []
    assert stored.growth(kept, with_train(peak_bytes=4.15 * 2**30)) == []
    assert stored.growth(kept, with_train(peak_bytes=1.0)) == []  # smaller is as good as equal
    (said,) = stored.growth(kept, with_train(peak_bytes=4.25 * 2**30))
    assert said.startswith("train: peak bytes: 4.563e+09, stored 4.295e+09") and "5%" in said
    # Another kind over the same axis is no growth; more over it is, and so is another axis.
    assert stored.growth(kept, with_train(sent_bytes={"reduce-scatter over fsdp": 6.2e9})) == []
    (said,) = stored.growth(kept, with_train(sent_bytes={"all-gather over fsdp": 6.4e9}))
    assert said.startswith("train: bytes over fsdp")
    same = {"all-gather over fsdp": 6e9}
    assert stored.growth(kept, with_train(sent_bytes=same | {"all-reduce over data": 0.2e9})) == []
    (said,) = stored.growth(kept, with_train(sent_bytes=same | {"all-reduce over data": 1e9}))
    assert said.startswith("train: bytes over data")
    refused = a_plan(programs={"train": {"refused": "too much"}})
    assert stored.growth(kept, refused) == ["train: peak bytes: refused: too much"]
    assert stored.growth(refused, kept) == [] and stored.growth(refused, refused) == []
    assert stored.growth(kept, a_plan(programs={})) == ["train is planned no more"]


def test_comparison_shows_both():
    text = stored.comparison(a_plan(), with_train(peak_bytes=5 * 2**30))
    assert "train: peak bytes" in text and "4.295 GB" in text and "5.369 GB" in text and "+25.0%" in text
    assert "train: bytes over fsdp" in text and "+0.0%" in text


def test_a_check_says_how_to_accept_what_has_grown(tmp_path, monkeypatch, capsys):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(a_plan()))
    options = types.SimpleNamespace(
        placement=False,
        sweep=False,
        topology="v5e:8x8",
        sampler_topology=None,
        sampler_mesh=None,
        programs=["train"],
        largest=False,
        effort=0.0,
        check=str(path),
        save=None,
    )
    monkeypatch.setattr(cli.flags, "FLAGS", options)
    monkeypatch.setattr(cli, "plan", lambda *_, **__: a_plan())
    cli.run(None, tmp_path)
    assert "stored" in capsys.readouterr().out
    grown = with_train(peak_bytes=8 * 2**30)
    del grown["command"]  # which is not the plan's to know
    monkeypatch.setattr(cli, "plan", lambda *_, **__: grown)
    options.save = str(tmp_path / "new.json")
    monkeypatch.setattr(cli.sys, "argv", ["plan", f"--check={path}", "--topology=v5e:8x8"])
    with pytest.raises(SystemExit, match=r"(?s)train: peak bytes.*commit the result of: python -m experiments.plan"):
        cli.run(None, tmp_path)
    found = stored.load(tmp_path / "new.json")  # kept all the same, with the command that makes it
    assert found["command"] == "python -m experiments.plan --topology=v5e:8x8"
    assert found["programs"]["train"]["peak_bytes"] == 8 * 2**30


def test_a_check_plans_with_the_stored_arguments(tmp_path, monkeypatch):
    """And a file that is no plan is named."""
    assert stored.arguments(a_plan()) == ["--config=configs/plans.py:8b", "--topology=v5e:8x8"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(a_plan()))
    seen = []
    monkeypatch.setattr(cli.sys, "argv", ["plan", f"--check={path}"])
    monkeypatch.setattr(cli, "start", lambda run: seen.extend(cli.sys.argv))
    cli.main()
    assert seen == ["plan", f"--check={path}", *stored.arguments(a_plan())]
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"a.json is not a plan"):
        stored.load(path)


def test_a_refusal_has_the_compiler_s_own_figures():
    text = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (24.67G) exceeds\n"
        "available HBM (15.75G). More of it."
    )
    wanted = "total memory required for HLO temporaries (24.67G) exceeds available HBM (15.75G)"
    assert cli.refusal(text) == wanted
    assert cli.refusal("RESOURCE_EXHAUSTED: otherwise") == "RESOURCE_EXHAUSTED: otherwise"


@pytest.mark.parametrize(("limit", "most", "tried"), [(7, 4, [16, 8, 4]), (40, 16, [16]), (3, 0, [16, 8, 4])])
def test_the_largest_micro_batch_is_the_first_that_is_not_refused(monkeypatch, limit, most, tried):
    """Of 16 rows over 4 devices, a byte each, refused at twice the limit; its figures are the train step's."""
    setup = programs.describe(*small(attention="dot_product"), mesh())
    seen = []

    def compiled(micro_batches, mesh, effort):
        assert effort == -1.0
        seen.append(16 // micro_batches)
        return {"compile_s": 1.0} | ({"refused": "too much"} if seen[-1] > 2 * limit else {"peak_bytes": seen[-1]})

    monkeypatch.setattr(cli, "make_planned", lambda name, setup, micro_batches: micro_batches)
    monkeypatch.setattr(cli, "compile_one", compiled)
    rows, figures = cli.largest(setup, limit, -1.0)
    assert (rows, seen) == (most, tried)
    assert figures["peak_bytes"] == (most or tried[-1])


@pytest.mark.slow
def test_micro_batches_of_a_planned_step():
    """A whole minibatch at once has no loop over micro-batches; two have one of two turns."""
    config, model = small(attention="dot_product", num_layers=1)
    setup = programs.describe(config, model, mesh())

    def turns(micro_batches):
        equations = programs.train(setup, 16, micro_batches).jaxpr(setup.mesh).eqns
        return [e.params["length"] for e in equations if e.primitive.name == "scan"]

    assert turns(None)[:1] == [2] and turns(4)[:1] == [4] and 16 not in turns(1)


def test_roofline_is_the_largest_of_three():
    chip = chips.Chip(100.0, 1.0, 10.0, 5.0, "")
    found = cli.roofline(sent=5.0, total=8 * 300.0, useful=8 * 225.0, moved=20.0, mesh=mesh(), chip=chip)
    assert (found["compute_s"], found["memory_s"], found["links_s"]) == (3.0, 2.0, 1.0)
    assert found["step_s"] == 3.0 and found["mfu"] == 0.75
    slow = cli.roofline(sent=30.0, total=8 * 300.0, useful=8 * 225.0, moved=20.0, mesh=mesh(), chip=chip)
    assert slow["step_s"] == 6.0 and slow["mfu"] == 0.375


def test_synchronous_bytes_are_waited_for():
    """They come after what else the step does; the rest of the links' time may hide behind it."""
    chip = chips.Chip(100.0, 1.0, 10.0, 5.0, "")
    known = dict(total=8 * 300.0, useful=8 * 225.0, moved=20.0, mesh=mesh(), chip=chip)
    found = cli.roofline(sent=15.0, synchronous=5.0, **known)
    assert (found["links_s"], found["synchronous_s"], found["step_s"]) == (3.0, 1.0, 4.0)
    assert found["mfu"] == 2.25 / 4.0 and stored.limit(found) == "compute"
    assert stored.limit(cli.roofline(sent=25.0, synchronous=5.0, **known)) == "links"
    kept, grown = a_plan(), with_train(synchronous_bytes={"all-gather over fsdp": 2e9})
    (said,) = stored.growth(kept, grown)
    assert said.startswith("train: synchronous bytes: 2e+09, stored 1e+09")


def test_a_decode_step_reads_the_whole_cache():
    config, model = small(attention="dot_product", num_layers=2)
    setup = programs.describe(config, model, mesh())
    planned = types.SimpleNamespace(arguments=(None, np.zeros((8, 128))))
    weights = 2 * sum(x.size for x in jax.tree.leaves(setup.param_shapes)) / 2  # bfloat16, over tensor:2
    cache = 8 * 4 / 4 * (128 + 384) * 2 * (model.num_kv_heads / 2) * model.head_dim * model.num_layers * 2
    assert cli.moved_bytes("decode", setup, planned, 1) == 384 * (weights + cache)
    setup = programs.describe(config, dataclasses.replace(model, num_kv_heads=1), mesh())
    assert cli.cache_bytes(setup, 8) == cache / model.num_kv_heads * 2  # one head is not split over tensor:2


def test_a_sweep_ranks_what_fits_before_what_is_faster_and_does_not(monkeypatch):
    figures = {"small": (3.0, 9), "fast": (1.0, 11), "slow": (4.0, 10), "none": None}
    monkeypatch.setattr(cli, "meshes", lambda *_: list(figures))
    monkeypatch.setattr(cli, "ring_meshes", lambda *_: ["fsdp:8,context:2"])  # not tried: "small" fits
    monkeypatch.setattr(cli.sharding, "parse_mesh", lambda _: {})
    monkeypatch.setattr(programs, "model_config", lambda *_: None)

    def planned(config, topology, names, *, effort):
        one = figures[config.mesh]
        train = {"step_s": one[0], "peak_bytes": one[1]} if one else {"refused": "too much"}
        return {"mesh": config.mesh, "chip_bytes": 10, "programs": {"train": train}}

    monkeypatch.setattr(cli, "plan", planned)
    ranked = cli.rank(plans.get_config("8b"), "v5e:4x4")
    assert [found["mesh"] for found in ranked] == ["small", "slow", "fast", "none"]


def test_a_sweep_proposes_ring_attention_where_rows_are_too_long(monkeypatch):
    """Plain meshes do not fit, context:2 neither, context:4 does and is the last one that is compiled."""
    monkeypatch.setattr(cli, "described_devices", lambda topology: [None] * 16)
    monkeypatch.setattr(programs, "model_config", lambda *_: types.SimpleNamespace(num_kv_heads=1))
    tried = []

    def planned(config, topology, names, *, effort):
        tried.append((config.mesh, config.model.attention))
        context = sharding.parse_mesh(config.mesh).get("context", 1)
        train = {"step_s": 1.0, "peak_bytes": 40 / context} if context > 1 else {"refused": "too much"}
        return {"mesh": config.mesh, "chip_bytes": 10, "programs": {"train": train}}

    monkeypatch.setattr(cli, "plan", planned)
    config = plans.get_config("8b")
    config.sample.prompts_per_step, config.train.micro_batches = 8, 4  # micro-batches of 8 rows
    assert cli.rank(config, "v5e:4x4")[0]["mesh"] == "fsdp:4,context:4"
    assert tried == [("fsdp:8,context:2", "ring"), ("fsdp:4,context:4", "ring")]  # 8 rows do not divide over 16
    config.train.micro_batches = 32
    config.rollout.completion_length = 1
    with pytest.raises(ValueError, match="micro-batches of 1 rows divide over the devices of no mesh"):
        cli.rank(config, "v5e:4x4")


def test_a_permutation_that_is_started_sends_what_it_holds_once():
    line = (
        "  %s = ((bf16[2,8]{1,0}, s32[8]{0}), (bf16[2,8]{1,0}, s32[8]{0}), u32[]{:S(2)}, u32[]{:S(2)}) "
        "collective-permute-start(%a, %b), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    )
    text = f"ENTRY %main (a: f32[]) -> f32[] {{\n{line}\n}}"
    (found,) = hlo.collectives(text, {"context": 2})
    assert (found.bytes, found.axes, found.synchronous) == (2 * 16 + 4 * 8, ("context",), False)


def test_permutations_of_one_channel_are_counted_each():
    """Jax gives all of a shard_map's collectives the first channel."""
    line = "  %p.{} = bf16[2,8]{{1,0}} {}, channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}"
    lines = [line.format(i, f"collective-permute(%x.{i})") for i in range(3)]
    text = "\n".join(["ENTRY %main (a: f32[]) -> f32[] {", *lines, "}"])
    assert [one.bytes for one in hlo.collectives(text, {"fsdp": 2})] == [32, 32, 32]


def test_a_v4_chip_is_one_device(monkeypatch):
    from jax.experimental import topologies

    seen = []

    def described(**keywords):
        seen.append(keywords.get("chip_config_name"))
        return types.SimpleNamespace(devices=[])

    monkeypatch.setattr(topologies, "get_topology_desc", described)
    for topology in ("v4:2x2x2", "v5e:4x4"):
        cli.described_devices(topology)
    assert seen == ["megacore", None]


def test_what_cannot_be_split_over_the_mesh_is_said_so():
    config, model = small(attention="dot_product")
    config.sample.prompts_per_step = 1
    with pytest.raises(ValueError, match=r"2 rows must be a multiple of the 4 devices"):
        cli.largest(programs.describe(config, model, mesh()), 1.0, 0.0)


def test_every_chip_has_a_source_and_an_unknown_one_is_refused():
    assert all(chip.source and min(chip[:4]) > 0 for chip in chips.CHIPS.values())
    with pytest.raises(ValueError, match=r"'v9' is none of v4, v5e"):
        chips.chip_of("v9:2x2")


def test_a_mesh_of_another_size_is_refused(monkeypatch):
    monkeypatch.setattr(cli, "described_devices", lambda topology: jax.devices())
    config = plans.get_config("8b")
    config.mesh = "fsdp:4"
    with pytest.raises(ValueError, match="has 4 devices, but v5e:2x4 has 8"):
        cli.plan(config, "v5e:2x4", ["train"])


def test_what_is_not_planned_is_refused():
    config, model = small()
    config.rollout.update(mesh="tensor:8", devices="separate")
    with pytest.raises(ValueError, match="needs 8 devices, but 0 are available"):  # experiments.plan.apart gives more
        programs.describe(config, model, mesh())
    with pytest.raises(ValueError, match="--programs=critic: a run of grpo has train, score, decode"):
        runs.make_planned("critic", programs.describe(*small(), mesh()))
    config.program = "control.ppo"
    with pytest.raises(ValueError, match="plans no runs of control.ppo: it knows grpo, ppo"):
        runs.programs_of(config)


def test_meshes_of_a_sweep(monkeypatch):
    monkeypatch.setattr(cli, "described_devices", lambda topology: [None] * 16)
    model = TransformerConfig(
        vocab_size=8, embed_dim=8, num_layers=1, num_heads=4, num_kv_heads=4, head_dim=8, mlp_dim=8
    )
    found = cli.meshes("v5e:4x4", model)
    assert all(math.prod(sharding.parse_mesh(text).values()) == 16 for text in found)
    assert "fsdp:16,tensor:1" in found and "data:2,fsdp:2,tensor:4" in found and not any("tensor:8" in t for t in found)


def test_what_is_planned_is_what_runs():
    """The planned rollout is make_generate's on whole prompts, the planned batch one of padded rows."""
    config = plans.get_config("1b")
    assert (config.rollout.engine.name, config.packing.mode) == ("lockstep", "padded")


def test_sizes_are_the_published_ones():
    billions = {"1b": 1.236, "8b": 8.030, "13b": 13.016, "32b": 32.762}
    for name, wanted in billions.items():
        config = plans.get_config(name)
        shapes = programs.describe(config, programs.model_config(config), mesh()).param_shapes
        assert np.isclose(sum(x.size for x in jax.tree.leaves(shapes)) / 1e9, wanted, atol=1e-3)
