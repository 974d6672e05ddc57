"""The credit of each token under a DPO run, and beam search by its implicit Q: From r to Q*, arXiv 2404.12358.

    python -m experiments.tools.token_credit runs/dpo --data=jsonl --path=PAIRS.jsonl --limit=8
    python -m experiments.tools.token_credit runs/dpo --data=jsonl --path=PAIRS.jsonl --limit=8 --beams=5

Each response of each pair, token by token with beta log(pi / ref), the run against what it started from: a token that
spoils a response has a credit far below the others'. With --beams the likeliest completions of the prompts follow,
found by beam search; for a DPO policy that is a search by Q*.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import pair_scores
from experiments.parts.judges.trained import RewardModel
from rl_jax.credit.token_credit import implicit_credit
from rl_jax.preferences.records import prompt_of
from rl_jax.rollout.lm.beam import make_beam_search
from rl_jax.training.scoring import make_score


class Credited(NamedTuple):
    """A response, piece by piece. prompt, pieces, credits; gain: their sum."""

    prompt: Any
    pieces: list[str]
    credits: list[float]
    gain: float

    def worst(self) -> int:
        """The place of the token with the lowest credit."""
        return int(np.argmin(self.credits))


def credits_of(model: RewardModel, prompts: Sequence, responses: Sequence[str]) -> list[Credited]:
    """The credit of each token of each response, the EOS included, under an implicit model."""
    config, batch = model.config, model.encode(prompts, responses)
    length = config.rollout.completion_length
    score = jax.jit(make_score(model.setup.model, completion_length=length, chunk=config.score.chunk))
    ratios = score(model.params["model"], batch).log_probs - score(model.params["reference"], batch).log_probs
    mask = np.asarray(batch.segment_ids)[:, -length:] != 0
    credit, gain = implicit_credit(ratios, mask, beta=config.algorithm.beta)
    tokens, rows = np.asarray(batch.tokens)[:, -length:], []
    for place, prompt in enumerate(prompts):
        kept = mask[place]
        pieces = [model.tokenizer.token_text(int(token)) for token in tokens[place][kept]]
        rows.append(Credited(prompt, pieces, np.asarray(credit[place])[kept].tolist(), float(gain[place, -1])))
    return rows


def searched(model: RewardModel, prompts: Sequence[str], beams: int) -> list[list[tuple[str, float]]]:
    """The likeliest completions of each prompt and their log-probs, best first."""
    config, tokenizer = model.config, model.tokenizer
    ids = [tokenizer.encode(prompt, bos=True) for prompt in prompts]
    width = max(map(len, ids))
    tokens, mask = np.full((len(ids), width), tokenizer.pad_id, np.int32), np.zeros((len(ids), width), bool)
    for row, own in enumerate(ids):
        tokens[row, width - len(own) :], mask[row, width - len(own) :] = own, True
    search = make_beam_search(
        model.setup.model,
        beams=beams,
        completion_length=config.rollout.completion_length,
        eos_ids=tokenizer.eos_ids,
        pad_id=tokenizer.pad_id,
    )
    found = jax.tree.map(np.asarray, jax.jit(search)(model.params["model"], tokens, mask))
    return [
        [(tokenizer.decode(t[m].tolist()), float(p)) for t, m, p in zip(*beam, strict=True) if np.isfinite(p)]
        for beam in zip(*found, strict=True)
    ]


def lines(credited: Credited, name: str) -> list[str]:
    """A response as text: its gain, then each token with its credit; the lowest one is marked."""
    result = [f"{name}: gain {credited.gain:+.4f}"]
    for place, (piece, credit) in enumerate(zip(credited.pieces, credited.credits, strict=True)):
        result.append(f"  {credit:+.4f} {piece!r}{'   <- lowest' if place == credited.worst() else ''}")
    return result


def shown(chosen: Credited, rejected: Credited) -> list[str]:
    """A pair as text; the prompt once, or above each response if each has one of its own."""
    first, second = f"prompt: {chosen.prompt!r}", f"prompt: {rejected.prompt!r}"
    between = [] if first == second else [second]
    return [first, *lines(chosen, "chosen"), *between, *lines(rejected, "rejected")]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="workdir of experiments.dpo or online_dpo")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--split", default="all", choices=("train", "test", "all"))
    parser.add_argument("--limit", type=int, default=8, help="most pairs")
    parser.add_argument("--beams", type=int, default=0, help="beam search on the prompts; 0: none")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        model, kind = pair_scores.load_scorer(options.run)
        if kind != "implicit":
            raise ValueError(f"{options.run} is a reward model with a head: tokens have no credit; give a run of dpo")
        records = pair_scores.read_pairs(options.data, options.path, options.split, options.limit, options.data_dir)
        prompts = [record["prompt"] for record in records]
        sides = [
            credits_of(model, [prompt_of(r, k) for r in records], [r["responses"][k] for r in records]) for k in (0, 1)
        ]
        beams = searched(model, prompts, options.beams) if options.beams else [[] for _ in records]
    except (ValueError, OSError) as error:
        print(f"experiments.tools.token_credit: {error}", file=sys.stderr)
        return 2
    for chosen, rejected, found in zip(*sides, beams, strict=True):
        print("\n".join(shown(chosen, rejected)))
        print("".join(f"beam {log_prob:+.4f} {text!r}\n" for text, log_prob in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
