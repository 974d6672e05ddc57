"""Advantages, one group and one sample at a time, in float64, as the papers print them."""

import itertools
import math

import numpy as np


def groups_of(rewards, group_size):
    """The rewards cut into lists of `group_size` neighbours."""
    rewards = [float(r) for r in rewards]
    return [rewards[i : i + group_size] for i in range(0, len(rewards), group_size)]


def mean(values):
    """Arithmetic mean."""
    return sum(values) / len(values)


def std(values, ddof):
    """sqrt(sum (x - mean)^2 / (n - ddof))."""
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - ddof))


def group_relative(rewards, group_size, ddof=1, eps=1e-6):
    """DeepSeekMath (2402.03300) section 4.1.2: (r_i - mean(r)) / std(r)."""
    out = []
    for group in groups_of(rewards, group_size):
        equal = max(group) == min(group)
        out += [0.0 if equal else (r - mean(group)) / (std(group, ddof) + eps) for r in group]
    return out


def group_centered(rewards, group_size):
    """Dr. GRPO (2503.20783): r_i - mean(r)."""
    return [r - mean(group) for group in groups_of(rewards, group_size) for r in group]


def leave_one_out(rewards, group_size):
    """RLOO (2402.14740): r_i - 1 / (G - 1) sum_{j != i} r_j."""
    out = []
    for group in groups_of(rewards, group_size):
        for i, r in enumerate(group):
            out.append(r - mean([other for j, other in enumerate(group) if j != i]))
    return out


def group_mean_batch_std(rewards, group_size, ddof=1, eps=1e-6):
    """Lite-PPO (2508.08221): the group's mean, the batch's std."""
    spread = std([float(r) for r in rewards], ddof)
    return [a / (spread + eps) for a in group_centered(rewards, group_size)]


def group_std(rewards, group_size, ddof):
    """The std of each group."""
    return [std(group, ddof) for group in groups_of(rewards, group_size)]


def nemo_leave_one_out(rewards, group_size, eps=1e-6):
    """NeMo-RL: mean and std of the other samples; undivided where those have no spread."""
    out = []
    for group in groups_of(rewards, group_size):
        for i, r in enumerate(group):
            others = [other for j, other in enumerate(group) if j != i]
            equal = max(others) == min(others)
            out.append((r - mean(others)) / (1.0 if equal else std(others, 1) + eps))
    return out


def maxrl(rewards, group_size):
    """MaxRL (2602.02710): (r - mean) / mean."""
    out = []
    for group in groups_of(rewards, group_size):
        out += [(r - mean(group)) / mean(group) if mean(group) > 0 else 0.0 for r in group]
    return out


def opo(rewards, group_size, lengths):
    """OPO (2505.23585): the baseline is the mean with the lengths as weights."""
    out = []
    for group, tokens in zip(groups_of(rewards, group_size), groups_of(lengths, group_size), strict=True):
        baseline = sum(n * r for n, r in zip(tokens, group, strict=True)) / sum(tokens)
        out += [r - baseline for r in group]
    return out


def gpg(rewards, group_size, count_groups=False):
    """GPG (2504.02546): alpha (r - mean)."""
    groups = groups_of(rewards, group_size)
    if count_groups:
        alpha = len(groups) / max(sum(max(group) > min(group) for group in groups), 1)
    else:
        alpha = len(rewards) / max(sum(r != 0 for r in rewards), 1)
    return [alpha * a for a in group_centered(rewards, group_size)]


def batch_relative(rewards, ddof=1, eps=1e-4):
    """z-scores over the batch."""
    return group_relative(rewards, len(rewards), ddof, eps)


def combined_components(components, group_size, weights, ddof, eps):
    """GDPO (2601.05242) before the batch's z-score."""
    out = [0.0] * len(components)
    for k, weight in enumerate(weights):
        column = group_relative([row[k] for row in components], group_size, ddof, eps)
        out = [total + weight * a for total, a in zip(out, column, strict=True)]
    return out


