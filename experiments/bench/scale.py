"""Weak scaling: the cost per device of a GRPO train step if devices and rows grow together.

    python -m experiments.bench.scale                          # 1, 2, 4, 8 simulated devices on the fsdp axis
    python -m experiments.bench.scale --axes=data,fsdp,tensor  # and on each of these
    python -m experiments.bench.scale --processes=1,2          # and the time of 1 and 2 real processes, as a ratio

Simulated devices share the cores of one machine, so their time means nothing: the figures are the compiler's bytes and
the collectives in the compiled text, and ideal is a column that does not grow. Real processes run the step, timed.
"""

import dataclasses
import json
from typing import Any

from absl import app, flags

from configs import plans
from experiments.bench.processes import measure_processes
from experiments.parts import processes, refusals
from experiments.parts.help import parse_plain_flags
from experiments.plan import flops, programs
from experiments.plan.cli import compile_one
from experiments.plan.stored import by_axis
from rl_jax.models.transformer.model import TransformerConfig
from rl_jax.training import sharding

flags.DEFINE_list("devices", ["1", "2", "4", "8"], "numbers of simulated devices")
flags.DEFINE_list("axes", ["fsdp"], "axes of the mesh to put the devices on, measured one after the other")
flags.DEFINE_list("processes", [], "numbers of real processes to time; default: none")
flags.DEFINE_integer("rows", 4, "rows per device, each of 64 + 64 tokens")
COLUMNS = ("mesh", "rows", "gflops", "peak_mib", "arguments_mib", "collectives", "sent_mib")


def small_run() -> tuple[Any, TransformerConfig]:
    """(config, model) of the benchmark: 4 layers of 256, a vocabulary of 4,096, in float32."""
    config = plans.get_config("1b")
    config.model.update(dtype="float32", remat="none", attention="dot_product")
    config.rollout.update(completion_length=64, prompt_buckets=(64,))
    config.score.chunk = 32
    config.train.micro_batches = 1
    sizes = dict(vocab_size=4096, embed_dim=256, num_layers=4, num_heads=8, num_kv_heads=8, head_dim=32, mlp_dim=1024)
    return config, dataclasses.replace(programs.model_config(config), **sizes)


def measure(count: int, axis: str, rows: int) -> dict[str, Any]:
    """The figures of one step.

    Args:
      count: number of devices.
      axis: of the mesh.
      rows: per device.

    Returns:
      mesh, rows (of all devices) and, per device, gflops, *_mib, collectives and sent ({axes: bytes}).
    """
    config, model = small_run()
    mesh = sharding.make_mesh(sharding.parse_mesh(f"{axis}:{count}"))
    setup = programs.describe(config, model, mesh)
    planned = programs.train(setup, rows * count)
    figures = compile_one(planned, mesh)
    total = flops.count(planned.jaxpr(mesh), while_turns=planned.while_turns)
    return {
        "mesh": f"{axis}:{count}",
        "rows": rows * count,
        "gflops": total / count / 1e9,
        "peak_mib": figures["peak_bytes"] / 2**20,
        "arguments_mib": figures["argument_bytes"] / 2**20,
        "collectives": figures["collectives"],
        "sent_mib": sum(figures["sent_bytes"].values()) / 2**20,
        "sent": by_axis(figures["sent_bytes"]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one line each."""

    def line(values) -> str:
        return "  ".join(f"{value:>13}" for value in values)

    texts = [[f"{x:.2f}" if isinstance(x, float) else str(x) for x in (row[name] for name in COLUMNS)] for row in rows]
    return "\n".join(map(line, [COLUMNS, *texts]))


def main(argv) -> None:
    """The command line."""
    if len(argv) > 1:
        refusals.refuse("experiments.bench.scale", f"unexpected arguments: {argv[1:]}")
    options = flags.FLAGS
    counts = [int(count) for count in options.devices]
    processes.simulate_devices(max(counts))
    rows = []
    for axis in options.axes:
        for count in counts:
            rows.append(measure(count, axis, options.rows))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if options.processes:
        for row in measure_processes([int(count) for count in options.processes]):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_plain_flags)
