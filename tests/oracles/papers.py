"""Methods that neither verl nor TRL has, in plain loops over numpy and torch from their equations or published code.

Each takes a Case of tests/oracles/methods.py; advantages [B, T] go to verl's loss there. Nothing here imports rl_jax.
"""

import jax
import numpy as np
import torch

from tests.oracles.arrays import tensor, value_and_gradient
from tests.oracles.methods import (
    GROUP,
    GROUPS,
    ROW_MEAN,
    ROWS,
    Case,
    advantage,
    by_verl,
    centred,
    groups,
    on_tokens,
    plus_kl,
    token_rewards,
)  # fmt: skip


def _ratio(case: Case) -> np.ndarray:
    return np.exp(np.float64(case.log_probs) - case.old_log_probs)


# --- arXiv 2509.24203, Trinity-RFT's rec_policy_loss.py and rec_advantage.py ------------------------------------------


def two_sided(case: Case) -> np.ndarray:
    """is_in_range of clip_mode "two-side", times the ratio of weight "importance_sampling"."""
    ratio = _ratio(case)
    return ratio * ((ratio >= 0.8) & (ratio <= 1.2))


def ring(case: Case) -> np.ndarray:
    """is_in_range of clip_mode "ring" with epsilon' = (.6, 2)."""
    ratio, advantages = _ratio(case), centred(case)
    inside = (ratio >= 0.8) & (ratio <= 1.2)
    return (inside | ((advantages >= 0) & (ratio <= 0.4)) | ((advantages <= 0) & (ratio >= 3.0))) * 1.0


def over_soft_baseline(case: Case) -> np.ndarray:
    """OPMD: the reward over the log of the mean of exp(R), half of it, since tau = 1."""
    result = [[(r - np.log(np.mean(np.exp(group)))) / 2.0 for r in group] for group in groups(case)]
    return on_tokens(case, result)


def balanced(case: Case) -> np.ndarray:
    """RED-Drop, with the random numbers of our key: the bad answers with the smallest ones stay."""
    noise = np.asarray(jax.random.uniform(jax.random.fold_in(jax.random.key(0), 3), (GROUPS, GROUP)))
    result = np.zeros((GROUPS, GROUP))
    for g, group in enumerate(groups(case)):
        good = [i for i in range(GROUP) if group[i] >= group.mean()]
        bad = sorted((i for i in range(GROUP) if i not in good), key=lambda i: noise[g, i])
        kept = good + bad[: len(good)]
        result[g, kept] = group[kept] - group[kept].mean()
    return on_tokens(case, result)


# --- arXiv 2509.02333, lime-RL/DCPO ----------------------------------------------------------------------------------


def smooth(case: Case) -> np.ndarray:
    """compute_dcpo_outcome_advantage, after the visits of the history; [GROUPS, GROUP]."""
    means, stds = np.zeros(GROUPS), np.zeros(GROUPS)
    visits = [np.float64(rewards).reshape(GROUPS, GROUP) for rewards, _ in case.history] + [groups(case)]
    for i, rewards in enumerate(visits, start=1):
        for g, group in enumerate(rewards):
            mean, std = group.mean(), group.std(ddof=1)
            var = ((i - 1) * stds[g] ** 2 + std**2 + (i - 1) / i * (mean - means[g]) ** 2) / i
            means[g], stds[g] = ((i - 1) * means[g] + mean) / i, np.sqrt(var)
    result = np.zeros((GROUPS, GROUP))
    for g, group in enumerate(groups(case)):
        for j, reward in enumerate(group):
            new = (reward - group.mean()) / group.std(ddof=1) if group.std(ddof=1) > 1e-9 else 0.0
            total = (reward - means[g]) / stds[g] if stds[g] > 0 else 0.0
            first = total / len(visits) + (1 - 1 / len(visits)) * new
            second = new / len(visits) + (1 - 1 / len(visits)) * total
            result[g, j] = first if abs(first) < abs(second) else second
    return result


def dcpo(case: Case):
    """compute_policy_loss_dcpo with clip_type "dynamic", .16, .2 and 10; row means of tokens, summed."""
    advantages, mask, old = tensor(on_tokens(case, smooth(case))), tensor(case.mask), tensor(case.old_log_probs)
    q = torch.exp(old)
    low = (1 + torch.sqrt(torch.clamp(1 - 4 * 0.16 / q, min=0))) / 2
    high = torch.clamp((1 + torch.sqrt(1 + 4 * 0.2 / q)) / 2, max=10)

    def loss(log_probs):
        ratio = torch.exp(log_probs - old)
        clipped = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, low, high))
        dual = torch.where(advantages < 0, torch.minimum(-advantages * 10, clipped), clipped)
        return ((dual * mask).sum(dim=1) / mask.sum(dim=1)).sum()

    return value_and_gradient(loss, case.log_probs)


