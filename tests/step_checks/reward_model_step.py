"""A reward model's updates in torch float64, from the equations; no jax, no rl_jax.

r_k   = w h(last token of response k) + b                                one column per member
pairs   l = -(1 - eps) log sigma(r_w - r_l - m) - eps log sigma(-(r_w - r_l - m))
ranked  l = mean over pairs y_i > y_j of -log sigma(r_i - r_j)           InstructGPT
L     = mean over prompts and members of l + c (sum_k r_k)^2
"""

from typing import NamedTuple

import torch

from tests.step_checks import forward

log_sigmoid = torch.nn.functional.logsigmoid


class Settings(NamedTuple):
    """The numbers of a run. members: heads. ranked: the loss of lists, else of pairs with margins."""

    optimizer: dict
    rate: dict
    sizes: dict
    members: int = 1
    ranked: bool = False
    noise: float = 0.1
    centering: float = 0.05


class Row(NamedTuple):
    """A prompt's responses, the best first."""

    prompt: list[int]
    responses: list[list[int]]
    grades: list[float]
    margin: float


def replay(start: dict, batches: list[list[Row]], settings: Settings, without: str = ""):
    """(params after all updates, metrics of each). without: a term to leave out or to get wrong."""
    params = forward.leaves(start)
    optimizer = forward.optimizer_of(params, settings.optimizer, without)
    metrics = []
    for update, rows in enumerate(batches):
        loss, found = loss_of(params, rows, settings, without)
        lr = forward.rate_of(update, settings.rate, without)
        norm = optimizer.step(0.5 * loss if without == "one division" else loss, lr)
        metrics.append(found | {"loss": loss.item(), "grad_norm": norm, "lr": lr})
    return params, metrics


def loss_of(params: dict, rows: list[Row], settings: Settings, without: str):
    """(loss, metrics) of one batch."""
    flat = [row.prompt + response for row in rows for response in row.responses]
    states = forward.hidden(params, flat, **settings.sizes)
    back = 2 if without == "last token" else 1
    ends = torch.stack([states[k, len(ids) - back] for k, ids in enumerate(flat)])
    bias = 0.0 if without == "bias" else params["reward_head/bias"]
    outputs = ends @ params["reward_head/kernel"] + bias
    members = outputs.shape[1:][0] if without != "all members" else 1
    compared, sums, gaps, place = [], [], [], 0
    for row in rows:
        rewards = outputs[place : place + len(row.responses)]
        place += len(row.responses)
        if without == "best first":
            rewards = rewards.flip(0)
        for member in range(members):
            own = rewards[:, member]
            compared.append((ranked if settings.ranked else paired)(own, row, settings, without))
            sums.append(own.sum() ** 2)
        mean = rewards.mean(1)
        gaps += [
            mean[0] - other for other, grade in zip(mean[1:], row.grades[1:], strict=True) if grade < row.grades[0]
        ]
    centering = 0.0 if without == "centering" else settings.centering
    regularizer = torch.stack(sums).mean()
    loss = torch.stack(compared).mean() + centering * regularizer
    gaps, mean = torch.stack(gaps), outputs.mean(1)
    metrics = {
        "compare": torch.stack(compared).mean(),
        "regularizer": regularizer,
        "reward/mean": mean.mean(),
        "reward/squared": (mean**2).mean(),
        "reward/margin": gaps.mean(),
        "reward/accuracy": (gaps > 0).double().mean(),
    }
    if settings.members > 1:
        metrics["reward/disagreement"] = outputs.std(1, correction=0).mean()
    return loss, {name: x.item() for name, x in metrics.items()}


def paired(rewards: torch.Tensor, row: Row, settings: Settings, without: str) -> torch.Tensor:
    """Bradley-Terry with a margin and label smoothing, [2] -> []."""
    margin = {"margin": 0.0, "margin's sign": -row.margin}.get(without, row.margin)
    noise = 0.0 if without == "noise of labels" else settings.noise
    x = rewards[0] - rewards[1] - margin
    return -(1 - noise) * log_sigmoid(x) - noise * log_sigmoid(-x)


def ranked(rewards: torch.Tensor, row: Row, settings: Settings, without: str) -> torch.Tensor:
    """The mean over pairs of different grades, [K] -> []."""
    grades = [-k for k in range(len(row.grades))] if without == "ties" else row.grades
    pairs = [
        -log_sigmoid(rewards[i] - rewards[j])
        for i, better in enumerate(grades)
        for j, worse in enumerate(grades)
        if better > worse and not (without == "all pairs" and j != i + 1)
    ]
    return torch.stack(pairs).sum() if without == "mean over pairs" else torch.stack(pairs).mean()


SHARED = ("last token", "bias", "best first", "centering")
OF_PAIRS = ("margin", "margin's sign", "noise of labels", "all members", *forward.OF_UPDATES)
OF_RANKINGS = ("ties", "all pairs", "mean over pairs")
