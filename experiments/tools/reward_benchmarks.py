"""Reward models on RewardBench 2 and RewardMATH: a table of subsets (arXiv 2506.01937, 2410.01729).

    python -m experiments.tools.reward_benchmarks runs/reward_model runs/dpo --rewardbench2=reward_bench_2.jsonl
    python -m experiments.tools.reward_benchmarks runs/prm --rewardmath=RewardMATH_direct.json
    python -m experiments.tools.reward_benchmarks runs/reward_model --generated

A run is of experiments.reward_model, or of experiments.dpo (its implicit reward). A model of steps is read at the end
of each step, and has a column for each way to join the steps' probabilities. --generated makes 64 prompts of sums with
one right and three wrong answers, in RewardBench 2's form. The benchmarks' files are not fetched here.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from experiments.parts import pair_scores
from experiments.parts.judges.trained import RewardModel
from rl_jax import preferences
from rl_jax.core.binding import bind
from rl_jax.credit import process_rewards
from rl_jax.rewards import benchmark_files
from rl_jax.rewards.benchmark_files import Item

AGGREGATIONS = ("minimum", "maximum", "product", "geometric_mean", "mean", "mean_logit", "mean_odds", "last")


def scorers(model: RewardModel, name: str) -> dict[str, Callable]:
    """name -> (prompts, responses as lists of steps) -> float [N]: one, or one for each aggregation of steps."""
    separator = model.config.encode.get("separator", "\n")

    def whole(prompts: list[str], responses: list[list[str]]) -> np.ndarray:
        return model.score_texts(prompts, [separator.join(steps) for steps in responses])

    if model.config.algorithm.get("reads", "response") != "steps":
        return {name: whole}
    known: dict[str, tuple] = {}  # of the last call: the same steps are joined in several ways

    def steps_of(prompts: list[str], responses: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
        """(probability of each step float [N, S], which there are bool [N, S])."""
        key = repr((prompts, responses))
        if key not in known:
            known.clear()
            pairs = list(zip(prompts, responses, strict=True))
            heads = [(prompt, steps[: k + 1]) for prompt, steps in pairs for k in range(len(steps))]
            odds = whole([prompt for prompt, _ in heads], [steps for _, steps in heads])
            counts = np.array([len(steps) for steps in responses])
            mask = np.arange(counts.max())[None] < counts[:, None]
            probs = np.zeros(mask.shape, np.float32)
            probs[mask] = 1.0 / (1.0 + np.exp(-odds))
            known[key] = probs, mask
        return known[key]

    def joined(fn: str) -> Callable:
        return lambda prompts, responses: np.asarray(bind(fn, process_rewards)(*steps_of(prompts, responses)))

    return {f"{name} {fn}": joined(fn) for fn in AGGREGATIONS}


def generated(data_dir: str = "") -> list[Item]:
    """Sums with one right and three wrong answers, as items of RewardBench 2."""
    options = {"data_dir": data_dir} if data_dir else {}
    data = preferences.load("generated", kind="rankings", num_prompts=64, seed=1, test_share=1.0, **options)
    source, items = data.data_source("test"), []
    for place in range(len(source)):
        right, *wrong = ([text] for text in source[place]["responses"])
        items.append(Item(source[place]["prompt"], [right], wrong, "sums", str(place)))
    return items


def table(columns: dict[str, dict[str, float]]) -> str:
    """Rows are subsets, columns are models. Markdown."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{column[name]:.3f}" for column in columns.values()) + " |")
    return "\n".join(lines)


def measure(runs: Sequence[str], items: Sequence[Item], make: Callable) -> dict[str, dict[str, float]]:
    """model -> table of the benchmark, `make`(items, scores)."""
    columns = {}
    for run in runs:
        for name, score in scorers(pair_scores.load_scorer(run)[0], str(run)).items():
            columns[name] = make(items, benchmark_files.score_items(items, score))
    return columns


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model or dpo")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--rewardbench2", help="its file, JSONL")
    which.add_argument("--rewardmath", help="its file, JSON")
    which.add_argument("--generated", action="store_true", help="generated sums")
    parser.add_argument("--limit", type=int, default=0, help="most items; 0: all")
    parser.add_argument("--data_dir", default="", help="where generated sums are prepared")
    options = parser.parse_args(arguments)
    try:
        if options.rewardmath:
            items, make = benchmark_files.read_reward_math(options.rewardmath), benchmark_files.reward_math_table
        else:
            path, make = options.rewardbench2, benchmark_files.reward_bench_2_table
            items = benchmark_files.read_reward_bench_2(path) if path else generated(options.data_dir)
        items = items[: options.limit] if options.limit else items
        print(table(measure(options.runs, items, make)))
    except (ValueError, OSError) as error:
        print(f"experiments.tools.reward_benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
