"""What a run needs on a pod slice, before booking it: its programs, compiled by the TPU compiler, without a TPU.

    python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8
    python -m experiments.plan --config=configs/plans.py:8b --topology=v5e:8x8 --sweep       # ranks mesh shapes
    python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8 --largest
    python -m experiments.plan --config=configs/plans.py:8b --topology=v5p:2x2x4 --placement   # devices for each call
    python -m experiments.plan --config=configs/plans.py:8b,async --config.mesh=fsdp:64 --topology=v5e:8x8 \\
        --sampler_topology=v5e:4x4 --sampler_mesh=data:2,tensor:8 --config.rollout.engine.slots=128   # a process each
    python -m experiments.plan --table=experiments/plan/plans           # tabulates the stored plans in README.md there
    python -m experiments.plan --check=experiments/plan/plans/ci.json   # plans it again, fails if it has grown

Needs libtpu (`pip install -e .[tpu]`), in a virtual environment of its own. Memory is the compiler's figure. FLOPs are
counted in the jaxpr, and bytes between chips are read from the compiled text. Times are lower bounds from the chip's
peaks: the largest of compute, memory and asynchronous communication time, as if these overlapped perfectly, and after
it the synchronous communication, which the compiler lets overlap with nothing.
"""

import importlib.metadata
import json
import math
import os
import pathlib
import re
import shlex
import sys
import time
from typing import Any, NamedTuple

# Read when jax and libtpu load: no TPU or metadata server is searched for, and several plans may run at once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
from absl import flags

from experiments.parts import rollout_mesh
from experiments.parts.flags import main as start
from experiments.parts.setup import Setup
from experiments.plan import apart, chips, flops, hlo, placing, programs, stored
from experiments.plan.programs import cache_bytes, optimizer_bytes, tree_bytes
from experiments.plan.runs import (
    UPDATES,
    make_planned,
    model_flops,
    moved_bytes,
    programs_of,
    sampled_prompts,
    step_rows,
    update_rows,
)
from rl_jax.core.axis_table import RULES
from rl_jax.runs.logging import write_atomically
from rl_jax.training import sharding

flags.DEFINE_string("topology", "v5e:4x4", "a slice, CHIP:SHAPE: v4:2x2x2, v5e:4x4, v5p:4x4x4, v6e:4x4")
flags.DEFINE_string("sampler_topology", None, "the slice of --role=sampler, if the run is two processes: v5e:4x4")
flags.DEFINE_string("sampler_mesh", None, "with --sampler_topology: the sampler's --config.mesh, data:2,tensor:8")
flags.DEFINE_bool("sweep", False, "plan the train step for every sensible mesh of the slice and rank the meshes")
flags.DEFINE_bool("largest", False, "plan the train step with the largest micro-batch that fits")
flags.DEFINE_bool("placement", False, "estimate which devices should sample, score and train; compiles nothing")
flags.DEFINE_string("lengths", None, "with --placement: a JSON list of completion lengths, or a run's folder")
flags.DEFINE_list("programs", None, "to plan: train, score, decode, move, critic, sft; without it, the run's but sft")
flags.DEFINE_float("effort", 0.0, "XLA's exec_time_optimization_effort: 0 as in a run, -1 for a quick plan", -1.0, 1.0)
flags.DEFINE_string("save", None, "write the plan to this file, as JSON")
flags.DEFINE_string("table", None, "only write a README.md of the plans stored in this folder")
flags.DEFINE_string("check", None, "plan a stored plan (this file) again, with its own flags, and compare")

GIB = stored.GIB
LEAST_EFFORT = -1.0  # a third of the time; peaks are within a few percent of a run's


def described_devices(topology: str) -> list:
    """The devices of a slice that is described, not present.

    Raises:
      RuntimeError: if libtpu is missing; the message says what to do.
    """
    from jax.experimental import topologies

    chips.chip_of(topology)
    # Otherwise a v4 chip is two devices with half its memory each.
    options = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except Exception as error:
        raise RuntimeError(
            f"topology {topology!r} cannot be described ({error}). The TPU compiler is needed: "
            "python3 -m venv .venv-tpu && .venv-tpu/bin/pip install -e .[tpu], and run this with .venv-tpu/bin/python"
        ) from error


