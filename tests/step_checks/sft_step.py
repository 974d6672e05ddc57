"""Supervised fine-tuning in torch float64: the mean of -logp over the marked tokens of all rows; no jax, no rl_jax."""

import torch

from tests.step_checks import forward


def replay(start: dict, batches: list[list[tuple]], optimizer: dict, rate: dict, sizes: dict, without: str = ""):
    """(params after all updates, metrics of each).

    Args:
      start: params, nested.
      batches: of each update: (prompt ids, completion ids, whether each completion token counts) per row.
      optimizer: of forward.optimizer_of.
      rate: of forward.rate_of.
      sizes: of forward.score.
      without: a term to leave out or to get wrong (TERMS).
    """
    params = forward.leaves(start)
    adam, metrics = forward.optimizer_of(params, optimizer, without), []
    for update, rows in enumerate(batches):
        if without == "end of a row":
            rows = [(prompt, ids[:-1], marks[:-1]) for prompt, ids, marks in rows]
        scores, entropies = forward.score(params, [row[:2] for row in rows], **sizes)
        marks = [torch.tensor(row[2]) for row in rows]
        if without == "holes":
            marks = [torch.ones_like(mark) for mark in marks]
        if without == "mask in its place":
            marks = [mark.roll(1) for mark in marks]
        losses = [-x[mark] for x, mark in zip(scores, marks, strict=True)]
        loss = torch.cat(losses).mean()
        if without == "mean over tokens":
            loss = torch.stack([x.mean() for x in losses]).mean()
        if without == "one division of micro-batches":  # row i is in micro-batch i % 2
            loss = sum(torch.cat(losses[k::2]).mean() for k in range(2)) / 2
        lr = forward.rate_of(update, rate, without)
        norm = adam.step(0.5 * loss if without == "one division" else loss, lr)
        entropy = torch.cat([x[mark] for x, mark in zip(entropies, marks, strict=True)]).mean()
        metrics.append({"loss": loss.item(), "entropy": entropy.item(), "grad_norm": norm, "lr": lr})
    return params, metrics


TERMS = (
    *("end of a row", "holes", "mask in its place", "mean over tokens", "one division of micro-batches"),
    *forward.OF_UPDATES,
)
