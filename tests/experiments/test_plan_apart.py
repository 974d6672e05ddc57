"""experiments/plan/apart.py: plans of runs whose sampler and trainer have devices of their own, without a compiler."""

import dataclasses
import importlib.metadata
import json
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from configs import plans
from experiments.parts import async_shards
from experiments.plan import apart, chips, cli, programs, runs, stored
from rl_jax.flow import payload
from rl_jax.flow.shards import Slices
from rl_jax.training import resharding, sharding
from tests.paths import REPO_ROOT

SIZES = dict(vocab_size=512, embed_dim=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=128)


def small(words: str):
    """(config, its model's) small enough to trace at once."""
    config = plans.get_config(words)
    config.rollout.update(completion_length=64, prompt_buckets=(64,))
    config.score.update(chunk=64, micro_batches=1)
    config.sample.update(prompts_per_step=8, group_size=4)
    config.train.update(minibatches=2, micro_batches=2)
    model = programs.model_config(config)
    return config, dataclasses.replace(model, **SIZES, remat="full", attention="dot_product")


def separate(dtype: str = "float32", rollout: str = "tensor:4"):
    """A run on devices 0 to 3 that samples on 4 to 7."""
    config, model = small("8b")
    config.mesh = "fsdp:4"
    config.rollout.update(mesh=rollout, devices="separate")
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh), jax.devices()[:4])
    return programs.describe(config, dataclasses.replace(model, dtype=dtype), mesh, jax.devices())


def devices_of(planned) -> set[int]:
    return {device.id for x in jax.tree.leaves(planned.arguments) for device in x.sharding.device_set}


# Devices of one run.


def test_each_program_is_planned_on_the_devices_that_run_it():
    setup = separate("bfloat16")
    sampler = programs.sampling(setup)
    for name in ("train", "score"):
        assert devices_of(runs.make_planned(name, setup)) == {0, 1, 2, 3}
    assert devices_of(runs.make_planned("decode", sampler)) == {4, 5, 6, 7}
    assert devices_of(runs.make_planned("move", setup)) == {0, 1, 2, 3}, "the trainer's: its twins get the parts"
    kernels = [x.param_shapes["layers"]["up"]["kernel"].dtype for x in (setup, sampler)]
    assert kernels == [jnp.float32, jnp.bfloat16], "rounded before they are sent"


def test_the_planned_move_and_the_sending_are_what_a_run_does():
    """Values laid out by `move` lie on each device as its twin will have them; what is sent is counted per device."""
    setup = separate(rollout="tensor:2")
    sampler, planned = programs.sampling(setup), runs.make_planned("move", setup)
    arrays = [jnp.arange(x.size, dtype=x.dtype).reshape(x.shape) for x in planned.arguments[0]]
    values = jax.device_put(arrays, [x.sharding for x in planned.arguments[0]])
    moved = resharding.reshard(values, jax.tree.leaves(sampler.param_shardings))
    pairs = programs.twins(setup)[1]
    assert {device.id for device in pairs} == {4, 5} and len(set(pairs.values())) == 2
    for laid, there in zip(planned.call(values), moved, strict=True):
        held = {shard.device: shard.data for shard in laid.addressable_shards}
        for shard in there.addressable_shards:
            assert (jax.device_get(shard.data) == jax.device_get(held[pairs[shard.device]])).all()
    found = apart.transfer(setup, sampler, (chips.CHIPS["v5e"], chips.CHIPS["v6e"]), {})
    share = sum(x.nbytes for leaf in moved for x in [leaf.addressable_shards[0].data])
    assert found["sent_bytes"] == {"copy over links": share} and found["received_bytes"] == share
    assert found["step_s"] == share / chips.CHIPS["v5e"].links
    assert found["dtypes"] == {"float32": sum(x.nbytes for x in values)}


def test_a_device_with_several_twins_sends_its_part_to_each():
    two = separate(rollout="data:2,tensor:2")
    config, model = small("8b")
    config.mesh = "fsdp:2"
    config.rollout.update(mesh="data:2,tensor:2", devices="separate")
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh), jax.devices()[:2])
    one = programs.describe(config, dataclasses.replace(model, dtype="float32"), mesh, jax.devices()[:6])
    chip = chips.CHIPS["v5e"]
    found = [apart.transfer(x, programs.sampling(x), (chip, chip), {}) for x in (two, one)]
    sent = [one["sent_bytes"]["copy over links"] for one in found]
    assert sent[1] == 2 * sent[0] and found[0]["received_bytes"] == found[1]["received_bytes"]


def test_devices_that_cannot_be_paired_are_refused():
    setup = separate(rollout="tensor:4")
    odd = setup._replace(mesh=sharding.make_mesh(sharding.parse_mesh("fsdp:2"), jax.devices()[:2]))
    with pytest.raises(ValueError, match="rollout.mesh='tensor:4': its devices cannot be paired with those of mesh="):
        programs.move_mesh(odd)


