"""How consistent reward models are on contrast instructions: arXiv 2309.16155.

    python -m experiments.tools.reward_consistency runs/reward_model --data=jsonl --path=PAIRS.jsonl
    python -m experiments.tools.reward_consistency RUN --path=PAIRS.jsonl --embed --fuse --convex=MORE.jsonl

Prompts of the pairs that differ in few words, each with its chosen response, are contrasts: a consistent model prefers
to each prompt its own response, and to each response its own prompt. --embed finds them as the paper does, by the
cosine of embeddings. --fuse adds a row per run with RewardFusion: rewards are interpolated with those of the nearest
pairs. --convex writes ConvexDA's pairs for experiments.reward_model, beside the original ones: misspellings of the
chosen response, those at the corners of the convex hull of their embeddings; --augment writes the contrasts as pairs.
Embeddings are the first run's hidden states at the last token, less their mean; a sentence encoder's in the paper.
"""

import argparse
import pathlib
import random
import sys
from collections.abc import Sequence

import numpy as np

from experiments.parts import pair_scores
from experiments.parts.hidden_states import Embed, make_embed
from experiments.parts.judges.trained import RewardModel
from rl_jax.preferences import contrast, fusion

VARIANTS = 5  # misspellings of a response, as in the paper's code


def rewards_of(model: RewardModel, contrasts: Sequence[contrast.Contrast]) -> np.ndarray:
    """r(q_i, y_j), float [N, 2, 2]."""
    prompts = [c.prompts[i] for c in contrasts for i in (0, 1) for _ in (0, 1)]
    responses = [c.responses[j] for c in contrasts for _ in (0, 1) for j in (0, 1)]
    return model.score_texts(prompts, responses).reshape(len(contrasts), 2, 2)


def fused_rewards(
    model: RewardModel, embed: Embed, contrasts: Sequence[contrast.Contrast], prompts, chosen
) -> np.ndarray:
    """`rewards_of` after RewardFusion with the pairs' prompts and chosen responses. float [N, 2, 2]."""
    asked = [c.prompts[i] for c in contrasts for i in (0, 1) for _ in (0, 1)]
    answers = [c.responses[j] for c in contrasts for _ in (0, 1) for j in (0, 1)]
    known = embed(prompts, chosen)
    mean = known.mean(axis=0)
    similar = fusion.cosines(embed(asked, answers) - mean, known - mean)
    scores = model.score_texts([*asked, *prompts], [*answers, *chosen])  # one call, as an ensemble may couple rows
    return fusion.fused(scores[: len(asked)], similar, scores[len(asked) :]).reshape(len(contrasts), 2, 2)


def convex_pairs(embed: Embed, records: Sequence[dict], seed: int = 0) -> list[dict]:
    """ConvexDA: pairs whose chosen response is misspelt, the corners of VARIANTS of each."""
    rng, rows = random.Random(seed), []
    for record in records:
        right, wrong = record["responses"]
        texts = list(dict.fromkeys(fusion.misspelt(right, rng) for _ in range(VARIANTS)))
        places = fusion.corners(embed([record["prompt"]] * len(texts), texts))
        rows += [{"prompt": record["prompt"], "chosen": texts[i], "rejected": wrong} for i in places]
    return [row for row in rows if row["chosen"] != row["rejected"]]


def found_contrasts(
    options, embed: Embed | None, prompts: Sequence[str], chosen: Sequence[str]
) -> list[contrast.Contrast]:
    """The contrasts among prompts, by words or, with --embed, by embeddings. Raises ValueError if there is none."""
    least = options.at_least if options.at_least is not None else 0.75 if options.embed else 0.5
    if options.embed:
        texts = embed(prompts, [""] * len(prompts))
        bounds = dict(at_least=least, at_most=options.at_most)
        found = fusion.contrasts(texts - texts.mean(axis=0), prompts, chosen, **bounds)
        none = (
            f"no two prompts have embeddings with a cosine of {least} to {options.at_most}: lower --at_least or raise "
            "--at_most"
        )
    else:
        found = contrast.find_contrasts(prompts, chosen, at_least=least)
        none = f"no two prompts share {least:.0%} of their words: lower --at_least"
    if not found:
        raise ValueError(none)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model or dpo")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--split", default="all", choices=("train", "test", "all"))
    parser.add_argument("--at_least", type=float, help="smallest similarity of two prompts: 0.5, 0.75 with --embed")
    parser.add_argument("--at_most", type=float, default=0.9, help="largest one, with --embed")
    parser.add_argument("--embed", action="store_true", help="similar by embeddings instead of by words")
    parser.add_argument("--fuse", action="store_true", help="rewards after RewardFusion, too")
    parser.add_argument("--convex", type=pathlib.Path, help="a JSONL file to write ConvexDA's pairs to")
    parser.add_argument("--augment", type=pathlib.Path, help="a JSONL file to write the contrasts to, as pairs")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        more = dict(data_dir=options.data_dir, one_prompt=True)
        records = pair_scores.read_pairs(options.data, options.path, options.split, **more)
        if any(not isinstance(record["prompt"], str) for record in records):
            raise ValueError(f"{options.data}: prompts are chats; contrasts are found in texts")
        prompts, chosen = [r["prompt"] for r in records], [r["responses"][0] for r in records]
        models = {run: pair_scores.load_scorer(run)[0] for run in options.runs}
        first, embed = options.runs[0], None
        if options.embed or options.fuse or options.convex:  # it reads the first run's model once more
            embed = make_embed(first, models[first])
        contrasts = found_contrasts(options, embed, prompts, chosen)
        rows = {run: contrast.consistency(rewards_of(model, contrasts)) for run, model in models.items()}
        for run, model in models.items() if options.fuse else ():
            rows[f"{run} fused"] = contrast.consistency(fused_rewards(model, embed, contrasts, prompts, chosen))
        if options.convex:
            pair_scores.write_jsonl(options.convex, convex_pairs(embed, records))
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
