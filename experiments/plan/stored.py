"""The stored plans: the arguments to repeat each, their table, and the comparison with a new plan."""

import json
import pathlib
import re
import shlex
from typing import Any

GIB = 2.0**30
MAX_GROWTH = 0.05  # fraction of peak bytes, and of the bytes sent over an axis
HEAD = """# Plans

Each line is a program as the TPU compiler made it, without a TPU. This page is written from the JSON files beside it by
`python -m experiments.plan --table=experiments/plan/plans`; a command below the table makes one of them again, in a
virtual environment with `.[tpu]`.

GRPO with AdamW, bfloat16 over float32 masters, everything rematerialised, splash attention. A train step is one update
on that many rows of 1,024 + 3,072 tokens, a micro-batch at a time; score is of a whole step's rows, decode too, or of
as many as are sampled at once. With a mesh of the rollouts' own (`--config.rollout.mesh`) decode is on that one, and
move brings the weights there, once a step. Where the sampler has devices of its own, transfer is the weights' way to
them: its peak is that of a chip of the sampler, with new weights beside the old ones, its bytes are what leaves a chip
of the trainer. "peak" is the most that a chip holds at once, by the compiler's allocator, in brackets what lies there
all the time: parameters and optimizer state, for decode and move the weights that they begin with. "sent" is what a
chip sends to others in one run of the program, by axis of the mesh; "waits" is the part of it that is synchronous,
during which the chip does nothing else. "limit" is the time that the peaks of the chip allow, the waits included, and
what sets the rest; nothing reaches it. MFU counts the FLOPs that the model needs, without those of rematerialisation.
"most" is the largest micro-batch that fits, of those into which the rows divide, where it was searched. A program
with a star was compiled with XLA's least effort (`--effort=-1`), whose peaks are within some percent of a run's; its
bytes can be a quarter more, and almost all of them wait.
"""


def load(path: pathlib.Path) -> dict[str, Any]:
    """One stored plan.

    Raises:
      ValueError: if the file holds no plan.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        result["command"], [one.get("refused") or one["synchronous_bytes"] for one in result["programs"].values()]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a plan written by experiments.plan --save: {error!r}") from error
    return result


def arguments(result: dict[str, Any]) -> list[str]:
    """The arguments that made a plan, except the one that stored it."""
    words = shlex.split(result["command"])
    return [word for word in words[words.index("experiments.plan") + 1 :] if not word.startswith("--save")]


def by_axis(sent: dict[str, float]) -> dict[str, float]:
    """{"all-gather over fsdp": bytes, ...} -> {"fsdp": bytes of all kinds together, ...}."""
    totals: dict[str, float] = {}
    for name, size in sent.items():
        axes = name.partition(" over ")[2]
        totals[axes] = totals.get(axes, 0.0) + size
    return totals


def limit(figures: dict[str, Any]) -> str:
    """What sets a program's time apart from its waits: "compute", "memory" or "links"; of a transfer its way."""
    if "way" in figures:
        return figures["way"]
    times = figures | {"links_s": figures["links_s"] - figures.get("synchronous_s", 0.0)}
    return max(("compute_s", "memory_s", "links_s"), key=times.get).removesuffix("_s")


def place_of(result: dict[str, Any], name: str) -> tuple[str, str, float]:
    """(topology, mesh, bytes of a chip) that a program of a plan is for: the sampler's, for what is on its devices."""
    side = result.get("sampler", {}) if name in ("decode", "transfer") else {}
    mesh = result["rollout_mesh"] if "rollout_mesh" in result and name in ("decode", "move") else result["mesh"]
    return (
        side.get("topology") or result["topology"],
        side.get("mesh", mesh),
        side.get("chip_bytes", result["chip_bytes"]),
    )


def _measures(result: dict[str, Any]) -> dict[str, float | str]:
    """The measures compared: {"train: peak bytes": ..., "train: bytes over fsdp": ...}; a refusal as its text.

    The synchronous bytes are a measure of their own.
    """
    measures: dict[str, float | str] = {}
    for name, one in result["programs"].items():
        measures[f"{name}: peak bytes"] = one.get("peak_bytes", one.get("refused"))
        for axes, size in by_axis(one.get("sent_bytes", {})).items():
            measures[f"{name}: bytes over {axes}"] = size
        if "refused" not in one:
            measures[f"{name}: synchronous bytes"] = sum(one["synchronous_bytes"].values())
    return measures


