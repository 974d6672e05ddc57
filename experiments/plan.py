"""What a run needs on a pod slice, before it is booked: its programs, compiled by the TPU compiler, without a TPU.

    python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8
    python -m experiments.plan --config=configs/plans.py:8b --topology=v5e:8x8 --sweep       # ranks mesh shapes
    python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8 --largest
    python -m experiments.plan --table=experiments/plans                                     # the stored ones

Needs libtpu (`pip install -e .[tpu]`), in a virtual environment of its own. Memory is the compiler's; FLOPs are
counted in the jaxpr; bytes between chips are read from the compiled text; times are limits that the chip's peaks set,
reached by nobody: the largest of computing, reading memory and sending, as if each hid the others.
"""

import json
import math
import os
import pathlib
import re
import time
from typing import Any

# Read when libtpu loads: no metadata server is asked, and several plans may run at once.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
from absl import flags

from experiments import common
from experiments.planning import chips, flops, hlo, programs
from rl_jax import sharding
from rl_jax.logging import write_atomically

flags.DEFINE_string("topology", "v5e:4x4", "a slice, CHIP:SHAPE: v4:2x2x2, v5e:4x4, v5p:4x4x4, v6e:4x4")
flags.DEFINE_bool("sweep", False, "plan the train step for every sensible mesh of the slice, and rank them")
flags.DEFINE_bool("largest", False, "find the largest micro-batch that fits, by compiling")
flags.DEFINE_list("programs", ["train", "score", "decode"], "which ones")
flags.DEFINE_string("save", None, "write the plan there, as JSON")
flags.DEFINE_string("table", None, "print the plans stored in this folder as a Markdown table, and nothing else")

GIB = 2.0**30
MAX_COMPILATIONS = 5


def described_devices(topology: str) -> list:
    """The devices of a slice that is not there. Raises RuntimeError where libtpu is missing, and says what to do."""
    from jax.experimental import topologies

    chips.chip_of(topology)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except Exception as error:
        raise RuntimeError(
            f"topology {topology!r} cannot be described ({error}). The TPU compiler is needed: "
            "python3 -m venv .venv-tpu && .venv-tpu/bin/pip install -e .[tpu], and run this with .venv-tpu/bin/python"
        ) from error


def compile_one(planned: programs.Planned, mesh) -> dict[str, Any]:
    """The compiler's figures for one program: bytes a chip, bytes sent, seconds; or "refused" and why."""
    start = time.perf_counter()
    try:
        compiled = planned.lower(mesh).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"refused": refusal(str(error)), "compile_s": time.perf_counter() - start}
    memory = compiled.memory_analysis()
    kept = memory.argument_size_in_bytes
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "argument_bytes": kept,
        "temporary_bytes": memory.temp_size_in_bytes,
        "peak_bytes": kept + fresh + memory.temp_size_in_bytes,
        "sent_bytes": hlo.by_axes(hlo.collectives(compiled.as_text(), dict(mesh.shape))),
        "compile_s": time.perf_counter() - start,
    }


def refusal(text: str) -> str:
    """What the compiler says of a program that does not fit: how much it needs of how much there is."""
    text = " ".join(text.split())
    said = re.search(r"total memory required.*?\(.*?\).*?\(.*?\)", text)
    return said[0] if said else text[:300]


def roofline(sent: float, total: float, moved: float, mesh, chip: chips.Chip) -> dict[str, Any]:
    """The times that the chip's peaks allow.

    sent: bytes that a chip sends. total: FLOPs of all chips. moved: bytes that a chip's memory must give and take.
    """
    times = {
        "compute_s": total / mesh.size / chip.flops,
        "memory_s": moved / chip.bandwidth,
        "links_s": sent / chip.links,
    }
    step = max(times.values())
    return {"flops": total, "moved_bytes": moved, **times, "step_s": step, "mfu": times["compute_s"] / step}


def tree_bytes(shapes, shardings) -> float:
    """Bytes of one device's shards."""
    leaves = zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
    return float(sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in leaves))


def moved_bytes(name: str, setup: common.Setup, planned: programs.Planned) -> float:
    """The least that a chip reads and writes: weights at each pass, optimizer state once each way, the cache a step."""
    config, width = setup.config, jax.numpy.dtype(setup.config.model.dtype).itemsize
    tensor, rows = setup.mesh.shape["tensor"], setup.mesh.shape["data"] * setup.mesh.shape["fsdp"]
    count = sum(x.size for x in jax.tree.leaves(setup.param_shapes))
    weights = count * width / tensor  # gathered over fsdp, a chip reads them all
    if name == "score":
        return weights
    if name == "train":
        state = tree_bytes(planned.arguments[0], jax.tree.map(lambda x: x.sharding, planned.arguments[0]))
        passes = 4 if config.model.remat == "full" else 3
        return passes * config.grpo.micro_batches * weights + 2 * state
    steps = config.rollout.completion_length
    length = max(config.rollout.prompt_buckets) + steps / 2  # on average
    kept = planned.arguments[1].shape[0] * config.grpo.group_size / rows
    model = programs.model_config(config)
    cache = kept * length * 2 * model.num_kv_heads * model.head_dim * model.num_layers * width / tensor
    return steps * (weights + cache)


