"""Whole methods of configs/methods, put together from other people's functions: rewards in, loss and gradient out.

A `Case` is a batch; what takes it and advantages [B, T] answers (loss, gradient [B, T] with respect to log_probs), in
float64. verl 0.9.1 and TRL 1.16.0 are called wherever they have the part; what neither has is written here from the
paper, with its arXiv id. Nothing here imports rl_jax. tests/losses/test_whole_methods.py has the table of methods.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import rlax
import scipy.stats
import torch

from tests.oracles import trl, verl
from tests.oracles.arrays import tensor, value_and_gradient

GROUP, GROUPS, LENGTH = 8, 5, 12  # as in configs/tasks/arithmetic.py: what a method's config reads is not overridden
ROWS = GROUP * GROUPS
BINS = {"low": -0.5, "high": 1.0, "num_bins": 51, "padding": 3}
# What the steps before this one have measured.
MEASURED = ({"kl/k1": 0.3, "entropy": 0.15}, {"kl/k1": 0.02, "entropy": 0.3}, {"kl/k1": 0.16, "entropy": 0.1})


class Case(NamedTuple):
    """A ragged batch, float32 [B, T] unless said. The policy that sampled, the one before the updates and the one that
    is differentiated are three different ones.

    truncated: bool [B]. rewards, greedy_rewards: [B]. components: [B, 2]. values: [B, T + 1] of the critic before its
    updates; predictions [B, T] and logits [B, T, bins]: what it says now. tokens: int32 [B, T]. history: of the steps
    before this one, their rewards [B] and what they measured.
    """

    log_probs: np.ndarray
    old_log_probs: np.ndarray
    behavior_log_probs: np.ndarray
    ref_log_probs: np.ndarray
    entropy: np.ndarray
    mask: np.ndarray
    truncated: np.ndarray
    rewards: np.ndarray
    greedy_rewards: np.ndarray
    components: np.ndarray
    values: np.ndarray
    predictions: np.ndarray
    logits: np.ndarray
    tokens: np.ndarray
    history: tuple[tuple[np.ndarray, dict[str, float]], ...]


AROUND = np.array([0.97, 1.03])  # on both sides of a bound


def make_case(seed: int) -> Case:
    """Ratios from .04 to 27 for both signs of the advantage, and sampler weights beyond every band.

    Rewards are from 0 to 1: a group of zeros and ones, one of anything, one with a single right answer, one with a
    single wrong one, and one of zeros. Means and sums over rows seldom lie near their bounds: some are put there.
    """
    rng = np.random.default_rng(seed)
    rewards = _rewards(rng)
    sign = np.sign(rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1)
    up, down = (rng.permutation(np.flatnonzero(sign == s)) for s in (1, -1))
    lengths = np.where(rng.random(ROWS) < 0.2, LENGTH, rng.integers(1, LENGTH + 1, ROWS))
    lengths[up[10]], lengths[down[7]] = 10, LENGTH
    mask = np.arange(LENGTH) < lengths[:, None]
    mask[down[6]] = np.arange(LENGTH) % 2 == 0  # a hole, as where a tool has spoken

    log_ratio, old = rng.uniform(-0.9, 0.9, mask.shape), rng.uniform(-2.4, -1.0, mask.shape)
    far = rng.choice([0, 1, -1], mask.shape, p=[0.77, 0.15, 0.08])
    far_ratio, near_one = rng.uniform(1.0, 3.3, mask.shape), rng.uniform(-1.5, -0.05, mask.shape)
    log_ratio = np.where(far == 0, log_ratio, far * far_ratio)
    old = np.where(far == 1, near_one - far_ratio, np.where(far == -1, near_one, old))
    for rows, bounds in [(up, (4e-4, 2.5e-3)), (down, (-3e-4, -2e-3))]:  # of gspo and luspo
        planted = rows[:4]
        log_ratio[planted] = rng.uniform(-0.45, 0.45, (4, LENGTH))
        old[planted] = rng.uniform(-2.4, -1.0, (4, LENGTH))
        _shift(log_ratio, mask, planted, np.log1p(np.outer(bounds, AROUND).reshape(-1)))
    # From a probability of .3 by .15 (dppo_tv), and by a binary KL of .05 (dppo_kl).
    old[up[10], 6:10] = np.log(0.3)
    log_ratio[up[10], 6:10] = np.log(np.append(0.3 + 0.15 * AROUND, [0.4522, 0.4566]) / 0.3)

    stale = np.where(rng.random((ROWS, 1)) < 0.5, rng.uniform(-1.6, 2.4, (ROWS, 1)), 0.0)
    gap = stale + rng.uniform(-1.2, 1.2, mask.shape)
    _shift(gap, mask, up[4:8], np.log(np.outer([0.5, 5.0], AROUND).reshape(-1)))
    _shift(gap, mask, up[8:10], np.log(3.0 * AROUND) / mask[up[8:10]].sum(axis=1))
    _shift(gap + log_ratio, mask, down[4:6], -1e-4 * AROUND, into=gap)  # of the policy that is differentiated
    gap[up[10], :6] = np.log(np.outer([0.5, 2.0, 5.0], AROUND).reshape(-1))

    values = rng.uniform(0.0, 0.8, (ROWS, LENGTH + 1))
    arrays = {
        "log_probs": old + log_ratio,
        "old_log_probs": old,
        "behavior_log_probs": old - gap,
        "ref_log_probs": old + log_ratio + rng.uniform(-0.8, 0.8, mask.shape),
        "entropy": rng.uniform(0.0, 2.0, mask.shape),
        "rewards": rewards.reshape(-1),
        "greedy_rewards": np.repeat(rng.random(GROUPS) < 0.5, GROUP),
        "components": np.stack([rewards.reshape(-1), rng.random(ROWS) < 0.6], axis=1),
        "values": values,
        "predictions": values[:, :-1] + rng.uniform(-0.5, 0.5, mask.shape),
        "logits": rng.normal(size=(*mask.shape, BINS["num_bins"])),
    }
    arrays["tokens"] = _tokens(seed, mask)
    history = tuple((np.float32(rng.random(ROWS)), measured) for measured in MEASURED)
    arrays = {name: x if name == "tokens" else np.float32(x) for name, x in arrays.items()}
    return Case(**arrays, mask=mask, truncated=mask.sum(axis=1) == LENGTH, history=history)


def _tokens(seed: int, mask: np.ndarray) -> np.ndarray:
    """int32 [B, T] of a vocabulary of 6; rows of a group often begin, and end, in the same way."""
    rng = np.random.default_rng([seed, 1])
    tokens = rng.integers(0, 6, mask.shape)
    for row, held in enumerate(mask):
        first, last = rng.integers(0, 5, 2)
        begin, end = np.flatnonzero(held)[:first], np.flatnonzero(held)[held.sum() - last :]
        tokens[row, begin] = np.arange(len(begin))
        tokens[row, end] = np.arange(6, 6 - len(end), -1)[::-1][: len(end)] - 1
    return tokens.astype(np.int32)


def _rewards(rng) -> np.ndarray:
    place = np.arange(GROUP)
    anything = rng.uniform(0.0, 1.0, GROUP) * (place > 1)
    kinds = (place < rng.integers(2, 5), anything, place == 0, place > 0, 0 * place)
    return np.stack([rng.permutation(x) for x in kinds]).astype(np.float64)


def _shift(x, mask, rows, means, *, into=None) -> None:
    """Give each of the rows [N] of x [B, T] its mean [N] over the mask; what that takes is added to `into`, or to x."""
    for row, mean in zip(rows, means, strict=True):
        (x if into is None else into)[row] += mean - x[row][mask[row]].mean()


# --- Parts -----------------------------------------------------------------------------------------------------------

ROW_MEAN, ROW_SUM, TOKEN_MEAN = "seq-mean-token-mean", "seq-mean-token-sum", "token-mean"
K3 = ("low_var_kl", 0.04)


def advantage(case: Case, name: str = "grpo", rewards=None, *, group_size: int = GROUP, **arguments) -> np.ndarray:
    """verl's advantages [B, T]."""
    rewards = np.float64(case.rewards if rewards is None else rewards)
    return verl.advantage(name, rewards, case.mask, group_size=group_size, **arguments)[0]