@pytest.mark.parametrize(
    ("topology", "count", "part"),
    [
        ("v5e:8x8", 32, "v5e:4x8"),
        ("v5e:8x8", 16, "v5e:4x4"),
        ("v5p:4x4x4", 32, "v5p:2x4x4"),
        ("v5p:2x2x2", 4, "v5p:2x2x1"),
        ("v5e:4x4", 16, "v5e:4x4"),
    ],
)
def test_separate_devices_are_described_as_slices_of_their_own(topology, count, part):
    assert chips.part_of(topology, count) == part


@pytest.mark.parametrize("count", [5, 12, 128])
def test_a_part_that_halving_does_not_give_is_refused(count):
    with pytest.raises(ValueError, match=f"v5e:8x8 cannot be halved into a part of {count} chips"):
        chips.part_of("v5e:8x8", count)


@pytest.mark.slow
def test_a_plan_of_separate_devices_compiles_each_side_on_its_own(monkeypatch):
    config, model = small("8b")
    config.mesh = "fsdp:4"
    config.rollout.update(mesh="tensor:4", devices="separate")
    parts = iter([jax.devices(), jax.devices()[:4], jax.devices()[4:]])
    compiled = faked(monkeypatch, model, lambda topology: next(parts))
    result = cli.plan(config, "v5e:2x4", None)
    assert compiled == [
        ("train", [0, 1, 2, 3]),
        ("score", [0, 1, 2, 3]),
        ("decode", [4, 5, 6, 7]),
        ("move", [0, 1, 2, 3]),
    ]
    one = result["programs"]["transfer"]
    assert one["way"] == "links" and one["peak_bytes"] == 1e9, "no second set of weights: nothing is sampled meanwhile"
    assert one["trainer_peak_bytes"] == result["parameter_bytes"] + result["optimizer_bytes"] + 1e9, "with move's"
    assert not result["balance"]["overlapped"]
    said = cli.report(result)
    assert "from device to device" in said and "they take turns: the sampler waits" in said and "note" not in said
    config.mesh = "fsdp:2"
    monkeypatch.setattr(cli, "described_devices", lambda topology: jax.devices())
    with pytest.raises(ValueError, match="mesh='fsdp:2' with rollout.mesh='tensor:4' has 6 devices, but v5e:2x4 has 8"):
        cli.plan(config, "v5e:2x4", None)


# Two processes.


class Described(NamedTuple):
    """A device of a described slice."""

    id: int

    @property
    def process_index(self) -> int:
        return self.id // 4


def faked(monkeypatch, model, described) -> list:
    """Puts a compiler in place that says 1 GB of everything. Returns (program, devices) as they will be compiled."""
    compiled = []

    def compile_one(planned, mesh, effort):
        assert devices_of(planned) == {device.id for device in mesh.devices.flat}
        compiled.append((planned.name, sorted(devices_of(planned))))
        return {"peak_bytes": 1e9, "argument_bytes": 1e8, "temporary_bytes": 9e8, "compile_s": 1.0, "sent_bytes": {},
                "synchronous_bytes": {}}  # fmt: skip

    monkeypatch.setattr(cli, "described_devices", described)
    monkeypatch.setattr(cli, "compile_one", compile_one)
    monkeypatch.setattr(programs, "model_config", lambda config, **changes: dataclasses.replace(model, **changes))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0")
    return compiled


def two_processes(monkeypatch, config, model):
    """A plan of --role=trainer on devices 0 to 3 and --role=sampler on 4 to 7, and what was compiled."""
    slices = {"v5e:2x2": jax.devices()[:4], "v6e:2x2": jax.devices()[4:]}
    compiled = faked(monkeypatch, model, slices.get)
    sampler = apart.sampler_of(config, "v6e:2x2", "data:2,tensor:2")
    return cli.plan(config, "v5e:2x2", None, sampler=sampler), compiled


@pytest.fixture(scope="module")
def planned():
    config, model = small("8b,async")
    config.mesh = "fsdp:4"
    with pytest.MonkeyPatch.context() as patch:
        return (config, model, *two_processes(patch, config, model))