# --- arXiv 2510.00911, RTkenny/RiskPO --------------------------------------------------------------------------------


def _papers(rewards, size: int) -> list[list[list[int]]]:
    """For each set of `size` questions the G papers, each a list of rows."""
    sets = [range(start, min(start + size, GROUPS)) for start in range(0, GROUPS, size)]
    return [[[g * GROUP + j for g in questions] for j in range(GROUP)] for questions in sets]


def risk(case: Case, size: int = 4) -> np.ndarray:
    """The tracked quantiles of the steps before, and compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking."""
    quantiles = None
    for rewards, _ in case.history:
        scores = np.array([sum(float(rewards[i]) for i in p) for papers in _papers(rewards, size) for p in papers])
        if quantiles is None:
            quantiles = [np.quantile(scores, 0.2), np.quantile(scores, 0.8)]
        else:
            quantiles = [q + 0.1 * (a - np.mean(scores < q)) for q, a in zip(quantiles, (0.2, 0.8), strict=True)]
    low, high = quantiles
    result = np.zeros(ROWS)
    for papers in _papers(case.rewards, size):
        scores = [sum(float(case.rewards[i]) for i in paper) for paper in papers]
        std = np.std(scores, ddof=1)
        for paper, score in zip(papers, scores, strict=True):
            middle = (max(score - low, 0) - max(score - high, 0) + low - high) / 0.6
            mixed = (1.5 * -max(low - score, 0) / 0.2 + middle) / 2.5
            result[paper] = mixed / (std + 1e-6) if std > 1e-6 else mixed
    return on_tokens(case, result)


# --- arXiv 2505.12366, Optimization-AI/DisCO -------------------------------------------------------------------------


def disco(case: Case):
    """The objective as it is written, its log-sum-exp taken at the scores before the updates; then the hinge.

    With linear scores the objective's gradient there is that of sum_i dJ/ds_i(before) s_i."""
    mask, old, rewards = tensor(case.mask), tensor(case.old_log_probs), np.float64(case.rewards).reshape(GROUPS, GROUP)
    lengths = mask.sum(dim=1)

    def score(log_probs):
        return ((log_probs * mask).sum(dim=1) / lengths).reshape(GROUPS, GROUP)

    def objective(scores):
        total = 0.0
        for s, r in zip(scores, rewards, strict=True):
            right, wrong = s[torch.tensor(r > 0.5)], s[torch.tensor(r <= 0.5)]
            if len(right) and len(wrong):
                total = total + right.mean() - 10.0 * torch.log(torch.exp(wrong / 10.0).mean())
        return total / GROUPS

    _, slopes = value_and_gradient(objective, score(old).numpy())

    def loss(log_probs):
        divergence = ((old - log_probs) * mask).sum() / mask.sum()
        weight = torch.clamp(1e3 * (divergence - 1e-4), min=0).detach()
        return -(tensor(slopes) * score(log_probs)).sum() + weight * divergence

    return value_and_gradient(loss, case.log_probs)


# --- arXiv 2310.00212, thwu1/rlhf_sac (V1) and thwu1/trlx (V2) -------------------------------------------------------


def _pairs(case: Case, of_pair):
    """The mean of of_pair(q, log p_1, log p_2) over all pairs of all groups, and its gradient."""
    rewards, old = token_rewards(case, 0.05).sum(axis=1), tensor(case.old_log_probs)

    def loss(log_probs):
        moved = [((log_probs[row] - old[row])[torch.tensor(case.mask[row])]).sum() for row in range(ROWS)]
        found = []
        for start in range(0, ROWS, GROUP):
            for first in range(start, start + GROUP):
                for second in range(first + 1, start + GROUP):
                    found.append(of_pair(float(rewards[first] - rewards[second]), moved[first], moved[second]))
        return torch.stack(found).mean()

    return value_and_gradient(loss, case.log_probs)