def centred(case: Case, rewards=None, **arguments) -> np.ndarray:
    """verl's R - mean_g on the tokens."""
    return advantage(case, rewards=rewards, norm_adv_by_std_in_grpo=False, **arguments)


def groups(case: Case) -> np.ndarray:
    return np.float64(case.rewards).reshape(GROUPS, GROUP)


def on_tokens(case: Case, advantages) -> np.ndarray:
    """[B], or groups of it, on the tokens of the rows."""
    return np.reshape(advantages, (-1, 1)) * case.mask


def token_rewards(case: Case, coef: float, rewards=None) -> np.ndarray:
    """The reward on the last token, and off each token coef k1, as in verl's apply_kl_penalty."""
    last = case.mask & (np.cumsum(case.mask[:, ::-1], axis=1)[:, ::-1] == 1)
    penalty, _ = verl.kl_penalty(case.old_log_probs, case.ref_log_probs, "k1")
    return last * np.float64(case.rewards if rewards is None else rewards)[:, None] - coef * penalty * case.mask


def by_verl(case: Case, advantages, name="vanilla", mode=ROW_MEAN, *, kl=None, weights=None, mask=None, **settings):
    """verl's policy loss, and its KL penalty of (kind, coefficient). The dual clip, which it always has, is far off."""
    mask = case.mask if mask is None else mask
    settings = {"clip_ratio_c": 1e9} | settings
    arrays = (case.log_probs, case.old_log_probs, advantages, mask)
    value, gradient = verl.policy_loss(name, *arrays, loss_agg_mode=mode, rollout_is_weights=weights, **settings)
    return plus_kl(case, value, gradient, mode, mask, *kl) if kl else (value, gradient)


