"""The sections of a report of arms: curves with intervals, final table, performance profile, each run, health.

All statistics come from rl_jax.stats; values are only looked up, aligned and drawn here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.parts.budgets import result_of
from experiments.report import charts as charts
from experiments.report.arms_page import Member, Study, config_table, left_out, runs_of
from experiments.report.health import acts, assess, points_of
from experiments.report.run_page import CURVES, Run, before_and_after, run_section, seconds_of
from rl_jax import stats

MAX_GRID = 60  # points per curve of an arm
RESAMPLES = 2000  # for curves and profiles; single numbers use the default
MAX_SMALL = 60  # runs per arm in the small multiples
SMALL = (190, 120)


class Aligned(NamedTuple):
    """Values of an arm's seeds on a common grid.

    Attributes:
      along: grid, float [T].
      values: float [N, T], one row per seed.
    """

    along: np.ndarray
    values: np.ndarray


def final_value(member: Member, metric: str) -> float | None:
    """The last value that a seed logged of a metric; None if it logged none."""
    return next((value for _, value in reversed(points_of(member.metrics, metric)) if value is not None), None)


def choose_metric(study: Study, asked: str | None) -> str | None:
    """The metric by which the arms are compared: `asked`, or else the first of budgets.RESULTS that some seed has.

    None if there is none: less entropy, KL or gradient makes no arm better.

    Raises:
      ValueError: if no run logged the metric asked for.
    """
    rows = [row for members in study.arms.values() for member in members for row in member.metrics]
    names = {name for row in rows for name in row} - {"step", "nonfinite"}
    if asked is not None and asked not in names:
        raise ValueError(f"no run has logged {asked!r}; logged: {', '.join(sorted(names)) or 'no metrics at all'}")
    return asked or result_of(dict.fromkeys(names))


def samples_of(member: Member) -> dict[float, float]:
    """{step: training samples seen by then}, for the steps at which the seed logged them."""
    result = {row["step"]: row["env_steps"] for row in member.metrics if row.get("env_steps") is not None}
    return result or {row["step"]: row["samples"] for row in member.run.timing if row.get("samples") is not None}


def minutes_of(run: Run) -> dict[float, float]:
    """{step: minutes since the first logged row}: the time before that row is mostly compilation."""
    total, result = 0.0, {}
    for row in run.timing:
        total += seconds_of(row)
        result[row["step"]] = row.get("wall_s", total) / 60
    start = min(result.values(), default=0.0)
    return {step: minutes - start for step, minutes in result.items()}


def align(members: Sequence[Member], metric: str, along: str) -> Aligned | None:
    """A metric of an arm's seeds on a common grid. Seeds that did not log the metric are left out.

    Args:
      members: the seeds.
      metric: its name.
      along: "step" or "sample" take the points that all seeds have logged; "minute" takes a grid over the time that all
        of them have run, with each seed's last value before each point.

    Returns:
      None if the seeds share no point.
    """
    seeds = []
    for member in members:
        points = [(step, value) for step, value in points_of(member.metrics, metric) if value is not None]
        if along != "step":
            axis = samples_of(member) if along == "sample" else minutes_of(member.run)
            points = [(axis[step], value) for step, value in points if step in axis]
        if points:
            seeds.append(dict(points))
    if not seeds:
        return None
    if along == "minute":
        first, last = max(min(seed) for seed in seeds), min(max(seed) for seed in seeds)
        if last <= first:
            return None
        grid = np.linspace(first, last, min(max(len(seed) for seed in seeds), MAX_GRID))
        rows = []
        for seed in seeds:
            times, values = np.array(list(seed)), np.array(list(seed.values()))
            rows.append(values[np.searchsorted(times, grid, side="right") - 1])
        return Aligned(grid, np.array(rows))
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    if not shared:
        return None
    if len(shared) > MAX_GRID:
        shared = [shared[i] for i in np.linspace(0, len(shared) - 1, MAX_GRID).round().astype(int)]
    return Aligned(np.array(shared, float), np.array([[seed[place] for place in shared] for seed in seeds]))


def curve(study: Study, metric: str, along: str) -> dict[str, Any] | None:
    """One chart with the IQM over the seeds and its 95 % interval per arm; None if no arm has values."""
    result = {arm: align(members, metric, along) for arm, members in study.arms.items()}
    result = {arm: aligned for arm, aligned in result.items() if aligned is not None}
    longest = max((aligned.along[-1] for aligned in result.values()), default=0.0)
    if along == "minute" and longest < 3:
        along, result = "second", {arm: row._replace(along=60 * row.along) for arm, row in result.items()}
    if along == "sample" and all(acts(member.metrics) for arm in result for member in study.arms[arm]):
        along = "environment step"
    series, bands, faint = {}, {}, {}
    for arm, (places, matrix) in result.items():
        middle = matrix[0]
        if 1 < len(matrix) and len(study.arms) == 1:  # with several arms, all their seeds would be unreadable
            faint[arm] = [list(zip(places.tolist(), row.tolist(), strict=True)) for row in matrix]
        if len(matrix) > 1:
            middle, low, high = stats.sample_efficiency(matrix[:, None, :], resamples=RESAMPLES)  # one task
            bands[arm] = list(zip(places, low, high, strict=True))
        series[arm] = list(zip(places.tolist(), middle.tolist(), strict=True))
    palette = list(study.arms)
    svg = charts.line_chart(series, title=metric, palette=palette, bands=bands, along=along, faint=faint)
    last = ", ".join(charts.short_number(points[-1][1]) for points in series.values())
    return svg and {"name": metric, "meaning": CURVES.get(metric, ""), "svg": svg, "last": last, "along": along}


def finals(study: Study, metric: str) -> dict[str, list[float]]:
    """Arm -> the last value of each seed, for arms that have any."""
    result = {arm: [final_value(member, metric) for member in members] for arm, members in study.arms.items()}
    result = {arm: [value for value in row if value is not None] for arm, row in result.items()}
    return {arm: row for arm, row in result.items() if row}


def estimate(values: Sequence[float]) -> stats.Estimate | None:
    """The IQM of some seeds with its interval; None for one seed."""
    if len(values) < 2:
        return None
    return stats.stratified_bootstrap(stats.iqm, np.array(values)[:, None])


def _words(interval: Sequence[float] | None) -> str:
    """An estimate as "0.51 [0.42, 0.6]"; "" for None."""
    if interval is None:
        return ""
    middle, low, high = map(charts.short_number, interval)
    return f"{middle} [{low}, {high}]"


def final_table(study: Study, metric: str) -> list[dict[str, Any]]:
    """One row per arm: seeds, IQM and mean with intervals, range, probability of improving on the first arm, budget."""
    scores, rows = finals(study, metric), []
    base = next(iter(scores), None)
    for index, (arm, members) in enumerate(study.arms.items()):
        values = scores.get(arm, [])
        better = None
        if arm != base and min(len(values), len(scores.get(base, ()))) > 1:
            pair = (np.array(values)[:, None], np.array(scores[base])[:, None])
            better = stats.stratified_bootstrap(stats.probability_of_improvement, *pair)
        minutes = [max(result.values()) for result in map(minutes_of, runs_of(members)) if result]
        minutes = float(np.median(minutes)) if minutes else None
        rows.append({
            "arm": arm,
            "index": index,
            "seeds": len(values),
            "iqm": _words(estimate(values)) or (charts.short_number(values[0]) if values else "n/a"),
            "mean": _words(stats.bootstrap_mean(values)) if len(values) > 1 else "",
            "range": f"{charts.short_number(min(values))} to {charts.short_number(max(values))}" if values else "n/a",
            "better": _words(better) or ("(baseline)" if arm == base else ""),
            "steps": _range([m.metrics[-1]["step"] for m in members if m.metrics]),
            "time": _duration(minutes),
            "tried": _tried(study.tuning.get(arm)),
        })
    return rows


def _duration(minutes: float | None) -> str:
    if minutes is None:
        return "n/a"
    if minutes < 3:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 180 else f"{minutes / 60:.1f} h"


def _range(values: Sequence[float]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return charts.short_number(high) if low == high else f"{charts.short_number(low)} to {charts.short_number(high)}"


def _tried(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not recorded"
    seeds = row.get("seeds") or []
    return f"{row['trials']}" + (f", on {len(seeds)} other seeds" if seeds else "")


def notices(study: Study, metric: str | None) -> list[str]:
    """Warnings to read before the table: unequal budgets, few seeds, other code, missing runs."""
    result = []
    members = [member for row in study.arms.values() for member in row]
    if study.waiting:
        total = len(study.waiting) + len(runs_of(members))
        result.append(f"{len(study.waiting)} of {total} points have no run yet: {_first(study.waiting)}")
    if study.failed:
        result.append(f"{len(study.failed)} points have failed: {_first(study.failed)}")
    if any(member.run.record.get("folded") for member in members):
        result.append("Some runs were trained together in one program: the time of each is that of the whole program.")
    for run in runs_of(members):
        if count := left_out(run):
            result.append(f"{count} of the runs within {run.label} are not shown, and their arms may lack seeds or be "
                          "missing: such a program logs the return of its first 64 runs only. final.json has the last "
                          "of all.")
    spent = {m.name: max(samples_of(m).values(), default=None) for m in members}
    spent = spent if None not in spent.values() else {m.name: m.metrics[-1]["step"] for m in members if m.metrics}
    if spent and max(spent.values()) > 1.1 * min(spent.values()):
        low, high = charts.short_number(min(spent.values())), charts.short_number(max(spent.values()))
        result.append(f"Budgets differ: the runs end after {low} to {high} samples (steps where these are not logged). "
                     "The table compares their last values.")
    if metric is not None:
        result += _without_an_end(members, metric)
    commits = {run.record.get("git_commit") for run in runs_of(members) if run.record}
    if len(commits) > 1:
        result.append(f"The runs were made by {len(commits)} different commits.")
    counts = {len(row) for row in study.arms.values()}
    if metric is not None and min(counts, default=0) < stats.FEW and max(counts, default=0) > 1:
        result.append(f"With fewer than {stats.FEW} seeds per arm, a bootstrap interval of the IQM is too narrow: it "
                     "misses the true value in more than 5 % of cases. The mean's interval is widened for this.")
    if metric is not None and len(study.arms) > 2 and max(counts) > 1:
        result.append(f"The best of {len(study.arms)} arms was picked on these seeds: expect it to do less well on "
                     "new ones.")
    return result


def _without_an_end(members: Sequence[Member], metric: str) -> list[str]:
    """Warnings about seeds that the statistics omit or know only from before they diverged: both flatter the arm."""
    points = {member.name: points_of(member.metrics, metric) for member in members}
    lost = [name for name, row in points.items() if all(value is None for _, value in row)]
    broken = [name for name, row in points.items() if name not in lost and row[-1][1] is None]
    result = []
    if lost:
        result.append(f"{len(lost)} of {len(members)} seeds have no value of {metric} and are excluded: {_first(lost)}")
    if broken:
        result.append(f"The last {metric} of {len(broken)} of {len(members)} seeds is not finite; the last finite one "
                      f"is used: {_first(broken)}")
    return result


def _first(names: Sequence[str], count: int = 6) -> str:
    return ", ".join(names[:count]) + (" ..." if len(names) > count else "")


def profile(study: Study, metric: str) -> dict[str, Any] | None:
    """The performance profile: per arm, the fraction of seeds that end above a score, over the score."""
    scores = {arm: row for arm, row in finals(study, metric).items() if len(row) > 1}
    every = [value for row in scores.values() for value in row]
    if not every or min(every) == max(every):
        return None
    pad = 0.05 * (max(every) - min(every))
    taus = np.linspace(min(every) - pad, max(every) + pad, 121)
    series, bands = {}, {}
    for arm, row in scores.items():
        result = stats.stratified_bootstrap(
            lambda x: stats.performance_profile(x, taus), np.array(row)[:, None], resamples=RESAMPLES
        )
        series[arm] = list(zip(taus.tolist(), result.value.tolist(), strict=True))
        bands[arm] = list(zip(taus, result.low, result.high, strict=True))
    svg = charts.line_chart(
        series, title="share of seeds above it", palette=list(study.arms), bands=bands, along=f"final {metric}",
        span=(0.0, 1.0),
    )  # fmt: skip
    return {"svg": svg}


def small_multiples(study: Study, metric: str) -> list[dict[str, Any]]:
    """A small chart of every seed, all on the same scale, arm by arm."""
    lines = {
        arm: [(member, points_of(member.metrics, metric)) for member in members[:MAX_SMALL]]
        for arm, members in study.arms.items()
    }
    values = [v for row in lines.values() for _, points in row for _, v in points if v is not None]
    if not values:
        return []
    span, rows = (min(values), max(values)), []
    for index, (arm, row) in enumerate(lines.items()):
        cells = []
        for member, points in row:
            svg = charts.line_chart({arm: points}, title=f"{member.name}: {metric}", palette=list(study.arms),
                                    span=span, size=SMALL)  # fmt: skip
            seed = member.name if member.seed is None else f"seed {member.seed}"
            cells.append({"seed": seed, "svg": svg, "last": charts.short_number(final_value(member, metric))})
        hidden = len(study.arms[arm]) - len(cells)
        rows.append({"arm": arm, "index": index, "cells": cells, "hidden": hidden})
    return rows


def health_table(study: Study) -> dict[str, Any]:
    """The health checks of all runs, by metric and arm.

    Returns:
      rows: one dict per logged metric with one cell per arm. A cell has status, runs, warned (names of the runs with a
        warning) and worst (the worst value).
      warned: number of runs with a warning.
      runs: number of runs.
    """
    judged = {
        arm: [(run, {row["metric"]: row for row in assess(run.metrics)}) for run in runs_of(members)]
        for arm, members in study.arms.items()
    }
    everyone = [result for row in judged.values() for _, result in row]
    rows = []
    for metric in everyone[0] if everyone else ():
        if all(result[metric]["status"] == "not logged" for result in everyone):
            continue
        cells = [_health_cell(metric, row) for row in judged.values()]
        about = next(result[metric] for result in everyone if result[metric]["status"] != "not logged")
        warns = any(cell["status"] == "warning" for cell in cells)
        advice = next((result[metric]["advice"] for result in everyone if result[metric]["advice"]), "")
        rows.append({**about, "cells": cells, "advice": advice, "status": "warning" if warns else "ok"})
    warned = sum(any(row["status"] == "warning" for row in result.values()) for result in everyone)
    rows.sort(key=lambda row: row["status"] != "warning")
    return {"rows": rows, "warned": warned, "runs": len(everyone)}


def _health_cell(metric: str, judged) -> dict[str, Any]:
    rows = [(run, result[metric]) for run, result in judged if result[metric]["status"] != "not logged"]
    warned = [run.label for run, row in rows if row["status"] == "warning"]
    values = [row["value"] for _, row in rows if row["value"] is not None]
    low = "below" in rows[0][1]["limit"] if rows else False
    worst = charts.short_number((min if low else max)(values)) if values else "n/a"
    status = "none" if not rows else "warning" if warned else rows[0][1]["status"]
    return {"status": status, "runs": len(rows), "warned": warned, "worst": worst}


def completions(study: Study) -> list[dict[str, Any]]:
    """One section per arm: its first run that wrote completions."""
    result = []
    for arm, members in study.arms.items():
        run = next((run for run in runs_of(members) if before_and_after(run.samples)), None)
        if run is not None:
            result.append({"arm": arm, **run_section(run)})
    return result


def episodes(study: Study) -> list[dict[str, Any]]:
    """One section per arm: its first run that recorded episodes.

    A program of many runs records the episodes of its first run only, so they belong to that run's arm.
    """
    result = []
    for arm, members in study.arms.items():
        own = [m.run for m in members if m.run.episodes and m.name.rpartition("#")[2] in (m.name, "0")]
        if own:
            result.append({"arm": arm, **run_section(own[0])})
    return result


def sections(study: Study, asked: str | None = None) -> dict[str, Any]:
    """Everything that the page of a study shows. asked: the metric to compare by, instead of the default."""
    metric = choose_metric(study, asked)
    health = health_table(study)
    members = [member for row in study.arms.values() for member in row]
    main = [] if metric is None else [curve(study, metric, along) for along in ("sample", "step", "minute")]
    scores = {} if metric is None else finals(study, metric)
    intervals = {arm: result for arm, row in scores.items() if (result := estimate(row)) is not None}
    names = [name for name in CURVES if name != metric]
    everyone = metric is not None and all(align(row, metric, "sample") for row in study.arms.values())
    along = "sample" if everyone else "step"  # an arm that logs no samples would be missing from every chart
    return {
        "title": study.title,
        "sweeps": study.sweeps,
        "metric": metric,
        "arms": [(arm, *charts.look(index), index) for index, arm in enumerate(study.arms)],
        "tiles": _tiles(study, metric, intervals, health),
        "notices": notices(study, metric),
        "main": [chart for chart in main if chart],
        "curves": [chart for name in names if (chart := curve(study, name, along))],
        "table": final_table(study, metric) if metric else [],
        "finals": charts.interval_chart(scores, intervals, title=f"final {metric}", palette=list(study.arms))
        if scores else None,
        "profile": profile(study, metric) if metric else None,
        "small": small_multiples(study, metric) if metric else [],
        "config": config_table(study),
        "health": health,
        "completions": completions(study),
        "episodes": episodes(study),
        "runs": [{**run_section(run), "arm": m.arm} for run, m in _with_member(members)],
    }


def _with_member(members: Sequence[Member]) -> list[tuple[Run, Member]]:
    return list({id(member.run): (member.run, member) for member in members}.values())


def _tiles(study: Study, metric: str | None, intervals, health) -> list[tuple[str, str]]:
    begun = len(runs_of([member for row in study.arms.values() for member in row]))
    tiles = [("arms", str(len(study.arms))), ("seeds", _range([len(row) for row in study.arms.values()]) + " per arm")]
    if study.waiting or study.sweeps:
        tiles.append(("points with a run", f"{begun} of {begun + len(study.waiting)}"))
    if intervals:
        pick, word = (min, "lowest") if metric.endswith("loss") else (max, "highest")
        best = pick(intervals, key=lambda arm: intervals[arm][0])
        tiles.append((f"{word} IQM of {metric}: {best}", _words(intervals[best])))
    tiles.append(("runs with health warnings", f"{health['warned']} of {health['runs']}"))
    return tiles