def pairs_apart(case: Case):
    """V1: two of PPO's clips, each weighted by the other answer's ratio within 1/10 and 10; their mean."""

    def of_pair(q, first, second):
        p = (torch.exp(first), torch.exp(second))
        w = [torch.clamp(x, 0.1, 10.0).detach() for x in p]
        one = torch.maximum(-q * w[1] * p[0], -q * w[1] * torch.clamp(p[0], 0.8, 1.2))
        other = torch.maximum(q * w[0] * p[1], q * w[0] * torch.clamp(p[1], 0.8, 1.2))
        return (one + other) / 2

    return _pairs(case, of_pair)


def pairs_jointly(case: Case):
    """V2: the difference of the log ratios is clipped, and weighted by the product of the ratios."""

    def of_pair(q, first, second):
        weight = -q * torch.clamp(torch.exp(first + second), 0.1, 10.0).detach() / 2
        apart = first - second
        return torch.maximum(weight * apart, weight * torch.clamp(apart, -0.2, 0.2))

    return _pairs(case, of_pair)


# --- arXiv 2508.03772, winstonsmith1897/GTPO -------------------------------------------------------------------------


def _run(rows: list[list[int]], good: list[int], bad: list[int], of: int) -> int:
    """How many of the first tokens of row `of` a good and a bad row have in the same place, without a break."""
    for place, token in enumerate(rows[of]):
        sides = [any(len(rows[i]) > place and rows[i][place] == token for i in side) for side in (good, bad)]
        if not all(sides):
            return place
    return len(rows[of])


def gtpo(case: Case, threshold: float = 1.0) -> np.ndarray:
    """Mean entropy off the advantage, or none above the threshold; then prefixes and suffixes, weighed and counted."""
    result = np.zeros(case.mask.shape)
    for start in range(0, ROWS, GROUP):
        index = range(start, start + GROUP)
        advantages = np.float64(case.rewards[start : start + GROUP])
        advantages = advantages - advantages.mean()
        good, bad = ([i for i in range(GROUP) if sign * advantages[i] > 1e-9] for sign in (1, -1))
        rows = [[int(t) for t in case.tokens[i][case.mask[i]]] for i in index]
        columns = [np.flatnonzero(case.mask[i]) for i in index]
        for i, row in enumerate(index):
            entropy = np.float64(case.entropy[row])[case.mask[row]].mean()
            if entropy > threshold:
                continue
            weight, length = np.ones(len(rows[i])), len(rows[i])
            if i in good + bad:
                factor = 2.0 if i in good else 0.0
                first = _run(rows, good, bad, i)
                last = _run([r[::-1] for r in rows], good, bad, i)
                weight[:first] *= factor
                weight[length - last :] *= factor
                count = min(first + last, length)
            else:
                count = 0
            result[row, columns[i]] = weight * (advantages[i] - 0.1 * entropy) / max(count, 1)
    return result


# --- arXiv 2505.18086 ------------------------------------------------------------------------------------------------


def brief(case: Case) -> np.ndarray:
    """The rewards [B] of GRPO-lambda: the best-solved fifth of the groups, one of five here, is to be brief."""
    result, lengths = groups(case).copy(), case.mask.sum(axis=1).reshape(GROUPS, GROUP)
    best = int(np.argmax((result >= 1.0).sum(axis=1)))
    right = result[best] >= 1.0
    mean, std = lengths[best][right].mean(), lengths[best][right].std()
    for i in np.flatnonzero(right):
        result[best, i] *= 1 - 0.6 / (1 + np.exp(-(lengths[best, i] - mean) / std))
    return result.reshape(-1)


# --- arXiv 2410.02743 ------------------------------------------------------------------------------------------------


def macro_estimate(case: Case, n: int = 5):
    """(advantages, returns) on the tokens: GAE over runs of n tokens, rewards summed and values averaged."""
    rewards, advantages, returns = token_rewards(case, 0.05), np.zeros(case.mask.shape), np.zeros(case.mask.shape)
    for row in range(ROWS):
        places = np.flatnonzero(case.mask[row])
        runs = [places[i : i + n] for i in range(0, len(places), n)]
        values = [np.float64(case.values[row])[run].mean() for run in runs] + [0.0]
        carried = 0.0
        for k in reversed(range(len(runs))):
            carried = rewards[row, runs[k]].sum() + values[k + 1] - values[k] + 0.95 * carried
            advantages[row, runs[k]], returns[row, runs[k]] = carried, carried + values[k]
    return advantages, returns


# --- arXiv 2506.21655, Indolent-Kawhi/View-R1 ------------------------------------------------------------------------


