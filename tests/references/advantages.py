"""Advantages, one group and one sample at a time, in float64, as the papers print them."""

import math


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