@pytest.mark.slow
def test_two_processes_are_planned_each_on_its_slice(planned):
    config, model, result, compiled = planned
    assert compiled == [("train", [0, 1, 2, 3]), ("score", [0, 1, 2, 3]), ("decode", [4, 5, 6, 7])]
    assert list(result["programs"]) == ["train", "score", "decode", "transfer"]
    side = result["sampler"]
    assert (side["topology"], side["mesh"]) == ("v6e:2x2", "data:2,tensor:2")
    assert side["hosts"] == side["trainer_hosts"] == 1
    assert side["chip_bytes"] == chips.CHIPS["v6e"].bytes != result["chip_bytes"]
    decode = result["programs"]["decode"]
    assert decode["compute_s"] == decode["flops"] / 4 / chips.CHIPS["v6e"].flops, "the sampler's chip"
    json.dumps(result)
    # Each side has the peak of what it holds: the state here, decoding and a second set of weights there.
    one = result["programs"]["transfer"]
    assert one["trainer_peak_bytes"] == result["parameter_bytes"] + result["optimizer_bytes"]
    assert one["peak_bytes"] == decode["peak_bytes"] + side["parameter_bytes"]
    assert one["argument_bytes"] == side["parameter_bytes"]

    # The bytes are those that the link's own code hands over and asks for.
    theirs = sharding.make_mesh(sharding.parse_mesh(side["mesh"]), jax.devices()[4:])
    mine = sharding.make_mesh(sharding.parse_mesh("fsdp:4"), jax.devices()[:4])
    setups = [programs.describe(config, model, mesh) for mesh in (mine, theirs)]
    setups[1].config.mesh = "fsdp:4"
    params = jax.tree.map(lambda x, s: jax.device_put(jnp.zeros(x.shape, x.dtype), s), setups[0].param_shapes,
                          setups[0].param_shardings)  # fmt: skip
    cuts = payload.flatten(async_shards.cut(params), leaf=lambda name, cut: cut)
    left = sum(piece.data.nbytes for cut in cuts.values() for piece in cut.pieces)
    assert one["sent_bytes"] == {"copy over network": left / 4} and one["dtypes"] == {"float32": left}
    slices = Slices(0, {name: (cut.shape, cut.dtype) for name, cut in cuts.items()}, None)
    boxes = async_shards.boxes_of(slices, setups[1].param_shardings)
    read = sum(4 * jnp.prod(jnp.array(end) - jnp.array(start)).item() for _, start, end in boxes)
    assert one["received_bytes"] == read / 4
    rates = [chips.CHIPS[name].network for name in ("v5e", "v6e")]
    assert one["step_s"] == max(left / 4 / rates[0], read / 4 / rates[1])


@pytest.mark.parametrize(("name", "count", "expected"), [("v5e", 8, 1), ("v6e", 8, 1), ("v5p", 8, 2), ("v5e", 16, 4)])
def test_a_host_reads_what_its_own_chips_need(name, count, expected):
    """A described slice has a process for each 4 chips. An array that every chip has whole is read once per host."""
    devices = [Described(number) for number in range(count)]
    whole = types.SimpleNamespace(
        devices_indices_map=lambda shape: dict.fromkeys(devices, (slice(None),)), shard_shape=lambda shape: shape
    )
    chip = chips.CHIPS[name]
    read = apart._read_by_hosts([jnp.zeros(3)], [whole], apart.host_of(devices, chip))
    assert apart.hosts(devices, chip) == expected and read == 4 * 3 * expected


@pytest.mark.slow
def test_a_plan_of_two_processes_in_words_and_as_lines(planned, tmp_path):
    _, _, result, _ = planned
    said = cli.report(result)
    for words in ("a sampler on v6e:2x2, mesh data:2,tensor:2", "through the hosts, over the data center's network",
                  "GB of float32", "balance a step takes the sampler at least", "waits for the"):  # fmt: skip
        assert words in said
    assert "not a run that can be started today" not in said
    many = result | {"sampler": result["sampler"] | {"trainer_hosts": 16, "hosts": 4}}
    assert "has 16 hosts and the sampler's 4" in cli.report(many)
    (tmp_path / "a.json").write_text(json.dumps({"command": "python -m experiments.plan --x"} | result))
    rows = [line for line in stored.table(tmp_path).splitlines() if line.startswith("| a ")]
    places = [row.split(" | ")[2:5] for row in rows]
    assert places[0] == ["v5e-4 (v5e:2x2)", "fsdp:4", "train"]
    assert places[2:] == [["v6e-4 (v6e:2x2)", "data:2,tensor:2", name] for name in ("decode", "transfer")]
    assert "(network)" in rows[3] and "of 32" in rows[3]
    grown = json.loads(json.dumps(result))
    grown["programs"]["transfer"]["sent_bytes"]["copy over network"] *= 1.1
    (wrong,) = stored.growth(result, grown)
    assert wrong.startswith("transfer: bytes over network")


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({}, ("v5e:4x4", None), "go together"),
        ({"program": "grpo"}, ("v5e:4x4", "tensor:8"), "only experiments.grpo_async has a process that samples"),
        ({"rollout.mesh": "tensor:8"}, ("v5e:4x4", "tensor:8"), "each process has one mesh"),
        ({"flow.samplers": 2}, ("v5e:4x4", "tensor:8"), "one sampler is planned"),
        ({"flow.in_flight": "keep"}, ("v5e:4x4", "tensor:8"), "a sampler that can be killed"),
        ({"algorithm.behavior_weight": {"fn": "none"}}, ("v5e:4x4", "tensor:8"), "rows are stale"),
    ],
)
def test_what_cannot_be_two_processes_is_refused(change, place, words):
    config = plans.get_config("1b,async")
    for name, value in change.items():
        group, _, field = name.rpartition(".")
        (config[group] if group else config)[field] = value
    with pytest.raises(ValueError, match=words):
        apart.sampler_of(config, *place)
    assert apart.sampler_of(config, None, None) is None


