"""What control.preferences makes of recorded steps, in numpy and torch float64, from the equations; no jax, no rl_jax.

f     = sum_t gamma^t m_t x_t                                              of a segment, m up to its episode's end
pairs = the greater f first                                                the annotator that never errs
loss  = mean over pairs and members of softplus(f_l - f_w) + c (f_w^2 + f_l^2)           a reward network
r_t   = 1/M sum_k (r_k - mean_k) / std_k                                   over the segments' own steps
loss  = mean softplus(f_l - f_w), x_t = Q*_r(s, a) - V*_r(s)               regret, of a table r [S, A]
loss  = mean softplus(-(u_w - lambda u_l)) + c BC, u = alpha f / n^nu, x_t = log pi(a_t | s_t)    CPL, after BC alone
r_T   = mean_j sigma((R - R_j) / tau)                                      self-play, j the last Q episodes
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import one_hot, softplus

from tests.step_checks import forward


class Fit(NamedTuple):
    """The numbers of a fit to pairs."""

    rate: float = 0.02
    b1: float = 0.8
    b2: float = 0.9
    eps: float = 1e-3
    max_norm: float = 0.3
    discount: float = 0.8
    coef: float = 0.2


class Cpl(NamedTuple):
    """The numbers of CPL."""

    alpha: float = 1.3
    bias: float = 0.6
    discount: float = 0.7
    length_power: float = 0.5
    cloning_coef: float = 0.4


class Table(NamedTuple):
    """The numbers of the regret model."""

    discount: float = 0.9
    temperature: float = 0.3
    iterations: int = 6


OF_FITS = ("clipping", "epsilon", "own minibatches", "all updates", "the preferred first", "segments end")
OF_REWARDS = (*OF_FITS, "discount", "regularizer", "a loss of each member", "mean", "deviation", "of each member",
              "scaled on own steps")  # fmt: skip
OF_REGRETS = (*OF_FITS, "discount", "state values", "values of what follows", "temperature", "all iterations")
OF_CPL = (*OF_FITS, "discount", "cloning first", "cloning", "alpha", "bias", "length")
OF_SELF_PLAY = ("returns over rollouts", "queue over rollouts", "newest", "only what has ended", "own episodes")


# --- Segments ---------------------------------------------------------------------------------------------------------


def cut(rows: dict, length: int, without: str = "") -> dict:
    """observations [N, K, D], actions [N, K], mask [N, K] and rewards [N, K] of consecutive segments."""
    done = rows["terminated"] | rows["truncated"]
    places = [(b, t) for b in range(len(done)) for t in range(0, done.shape[1] - length + 1, length)]
    found = {name: np.stack([rows[name][b, t : t + length] for b, t in places])
             for name in ("observations", "actions", "rewards")}  # fmt: skip
    mask = np.ones((len(places), length), bool)
    for own, (b, t) in zip(mask, places, strict=True):
        ends = np.flatnonzero(done[b, t : t + length])
        if len(ends) and without != "segments end":
            own[ends[0] + 1 :] = False
    return found | {"mask": mask}


def sums(x, mask, discount: float):
    """f of segments: float [..., K] -> [...]."""
    weights = torch.tensor(discount) ** torch.arange(mask.shape[-1])
    return (torch.where(torch.as_tensor(mask), torch.as_tensor(x), 0.0) * weights).sum(-1)


def wrong_labels(scores: np.ndarray, pairs: np.ndarray) -> int:
    """How many pairs have the lesser of two scores first."""
    return int((scores[pairs[:, 0]] < scores[pairs[:, 1]] - 1e-5).sum())


# --- Fits -------------------------------------------------------------------------------------------------------------


def fitted(start: dict, batches: list, loss_of, s: Fit, without: str) -> dict:
    """Params after an update of Adam on each batch of pairs, int [n, 2]."""
    params = forward.leaves(start)
    limit = math.inf if without == "clipping" else s.max_norm
    adam = forward.AdamW(params, b1=s.b1, b2=s.b2, eps=1e-8 if without == "epsilon" else s.eps, max_norm=limit)
    for pairs in batches[:1] if without == "all updates" else batches:
        pairs = batches[0] if without == "own minibatches" else pairs
        adam.step(loss_of(params, pairs[:, ::-1].copy() if without == "the preferred first" else pairs), s.rate)
    return params


def member_rewards(params: dict, observations, actions, num_actions: int) -> torch.Tensor:
    """float [M, ...] of a network with one hidden layer: tanh of a linear map of (o, one-hot a)."""
    seen = one_hot(torch.as_tensor(actions).long(), num_actions).double()
    x = torch.cat([torch.as_tensor(np.float64(observations)), seen], -1)
    found = []
    for k in range(len(params["head/bias"])):
        inner = torch.tanh(x @ params["layer_0/kernel"][k] + params["layer_0/bias"][k])
        found.append((inner @ params["head/kernel"][k] + params["head/bias"][k])[..., 0])
    return torch.stack(found)


def reward_fit(start: dict, segments: dict, batches: list, num_actions: int, s: Fit, without: str = ""):
    """(params, mean [M], std [M]) of the reward network."""
    mask = torch.as_tensor(segments["mask"])
    discount = 1.0 if without == "discount" else s.discount
    coef = 0.0 if without == "regularizer" else s.coef

    def loss_of(params, pairs):
        f = sums(member_rewards(params, segments["observations"], segments["actions"], num_actions), mask, discount)
        if without == "a loss of each member":
            f = f.mean(0, keepdim=True)
        won, lost = f[:, pairs[:, 0]], f[:, pairs[:, 1]]
        return (softplus(lost - won) + coef * (won**2 + lost**2)).mean()

    params = fitted(start, batches, loss_of, s, without)
    with torch.no_grad():
        rewards = member_rewards(params, segments["observations"], segments["actions"], num_actions)
    own = rewards.flatten(1) if without == "scaled on own steps" else rewards[:, mask]
    means, stds = own.mean(1), own.std(1, correction=0)
    if without == "of each member":
        means, stds = means.mean().expand_as(means), stds.mean().expand_as(stds)
    means = torch.zeros_like(means) if without == "mean" else means
    return params, means, torch.ones_like(stds) if without == "deviation" else stds


def learned(reward: tuple, rows: dict, num_actions: int) -> np.ndarray:
    """What PPO is paid, float [B, T]."""
    params, means, stds = reward
    with torch.no_grad():
        rewards = member_rewards(params, rows["observations"], rows["actions"], num_actions)
    return ((rewards - means[:, None, None]) / stds[:, None, None]).mean(0).numpy()


def held_out(reward: tuple, segments: dict, pairs: np.ndarray, num_actions: int, s: Fit) -> dict:
    """Accuracy and margin of the unscaled mean over members."""
    with torch.no_grad():
        rewards = member_rewards(reward[0], segments["observations"], segments["actions"], num_actions).mean(0)
    f = sums(rewards, segments["mask"], s.discount).numpy()
    gaps = f[pairs[:, 0]] - f[pairs[:, 1]]
    return {"reward/accuracy": (gaps > 0).mean(), "reward/margin": gaps.mean()}


def advantages(rewards: torch.Tensor, probs: np.ndarray, t: Table, without: str = "") -> torch.Tensor:
    """Q* - V* of a table [S, A] by value iteration; at temperature 0 the maximum."""
    probs = torch.tensor(np.float64(probs))
    soft = t.temperature and without != "temperature"

    def best(q):
        return t.temperature * torch.logsumexp(q / t.temperature, 1) if soft else q.max(1).values

    q = rewards
    for _ in range(0 if without == "values of what follows" else 1 if without == "all iterations" else t.iterations):
        q = rewards + t.discount * probs @ best(q)
    return q if without == "state values" else q - best(q)[:, None]


def table_fit(start: dict, segments: dict, batches: list, probs: np.ndarray, t: Table, s: Fit, without: str = ""):
    """The table {"rewards": [S, A]} by the regret model."""
    states, actions = torch.tensor(segments["observations"].argmax(-1)), torch.tensor(segments["actions"]).long()
    discount = 1.0 if without == "discount" else s.discount

    def loss_of(params, pairs):
        f = sums(advantages(params["rewards"], probs, t, without)[states, actions], segments["mask"], discount)
        return softplus(f[pairs[:, 1]] - f[pairs[:, 0]]).mean()

    return fitted(start, batches, loss_of, s, without)


def step_log_probs(params: dict, segments: dict) -> torch.Tensor:
    """log pi(a_t | s_t), float [N, K]."""
    x = torch.tensor(np.float64(segments["observations"]))
    x = torch.tanh(x @ params["actor/layer_0/kernel"] + params["actor/layer_0/bias"])
    log_probs = (x @ params["actor/head/kernel"] + params["actor/head/bias"]).log_softmax(-1)
    return log_probs.gather(-1, torch.tensor(segments["actions"]).long()[..., None])[..., 0]


def cpl_fit(start: dict, segments: dict, cloned: list, batches: list, c: Cpl, s: Fit, without: str = ""):
    """(params after cloning, params at the end)."""
    mask = torch.tensor(segments["mask"])
    lengths, coef = mask.sum(1).double(), 0.0 if without == "cloning" else c.cloning_coef
    alpha, bias = 1.0 if without == "alpha" else c.alpha, 1.0 if without == "bias" else c.bias
    discount, nu = 1.0 if without == "discount" else c.discount, 0.0 if without == "length" else c.length_power

    def bc(x, pairs):
        means = -torch.where(mask, x, 0.0).sum(1) / lengths
        return means[pairs].mean()

    def cloning(params, pairs):
        return bc(step_log_probs(params, segments), pairs)

    def loss_of(params, pairs):
        x = step_log_probs(params, segments)
        u = alpha * sums(x, mask, discount) / lengths**nu
        return softplus(bias * u[pairs[:, 1]] - u[pairs[:, 0]]).mean() + coef * bc(x, pairs)

    begun = start
    if without != "cloning first":
        begun = nested(fitted(start, cloned, cloning, s, without))
    return begun, fitted(begun, batches, loss_of, s, without)


def nested(params: dict) -> dict:
    """Flat params by path as `forward.leaves` takes them."""
    result = {}
    for path, x in params.items():
        place = result
        *above, last = path.split("/")
        for name in above:
            place = place.setdefault(name, {})
        place[last] = x.detach().numpy()
    return result


# --- Self-play --------------------------------------------------------------------------------------------------------


def beaten(rollouts: list[dict], size: int, temperature: float, without: str = "") -> list[dict]:
    """The rollouts with the share of the last episodes that each episode beats, paid where it ends."""
    running, queue, result = np.zeros(len(rollouts[0]["rewards"])), [], []
    for rows in rollouts:
        done = rows["terminated"] | rows["truncated"]
        outcomes, ended = np.zeros(done.shape), []
        if without == "returns over rollouts":
            running = np.zeros(len(done))
        if without == "queue over rollouts":
            queue = []
        for t in range(done.shape[1]):
            running = running + np.float64(rows["rewards"][:, t])
            outcomes[:, t] = running
            ended += [running[b] for b in range(len(done)) if done[b, t]]
            running = np.where(done[:, t], 0.0, running)
        before = queue
        queue = (queue + ended)[:size] if without == "newest" else (queue + ended)[-size:]
        against = np.array(before or queue) if without == "own episodes" else np.array(queue)
        rates = (1 / (1 + np.exp(-(outcomes[..., None] - against) / temperature))).mean(-1)
        rates = rates if without == "only what has ended" else np.where(done, rates, 0.0)
        result.append(rows | {"rewards": rates, "terminated": done, "truncated": np.zeros_like(done)})
    return result