def apo(case: Case):
    """experience_maker.py's neg_diff_weights and ppo_actor.py's KL_weights; right answers have the reward 1.

    Of groups with other rewards only the share p that their advantages stand for is known: it is computed from them.
    """
    factors, weights = np.ones((GROUPS, GROUP)), np.ones((GROUPS, GROUP))
    advantages = advantage(case, epsilon=1e-9)
    firsts = advantages.max(axis=1).reshape(GROUPS, GROUP)
    for g, group in enumerate(groups(case)):
        lengths = case.mask[g * GROUP : (g + 1) * GROUP].sum(axis=1)
        right = group >= 1.0
        for i in range(GROUP):
            if not right[i] and right.any() and lengths[i] > lengths[right].mean():
                factors[g, i] += 1 - 1.00001 ** -(lengths[i] - lengths[right].mean())
            if firsts[g, i] > 0:
                binary = set(group) == {0.0, 1.0}
                p = right.mean() if binary else 1 / (1 + firsts[g, i] ** 2 * GROUP / (GROUP - 1))
                weights[g, i] = 1 - np.exp(-np.e * p)
    loss = by_verl(case, advantages * factors.reshape(-1, 1))
    return plus_kl(case, *loss, ROW_MEAN, case.mask, "low_var_kl", 0.001, where=weights.reshape(-1, 1) * case.mask)


# --- arXiv 2505.02835 ------------------------------------------------------------------------------------------------


def three_sigma(case: Case) -> np.ndarray:
    """Standardised over the batch; what is further out than three standard deviations is dropped."""
    rewards = np.float64(case.rewards)
    scores = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    return on_tokens(case, [score if abs(score) <= 3 else 0.0 for score in scores])


# --- arXiv 2412.18279 ------------------------------------------------------------------------------------------------


def _steps(case: Case, row: int, separator: int = 3) -> list[list[int]]:
    """The places of each step of a row."""
    steps = [[]]
    for place in np.flatnonzero(case.mask[row]):
        steps[-1].append(int(place))
        if case.tokens[row, place] == separator:
            steps.append([])
    return [step for step in steps if step]


def step_estimate(case: Case):
    """(advantages, returns) on the tokens: the critic's difference over each step, and the reward of the answer."""
    advantages, returns = np.zeros(case.mask.shape), np.zeros(case.mask.shape)
    for row in range(ROWS):
        steps = _steps(case, row)
        values = [float(case.values[row, step[0]]) for step in steps] + [float(case.rewards[row])]
        for k, step in enumerate(steps):
            advantages[row, step], returns[row, step] = values[k + 1] - values[k], case.rewards[row]
    return advantages, returns


def direct_advantage(case: Case, beta: float = 0.1):
    """Half the squared difference of each step's log ratio and its advantage over beta; their sum over the tokens."""
    advantages, _ = step_estimate(case)
    old = tensor(case.old_log_probs)

    def loss(log_probs):
        total = 0.0
        for row in range(ROWS):
            for step in _steps(case, row):
                ratio = (log_probs[row, step] - old[row, step]).sum()
                total = total + (advantages[row, step[0]] / beta - ratio) ** 2 / 2
        return total / case.mask.sum()

    return value_and_gradient(loss, case.log_probs)


# --- arXiv 2302.08215, naver/disco -----------------------------------------------------------------------------------


def fdpg(case: Case, beta: float = 0.1) -> np.ndarray:
    """Tuner._update_moving_z and FDivergenceLoss with JSLoss's f', step by step; the target is ref exp(R / beta)."""
    total = token_rewards(case, beta).sum(axis=1)  # R - beta log(pi / ref)
    points, past, result = [[] for _ in range(GROUPS)], [], np.zeros(ROWS)
    for rewards in [*(np.float64(rewards) for rewards, _ in case.history), total]:
        baseline, pseudo = np.mean(past[-1024:]) if past else 0.0, np.zeros(ROWS)
        for g in range(GROUPS):
            rows = range(g * GROUP, (g + 1) * GROUP)
            points[g] += [np.exp(rewards[i] / beta) for i in rows]  # P / pi
            z = np.mean(points[g])
            for i in rows:
                t = z / np.exp(rewards[i] / beta)
                pseudo[i] = -np.log(2 * t / (1 + t))
        result, past = pseudo - baseline, past + list(pseudo)
    return on_tokens(case, result)