def test_a_slice_of_another_size_is_refused(monkeypatch):
    config, model = small("8b,async")
    config.mesh = "fsdp:8"
    with pytest.raises(ValueError, match="mesh='fsdp:8' has 8 devices, but v5e:2x2 has 4"):
        two_processes(monkeypatch, config, model)


# Who waits.


def figures(**seconds):
    return {name: {"step_s": value} for name, value in seconds.items()}


def test_the_side_that_is_faster_waits():
    config = plans.get_config("1b,async")
    times = figures(train=2.0, score=1.0, decode=5.0, transfer=1.0)
    found = apart.balance(config, times)
    # Two minibatches; scores of the policy before them, and of the reference if its KL is measured.
    assert found["score_passes"] in (1, 2) and found["overlapped"]
    trainer = 2 * 2.0 + found["score_passes"] + 1.0
    assert (found["sampler_s"], found["trainer_s"], found["step_s"]) == (6.0, trainer, max(6.0, trainer))
    assert found["ratio"] == 6.0 / trainer
    waits = {"sampler": 1 - 6.0 / found["step_s"], "trainer": 1 - trainer / found["step_s"]}
    assert found["waits"] == waits and min(waits.values()) == 0
    config.algorithm.measure_kl = not config.algorithm.measure_kl
    assert apart.balance(config, times)["score_passes"] != found["score_passes"]
    config.rollout.engine.slots = 128  # a quarter of a step's rows at once
    assert apart.balance(config, times)["sampler_s"] == 4 * 5.0 + 1.0
    config.rollout.engine.slots, config.flow.schedule = 0, "free"
    assert apart.balance(config, times)["sampler_s"] == 5.0, "fetched while rows are decoded"
    slow = apart.balance(config, figures(train=0.1, score=0.1, decode=5.0, transfer=0.1))
    assert slow["waits"]["sampler"] == 0 and slow["waits"]["trainer"] > 0.9


def test_without_staleness_both_wait():
    config = plans.get_config("1b,async")
    config.flow.eta = 0
    found = apart.balance(config, figures(train=2.0, score=1.0, decode=5.0, transfer=1.0))
    step = 5.0 + 4.0 + found["score_passes"] + 1.0
    assert not found["overlapped"] and found["step_s"] == step
    assert found["waits"] == {"sampler": 1 - 5.0 / step, "trainer": 1 - (4.0 + found["score_passes"]) / step}
    moved = apart.balance(config, figures(train=2.0, score=1.0, decode=5.0, transfer=1.0, move=0.5))
    assert moved["trainer_s"] == found["trainer_s"] + 0.5, "its devices lay the weights out"


@pytest.mark.parametrize("missing", ["train", "score", "decode"])
def test_no_balance_without_a_program(missing):
    times = figures(train=2.0, score=1.0, decode=5.0, transfer=1.0)
    assert apart.balance(plans.get_config("1b,async"), times | {missing: {"refused": "too much"}}) is None


def test_the_stored_plan_of_two_processes_is_whole():
    found = stored.load(REPO_ROOT / "experiments/plan/plans/8b_v5e_64_16_async.json")
    assert found["effort"] == 0.0 and found["topology"] == "v5e:8x8" and found["sampler"]["topology"] == "v5e:4x4"
    assert list(found["programs"]) == ["train", "score", "decode", "transfer"]
    for name, one in found["programs"].items():
        assert one["peak_bytes"] <= stored.place_of(found, name)[2]
    config = plans.get_config("8b,async")
    config.rollout.engine.slots = 128
    assert "--config.rollout.engine.slots=128" in found["command"]
    assert found["balance"] == apart.balance(config, found["programs"])


def test_a_warm_start_s_plan_says_its_own_rows(monkeypatch):
    """Another reader of the plan must know what step it is of (experiments.bench.pod_step)."""
    config, model = small("8b")
    config.mesh = "fsdp:4"
    config.sft.update(steps=1, batch_size=16, micro_batches=2)
    faked(monkeypatch, model, lambda topology: jax.devices()[:4])
    one = cli.plan(config, "v5e:2x2", ["sft"])["programs"]["sft"]
    assert (one["rows"], one["micro_batches"]) == (16, 2)
