"""Writes report.html for a run, for several runs, or for sweeps:

    python -m experiments.report RUN_OR_SWEEP [RUN_OR_SWEEP...] [--out=PATH] [--metric=NAME]
    python -m experiments.report SWEEP --serve                       # a live page on 127.0.0.1

The page is one file without scripts or requests: it can be opened from a disk, a bucket or a mail. All data are read
from the runs' folders (see rl_jax/runs/logging.py); the page names the files that are missing. A sweep, or runs of
which some differ only in their seed, are shown as arms: interquartile means with intervals over the seeds.
"""

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from experiments.parts import refusals
from experiments.report import arms_page, control, figures, reading
from experiments.report import charts as charts
from experiments.report.run_page import CURVES, curves, load_run, other_metrics, run_labels, run_section
from rl_jax.core.visible import visible
from rl_jax.runs.logging import write_atomically


def page(paths: Sequence[Path], *, metric: str | None = None, nonce: str = "", version: str = "") -> str:
    """The page of some runs and sweeps as HTML text; everything that comes from a run is escaped.

    Args:
      paths: folders of runs and sweeps.
      metric: the metric by which arms are compared; None takes the first logged one of budgets.RESULTS.
      nonce: of the script of a live page; "" for a page without a script.
      version: serve.version of the content of a live page.

    Raises:
      FileNotFoundError: if a folder is missing, or is neither a run's nor a sweep's.
      ValueError: if a folder is damaged or named twice.
    """
    try:
        # Nothing that a run holds can hide or reorder what the page says, wherever it stands.
        return visible(_page(paths, metric, nonce, version))
    except (OSError, ValueError):  # these say what is wrong
        raise
    except (*reading.DAMAGE, jinja2.TemplateError) as error:
        folders = ", ".join(map(str, paths))
        said = f"{type(error).__name__}: {error!s:.200}"
        raise ValueError(f"{folders}: a file there is not as the programs write it ({said}): restore it") from error


def _page(paths: Sequence[Path], metric: str | None, nonce: str, version: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = {"nonce": nonce, "version": version}
    labels = run_labels(paths)
    if not any(map(arms_page.is_sweep, paths)):
        runs = [load_run(path, label) for path, label in zip(paths, labels, strict=True)]
        if arms_page.one_arm_each(runs):
            _check_metric(runs, metric)
            seeds = control.seeds_within(runs)
            return environment.get_template("report.html").render(
                runs=[run_section(run) for run in runs],
                curves=curves(runs, list(CURVES)),
                seeds=seeds,
                others=curves(runs, [name for name in other_metrics(runs) if not (seeds and name.startswith("runs/"))]),
                looks=[charts.look(index) for index in range(len(runs))],
                **shared,
            )
    study = arms_page.load_study(paths)
    return environment.get_template("arms.html").render(**figures.sections(study, metric), **shared)


def _check_metric(runs: Sequence[Any], metric: str | None) -> None:
    """Raises ValueError if no run has logged the metric asked for; names the nearest ones."""
    known = {name for run in runs for row in run.metrics for name in row}
    if metric is not None and metric not in known:
        near = difflib.get_close_matches(metric, known, n=3, cutoff=0.4) or sorted(known)[:8]
        raise ValueError(f"no run has logged {metric!r}; near it: {', '.join(near) or 'no metrics at all'}")


def write_report(workdirs: Sequence[Path], out: Path | None = None, *, metric: str | None = None) -> Path:
    """Writes the report of some runs and sweeps.

    Args:
      workdirs: folders of runs and sweeps.
      out: path of the page; None writes it to the first folder.
      metric: as in `page`.

    Returns:
      The page's path.
    """
    workdirs = [Path(path) for path in workdirs]
    text = page(workdirs, metric=metric)
    out = workdirs[0] / "report.html" if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode("utf-8", errors="replace"))
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description="Write report.html for runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_OR_SWEEP", help="a run's or a sweep's --workdir")
    parser.add_argument("--out", type=Path, help="file to write; default: report.html in the first folder")
    parser.add_argument("--metric", help="metric that arms are compared by; default: a held-out one, if logged")
    parser.add_argument("--serve", action="store_true", help="serve a page on 127.0.0.1 that follows the runs")
    parser.add_argument("--port", type=int, default=8000, help="port of --serve; 0 takes a free one")
    parsed = parser.parse_args(arguments)
    if not 0 <= parsed.port < 2**16:
        parser.error(f"--port={parsed.port} must be from 0 to 65535")
    try:
        if parsed.serve:
            from experiments.report import serve  # which imports this module

            serve.serve(parsed.runs, port=parsed.port, metric=parsed.metric)
        else:
            print(write_report(parsed.runs, parsed.out, metric=parsed.metric))
    except (OSError, ValueError) as error:  # includes a port in use and a folder that cannot be written to
        refusals.refuse("report", visible(refusals.said(error)))