def compile_one(planned: programs.Planned, mesh, effort: float = 0.0) -> dict[str, Any]:
    """The compiler's figures for one program: bytes per chip, bytes sent, seconds; or "refused" and the reason."""
    start = time.perf_counter()
    options = {"exec_time_optimization_effort": effort} if effort else None
    try:
        compiled = planned.lower(mesh).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"refused": refusal(str(error)), "compile_s": time.perf_counter() - start}
    memory, sent = compiled.memory_analysis(), hlo.collectives(compiled.as_text(), dict(mesh.shape))
    kept, peak = memory.argument_size_in_bytes, hlo.peak_bytes(memory, mesh.devices.flat[0].platform)
    return {
        "argument_bytes": kept,
        "temporary_bytes": peak - kept,
        "peak_bytes": peak,
        "sent_bytes": hlo.by_axes(sent),
        "synchronous_bytes": hlo.by_axes([one for one in sent if one.synchronous]),
        "collectives": sum(one.times for one in sent),
        "compile_s": time.perf_counter() - start,
    }


def refusal(text: str) -> str:
    """The compiler's message for a program that does not fit: how much it needs and how much there is."""
    text = " ".join(text.split())
    said = re.search(r"total memory required.*?\(.*?\).*?\(.*?\)", text)
    return said[0] if said else text[:300]


def roofline(
    sent: float, total: float, useful: float, moved: float, mesh, chip: chips.Chip, *, synchronous: float = 0.0
) -> dict[str, Any]:
    """The times that the chip's peaks allow, and the resulting MFU = useful FLOPs / (step_s x peak).

        step_s = max(compute, memory, asynchronous links) + synchronous links

    Args:
      sent: bytes that one chip sends.
      total: FLOPs of all chips.
      useful: the part of `total` that the model needs, without rematerialisation (arXiv 2204.02311, appendix B).
      moved: bytes that one chip reads from and writes to its memory.
      mesh: of the program.
      chip: its peaks.
      synchronous: the part of `sent` during which the chip does nothing else.
    """
    times = {
        "compute_s": total / mesh.size / chip.flops,
        "memory_s": moved / chip.bandwidth,
        "links_s": sent / chip.links,
    }
    waits = synchronous / chip.links
    step = max(times["compute_s"], times["memory_s"], times["links_s"] - waits) + waits
    mfu = useful / mesh.size / chip.flops / step
    counts = {"flops": total, "model_flops": useful, "moved_bytes": moved}
    return counts | times | {"synchronous_s": waits, "step_s": step, "mfu": mfu}


def largest(setup: Setup, limit: float, effort: float) -> tuple[int, dict[str, Any]]:
    """The largest micro-batch that fits, among those into which a minibatch divides.

    The compiler uses less memory if it is short of it, so only compiling tells what fits. Far too large programs are
    refused within seconds, before code generation, so the search starts at the whole minibatch and goes down. A peak
    above `limit` does not fit either: near its limit the compiler counts on buffers that are never live at once.

    Args:
      setup: of the run.
      limit: bytes per chip.
      effort: of the compiler.

    Returns:
      (rows, the figures); 0 rows if none fits.

    Raises:
      ValueError: if a minibatch does not divide over the devices that split rows.
    """
    rows, shards = step_rows(setup.config)[1], sharding.row_shards(setup.mesh)
    if rows % shards:
        raise ValueError(f"a minibatch of {rows} rows must be a multiple of the {shards} devices that split rows")
    figures: dict[str, Any] = {}
    for count in range(1, rows + 1):
        if rows % (count * shards):
            continue
        figures = compile_one(make_planned("train", setup, count), setup.mesh, effort)
        said = figures.get("refused") or f"peak {figures['peak_bytes'] / GIB:.2f} GiB per chip"
        print(f"micro-batch of {rows // count} rows: {said} ({figures['compile_s']:.0f} s)", flush=True)
        if figures.get("peak_bytes", math.inf) <= limit:
            return rows // count, figures
    return 0, {"refused": f"its peak is above the {limit / GIB:.0f} GiB of a chip"} | figures


class Side(NamedTuple):
    """What the programs of a run's trainer, or of its sampler, are made from.

    Attributes:
      setup: of the run.
      plain: the same with attention whose products a jaxpr has; a kernel's cannot be counted there.
      chip: that they run on.
    """

    setup: Setup
    plain: Setup
    chip: chips.Chip


def _side(config, topology: str, devices: list, others: list | None = None) -> Side:
    """The Side of config.mesh on these devices. others: of rollouts on separate devices."""
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh), devices)
    models = [programs.model_config(config, **changes) for changes in ({}, {"attention": "dot_product"})]
    setups = [programs.describe(config, model, mesh, others) for model in models]
    return Side(*setups, chips.chip_of(topology))


