"""Online DPO in torch float64: judge, pairs, loss, moving reference, from recorded samples; no jax, no rl_jax.

R   = reward(text) - penalty for a row without EOS;   (w, l) = (argmax, argmin) of a prompt's samples, no pair if equal
L   = dpo_step's, with the reference of the step;      ref <- (1 - rate) ref + rate pi behind the step's updates
"""

from typing import NamedTuple

import torch

from tests.step_checks import dpo_step, forward


class Settings(NamedTuple):
    """The numbers of a run; `loss` those of dpo_step."""

    loss: dpo_step.Settings
    rate: float = 0.4
    penalty: float = 0.75
    limit: int = 4


class Prompt(NamedTuple):
    """A prompt's ids and those of its samples."""

    ids: tuple[int, ...]
    samples: list[tuple[int, ...]]


def reward(prompt, completion, info) -> dict:
    """For config.reward.function: one of three levels, so that all samples of some prompts are equal."""
    return {"reward": level(completion)}


def level(text: str) -> float:
    return (sum(map(ord, text)) % 3) / 2.0


def scores_of(prompt: Prompt, alphabet: str, s: Settings, without: str = "") -> list[float]:
    """The judge's score of each sample, less the penalty."""
    result = []
    for ids in prompt.samples:
        text = "".join(alphabet[i - 3] for i in ids if i > 2)
        cut = len(ids) == s.limit and ids[-1] != 2
        result.append(level(text) - s.penalty * (cut and without != "penalty of cut rows"))
    return result[1:] + result[:1] if without == "scores of their own samples" else result


def pair_of(prompt: Prompt, alphabet: str, s: Settings, without: str = "") -> tuple | None:
    """(prompt ids, chosen ids, rejected ids): the best sample against the worst; None if all are equal."""
    scores = scores_of(prompt, alphabet, s, without)
    best = max(range(len(scores)), key=lambda k: (scores[k], -k))
    worst = min(range(len(scores)), key=lambda k: (scores[k], -k))
    if without == "best against worst":
        best, worst = sorted((0, 1), key=lambda k: -scores[k])
    if scores[best] == scores[worst]:
        return None
    return list(prompt.ids), list(prompt.samples[best]), list(prompt.samples[worst])


def replay(start: dict, steps: list[list[list[Prompt]]], alphabet: str, settings: Settings, without: str = ""):
    """(params after all updates, metrics of each update, params before each step).

    Args:
      start: params, nested.
      steps: of each step, of each update: its prompts.
      alphabet: of the tokenizer.
      settings: of the run.
      without: a term to leave out or to get wrong (TERMS).
    """
    s, params = settings, forward.leaves(start)
    reference = {path: x.detach().clone() for path, x in params.items()}
    adam = forward.optimizer_of(params, s.loss.optimizer, without)
    metrics, before, update = [], [], 0

    def move():
        for path, x in reference.items():
            rate = {"moving reference": 0.0, "rate of the reference": 1.0}.get(without, s.rate)
            reference[path] = (1 - rate) * x + rate * params[path].detach()

    for updates in steps:
        before.append({path: x.detach().clone() for path, x in params.items()})
        if without == "reference of the step":  # of the policy that has made it
            reference = {path: x.clone() for path, x in before[-1].items()}
        for prompts in updates:
            pairs = [pair for prompt in prompts if (pair := pair_of(prompt, alphabet, s, without))]
            if without == "chosen before rejected":
                pairs = [(ids, lost, won) for ids, won, lost in pairs]
            loss, found = dpo_step.loss_of(params, reference, pairs, s.loss, without)
            lr = forward.rate_of(update, s.loss.rate, without)
            share = len(pairs) / len(prompts) if without == "mean over pairs that are there" else 1.0
            norm = adam.step((0.5 if without == "one division" else share) * loss, lr)
            metrics.append(found | {"loss": loss.item(), "grad_norm": norm, "lr": lr})
            update += 1
            if without == "reference moves after the step":
                move()
        if without != "reference moves after the step":
            move()
    return params, metrics, before


def sampled_log_probs(params: dict, prompts: list[Prompt], temperature: float, sizes: dict) -> list[torch.Tensor]:
    """Of each sample's tokens, under softmax(logits / temperature)."""
    rows = [(list(prompt.ids), list(ids)) for prompt in prompts for ids in prompt.samples]
    with torch.no_grad():
        return forward.score(params, rows, temperature=temperature, **sizes)[0]


TERMS = (
    *("beta", "reference", "reference of its own", "reference of the same row", "noise of labels", "regularizer"),
    *("chosen before rejected", "penalty of cut rows", "scores of their own samples", "best against worst"),
    *("moving reference", "rate of the reference", "reference of the step", "reference moves after the step"),
    *("mean over pairs that are there", *forward.OF_UPDATES),
)