def gdpo(components, group_size, weights, ddof=1, eps=1e-4):
    """GDPO over completions."""
    return batch_relative(combined_components(components, group_size, weights, ddof, eps), ddof, eps)


def beta_normalized(rewards, group_size, low=0.0, high=1.0, max_weight=1e6):
    """BNPO (2506.02864), its density from the gamma function."""
    groups = groups_of([(r - low) / (high - low) for r in rewards], group_size)
    rates = [mean(group) for group in groups]
    alpha = beta = 1.0
    if max(rates) > min(rates):
        mu, variance = mean(rates), std(rates, 1) ** 2
        alpha = max(1 + (mu * (1 - mu) / variance - 1) * mu / 3, 1)
        beta = max(1 + (mu * (1 - mu) / variance - 1) * (1 - mu) / 3, 1)
    out = []
    for group, p in zip(groups, rates, strict=True):
        ratio = math.gamma(alpha + beta) / (math.gamma(alpha) * math.gamma(beta))
        density = ratio * p ** (alpha - 1) * (1 - p) ** (beta - 1)
        out += [(r - p) * (min(1 / density, max_weight) if density else max_weight) for r in group]
    return out


def best_of_group(rewards, group_size, normalize=True, ddof=1, eps=1e-6):
    """2503.19595: what the maximum of the group loses without its best sample."""
    out = []
    for group in groups_of(rewards, group_size):
        first, second = sorted(group, reverse=True)[:2]
        gap = (first - second) / (std(group, ddof) + eps if normalize else 1.0)
        out += [gap if i == group.index(first) else 0.0 for i in range(len(group))]
    return out


def pass_at_k(rewards, group_size, k, threshold=0.5, eps=1e-6):
    """2508.10751 by enumeration: the best reward of every subset of k samples, with the sample in it or not."""
    out = []
    for group in groups_of(rewards, group_size):
        best = {
            subset: max(float(group[i] > threshold) for i in subset)
            for subset in itertools.combinations(range(group_size), k)
        }
        spread = std(list(best.values()), 0)
        for i in range(group_size):
            out.append((mean([r for s, r in best.items() if i in s]) - mean(list(best.values()))) / (spread + eps))
    return out


def on_tokens(rows, mask):
    """One number a row on each of its tokens, 0 behind the mask. [B], [B, T] -> [B, T]."""
    return np.where(mask, np.asarray(rows, np.float64)[:, None], 0.0)


def whiten(x, mask, ddof, eps):
    """(x - mean) / sqrt(var + eps) over the tokens of the mask."""
    values = [float(v) for v in np.asarray(x)[mask]]
    spread = math.sqrt(std(values, ddof) ** 2 + eps)
    return np.where(mask, (np.asarray(x, np.float64) - mean(values)) / spread, 0.0)


def _without_masked(fn, mask, *arrays):
    """fn(row, *arrays of the row with the masked tokens taken out) on each row, put back where the tokens were."""
    out = np.zeros(mask.shape)
    for i, kept in enumerate(mask):
        if kept.any():
            out[i, kept] = fn(i, *([float(v) for v in array[i][kept]] for array in arrays))
    return out


def reward_to_go(token_rewards, mask, discount=1.0):
    """sum_{k >= t} gamma^{k - t} r_k."""

    def row(i, rewards):
        n = len(rewards)
        return [sum(discount ** (k - t) * rewards[k] for k in range(t, n)) for t in range(n)]

    return _without_masked(row, mask, token_rewards)


def gae(token_rewards, values, mask, bootstrap_values, discount=1.0, lam=0.95):
    """1506.02438 eq. 16: sum_l (gamma lambda)^l delta_{t + l}. lam: a number, or one for each row."""
    lam = np.broadcast_to(np.asarray(lam, np.float64), len(mask))

    def row(i, rewards, values):
        n, values = len(rewards), values + [float(bootstrap_values[i])]
        delta = [rewards[t] + discount * values[t + 1] - values[t] for t in range(n)]
        return [sum((discount * lam[i]) ** (k - t) * delta[k] for k in range(t, n)) for t in range(n)]

    return _without_masked(row, mask, token_rewards, values)


