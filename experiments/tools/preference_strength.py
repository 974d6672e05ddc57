"""Relabels pairs by the votes of several reward models: Secrets of RLHF II, arXiv 2401.06080.

    for seed in 0 1 2 3 4; do
      python -m experiments.reward_model --config=configs/preferences/reward_models.py:given \\
        --config.data.path=PAIRS.jsonl --config.seed=$seed --workdir=runs/vote_$seed
    done
    python -m experiments.tools.preference_strength runs/vote_* --path=PAIRS.jsonl --out=STRONG.jsonl
    python -m experiments.reward_model --config=configs/preferences/reward_models.py:given,soft \\
        --config.data.path=STRONG.jsonl --workdir=runs/denoised          # or given,margin

Each model gives every pair the gap of its two rewards; mu is their mean. Pairs with mu < 0 are turned round
(--flip=lowest: the share of the pairs with the lowest mu, 20 % in the paper; none), sigma(mu) is the label's
probability and mu the margin of what is written. The models vote on pairs that they were trained on, as in the paper.
Its contrastive term and MetaRM: configs/preferences/secrets2.py.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from experiments.parts import pair_scores
from rl_jax.preferences import strength


def report(rows: Sequence[dict], models: int) -> str:
    """What was done, in words and ten buckets of strength."""
    values = np.array([row["strength"] for row in rows])
    turned = np.array([row["flipped"] for row in rows])
    lines = [f"{len(rows)} pairs, {models} models, {int(turned.sum())} turned round"]
    lines.append("strength, by tenths: " + " ".join(f"{x:.3f}" for x in np.quantile(values, np.arange(0.1, 1.0, 0.1))))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model (or dpo)")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--split", default="all", choices=("train", "test", "all"))
    parser.add_argument("--flip", default="negative", choices=strength.FLIPS)
    parser.add_argument("--share", type=float, default=0.2, help="of the pairs, for --flip=lowest")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the JSONL file to write")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        more = dict(data_dir=options.data_dir, one_prompt=True)
        records = pair_scores.read_pairs(options.data, options.path, options.split, **more)
        gaps = [pair_scores.gaps(pair_scores.load_scorer(run)[0], records) for run in options.runs]
        rows = strength.relabel(records, np.stack(gaps), flip=options.flip, share=options.share)
        pair_scores.write_jsonl(options.out, rows)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.preference_strength: {error}", file=sys.stderr)
        return 2
    print(report(rows, len(options.runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
