"""The report's section on the seeds that one program trains side by side (experiments.control.ppo)."""

from collections.abc import Sequence
from typing import Any

from experiments.report import charts as charts
from experiments.report import figures as figures
from experiments.report.arms_page import Study, group
from experiments.report.run_page import Run

NAME = "seeds"


def seeds_within(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The charts of a run with several seeds: their interquartile mean, the final value of each, and each seed alone.

    Returns:
      None if there are several runs, or if the one run has a single seed.
    """
    members = group(runs) if len(runs) == 1 else []
    if len(members) < 2 or len({member.arm for member in members}) > 1:
        return None
    study = Study("", {NAME: members}, [], [], {}, [])
    metric = figures.choose_metric(study, None)
    ends = {} if metric is None else figures.finals(study, metric)
    if not ends:
        return None
    interval = figures.estimate(ends[NAME])
    intervals = {NAME: interval} if interval else {}
    chart = figures.curve(study, metric, "sample") or figures.curve(study, metric, "step")
    said = "The interquartile mean, its 95 % bootstrap interval, and each seed."
    return {
        "metric": metric,
        "count": len(members),
        "chart": chart and chart | {"meaning": said},
        "ends": charts.interval_chart(ends, intervals, title=f"final {metric}", palette=[NAME]),
        "table": figures.final_table(study, metric)[0],
        "cells": figures.small_multiples(study, metric)[0]["cells"],
    }