def vapo_lambda(mask, alpha):
    """2504.05118: 1 - 1 / (alpha n), not below 0."""
    return [max(1 - 1 / (alpha * n), 0.0) if n else 0.0 for n in mask.sum(axis=1)]


def vtrace(token_rewards, values, mask, ratios, bootstrap_values, discount, lam, clip_rho, clip_c, clip_pg_rho):
    """1802.01561 eq. 1 as a double sum, and the advantages of section 4.2. -> (advantages, targets)."""

    def targets_of(i, rewards, values, rho):
        n, values = len(rewards), values + [float(bootstrap_values[i])]
        out = []
        for s in range(n):
            v = values[s]
            for t in range(s, n):
                trace = math.prod(discount * lam * min(clip_c, rho[j]) for j in range(s, t))
                v += trace * min(clip_rho, rho[t]) * (rewards[t] + discount * values[t + 1] - values[t])
            out.append(v)
        return out

    def advantages_of(i, rewards, values, rho):
        after = targets_of(i, rewards, values, rho)[1:] + [float(bootstrap_values[i])]
        terms = zip(rewards, values, rho, after, strict=True)
        return [min(clip_pg_rho, w) * (r + discount * v - value) for r, value, w, v in terms]

    arrays = token_rewards, values, ratios
    return _without_masked(advantages_of, mask, *arrays), _without_masked(targets_of, mask, *arrays)


def assemble(rewards, kl, mask, kl_coef):
    """-kl_coef k_t on each token, + R on the last one."""
    out = np.zeros(mask.shape)
    for i, kept in enumerate(mask):
        columns = np.flatnonzero(kept)
        for t in columns:
            out[i, t] = -kl_coef * float(kl[i, t]) + (float(rewards[i]) if t == columns[-1] else 0.0)
    return out


def process_supervised(step_rewards, step_ends, mask, group_size, ddof=1, eps=1e-6):
    """2402.03300 section 4.1.3: the normalised rewards of the steps that end at or after the token."""
    out = np.zeros(mask.shape)
    for start in range(0, len(mask), group_size):
        rows = range(start, start + group_size)
        steps = [(i, t, float(step_rewards[i, t])) for i in rows for t in np.flatnonzero(step_ends[i] & mask[i])]
        rewards = [r for _, _, r in steps]
        if len(steps) < 2 or max(rewards) == min(rewards):
            continue
        for i in rows:
            for t in np.flatnonzero(mask[i]):
                later = [(r - mean(rewards)) / (std(rewards, ddof) + eps) for j, end, r in steps if j == i and end >= t]
                out[i, t] = sum(later)
    return out


def optimal_token_baseline(token_rewards, mask, group_size, log_probs, sum_pi_squared, eps=1e-8):
    """G_t - sum G W / sum W over the rows of the prompt that have a token at t; 0 as baseline for one alone."""
    returns = reward_to_go(token_rewards, mask)
    weights, out = np.zeros(mask.shape), np.zeros(mask.shape)
    for i, t in np.argwhere(mask):
        before = [k for k in np.flatnonzero(mask[i]) if k <= t]
        weights[i, t] = sum(1 - 2 * math.exp(log_probs[i, k]) + float(sum_pi_squared[i, k]) for k in before)
    for i, t in np.argwhere(mask):
        start = i - i % group_size
        rows = [j for j in range(start, start + group_size) if mask[j, t]]
        total = sum(weights[j, t] for j in rows) + eps
        baseline = sum(returns[j, t] * weights[j, t] for j in rows) / total if len(rows) > 1 else 0.0
        out[i, t] = returns[i, t] - baseline
    return out
