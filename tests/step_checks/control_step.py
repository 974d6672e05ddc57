"""PPO in environments from recorded steps, in numpy and torch float64, from the equations; no jax, no rl_jax.

o'  = clip((o - mean) / std, -10, 10)               moments of all observations before this rollout
r'  = clip(r / std of discounted returns, -10, 10)  moments that have seen this rollout
A_t = r' + gamma (1 - terminated) V' - V + gamma lambda (1 - done) A_{t+1},   G = A + V,   A whitened
L   = mean max(-A q, -A clip(q, 1 -+ .2)) + k q (1/q - 1 + log q) - e H + c max((V - G)^2, (clip V - G)^2) / 2
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from tests.step_checks import forward


class Settings(NamedTuple):
    """The numbers of a run. updates: of the whole run, for the learning rate's linear decay."""

    updates: int
    epochs: int = 2
    minibatches: int = 2
    discount: float = 0.9
    lam: float = 0.8
    clip: float = 0.2
    value_clip: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.05
    kl_coef: float = 0.3
    max_norm: float = 0.5
    rate: float = 0.03
    final: float = 0.2
    b1: float = 0.8
    b2: float = 0.9
    eps: float = 1e-3
    normalize: bool = True  # the observations


class Moments:
    """Mean and standard deviation of all samples so far: they are kept, which is slow and plain."""

    def __init__(self):
        self._seen = []

    def add(self, x: np.ndarray) -> None:
        self._seen.append(x)

    @property
    def mean(self):
        return np.concatenate(self._seen).mean(0) if self._seen else 0.0

    @property
    def std(self):
        if not self._seen:
            return 1.0
        spread = np.concatenate(self._seen).std(0, ddof=1)
        return np.where(spread > 0, spread, 1.0)


def network(params: dict, name: str, x: torch.Tensor) -> torch.Tensor:
    """Two linear layers with a tanh between them."""
    x = torch.tanh(x @ params[f"{name}/layer_0/kernel"] + params[f"{name}/layer_0/bias"])
    return x @ params[f"{name}/head/kernel"] + params[f"{name}/head/bias"]


