"""One run of a report: reads its folder and prepares its sections (curves, health, timing, completions, tokens)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from experiments.parts.budgets import RESULTS
from experiments.report import charts as charts
from experiments.report import conversations, reading, render
from experiments.report.health import acts, assess, points_of
from rl_jax.core.visible import visible
from rl_jax.runs.logging import GROUP_VIEW_FILE, METRICS_FILE, SAMPLES_FILE, TIMING_FILE, read_jsonl
from rl_jax.runs.run_record import last_config, read_json

MAX_SAMPLES = 40  # rows of the before-and-after table
MAX_GROUP_ROWS = 16  # completions per group, token by token
CURVES = {
    "eval/pass@1": "Share of held-out problems solved by one sample.",
    "eval/reward": "Mean reward on held-out prompts.",
    "eval/return": "Mean return of evaluation episodes.",
    "eval/success": "Share of evaluation episodes in which the task was solved.",
    "reward/mean": "Mean reward of the training samples.",
    "episode/return": "Mean return of the training episodes.",
    "episode/success": "Share of training episodes in which the task was solved.",
    "kl/k1": "Divergence from the reference, unbiased estimator.",
    "kl/k3": "Divergence from the reference, never-negative estimator.",
    "entropy": "Uncertainty of the next token or action, in nats.",
    "loss": "The optimizer's objective; in policy optimization it need not fall.",
    "grad_norm": "Norm of the gradient before clipping.",
    "completion_length": "Tokens per completion.",
    "episode/turns": "The model's turns per episode.",
    "episode/calls": "Tool calls per episode.",
    "episode/malformed": "Malformed tool calls per episode.",
    "episode/observed_tokens": "Tokens of the environment per episode.",
    "episode/end/context": "Share of episodes that ended because the context was full.",
    "episode/end/error": "Share of episodes whose environment failed.",
}
HEADLINES = tuple(name for name in RESULTS if name != "loss")  # most important first
STAGES = {
    "reshard_s": "weights to the sampler",
    "rollout_s": "rollout",
    "reward_s": "reward",
    "score_s": "score",
    "prepare_s": "prepare",
    "train_s": "train",
    "beside_s": "sampling, beyond the updates beside it",
}
RATES = {
    "tokens_per_s": "tokens/s",
    "env_steps_per_s": "environment steps/s",
    "tokens_per_s_per_device": "sampled tokens/s per device",
    "env_steps_per_s_per_device": "environment steps/s per device",
    "train_tokens_per_s_per_device": "trained tokens/s per device in updates",
    "train_flops_per_s_per_device": "model FLOP/s per device in updates",
}
MEMORY = {"bytes_in_use": "in use on the fullest device", "peak_bytes_in_use": "at most"}
# How a token is coloured: (field, label, smallest value of full colour, so that rounding noise stays pale).
TOKEN_FIELDS = (("advantage", "advantage", 1e-3), ("log_ratio", "log-ratio", 1e-2), ("entropy", "entropy", 1e-2))
LAG = ("lag", "versions behind the newest", 1.0)  # of the rows of asynchronous runs


class Run(NamedTuple):
    """The content of a run's folder; an empty list or dict for a missing file.

    Attributes:
      label: unique among the runs of the report.
      record: run.json.
      config: config.json.
      metrics: rows of metrics.jsonl.
      timing: rows of timing.jsonl.
      samples: rows of the samples file.
      group_views: rows of the per-token views of groups.
      missing: names of the missing files.
      episodes: rows of episodes.jsonl.
      notes: what was damaged, and left out.
    """

    label: str
    record: dict[str, Any]
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    group_views: list[dict[str, Any]]
    missing: list[str]
    episodes: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()


def load_run(workdir: Path, label: str) -> Run:
    """Reads a run's folder.

    Raises:
      FileNotFoundError: if the folder is missing, or is no run's.
      ValueError: if a file cannot be read; the message names file and line.
    """
    reading.check_run(workdir)
    missing: list[str] = []
    notes: list[str] = []

    def read(name: str, reader, empty, *, expected: bool = True):
        if (workdir / name).exists():
            return reader(workdir / name)
        if expected:
            missing.append(name)
        return empty

    record, config = read("run.json", read_json, {}), read("config.json", lambda path: last_config(path.parent), {})
    metrics = reading.number_rows(METRICS_FILE, read(METRICS_FILE, read_jsonl, []), notes)
    timing = reading.number_rows(TIMING_FILE, read(TIMING_FILE, read_jsonl, []), notes)
    in_worlds = acts(metrics)
    groups = not in_worlds and not _talks(config)
    return Run(
        label,
        record,
        config,
        metrics,
        timing,
        reading.step_rows(SAMPLES_FILE, read(SAMPLES_FILE, read_jsonl, [], expected=not in_worlds), notes),
        reading.step_rows(GROUP_VIEW_FILE, read(GROUP_VIEW_FILE, read_jsonl, [], expected=groups), notes),
        missing,
        read(render.EPISODES_FILE, read_jsonl, [], expected=False),
        notes,
    )


def _talks(config: Mapping[str, Any]) -> bool:
    """Whether a run plays episodes of several turns, which are shown as conversations, not token by token."""
    return "agent" in config


def run_labels(workdirs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that distinguish the runs, at least two parts long: arithmetic/grpo.

    Raises:
      ValueError: if a run is named twice.
    """
    parts = [path.resolve().parts for path in workdirs]
    if len(set(parts)) < len(parts):
        raise ValueError("the same run was named twice")
    length = 2
    while len({part[-length:] for part in parts}) < len(parts):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def visible_token(text: str) -> str:
    """A token's text with its blanks drawn, so that two tokens never look alike."""
    drawn = visible(text[: reading.TOKEN_LENGTH]).replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    if len(text) > reading.TOKEN_LENGTH:
        drawn += f"[... {len(text)} characters]"
    return drawn or "∅"