def make_planned(name: str, setup: common.Setup, micro_rows: int | None = None) -> programs.Planned:
    """The program of that name at the config's size. micro_rows: of a micro-batch, in place of the config's."""
    settings = setup.config.grpo
    rows = settings.prompts_per_step * settings.group_size
    if name == "train":
        rows = micro_rows * settings.micro_batches if micro_rows else rows // settings.minibatches
        return programs.train(setup, rows)
    return programs.score(setup, rows) if name == "score" else programs.decode(setup, settings.prompts_per_step)


def largest(setup: common.Setup, limit: float) -> dict[str, Any]:
    """The most rows of a micro-batch whose train step the compiler takes, and how many compilations it took to know.

    Memory grows by the same amount with each row of a device: two sizes tell the slope, the third is the answer.
    """
    shards = setup.mesh.shape["data"] * setup.mesh.shape["fsdp"]
    tried: dict[int, float] = {}

    def peak(per_shard: int) -> float:
        if per_shard not in tried:
            figures = compile_one(make_planned("train", setup, per_shard * shards), setup.mesh)
            tried[per_shard] = figures.get("peak_bytes", math.inf)
        return tried[per_shard]

    if peak(1) > limit:
        return {"rows": 0, "compilations": 1}
    best, guess = 1, 2
    while len(tried) < MAX_COMPILATIONS and guess not in tried and guess > best:
        if peak(guess) <= limit:
            best = guess
        fitting = sorted(size for size, found in tried.items() if found <= limit)
        refused = [size for size, found in tried.items() if found > limit]
        if len(fitting) > 1:
            low, high = fitting[0], fitting[-1]
            slope = max((tried[high] - tried[low]) / (high - low), 1.0)
            guess = high + int((limit - tried[high]) / slope)
        guess = min([guess, *(size - 1 for size in refused)])
    return {"rows": best * shards, "peak_bytes": tried[best], "compilations": len(tried)}


def plan(config, topology: str, names: list[str], find_largest: bool = False) -> dict[str, Any]:
    """The figures of one config on one slice with config.mesh, as a dict that JSON can hold."""
    chip, devices = chips.chip_of(topology), described_devices(topology)
    sizes = sharding.parse_mesh(config.mesh)
    if math.prod(sizes.values()) != len(devices):
        raise ValueError(f"mesh {config.mesh!r} has {math.prod(sizes.values())} devices, {topology} has {len(devices)}")
    mesh = sharding.make_mesh(sizes, devices)
    setup = programs.describe(config, programs.model_config(config), mesh)
    # A kernel's products cannot be counted in a jaxpr: those of plain attention stand for them.
    plain = programs.describe(config, programs.model_config(config, attention="dot_product"), mesh)
    found = {
        "config": config.name,
        "model": config.model.path or config.name,
        "topology": topology,
        "mesh": config.mesh,
        "chip_bytes": chip.bytes,
        "parameters": sum(x.size for x in jax.tree.leaves(setup.param_shapes)),
        "parameter_bytes": tree_bytes(setup.param_shapes, setup.param_shardings),
        "tokens": [max(config.rollout.prompt_buckets), config.rollout.completion_length],
        "rows": config.grpo.prompts_per_step * config.grpo.group_size // config.grpo.minibatches,
        "micro_batches": config.grpo.micro_batches,
        "programs": {},
    }
    for name in names:
        planned = make_planned(name, setup)
        figures = compile_one(planned, mesh)
        if "refused" not in figures:
            counted = make_planned(name, plain)
            total = flops.count(counted.jaxpr(mesh), while_turns=counted.while_turns)
            sent = sum(figures["sent_bytes"].values())
            figures |= roofline(sent, total, moved_bytes(name, setup, planned), mesh, chip)
        found["programs"][name] = figures
    if find_largest:
        found["largest_micro_batch"] = largest(setup, chip.bytes)
    return found