def devices_of(topology: str, count: int, called: str) -> list:
    """The devices of a described slice. Raises ValueError if it has not `count` of them. called: what wants them."""
    chips.chip_of(topology)
    devices = described_devices(topology)
    if count != len(devices):
        raise ValueError(f"{called} has {count} devices, but {topology} has {len(devices)}")
    return list(devices)


def sides(config, topology: str, sampler: apart.Sampler | None) -> tuple[Side, Side, dict[str, Any]]:
    """(the trainer, the sampler, what a plan says of the sampler if it has devices of its own).

    The compiler takes whole slices only, so separate devices of one slice are described as two smaller ones.

    Raises:
      ValueError: if a mesh does not fit its slice.
    """
    called, total = f"mesh={config.mesh!r}", rollout_mesh.num_devices(config)
    if not apart.is_apart(config, sampler):
        trainer = _side(config, topology, devices_of(topology, total, called))
        return trainer, _sampling(trainer), {}
    if sampler is None:
        devices_of(topology, total, f"{called} with rollout.mesh={config.rollout.mesh!r}")
        counts = [math.prod(sharding.parse_mesh(mesh).values()) for mesh in (config.mesh, config.rollout.mesh)]
        mine, theirs = (described_devices(chips.part_of(topology, count)) for count in counts)
        trainer = _side(config, topology, list(mine), list(theirs))
        there, side = {"topology": None, "mesh": config.rollout.mesh}, _sampling(trainer)
    else:
        own = apart.config_of(config, sampler)
        mine = devices_of(topology, total, called)
        count = math.prod(sharding.parse_mesh(own.mesh).values())
        theirs = devices_of(sampler.topology, count, f"--sampler_mesh={own.mesh!r}")
        trainer, side = _side(config, topology, mine), _side(own, sampler.topology, theirs)
        there = sampler._asdict()
    shapes, shardings = side.setup.param_shapes, side.setup.param_shardings
    there |= {
        "trainer_hosts": apart.hosts(mine, trainer.chip),
        "hosts": apart.hosts(theirs, side.chip),
        "chip_bytes": side.chip.bytes,
        "parameter_bytes": tree_bytes(shapes, shardings),
    }
    return trainer, side, {"sampler": there}


def _sampling(trainer: Side) -> Side:
    return trainer._replace(setup=programs.sampling(trainer.setup), plain=programs.sampling(trainer.plain))


