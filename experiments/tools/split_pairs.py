"""Easy and hard pairs by the gap of a reward model's rewards: mixed preference optimization, arXiv 2403.19443.

    python -m experiments.tools.split_pairs runs/reward_model --path=PAIRS.jsonl --gamma=1 \\
        --easy=EASY.jsonl --hard=HARD.jsonl
    python -m experiments.dpo --config=configs/preferences/given.py --config.data.path=EASY.jsonl --workdir=runs/easy
    python -m experiments.ppo --config=configs/task.py:ppo --config.task.path=HARD.jsonl --config.init_from=runs/easy \\
        --config.judge="{'rm': {'fn': 'reward_model', 'path': 'runs/reward_model'}}"

A pair is easy if r_w - r_l > gamma (signed, our reading): DPO learns from it offline. The prompts of the others are for
PPO, on the same reward model, which starts from the DPO run and has it as its reference. gamma is in the reward's
units; the paper's numbers could not be confirmed (2 for HH and 1 for TL;DR are remembered).
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from experiments.parts import pair_scores


def split(records: Sequence[dict], gaps: np.ndarray, gamma: float) -> tuple[list[dict], list[dict]]:
    """(easy pairs, hard ones) as rows of JSONL files; those of the hard ones have `completion`, the chosen response."""
    easy, hard = [], []
    for record, gap in zip(records, gaps, strict=True):
        row = {"prompt": record["prompt"], "chosen": record["responses"][0], "rejected": record["responses"][1]}
        row["gap"] = float(gap)
        if gap > gamma:
            easy.append(row)
        else:
            hard.append({"prompt": row["prompt"], "completion": row["chosen"], "gap": row["gap"]})
    return easy, hard


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="workdir of experiments.reward_model")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--gamma", type=float, required=True, help="a pair is easy above this gap")
    parser.add_argument("--easy", type=pathlib.Path, required=True, help="the JSONL file of easy pairs")
    parser.add_argument("--hard", type=pathlib.Path, required=True, help="the JSONL file of the others' prompts")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        records = pair_scores.read_pairs(options.data, options.path, "all", data_dir=options.data_dir, one_prompt=True)
        easy, hard = split(records, pair_scores.gaps(pair_scores.load_scorer(options.run)[0], records), options.gamma)
        for path, rows in ((options.easy, easy), (options.hard, hard)):
            pair_scores.write_jsonl(path, rows)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.split_pairs: {error}", file=sys.stderr)
        return 2
    print(f"{len(easy)} easy pairs, {len(hard)} hard prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