def comparison(kept: dict[str, Any], new_plan: dict[str, Any]) -> str:
    """The measures of two plans side by side."""
    old, new = _measures(kept), _measures(new_plan)

    def text(value: float | str | None) -> str:
        return f"{value / 1e9:.3f} GB" if isinstance(value, (int, float)) else str(value or "none")

    def change(name: str) -> str:
        sizes = old.get(name), new.get(name)
        if not all(isinstance(size, (int, float)) for size in sizes):
            return ""
        return f"{sizes[1] / sizes[0] - 1:+.1%}" if sizes[0] else ""

    rows = [(name, text(old.get(name)), text(new.get(name)), change(name)) for name in dict.fromkeys([*old, *new])]
    return "\n".join(
        f"{name:32} {before:>14} {after:>14} {by:>8}" for name, before, after, by in [("", "stored", "now", ""), *rows]
    )


def growth(kept: dict[str, Any], new_plan: dict[str, Any]) -> list[str]:
    """What is worse in a plan than in the stored one, one sentence each: it has grown, is refused, or is missing.

    Bytes over an axis that had none count as growth if they are more than MAX_GROWTH of the program's bytes. A program
    that the stored plan lacks, or has as refused, cannot grow.

    Args:
      kept: the stored plan.
      new_plan: the new plan.
    """
    old, new = _measures(kept), _measures(new_plan)
    wrong = [f"{name} is planned no more" for name in kept["programs"] if name not in new_plan["programs"]]
    for name, size in new.items():
        before, program = old.get(name, 0.0), name.partition(":")[0]
        if isinstance(size, str):
            wrong += [f"{name}: refused: {size}"] if not isinstance(before, str) else []
        elif "peak_bytes" in kept["programs"].get(program, {}):
            sent = sum(kept["programs"][program]["sent_bytes"].values())
            if size > (1 + MAX_GROWTH) * before and (before or size > MAX_GROWTH * sent):
                wrong.append(f"{name}: {size:.4g}, stored {before:.4g}: more than {MAX_GROWTH:.0%} above it")
    return wrong


def slice_name(topology: str) -> str:
    """ "v5p:4x4x4" -> "v5p-128": v4 and v5p are booked by cores, two per chip."""
    chip, _, shape = topology.partition(":")
    count = 2 if chip in ("v4", "v5p") else 1
    for size in re.findall(r"\d+", shape):
        count *= int(size)
    return f"{chip}-{count}"


def table(folder: pathlib.Path) -> str:
    """The stored plans as a page of Markdown."""
    plans = {path.stem: load(path) for path in sorted(folder.glob("*.json"))}
    lines = [
        "| plan | model | slice | mesh | program | rows (micro-batch) | peak GiB (parameters + optimizer) "
        "| sent GB per chip | waits GB | limit s (by) | MFU at most | most |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(plans, key=lambda name: (plans[name]["parameters"], plans[name]["topology"], name))
    for name in order:
        lines += [_line(name, plans[name], kind) for kind in plans[name]["programs"]]
    commands = [f"    {plans[name]['command']}" for name in order]
    return "\n".join([HEAD, *lines, "\nThe commands, in the order of the table:\n", *commands]) + "\n"


def _line(name: str, result: dict[str, Any], kind: str) -> str:
    one, model = result["programs"][kind], pathlib.Path(result["model"]).name
    topology, mesh, limit_bytes = place_of(result, kind)
    place = f"{slice_name(topology)} ({topology})"
    star = "*" if result.get("effort") else ""
    sampled = kind == "transfer" or ("rollout_mesh" in result or "sampler" in result) and kind in ("decode", "move")
    start = f"| {name} | {model} | {place} | {mesh} | {kind}{star} |"
    rows, micro = result["rows"], f" ({result['rows'] // result['micro_batches']})"
    start += f" {rows}{micro} |" if kind == "train" else f" {one.get('rows', result['step_rows'])} |"
    if "refused" in one:
        return f"{start} refused: {one['refused']} | | | | | |"
    state = result["parameter_bytes"] + (result["optimizer_bytes"] if kind == "train" else 0)
    state = one["argument_bytes"] if sampled else state
    sent = ", ".join(f"{axes} {size / 1e9:.3g}" for axes, size in by_axis(one["sent_bytes"]).items()) or "none"
    waits = f"{sum(one['synchronous_bytes'].values()) / 1e9:.3g}"
    most = result.get("largest_micro_batch", "") if kind == "train" else ""
    over = ": **does not fit**" if one["peak_bytes"] > limit_bytes else ""
    return (
        f"{start} {one['peak_bytes'] / GIB:.2f} ({state / GIB:.2f}) of {limit_bytes / GIB:.0f}{over} | {sent} "
        f"| {waits} | {one['step_s']:.3g} ({limit(one)}) | {one['mfu']:.0%} | {most} |"
    )