def plus_kl(case: Case, value, gradient, mode, mask, kind, coef, *, other=None, where=1.0):
    """coef * verl's penalty between the policy and the reference (or `other`), aggregated by verl, added."""
    penalty, slope = verl.kl_penalty(case.log_probs, case.ref_log_probs if other is None else other, kind)
    penalty, coefficients = verl.aggregate(where * penalty, mask, mode)
    return value + coef * penalty, gradient + coef * coefficients * slope * where


def by_trl(case: Case, advantages, loss=trl.grpo_loss, **settings):
    """TRL's loss; its "grpo" is the mean of row means, and its KL has no ratio in it unless a row asks for that."""
    if loss is trl.grpo_loss:
        settings = {"loss_type": "grpo", "use_bias_correction_kl": False, "entropy": case.entropy} | settings
        settings["ref_log_probs"] = case.ref_log_probs
    return loss(case.log_probs, case.old_log_probs, advantages[:, 0], case.mask, **settings)


def importance_weighted(case: Case, bound: float, old_log_probs, advantages=None, mode=ROW_MEAN):
    """verl's REINFORCE with truncated weights of the current policy over `old_log_probs` (its bypass mode)."""
    correction = {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": bound}
    case = case._replace(old_log_probs=old_log_probs)
    advantages = advantage(case) if advantages is None else advantages
    return by_verl(case, advantages, "bypass_mode", mode, rollout_correction=correction)


def sampler_weights(case: Case, **arguments) -> np.ndarray:
    """verl's weights [B, T] of the trainer over the sampler."""
    return verl.rollout_weights(case.old_log_probs, case.behavior_log_probs, case.mask, **arguments)


def by_group(loss: Callable, case: Case, advantages, **settings):
    """The mean over the groups of the loss that each has alone."""
    parts = []
    for rows in np.split(np.arange(len(case.mask)), GROUPS):
        part = case._replace(**{name: getattr(case, name)[rows] for name in case._fields if name != "history"})
        parts.append(loss(part, advantages[rows], **settings))
    return np.mean([value for value, _ in parts]), np.concatenate([gradient for _, gradient in parts]) / GROUPS


def estimate(case: Case, *, coef: float = 0.05, lam=0.95, rewards=None):
    """verl's GAE: whitened advantages and returns."""
    rewards = token_rewards(case, coef, rewards)
    values = np.float64(case.values[:, :-1])
    return verl.advantage("gae", None, case.mask, token_rewards=rewards, values=values, gamma=1.0, lam=lam)


def within_band(case: Case) -> np.ndarray:
    """OpenRLHF's sequence mask; verl bounds the inverse of the weight."""
    arrays = (case.old_log_probs, case.behavior_log_probs, case.mask)
    return sampler_weights(case, threshold=1e9) * verl.rejection_mask(*arrays, "seq_mean_k1", threshold="0.2_2.0")


def opsm(case: Case):
    """TRL's mask of the current policy."""
    arrays = (case.log_probs, case.behavior_log_probs, case.mask)
    kept = trl.off_policy_mask(advantage(case)[:, 0], *arrays, threshold=1e-4)
    return by_trl(case, advantage(case), beta=0.04, importance_sampling_ratio=kept[:, None])


def tapered(case: Case) -> np.ndarray:
    """arXiv 2503.14286: wrong answers weigh the product of their ratios, up to 1."""
    ratios = verl.rollout_weights(case.log_probs, case.old_log_probs, case.mask, level="sequence", threshold=1.0)
    return np.where(centred(case) < 0, ratios, 1.0)


def by_component(case: Case) -> np.ndarray:
    """TRL's normalize_then_sum: verl's norm of each component over its groups, and of their sum over the batch."""
    total = sum(advantage(case, rewards=x, epsilon=1e-4)[:, 0] for x in case.components.T)
    return advantage(case, rewards=total, group_size=ROWS, epsilon=1e-4)


def over_batch_std(case: Case) -> np.ndarray:
    """arXiv 2508.08221: the group's mean off, over the std of all rewards of the batch."""
    return centred(case) / (np.std(np.float64(case.rewards), ddof=1) + 1e-6)


def length_adaptive(case: Case):
    """lambda of the row's length for the advantages, 1 for the returns."""
    of_policy = estimate(case, coef=0.0, lam=length_lambda(case))
    return of_policy[0], estimate(case, coef=0.0, lam=1.0)[1]


# --- What neither framework has --------------------------------------------------------------------------------------


def punished(case: Case) -> np.ndarray:
    """DAPO's soft punishment, arXiv 2503.14476 eq. 13: a limit of 12 tokens, of which the last 2 are the buffer."""
    return np.float64(case.rewards) + np.minimum(-(case.mask.sum(axis=1) - 10) / 2, 0)


def loo_std(case: Case) -> np.ndarray:
    """NeMo-RL's calculate_baseline_and_std_per_prompt (conventions.md 3.3)."""
    result = []
    for group in groups(case):
        for i, reward in enumerate(group):
            others = np.delete(group, i)
            std = others.std(ddof=1)
            result.append((reward - others.mean()) / (std + 1e-6 if std > 0 else 1.0))
    return on_tokens(case, result)


def maxrl(case: Case) -> np.ndarray:
    """arXiv 2602.02710: the reward over the pass rate, less 1."""
    return on_tokens(case, [(g - g.mean()) / g.mean() if g.any() else 0 * g for g in groups(case)])


def beta_normalised(case: Case) -> np.ndarray:
    """arXiv 2506.02864: R - p over the density at p of a Beta that is fitted to the pass rates by their moments."""
    p = groups(case).mean(axis=1)
    mu, size = p.mean(), p.mean() * (1 - p.mean()) / p.var(ddof=1) - 1
    alpha, beta = max(1 + size * mu / 3, 1), max(1 + size * (1 - mu) / 3, 1)
    density = np.maximum(scipy.stats.beta.pdf(p, alpha, beta), 1e-6)
    return on_tokens(case, (groups(case) - p[:, None]) / density[:, None])


def pass_at_4(case: Case) -> np.ndarray:
    """arXiv 2508.10751 by its definition: over all subsets of 4, those with the answer against all of them."""
    result = []
    for group in groups(case):
        subsets = list(itertools.combinations(range(GROUP), 4))
        best = np.array([max(group[list(s)] > 0.5) for s in subsets], np.float64)
        std = np.sqrt(best.mean() * (1 - best.mean())) + 1e-6
        result += [(best[[i in s for s in subsets]].mean() - best.mean()) / std for i in range(GROUP)]
    return on_tokens(case, result)


def m2po(case: Case):
    """arXiv 2510.01161, algorithm 1: verl's ratio over the sampler without a clip, on the tokens left when the largest
    squares of those that are pushed away from it are dropped one by one, until their mean is < .04."""
    moved = np.float64(case.log_probs) - case.behavior_log_probs
    pushed = case.mask & (np.sign(moved) == np.sign(advantage(case))) & (moved != 0)
    left = pushed.copy()
    while left.any() and np.square(moved[left]).mean() >= 0.04:
        left.flat[np.argmax(np.where(left, np.square(moved), -1))] = False
    case, far = case._replace(old_log_probs=case.behavior_log_probs), {"clip_ratio_low": 1e9, "clip_ratio_high": 1e9}
    return by_verl(case, advantage(case), mode=TOKEN_MEAN, weights=1.0 - (pushed & ~left), **far)


def one_sided(case: Case) -> np.ndarray:
    """REC-OneSide, arXiv 2509.24203: where PPO's clip would let a token move."""
    ratio = np.exp(np.float64(case.log_probs) - case.old_log_probs)
    return np.where(centred(case) > 0, ratio <= 1.2, ratio >= 0.8) * 1.0


def scaled_rewards(case: Case) -> np.ndarray:
    """arXiv 2307.04964: over the std of every reward so far, these ones included."""
    seen = np.concatenate([rewards for rewards, _ in case.history] + [case.rewards])
    return np.clip(case.rewards / np.float64(seen).std(ddof=1), -10, 10)


def over_baseline(case: Case) -> np.ndarray:
    """R - b; b is .9 of itself and .1 of a step's mean reward, from the first step's on (Williams, 1992)."""
    means = [np.float64(rewards).mean() for rewards, _ in case.history]
    baseline = means[0]
    for mean in means[1:]:
        baseline = 0.9 * baseline + 0.1 * mean
    return on_tokens(case, np.float64(case.rewards) - baseline)


def entropy_coef() -> float:
    """Skywork-OR1's controller (arXiv 2505.22312) with TRL's constants; the last entropy was below the target."""
    coef = 0.0
    for measured in MEASURED:
        coef = max(0.0, min(coef + (0.005 if measured["entropy"] <= 0.2 else -0.005), 1.0))
    return coef


def kl_controlled(case: Case) -> float:
    """The coefficient after the steps before, by verl's AdaptiveKLController."""
    coef = 0.05
    for rewards, measured in case.history:
        coef = verl.adaptive_kl(coef, measured["kl/k1"], len(rewards), target=0.1, horizon=10_000)
    return coef


def length_lambda(case: Case) -> np.ndarray:
    """arXiv 2504.05118 with alpha = .5: sum_k lambda^k = .5 n."""
    return 1 - 1 / np.maximum(0.5 * case.mask.sum(axis=1), 1)


def corrected(case: Case):
    """rlax's V-trace (arXiv 1802.01561): advantages and targets. The tokens of a row are moved together; what follows
    them has no reward, no value and no weight."""
    order = np.argsort(~case.mask, axis=1, kind="stable")
    held = np.take_along_axis(case.mask, order, axis=1)
    weight = np.exp(np.float64(case.old_log_probs) - case.behavior_log_probs)
    arrays = (token_rewards(case, 0.0), case.values[:, :-1], weight)
    rewards, values, weight = (np.float32(np.take_along_axis(x, order, axis=1) * held) for x in arrays)
    after = np.concatenate([values[:, 1:], np.zeros_like(values[:, :1])], axis=1)
    of_rows = jax.vmap(rlax.vtrace_td_error_and_advantage, (0, 0, 0, 0, 0, None, None, None))
    found = of_rows(values, after, rewards, np.float32(held), weight, 1.0, 1.0, 1.0)
    back = np.argsort(order, axis=1)
    return tuple(np.take_along_axis(x * held, back, axis=1) for x in (found.pg_advantage, found.errors + values))


def clip_cov(case: Case, upper: float = 5.0):
    """verl's Clip-Cov chooses before the first update, as ours does, and all that are eligible; then verl's PPO.

    Within an update verl would choose anew, from the log-probs of the moment."""
    advantages, start = advantage(case), case._replace(log_probs=case.old_log_probs)
    _, gradient = by_verl(start, advantages, "clip_cov", TOKEN_MEAN, clip_cov_ratio=1.0, clip_cov_ub=upper)
    return by_verl(case, advantages, mode=TOKEN_MEAN, weights=(gradient != 0) * 1.0)


def kl_cov(case: Case, share: float):
    """verl's KL-Cov chooses before the first update, as ours does (seen from where its penalty acts, one nat away)."""
    advantages, settings = advantage(case), {"kl_cov_ratio": share, "mode": TOKEN_MEAN}
    start = case._replace(log_probs=case.old_log_probs, old_log_probs=case.old_log_probs - 1)
    pushed, free = (by_verl(start, advantages, "kl_cov", ppo_kl_coef=c, **settings)[1] for c in (1.0, 0.0))
    chosen = np.abs(pushed - free) > 1e-6
    assert chosen.sum() == max(1, int(share * case.mask.sum()))
    loss = by_verl(case, advantages, "kl_cov", ppo_kl_coef=0.0, **settings)
    return plus_kl(case, *loss, TOKEN_MEAN, case.mask, "abs", 1.0, other=case.old_log_probs, where=chosen)


def hl_gauss(case: Case):
    """(value, gradient [B, T, bins]) of the cross-entropy to a Gaussian's shares of the bins, arXiv 2403.03950
    section 3.1: 45 bins over [-.5, 1] and 3 more beyond each end, sigma .75 of a bin."""
    width = (BINS["high"] - BINS["low"]) / (BINS["num_bins"] - 2 * BINS["padding"])
    steps = torch.arange(BINS["num_bins"] + 1, dtype=torch.float64) - BINS["padding"]
    edges = BINS["low"] + width * steps
    returns = tensor(estimate(case)[1]).clamp(edges[0], edges[-1])
    below = torch.distributions.Normal(returns[..., None], 0.75 * width).cdf(edges)
    shares = below.diff(dim=-1) / (below[..., -1:] - below[..., :1])
    mask = tensor(case.mask)

    def loss(logits):
        return -((shares * logits.log_softmax(dim=-1)).sum(dim=-1) * mask).sum() / mask.sum()

    return value_and_gradient(loss, case.logits)