def plan(
    config,
    topology: str,
    names: list[str] | None,
    *,
    find_largest: bool = False,
    effort: float = 0.0,
    sampler: apart.Sampler | None = None,
) -> dict[str, Any]:
    """The figures of one config on one slice with config.mesh, as plain JSON data.

    Args:
      config: of the run.
      topology: "v5e:8x8".
      names: of the programs; None: all of the run's.
      find_largest: whether to plan the train step with its largest micro-batch instead of the config's.
      effort: of the compiler.
      sampler: the slice of a process that samples, if there is one.

    Raises:
      ValueError: if a mesh does not fit the slice, or the run has no such program.
    """
    if config.model.dtype == "auto":
        config.model.dtype = "bfloat16"  # as on the accelerator that is planned for
    if config.model.attention == "auto":
        config.model.attention = "splash"
    trainer, theirs, there = sides(config, topology, sampler)
    setup = trainer.setup
    result = {
        "config": config.name,
        "model": config.model.path or config.name,
        "topology": topology,
        "mesh": config.mesh,
        "attention": config.model.attention,
        "chip_bytes": trainer.chip.bytes,
        "parameters": sum(x.size for x in jax.tree.leaves(setup.param_shapes)),
        "parameter_bytes": tree_bytes(setup.param_shapes, setup.param_shardings),
        "optimizer_bytes": optimizer_bytes(setup),
        "tokens": [max(config.rollout.prompt_buckets), config.rollout.completion_length],
        "step_rows": step_rows(config)[0],
        "rows": step_rows(config)[1],
        "micro_batches": config.train.micro_batches,
        "effort": effort,
        "libtpu": importlib.metadata.version("libtpu"),
        "programs": {},
    } | ({"rollout_mesh": config.rollout.mesh} if config.rollout.mesh else {})
    result |= there
    for name in names or list(programs_of(config)):
        side = theirs if name == "decode" else trainer
        if name == "train" and find_largest:
            rows, figures = largest(setup, trainer.chip.bytes, effort)
            result |= {"largest_micro_batch": rows, "micro_batches": result["rows"] // rows if rows else result["rows"]}
        else:
            figures = compile_one(make_planned(name, side.setup), program_mesh(name, side.setup), effort)
        if "refused" not in figures:
            count = config[name].micro_batches if name in UPDATES else None
            count = result["micro_batches"] if name == "train" else count
            figures |= bounds(name, side, count, figures)
        if name == "sft":
            figures |= {"rows": config.sft.batch_size, "micro_batches": config.sft.micro_batches}
        if name == "decode":
            figures["cache_bytes"] = cache_bytes(side.setup, sampled_prompts(config))
            figures["rows"] = sampled_prompts(config) * config.sample.group_size
        result["programs"][name] = figures
    if there:
        found = apart.transfer(setup, theirs.setup, (trainer.chip, theirs.chip), result["programs"])
        result["programs"]["transfer"] = found
        result["balance"] = apart.balance(config, result["programs"])
    return result


def program_mesh(name: str, setup: Setup):
    """The mesh that a program is lowered for."""
    return programs.move_mesh(setup) if name == "move" else setup.mesh


def bounds(name: str, side: Side, micro_batches: int | None, figures: dict[str, Any]) -> dict[str, Any]:
    """The `roofline` of a compiled program. figures: of compile_one."""
    mesh = program_mesh(name, side.setup)
    planned, counted = [make_planned(name, x, micro_batches) for x in (side.setup, side.plain)]
    total = flops.count(counted.jaxpr(mesh), while_turns=counted.while_turns)
    useful = model_flops(name, side.plain, update_rows(name, side.setup.config)) if name in UPDATES else total
    sent, synchronous = (sum(figures[kind].values()) for kind in ("sent_bytes", "synchronous_bytes"))
    moved = moved_bytes(name, side.setup, planned, micro_batches or 1)
    return roofline(sent, total, useful, moved, mesh, side.chip, synchronous=synchronous)


def report(result: dict[str, Any]) -> str:
    """A plan in words."""
    (prompt, completion), own = result["tokens"], result.get("sampler", {}).get("topology")
    lines = [
        f"{result['model']}: {result['parameters'] / 1e9:.2f}B parameters on {result['topology']}, "
        f"mesh {result['mesh']}"
        + (f", rollouts on {result['rollout_mesh']}" if "rollout_mesh" in result else "")
        + (f", a sampler on {own}, mesh {result['sampler']['mesh']}" if own else "")
        + ", ring attention" * (result.get("attention") == "ring"),
        f"rows of {prompt} + {completion} tokens; a train step has {result['rows']}, "
        f"in {result['micro_batches']} micro-batches",
        f"parameters {result['parameter_bytes'] / GIB:.2f} GiB per chip, which has {result['chip_bytes'] / GIB:.0f}; "
        f"the optimizer keeps {result['optimizer_bytes'] / GIB:.2f}",
    ]
    for name, one in result["programs"].items():
        if name == "transfer":
            continue
        if "refused" in one:
            lines.append(f"{name:7} does not fit: {one['refused']}")
            continue
        sent = ", ".join(f"{axes} {size / 1e9:.3g} GB" for axes, size in one["sent_bytes"].items()) or "nothing"
        limit = stored.place_of(result, name)[2]
        over = ", which does NOT fit" if one["peak_bytes"] > limit else ""
        lines += [
            f"{name:7} peak {one['peak_bytes'] / GIB:.2f} GiB per chip{over}: "
            f"{one['argument_bytes'] / GIB:.2f} of arguments, "
            f"{one['temporary_bytes'] / GIB:.2f} of activations and other temporaries "
            f"({one['compile_s']:.0f} s to compile)"
            + (f"; the cache is {one['cache_bytes'] / GIB:.2f} of them" if "cache_bytes" in one else ""),
            f"        {one['flops']:.3g} FLOPs in all; a chip sends {sent}",
            f"        of that {sum(one['synchronous_bytes'].values()) / 1e9:.3g} GB synchronously, which overlaps with "
            "nothing",
            f"        at the peaks {one['step_s']:.3g} s, set by {stored.limit(one)} "
            f"(compute {one['compute_s']:.3g}, memory {one['memory_s']:.3g}, links {one['links_s']:.3g}, of it "
            f"synchronous {one['synchronous_s']:.3g}); MFU at most {one['mfu']:.0%}",
        ]
    lines += apart.report(result)
    if "largest_micro_batch" in result:
        lines.append(f"largest micro-batch that fits: {result['largest_micro_batch']} rows")
    return "\n".join(lines)


def meshes(topology: str, model) -> list[str]:
    """The sensible meshes: tensor at most the number of key heads, the rest fsdp, or half fsdp and half data."""
    count, result = len(described_devices(topology)), []
    for tensor in (1, 2, 4, 8):
        if count % tensor == 0 and model.num_kv_heads % tensor == 0:
            rest = count // tensor
            result.append(f"fsdp:{rest},tensor:{tensor}")
            result += [f"data:2,fsdp:{rest // 2},tensor:{tensor}"] if rest > 2 else []
    return result


def ring_meshes(topology: str, length: int) -> list[str]:
    """Meshes that split the tokens of a row, for ring attention; the smallest context axis first."""
    count = len(described_devices(topology))
    contexts = [c for c in (2, 4, 8, 16, 32, 64) if count % c == 0 and length % c == 0]
    return [f"fsdp:{count // c},context:{c}" for c in contexts]


def rank(config, topology: str) -> list[dict[str, Any]]:
    """A train step's plan for each mesh, at the compiler's lowest effort.

    Where no mesh fits, rows are too long for a chip: then those of ring_meshes are tried with ring attention, up to the
    first that fits.

    Sorted: first the meshes that fit, fastest first; then those that compile but need more memory than the chip has;
    last those that the compiler refuses.

    Raises:
      ValueError: if the rows of a micro-batch divide over the devices of no mesh.
    """
    plans, rows = [], step_rows(config)[1] // config.train.micro_batches
    length = max(config.rollout.prompt_buckets) + config.rollout.completion_length
    plain = [(mesh, config.model.attention) for mesh in meshes(topology, programs.model_config(config))]
    ringed = [(mesh, "ring") for mesh in ring_meshes(topology, length)]
    for mesh, attention in plain + ringed:
        if attention == "ring" and plans and fits(min(plans, key=order)):
            break
        sizes = sharding.parse_mesh(mesh)
        shards = math.prod(sizes.get(axis, 1) for axis in RULES["rows"])
        if rows % shards:
            print(f"{mesh:32} a micro-batch of {rows} rows does not divide over {shards} devices", flush=True)
            continue
        with config.unlocked():
            config.mesh, config.model.attention = mesh, attention
        plans.append(plan(config, topology, ["train"], effort=LEAST_EFFORT))
        one = plans[-1]["programs"]["train"]
        said = one.get("refused") or f"{one['step_s']:.3g} s, peak {one['peak_bytes'] / GIB:.2f} GiB"
        print(f"{mesh:32} {said}", flush=True)
    if not plans:
        raise ValueError(f"micro-batches of {rows} rows divide over the devices of no mesh: take fewer micro_batches")
    return sorted(plans, key=order)


def fits(result: dict[str, Any]) -> bool:
    """Whether a plan's train step fits into the chip."""
    return result["programs"]["train"].get("peak_bytes", math.inf) <= result["chip_bytes"]


def order(result: dict[str, Any]) -> tuple[bool, float]:
    """Sorts plans by whether the train step fits, then by its time."""
    return not fits(result), result["programs"]["train"].get("step_s", math.inf)


def command() -> str:
    """The command line that makes this plan."""
    words = [word for word in sys.argv[1:] if not word.startswith("--check")]
    return f"python -m experiments.plan {shlex.join(words)}"


def run(config, workdir: pathlib.Path) -> None:
    """Plans and prints; with --save stores the plan, with --check compares it with a stored one."""
    del workdir
    options = flags.FLAGS
    if options.placement:
        placing.run(config, options.topology, options.lengths)
        return
    if options.sweep:
        best = rank(config, options.topology)
        print("\n" + report(best[0]))
        return
    sampler = apart.sampler_of(config, options.sampler_topology, options.sampler_mesh)
    asked = dict(find_largest=options.largest, effort=options.effort, sampler=sampler)
    result = plan(config, options.topology, options.programs, **asked)
    print(report(result))
    kept = stored.load(pathlib.Path(options.check)) if options.check else None
    if options.save:
        text = json.dumps({"command": command()} | result, indent=1) + "\n"
        write_atomically(pathlib.Path(options.save), text.encode())
    if kept:
        print("\n" + stored.comparison(kept, result))
        refused = stored.growth(kept, result)
        if refused:
            accept = f"if this is intended, commit the result of: {kept['command']}"
            sys.exit("\n".join([*refused, accept, "and of: python -m experiments.plan --table=experiments/plan/plans"]))


def main() -> None:
    """The command line."""
    values = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[1:] if "=" in a)
    if "table" in values:
        folder = pathlib.Path(values["table"])
        write_atomically(folder / "README.md", stored.table(folder).encode())
        return
    if "check" in values:
        sys.argv += stored.arguments(stored.load(pathlib.Path(values["check"])))
    jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
    start(run)