def report(found: dict[str, Any]) -> str:
    """A plan in words."""
    prompt, completion = found["tokens"]
    lines = [
        f"{found['model']}: {found['parameters'] / 1e9:.2f}B parameters on {found['topology']}, mesh {found['mesh']}",
        f"rows of {prompt} + {completion} tokens; a train step has {found['rows']}, "
        f"in {found['micro_batches']} micro-batches",
        f"parameters {found['parameter_bytes'] / GIB:.2f} GiB a chip, which has {found['chip_bytes'] / GIB:.0f}",
    ]
    for name, one in found["programs"].items():
        if "refused" in one:
            lines.append(f"{name:7} does not fit: {one['refused']}")
            continue
        sent = ", ".join(f"{axes} {size / 1e9:.3g} GB" for axes, size in one["sent_bytes"].items()) or "nothing"
        limit = max(("compute_s", "memory_s", "links_s"), key=one.get).removesuffix("_s")
        lines += [
            f"{name:7} peak {one['peak_bytes'] / GIB:.2f} GiB a chip: {one['argument_bytes'] / GIB:.2f} of arguments, "
            f"{one['temporary_bytes'] / GIB:.2f} of activations and other temporaries "
            f"({one['compile_s']:.0f} s to compile)",
            f"        {one['flops']:.3g} FLOPs in all; a chip sends {sent}",
            f"        at the peaks {one['step_s']:.3g} s, set by {limit} "
            f"(compute {one['compute_s']:.3g}, memory {one['memory_s']:.3g}, links {one['links_s']:.3g}); "
            f"MFU at most {one['mfu']:.0%}",
        ]
    if "largest_micro_batch" in found:
        one = found["largest_micro_batch"]
        lines.append(f"largest micro-batch that fits: {one['rows']} rows ({one['compilations']} compilations)")
    return "\n".join(lines)


def meshes(topology: str, model) -> list[str]:
    """The meshes that make sense: tensor at most the key heads, the rest fsdp, and half of it data."""
    count, found = len(described_devices(topology)), []
    for tensor in (1, 2, 4, 8):
        if count % tensor == 0 and model.num_kv_heads % tensor == 0:
            rest = count // tensor
            found.append(f"fsdp:{rest},tensor:{tensor}")
            found += [f"data:2,fsdp:{rest // 2},tensor:{tensor}"] if rest > 2 else []
    return found


def rank(config, topology: str) -> list[dict[str, Any]]:
    """A train step's plan for each mesh, the fastest that fits first."""
    plans = []
    for mesh in meshes(topology, programs.model_config(config)):
        with config.unlocked():
            config.mesh = mesh
        plans.append(plan(config, topology, ["train"]))
        one = plans[-1]["programs"]["train"]
        said = one.get("refused") or f"{one['step_s']:.3g} s, peak {one['peak_bytes'] / GIB:.2f} GiB"
        print(f"{mesh:32} {said}", flush=True)
    return sorted(plans, key=lambda found: found["programs"]["train"].get("step_s", math.inf))


def table(folder: pathlib.Path) -> str:
    """The stored plans as Markdown."""
    lines = [
        "| model | slice | mesh | rows x tokens | peak GiB of | sent GB | limit s (by) | MFU at most | most rows |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        one, rows = found["programs"]["train"], f"{found['rows']} x {sum(found['tokens'])}"
        start = f"| {pathlib.Path(found['model']).name} | {found['topology']} | {found['mesh']} | {rows} |"
        if "refused" in one:
            lines.append(f"{start} refused: {one['refused']} | | | | 0 |")
            continue
        limit = max(("compute_s", "memory_s", "links_s"), key=one.get).removesuffix("_s")
        most = found.get("largest_micro_batch", {}).get("rows", "")
        lines.append(
            f"{start} {one['peak_bytes'] / GIB:.2f} of {found['chip_bytes'] / GIB:.0f} | "
            f"{sum(one['sent_bytes'].values()) / 1e9:.0f} | {one['step_s']:.2f} ({limit}) | {one['mfu']:.0%} | {most} |"
        )
    return "\n".join(lines)


def run(config, workdir: pathlib.Path) -> None:
    """Plans, prints, and stores the plan where --save says."""
    del workdir
    options = flags.FLAGS
    if options.sweep:
        best = rank(config, options.topology)
        print("\n" + report(best[0]))
        return
    found = plan(config, options.topology, options.programs, options.largest)
    print(report(found))
    if options.save:
        write_atomically(pathlib.Path(options.save), (json.dumps(found, indent=1) + "\n").encode())


def main() -> None:
    """The command line."""
    import sys

    folder = next((a.partition("=")[2] for a in sys.argv if a.startswith("--table=")), None)
    if folder:
        print(table(pathlib.Path(folder)))
        return
    common.main(run)


if __name__ == "__main__":
    main()