def curves(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """One chart per metric of which some run has a value: {"name", "meaning", "svg", "last"}."""
    palette = [run.label for run in runs]
    in_worlds = all(acts(run.metrics) for run in runs)
    field, along = ("env_steps", "environment step") if in_worlds else ("step", "step")
    result = []
    for name in names:
        series = {run.label: points_of(run.metrics, name, field) for run in runs}
        svg = charts.line_chart(series, title=name, palette=palette, along=along)
        if svg is not None:
            ends = [next((v for _, v in reversed(points) if v is not None), None) for points in series.values()]
            last = ", ".join(charts.short_number(value) for value in ends)
            result.append({"name": name, "meaning": CURVES.get(name, ""), "svg": svg, "last": last})
    return result


def other_metrics(runs: Sequence[Run]) -> list[str]:
    """Sorted names of the logged numbers that are not among the main curves."""
    names = {name for run in runs for row in run.metrics for name in row}
    return sorted(names - set(CURVES) - {"step", "env_steps", "nonfinite"})


def headline(run: Run, health: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The few numbers to read first: (name, value)."""
    tiles = []
    for name in HEADLINES:
        values = [value for _, value in points_of(run.metrics, name) if value is not None]
        if values:
            tiles.append((name, f"{values[0]:.3f} → {values[-1]:.3f}"))
    if run.metrics:
        tiles.append(("last step", str(run.metrics[-1]["step"])))
        if acts(run.metrics):
            tiles[-1] = ("environment steps", charts.short_number(run.metrics[-1].get("env_steps")))
    seconds = sum(map(seconds_of, run.timing))
    if seconds:
        tiles.append(("time in steps", f"{seconds / 60:.1f} min" if seconds > 180 else f"{seconds:.0f} s"))
    if run.metrics:
        tiles.append(("health warnings", str(sum(row["status"] == "warning" for row in health))))
    return tiles


def seconds_of(row: Mapping[str, Any]) -> float:
    """The seconds of a step in a row of timing.jsonl; the sum of the stages if the row has no total."""
    return row.get("step_s") or sum(row.get(name) or 0.0 for name in STAGES)


def timing_summary(timing: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Where the time went: stages (name, share, seconds per step), the bar, rates, memory at last, compilations.

    The first step compiles, so it is left out if there are others.

    Returns:
      None if there are no rows.
    """
    rows = [row for row in timing if seconds_of(row)]
    rows = rows[1:] or rows
    if not rows:
        return None
    total = sum(map(seconds_of, rows))
    seconds = {label: sum(row.get(name) or 0.0 for row in rows) for name, label in STAGES.items()}
    seconds["rest"] = max(total - sum(seconds.values()), 0.0)
    seconds = {label: value for label, value in seconds.items() if value > 1e-9 * total}
    whole = sum(seconds.values())
    counts = [(row["step"], row["compile_count"]) for row in timing if row.get("compile_count") is not None]
    return {
        "stages": [(label, value / whole, value / len(rows)) for label, value in seconds.items()],
        "bar": charts.share_bar({label: value / whole for label, value in seconds.items()}),
        "step_s": total / len(rows),
        "rates": rates_of(rows),
        "memory": memory_of(rows[-1]),
        "compile_count": counts[-1][1] if counts else None,
        "last_compile": max(
            (s for (_, before), (s, after) in zip(counts, counts[1:], strict=False) if after > before),
            default=counts[0][0] if counts else None,
        ),
        "skipped_first": len(rows) < len(timing),
    }


def rates_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Rates and MFU of some steps as (value, what it is), medians."""
    said = []
    for name, unit in RATES.items():
        values = sorted(row[name] for row in rows if row.get(name) is not None)
        whole = [row.get(name.removesuffix("_per_device")) for row in rows]
        if values and not (name.endswith("_per_device") and whole == [row.get(name) for row in rows]):
            said.append((charts.short_number(values[len(values) // 2]), unit))
    if shares := sorted(row["mfu"] for row in rows if row.get("mfu") is not None):
        said.append((f"{100 * shares[len(shares) // 2]:.1f} %", "MFU in updates"))
    return said


def memory_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Memory of one step as (value, what it is)."""
    held = {what: row[name] for name, what in MEMORY.items() if row.get(name) is not None}
    return [(f"{value / 2**30:.2f} GiB", what) for what, value in held.items()]


def before_and_after(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The samples of the first and the last evaluation, on the same prompts.

    Returns:
      None if there are none. With one evaluation only, "after" is None in each pair.
    """
    rows = [row for row in samples if row["split"] == "eval"]
    if not rows:
        return None
    first, last = min(row["step"] for row in rows), max(row["step"] for row in rows)
    later: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["step"] == last and last > first:
            later.setdefault(row["prompt"], []).append(row)
    rewards = [row["reward"] for row in rows if row["step"] in (first, last) and row["reward"] is not None]
    low, high = (min(rewards), max(rewards)) if rewards else (0.0, 0.0)
    earlier = [row for row in rows if row["step"] == first]
    pairs = []
    for row in earlier:
        matches = later.get(row["prompt"], [])
        after = sample_cell(matches.pop(0), low, high) if matches else None
        pairs.append((reading.shown(row["prompt"]), sample_cell(row, low, high), after))
    return {"first": first, "last": last, "pairs": pairs[:MAX_SAMPLES], "total": len(pairs), "low": low, "high": high}


def sample_cell(row: Mapping[str, Any], low: float, high: float) -> dict[str, Any]:
    """One completion for the table: its text, its reward as a number, and a tint from lowest to highest reward."""
    reward = row["reward"]
    share = 0.5 if reward is None or high <= low else (reward - low) / (high - low)
    colour, strength = ("var(--good)", 2 * share - 1) if share >= 0.5 else ("var(--bad)", 1 - 2 * share)
    return {
        "text": reading.shown(conversations.as_text(row) or row["completion"]),
        "reward": charts.short_number(reward),
        "tint": Markup("--tint:{};--strength:{:.0f}%").format(Markup(colour), 6 + 34 * strength),
        "truncated": row.get("truncated", False),
    }


def token_view(view: Mapping[str, Any]) -> dict[str, Any]:
    """One group for the per-token view: completions as cells, and the value of full colour per field."""
    completions = view["rows"][:MAX_GROUP_ROWS]
    fields, scales = token_fields(completions), {}
    for field, _, floor in fields:
        values = [
            abs(value)
            for row in completions
            for value, seen in zip(row[field], row["mask"], strict=True)
            if seen and value is not None
        ]
        scales[field] = max([floor, *values])
    return {
        "step": view["step"],
        "fields": [(field, label) for field, label, _ in fields],
        "prompt": reading.shown(view["prompt"]),
        "completions": [
            {
                "reward": charts.short_number(row["reward"]),
                "cells": [_token_cell(row, index, scales, fields) for index in range(len(row["tokens"]))],
            }
            for row in completions
        ],
        "hidden": len(view["rows"]) - len(completions),
        "scales": {field: charts.short_number(scale) for field, scale in scales.items()},
    }


def token_fields(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str, float], ...]:
    """TOKEN_FIELDS, and LAG if all rows have it."""
    return (*TOKEN_FIELDS, LAG) if rows and all(LAG[0] in row for row in rows) else TOKEN_FIELDS


def _token_cell(row: Mapping[str, Any], index: int, scales: Mapping[str, float], fields) -> dict[str, Any]:
    values = {field: row[field][index] for field in ("log_prob", *(field for field, _, _ in fields))}
    style = []
    for field, _, _ in fields:
        value = values[field] or 0.0
        colour = "var(--plain)" if field in ("entropy", "lag") else "var(--good)" if value > 0 else "var(--bad)"
        strength = 60 * min(abs(value) / scales[field], 1)
        style.append(f"--{field}:color-mix(in srgb,{colour} {strength:.0f}%,transparent)")
    shown = {field: charts.short_number(value) for field, value in values.items()}
    words = ", ".join(f"{field.replace('_', '-')} {value}" for field, value in shown.items())
    seen = row["mask"][index]
    return {
        "text": visible_token(row["tokens"][index]),
        "mask": seen,
        "style": Markup(";".join(style)),
        "title": f"token {index}: {words}" if seen else f"token {index}: masked, not part of the loss",
        **shown,
    }


def first_and_last_episode(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The episodes that the page shows: that of the initial policy and the newest."""
    return [render.section(row) for row in ([rows[0], rows[-1]] if len(rows) > 2 else rows)]


def with_first_error(health: Sequence[dict[str, Any]], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The health rows, with the first failed reward of run.json in the advice of those that warn about rewards.

    Programs that do not log how many failed get a warning as well.
    """
    attempts = (record or {}).get("attempts", [])
    attempts = [attempt for attempt in attempts if isinstance(attempt, Mapping)] if isinstance(attempts, list) else []
    first = next((str(attempt["first_reward_error"]) for attempt in attempts if "first_reward_error" in attempt), "")
    about = {"reward/errors": ("warning", "not logged"), "reward/timeouts": ("warning",)}
    rows = [
        {**row, "status": "warning", "advice": f"{row['advice']} The first: {visible(first)}".strip()}
        if first and row["status"] in about.get(row["metric"], ())
        else row
        for row in health
    ]
    return sorted(rows, key=lambda row: row["status"] != "warning")


def run_section(run: Run) -> dict[str, Any]:
    """Everything that the page shows about one run."""
    notes = list(run.notes)
    health = with_first_error(reading.section(notes, METRICS_FILE, assess, run.metrics) or [], run.record)
    views = run.group_views
    if len(views) > 2:  # the initial and the final policy
        views = [views[0], views[-1]]
    drawn = [reading.section(notes, GROUP_VIEW_FILE, token_view, view) for view in views]
    return {
        "label": run.label,
        "record": reading.head(run.record),
        "record_json": json.dumps(run.record, indent=2, sort_keys=True),
        "config_json": json.dumps(run.config, indent=2, sort_keys=True),
        "missing": run.missing,
        "tiles": reading.section(notes, METRICS_FILE, headline, run, health) or [],
        "warnings": sum(row["status"] == "warning" for row in health),
        "has_metrics": bool(run.metrics),
        "acts": acts(run.metrics),
        "groups": bool(run.group_views) or not _talks(run.config),
        "episodes": reading.section(notes, render.EPISODES_FILE, first_and_last_episode, run.episodes),
        "health": [
            {**row, "shown": charts.short_number(row["value"]), "spark": charts.sparkline(row["points"])}
            for row in health
        ],
        "timing": reading.section(notes, TIMING_FILE, timing_summary, run.timing),
        "samples": reading.section(notes, SAMPLES_FILE, before_and_after, run.samples),
        "views": [view for view in drawn if view is not None],
        "notes": notes,  # at the end: the sections above add to them
    }