def replay(start: dict, rollouts: list[dict], orders: list[np.ndarray], settings: Settings, without: str = ""):
    """(params after all updates, metrics of each, outputs of the acting policy in each).

    Args:
      start: params, nested.
      rollouts: of each update, arrays [B, T, ...] by the names of Transitions.
      orders: of each update, int [epochs, B T].
      settings: of the run.
      without: a term to leave out or to get wrong (TERMS).
    """
    s, params = settings, forward.leaves(start)
    limit = math.inf if without == "clipping" else s.max_norm
    adam = forward.AdamW(params, b1=s.b1, b2=s.b2, eps=1e-8 if without == "epsilon" else s.eps, max_norm=limit)
    moments, scale, carried = Moments(), Moments(), np.zeros(len(rollouts[0]["rewards"]))
    metrics, outputs, turn = [], [], 0
    total = s.updates * s.epochs * s.minibatches
    for rows, order in zip(rollouts, orders, strict=True):
        if without == "normaliser of before the rollout":
            moments.add(_flat(rows["observations"]))
        plain = without == "normalised observations" or not s.normalize
        mean, std = (0.0, 1.0) if plain else (moments.mean, moments.std)
        seen, following = (
            torch.tensor(np.clip((np.float64(rows[name]) - mean) / std, -10, 10))
            for name in ("observations", "next_observations")
        )
        if without != "normaliser of before the rollout":
            moments.add(_flat(rows["observations"]))
        rewards, carried = scaled_rewards(rows, scale, carried, s, without)
        with torch.no_grad():
            values, ahead = (network(params, "critic", x)[..., 0].numpy() for x in (seen, following))
            outputs.append(network(params, "actor", seen).numpy())
        advantages, returns = estimate(rewards, values, ahead, rows, s, without)
        if without != "whitening":
            advantages = (advantages - advantages.mean()) / np.sqrt(advantages.var() + 1e-8)
        flat = [torch.tensor(x.reshape(-1)) for x in (advantages, returns, values)]
        actions, seen = torch.tensor(rows["actions"].reshape(-1)).long(), seen.flatten(0, 1)
        old = torch.tensor(np.float64(rows["outputs"])).flatten(0, 1).log_softmax(-1)
        old = old[torch.arange(len(actions)), actions]
        turns = []
        epochs = order[:1] if without == "epochs" else order
        parts = epochs.reshape(-1, epochs.shape[1] // (1 if without == "minibatches" else s.minibatches))
        for index in map(torch.tensor, parts):
            batch = (seen[index], actions[index], old[index], *(x[index] for x in flat))
            loss, _ = loss_of(params, batch, s, without)
            step = turn + (without == "learning rate of its own step")
            lr = s.rate if without == "schedule" else s.rate * (1 - (1 - s.final) * min(step / total, 1.0))
            turns.append((loss.item(), adam.step(loss, lr)))
            turn += 1
        _, ended = loss_of(params, batch, s, without)
        found = {"loss": np.mean([x for x, _ in turns]), "grad_norm": np.mean([x for _, x in turns])}
        metrics.append({**found, **ended, "value/mean": values.mean()})
    return params, metrics, outputs


def scaled_rewards(rows: dict, scale: Moments, carried: np.ndarray, s: Settings, without: str):
    """(rewards [B, T] in deviations of the discounted returns so far, the returns of the episodes that go on)."""
    done = rows["terminated"] | rows["truncated"]
    returns = np.zeros(done.shape)
    for t in range(done.shape[1]):
        carried = s.discount * carried + np.float64(rows["rewards"][:, t])
        returns[:, t] = carried
        carried = np.where(done[:, t] & (without != "returns end with episodes"), 0.0, carried)
    if without == "scale that has seen the rollout":
        std = scale.std
        scale.add(returns.reshape(-1))
    else:
        scale.add(returns.reshape(-1))
        std = scale.std
    std = 1.0 if without == "scaled rewards" else std
    return np.clip(rows["rewards"] / std, -10, 10), carried


def estimate(rewards, values, ahead, rows: dict, s: Settings, without: str):
    """GAE: (A, G), float [B, T]."""
    ended, cut = rows["terminated"], rows["truncated"]
    if without == "truncation bootstraps":
        ended = ended | cut
    if without == "termination ends":
        ended = np.zeros_like(ended)
    done = rows["terminated"] | rows["truncated"]
    if without == "episodes are apart":
        done = np.zeros_like(done)
    if without == "value of where the step led to":
        ahead = np.concatenate([values[:, 1:], ahead[:, -1:]], 1)
    lam = 1.0 if without == "lambda" else s.lam
    advantages, following = np.zeros(rewards.shape), np.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + s.discount * np.where(ended[:, t], 0.0, ahead[:, t]) - values[:, t]
        following = delta + s.discount * lam * np.where(done[:, t], 0.0, following)
        advantages[:, t] = following
    return advantages, advantages + values


def loss_of(params: dict, batch: tuple, s: Settings, without: str):
    """(loss, metrics) of one minibatch."""
    seen, actions, old, advantages, returns, values = batch
    log_probs = network(params, "actor", seen).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    own = log_probs[torch.arange(len(actions)), actions]
    ratio, value = (own - old).exp(), network(params, "critic", seen)[:, 0]
    clip = 1e9 if without == "clipped ratio" else s.clip
    policy = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))
    kl = ratio * ((old - own).exp() - 1 - (old - own))
    near = values + (value - values).clamp(-s.value_clip, s.value_clip)
    near = value if without == "clipped value" else near
    critic = torch.maximum((value - returns) ** 2, (near - returns) ** 2) / 2
    coefs = {"entropy": s.entropy_coef, "kl": s.kl_coef, "value loss": s.value_coef}
    coefs |= {without: 0.0} if without in coefs else {}
    loss = (policy + coefs["kl"] * kl - coefs["entropy"] * entropy + coefs["value loss"] * critic).mean()
    return loss, {"entropy": entropy.mean().item(), "value/loss": critic.mean().item()}


def _flat(x: np.ndarray) -> np.ndarray:
    return np.float64(x).reshape(-1, x.shape[-1])


TERMS = (
    *("normalised observations", "normaliser of before the rollout", "scaled rewards", "returns end with episodes"),
    *("scale that has seen the rollout", "truncation bootstraps", "termination ends", "episodes are apart", "lambda"),
    *("value of where the step led to", "whitening", "epochs", "minibatches", "clipped ratio", "clipped value"),
    *("entropy", "kl", "value loss", "clipping", "epsilon", "schedule", "learning rate of its own step"),
)
