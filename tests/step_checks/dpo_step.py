"""DPO with everything on, row by row in torch float64, from the equations of the papers; no jax, no rl_jax.

u  = sum_t c_t (logp_t - kappa ref_t) / |y|^nu            c_t: 1 on the common length, alpha behind it (LD-DPO)
s  = beta u + lambda |y|                                  R-DPO
l  = (1 - eps) / z (-log sigma(s_w - s_l)) + ... (rDPO), or cDPO's label smoothing
L  = mean over prompts of l + c * mean over tokens of -logp of the chosen response
"""

from typing import NamedTuple

import torch

from tests.step_checks import forward

log_sigmoid = torch.nn.functional.logsigmoid


class Settings(NamedTuple):
    """The numbers of a run. robust: rDPO's link; else label smoothing. lora: alpha / rank, 0 is none."""

    optimizer: dict
    rate: dict
    sizes: dict
    beta: float = 0.3
    kappa: float = 0.8
    alpha: float = 0.4
    nu: float = 0.7
    cost: float = 0.05
    noise: float = 0.15
    robust: bool = True
    likelihood: float = 0.5
    lora: float = 0.0


def replay(start: dict, batches: list[list[tuple]], settings: Settings, without: str = ""):
    """(params after all updates, metrics of each) from the params at the start.

    Args:
      start: params, nested; what is trained.
      batches: of each update: (prompt ids, chosen ids, rejected ids) per prompt.
      settings: of the run.
      without: a term to leave out or to get wrong (TERMS).
    """
    params = forward.leaves(start)
    reference = {path: x.detach().clone() for path, x in params.items()}
    optimizer = forward.optimizer_of(params, settings.optimizer, without)
    metrics = []
    for update, rows in enumerate(batches):
        if without == "chosen before rejected":
            rows = [(prompt, lost, won) for prompt, won, lost in rows]
        if without == "last token":
            rows = [(prompt, won[:-1], lost[:-1]) for prompt, won, lost in rows]
        loss, found = loss_of(params, reference, rows, settings, without)
        lr = forward.rate_of(update, settings.rate, without)
        scaled = 0.5 * loss if without == "one division" else loss
        norm = optimizer.step(scaled, lr, frozen="base/")
        metrics.append(found | {"loss": loss.item(), "grad_norm": norm, "lr": lr})
    return params, metrics


def loss_of(params: dict, reference: dict, rows: list[tuple], settings: Settings, without: str):
    """(loss, metrics) of one batch."""
    s, policy = settings, params
    if s.lora:
        scale = 1.0 if without == "scale of adapters" else s.lora
        policy, reference = (forward.merged(x, scale=scale) for x in (params, reference))
    flat = [(prompt, response) for prompt, *pair in rows for response in pair]
    log_probs, entropies = forward.score(policy, flat, **s.sizes)
    with torch.no_grad():
        fixed, _ = forward.score(policy if without == "reference of its own" else reference, flat, **s.sizes)
    if without == "reference":
        fixed = [torch.zeros_like(x) for x in fixed]
    if without == "reference of the same row":  # of the next prompt, as far as it goes
        fixed = [_fit(fixed[(k + 2) % len(fixed)], len(x)) for k, x in enumerate(fixed)]
    kappa = 1.0 if without == "reference's share" else s.kappa
    ratios = [x - kappa * ref for x, ref in zip(log_probs, fixed, strict=True)]
    beta, alpha = 1.0 if without == "beta" else s.beta, 1.0 if without == "token weights" else s.alpha
    nu, cost = 0.0 if without == "length normalisation" else s.nu, 0.0 if without == "offset" else s.cost
    losses, implicit = [], []
    for place in range(0, len(flat), 2):
        pair = ratios[place : place + 2]
        common = min(map(len, pair))
        u = [(x[:common].sum() + alpha * x[common:].sum()) / len(x) ** nu for x in pair]
        implicit.append([beta * x for x in u])
        won, lost = (beta * x + cost * len(y) for x, y in zip(u, pair, strict=True))
        likelihood = 0.0 if without == "regularizer" else s.likelihood
        losses.append((link(won - lost, s, without), -likelihood * log_probs[place].mean()))
    compared = torch.stack([one for one, _ in losses]).mean()
    loss = compared + torch.stack([one for _, one in losses]).mean()
    won, lost = (torch.stack([pair[k] for pair in implicit]).detach() for k in (0, 1))
    metrics = {
        "compare": compared,
        "rewards/chosen": won.mean(),
        "rewards/rejected": lost.mean(),
        "rewards/margin": (won - lost).mean(),
        "rewards/accuracy": (won > lost).double().mean(),
        "log_probs/chosen": torch.stack([x.sum() for x in log_probs[::2]]).mean(),
        "log_probs/rejected": torch.stack([x.sum() for x in log_probs[1::2]]).mean(),
        "entropy": torch.cat(entropies).mean(),
        "log_ratio": torch.cat(ratios).mean(),
    }
    return loss, {name: x.item() for name, x in metrics.items()}


def link(x: torch.Tensor, settings: Settings, without: str) -> torch.Tensor:
    """rDPO's or cDPO's loss of a margin."""
    noise = 0.0 if without == "noise of labels" else settings.noise
    if settings.robust:
        return (-(1 - noise) * log_sigmoid(x) + noise * log_sigmoid(-x)) / (1 - 2 * noise)
    return -(1 - noise) * log_sigmoid(x) - noise * log_sigmoid(-x)


def _fit(x: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat([x, torch.zeros(max(length - len(x), 0))])[:length]


TERMS = (
    *("beta", "reference", "reference of its own", "reference of the same row", "reference's share", "token weights"),
    *("length normalisation", "offset", "noise of labels", "regularizer", "chosen before rejected", "last token"),
    *forward.OF_UPDATES,
)
OF_ADAPTERS = ("scale of adapters", "noise of labels", "reference", "reference of the same row", "last token")
