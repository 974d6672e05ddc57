"""The best mixture of sources, predicted from runs with known mixtures: MoDoMoDo, arXiv 2505.24871.

    for weights in "{'a': 1}" "{'b': 1}" "{'a': 1, 'b': 1}" "{'a': 3, 'b': 1}"; do        # and so on
      python -m experiments.grpo --config=CONFIG --workdir=runs/mix/$((i++)) \\
        --config.sample.prompts="{'fn': 'mixture', 'weights': $weights}"
    done
    python -m experiments.tools.mixture runs/mix/*                   # the quadratic through their last eval/pass@1

K sources need K (K + 1) / 2 runs or more: the single sources, the pairs, and some to measure the error of the fit.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from experiments.sweep.folder import last_metrics
from rl_jax.experience.surrogate import best_mixture, fit_quadratic
from rl_jax.runs.run_record import read_json


def read_runs(folders: Sequence[pathlib.Path], metric: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The mixtures of some runs and what they reached.

    Args:
      folders: workdirs.
      metric: of metrics.jsonl.

    Returns:
      (K names of sources, weights float64 [n, K], scores float64 [n]).

    Raises:
      ValueError: if a run has no mixture with weights or never logged the metric.
    """
    mixtures, scores = [], []
    for folder in folders:
        prompts = read_json(folder / "config.json").get("sample", {}).get("prompts", {})
        if prompts.get("fn") != "mixture" or not prompts.get("weights"):
            raise ValueError(f"{folder}: sample.prompts is {prompts or 'missing'}, not a mixture with weights")
        found = last_metrics(folder).get(metric)
        if found is None:
            raise ValueError(f"{folder}: no {metric} in metrics.jsonl; finish the run or name another with --metric")
        mixtures.append(prompts["weights"])
        scores.append(float(found))
    names = sorted({name for mixture in mixtures for name in mixture})
    weights = np.asarray([[float(mixture.get(name, 0.0)) for name in names] for mixture in mixtures])
    return names, weights, np.asarray(scores)


def report(names: Sequence[str], weights: np.ndarray, scores: np.ndarray, metric: str) -> str:
    """The runs with their fit, and the best mixture as an argument for the next run."""
    quadratic = fit_quadratic(weights, scores)
    shares = weights / weights.sum(axis=1, keepdims=True)
    lines = ["  ".join([*names, metric, "fit"])]
    for share, score in zip(shares, scores, strict=True):
        lines.append("  ".join([*(f"{x:.3f}" for x in share), f"{score:.4f}", f"{share @ quadratic @ share:.4f}"]))
    best, value = best_mixture(quadratic)
    chosen = {name: round(float(x), 4) for name, x in zip(names, best, strict=True) if x > 5e-5}
    lines += [f"predicted best: {value:.4f}", f'--config.sample.prompts="{dict(fn="mixture", weights=chosen)}"']
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="workdirs of runs with sample.prompts.fn=mixture")
    parser.add_argument("--metric", default="eval/pass@1", help="of metrics.jsonl; its last value counts")
    options = parser.parse_args(arguments)
    try:
        print(report(*read_runs(options.runs, options.metric), options.metric))
    except (ValueError, OSError) as error:
        print(f"experiments.tools.mixture: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
