"""Runs an ablation of configs/papers: every arm with every seed, then the table and a verdict on the paper's claim.

    python -m experiments.ablation spurious_rewards
    python -m experiments.ablation --list

Each run is its own process with its own workdir (runs/ablations/KEY/...), so a restarted ablation skips finished runs
and resumes the one that was interrupted. Further --config.x=y are passed on to every run (a smaller size, say).
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys

from rl_jax.logging import read_jsonl, write_atomically

PAPERS = pathlib.Path(__file__).parent.parent / "configs" / "papers"


def keys() -> list[str]:
    """The ablations there are."""
    return sorted(path.stem for path in PAPERS.glob("*.py") if path.stem != "__init__")


def run_once(program: str, config: str, workdir: pathlib.Path, overrides: list[str]) -> None:
    """One run to its end, unless it ended before. Raises CalledProcessError where it fails."""
    if (workdir / "final.json").exists():
        return
    command = [sys.executable, "-m", f"experiments.{program}", f"--config={config}", f"--workdir={workdir}", *overrides]
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True)


def gain(workdir: pathlib.Path, metric: str) -> tuple[float, float]:
    """(first, last) value of `metric` in a finished run. Raises ValueError where it was evaluated less than twice."""
    values = [row[metric] for row in read_jsonl(workdir / "metrics.jsonl") if metric in row]
    if len(values) < 2:
        raise ValueError(f"{workdir}: {metric} was evaluated {len(values)} times, a gain needs two")
    return values[0], values[-1]


def verdict(gains: dict[str, list[float]], expected, leads) -> str:
    """Says "reproduced" where every seed of every arm gains what is expected, else "not reproduced".

    expected: arm -> at_least, at_most of its gain. leads: arm -> over, another arm, and at_least, how much more it
    gains than that one with the same seed.
    """
    held = [
        bounds.get("at_least", -float("inf")) <= value <= bounds.get("at_most", float("inf"))
        for arm, bounds in expected.items()
        for value in gains[arm]
    ]
    held += [
        ours - theirs >= lead["at_least"]
        for arm, lead in leads.items()
        for ours, theirs in zip(gains[arm], gains[lead["over"]], strict=True)
    ]
    return "reproduced" if held and all(held) else "not reproduced"


def table(ablation, results: dict[str, list[tuple[float, float]]]) -> str:
    """A Markdown table, one row an arm: before, after and gain as mean (least to most) over the seeds."""

    def cell(values):
        return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    lines = [f"| arm | {ablation.metric} before | after | gain |", "|---|---|---|---|"]
    for arm, pairs in results.items():
        before, after = zip(*pairs, strict=True)
        lines.append(f"| {arm} | {cell(before)} | {cell(after)} | {cell([b - a for a, b in pairs])} |")
    return "\n".join(lines)


def run(key: str, workdir: pathlib.Path, overrides: list[str]) -> dict:
    """Runs what is missing and writes workdir/ablation.json. Returns its content."""
    ablation = importlib.import_module(f"configs.papers.{key}").get_ablation()
    results = {arm: [] for arm in ablation.arms}
    for seed in ablation.seeds:
        warm = workdir / f"seed{seed}" / "sft"
        run_once("sft", ablation.warm_start, warm, [f"--config.seed={seed}", *overrides])
        for arm, config in ablation.arms.items():
            folder = workdir / f"seed{seed}" / arm
            start = [f"--config.seed={seed}", f"--config.init_from={warm}"]
            run_once(ablation.program, config, folder, [*start, *overrides])
            results[arm].append(gain(folder, ablation.metric))
    gains = {arm: [after - before for before, after in pairs] for arm, pairs in results.items()}
    outcome = {
        "key": key,
        "paper": ablation.paper,
        "claim": ablation.claim,
        "seeds": list(ablation.seeds),
        "before_after": results,
        "verdict": verdict(gains, ablation.expected_gain, ablation.expected_lead),
        "table": table(ablation, results),
    }
    write_atomically(workdir / "ablation.json", json.dumps(outcome, indent=2).encode())
    print(f"{ablation.paper}: {ablation.claim}\n{outcome['table']}\n{outcome['verdict']} ({len(ablation.seeds)} seeds)")
    return outcome


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key", nargs="?", choices=keys())
    parser.add_argument("--list", action="store_true", help="name the ablations and their claims")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/ablations/KEY")
    options, overrides = parser.parse_known_args(arguments)
    if options.list or options.key is None:
        for key in keys():
            ablation = importlib.import_module(f"configs.papers.{key}").get_ablation()
            print(f"{key:24} {ablation.paper}: {ablation.claim}")
        return
    run(options.key, options.workdir or pathlib.Path("runs/ablations") / options.key, overrides)


if __name__ == "__main__":
    main()
