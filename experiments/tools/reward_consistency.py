"""How consistent reward models are on contrast instructions: arXiv 2309.16155.

    python -m experiments.tools.reward_consistency runs/reward_model --data=jsonl --path=PAIRS.jsonl
    python -m experiments.tools.reward_consistency runs/reward_model --path=PAIRS.jsonl --augment=MORE.jsonl

Prompts of the pairs that differ in few words, each with its chosen response, are contrasts: a consistent model prefers
to each prompt its own response, and to each response its own prompt. --augment writes the contrasts as further pairs
for experiments.reward_model. Contrasts are found by shared words here, by embeddings in the paper.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from experiments.parts import pair_scores
from experiments.parts.judges.trained import RewardModel
from rl_jax.preferences import contrast


def rewards_of(model: RewardModel, contrasts: Sequence[contrast.Contrast]) -> np.ndarray:
    """r(q_i, y_j), float [N, 2, 2]."""
    prompts = [c.prompts[i] for c in contrasts for i in (0, 1) for _ in (0, 1)]
    responses = [c.responses[j] for c in contrasts for _ in (0, 1) for j in (0, 1)]
    return model.score_texts(prompts, responses).reshape(len(contrasts), 2, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model or dpo")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--split", default="all", choices=("train", "test", "all"))
    parser.add_argument("--at_least", type=float, default=0.5, help="smallest similarity of two prompts")
    parser.add_argument("--augment", type=pathlib.Path, help="a JSONL file to write the contrasts to, as pairs")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        records = pair_scores.read_pairs(options.data, options.path, options.split, data_dir=options.data_dir)
        if any(not isinstance(record["prompt"], str) for record in records):
            raise ValueError(f"{options.data}: prompts are chats; contrasts are found in texts")
        prompts, chosen = [r["prompt"] for r in records], [r["responses"][0] for r in records]
        contrasts = contrast.find_contrasts(prompts, chosen, at_least=options.at_least)
        if not contrasts:
            raise ValueError(f"no two prompts share {options.at_least:.0%} of their words: lower --at_least")
        models = {run: pair_scores.load_scorer(run)[0] for run in options.runs}
        rows = {run: contrast.consistency(rewards_of(model, contrasts)) for run, model in models.items()}
        if options.augment:
            pair_scores.write_jsonl(options.augment, contrast.augment(contrasts))
    except (ValueError, OSError) as error:
        print(f"experiments.tools.reward_consistency: {error}", file=sys.stderr)
        return 2
    names = list(next(iter(rows.values())))
    print(f"{len(contrasts)} contrasts\n| run | {' | '.join(names)} |\n" + "|---" * (len(names) + 1) + "|")
    for run, row in rows.items():
        print(f"| {run} | {' | '.join(f'{row[name]:.3f}' for name in names)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
