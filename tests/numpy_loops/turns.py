"""Credit over turns as plain loops over one group: rows are lists of turns, and a result is a number per turn.

A group is a list of rows; a row is a list of turns {"r": reward, "key": state, "patched": bool, "calls": number,
"n": tokens, "implicit": [per token], "p": probability of the answer, "branch": number}. No row is empty here.
"""

import numpy as np


def returns(row, gamma=1.0):
    out, ahead = [], 0.0
    for turn in reversed(row):
        ahead = turn["r"] + gamma * ahead
        out.append(ahead)
    return out[::-1]


def total(row):
    return sum(turn["r"] for turn in row)


def norm(values, x, ddof, eps, std=True):
    values = np.array(values)
    spread = 0.0 if len(values) < 2 else values.std(ddof=ddof)
    if not std:
        return x - values.mean()
    return 0.0 if spread <= 1e-6 * np.abs(values).max() else (x - values.mean()) / (spread + eps)


def turn_return_loo(group, discount=1.0):
    out = []
    for i, row in enumerate(group):
        own = returns(row, discount)
        line = []
        for j in range(len(row)):
            others = [returns(other, discount)[j] for m, other in enumerate(group) if m != i and len(other) > j]
            line.append(own[j] - (np.mean(others) if others else 0.0))
        out.append(line)
    return out


def loop(group):
    out = []
    for i, row in enumerate(group):
        others = [total(other) for m, other in enumerate(group) if m != i]
        out.append([total(row) - np.mean(others)] * len(row))
    return out


def trajectory(group, ddof=1, eps=1e-4, use_std=True):
    scores = [total(row) for row in group]
    return [[norm(scores, total(row), ddof, eps, use_std)] * len(row) for row in group]


def turn_grpo(group, ddof=1, eps=1e-6):
    out = []
    for row in group:
        normal = [norm([o[k]["r"] for o in group if len(o) > k], t["r"], ddof, eps) for k, t in enumerate(row)]
        out.append([sum(normal[j:]) for j in range(len(row))])
    return out


def mt_grpo(group, coef=1.0, ddof=1, eps=1e-4):
    out = []
    outcomes = [row[-1]["r"] for row in group]
    for row in group:
        base = norm(outcomes, row[-1]["r"], ddof, eps)
        line = []
        for j, turn in enumerate(row[:-1]):
            peers = [other[j]["r"] for other in group if len(other) - 1 > j]
            line.append(base + coef * norm(peers, turn["r"], ddof, eps))
        out.append([*line, base])
    return out


def gigpo(group, step_coef=1.0, discount=0.95, use_std=True, ddof=1, eps=1e-6):
    whole = trajectory(group, ddof, eps, use_std)
    out = []
    for i, row in enumerate(group):
        line = []
        for j, turn in enumerate(row):
            peers = [
                returns(other, discount)[k]
                for m, other in enumerate(group)
                for k, seen in enumerate(other)
                if (seen["key"] == turn["key"] and turn["key"] >= 0) or (m, k) == (i, j)
            ]
            line.append(whole[i][j] + step_coef * norm(peers, returns(row, discount)[j], ddof, eps, use_std))
        out.append(line)
    return out


def state_return_loo(group, discount=1.0):
    by_turn = turn_return_loo(group, discount)
    out = []
    for i, row in enumerate(group):
        line = []
        for j, turn in enumerate(row):
            peers = [
                returns(other, discount)[k]
                for m, other in enumerate(group)
                for k, seen in enumerate(other)
                if m != i and seen["key"] == turn["key"] and turn["key"] >= 0
            ]
            line.append(returns(row, discount)[j] - np.mean(peers) if peers else by_turn[i][j])
        out.append(line)
    return out


def semi_online(group, episode_coef=1.0, step_coef=1.0, discount=0.5, use_std=False, ddof=1, eps=1e-6):
    whole = trajectory(group, ddof, eps, use_std)

    def cut(row):
        out, ahead = [], 0.0
        for turn in reversed(row):
            ahead = 0.0 if turn["patched"] else turn["r"] + discount * ahead
            out.append(turn["r"] if turn["patched"] else ahead)
        return out[::-1]

    out = []
    for i, row in enumerate(group):
        steps = [norm([cut(o)[j] for o in group if len(o) > j], s, ddof, eps, use_std) for j, s in enumerate(cut(row))]
        out.append([episode_coef * whole[i][j] + step_coef * s for j, s in enumerate(steps)])
    return out


def transitions(group, use_std=True, ddof=1, eps=1e-6):
    scores = [total(row) for row in group for _ in row]
    return [[norm(scores, total(row), ddof, eps, use_std)] * len(row) for row in group]


def igpo(group, separate=False, discount=1.0, eps=1e-6):
    every = [(turn["r"], turn is row[-1]) for row in group for turn in row]
    out = []
    for row in group:
        normal = []
        for turn in row:
            last = turn is row[-1]
            peers = [r for r, final in every if not separate or final == last]
            normal.append(0.0 if len(peers) < 2 else norm(peers, turn["r"], 0, eps))
        ahead, line = 0.0, []
        for value in reversed(normal):
            ahead = value + discount * ahead
            line.append(ahead)
        out.append(line[::-1])
    return out


def igpo_policy(group, prior=0.25, **settings):
    changed = []
    for row in group:
        before, line = prior, []
        for turn in row:
            line.append(turn if turn is row[-1] else turn | {"r": turn["p"] - before})
            before = turn["p"]
        changed.append(line)
    return igpo(changed, **settings)


def aspo(group, shift=-2.0, bound=0.7, correct_above=0.5, ddof=1, eps=1e-6):
    base = trajectory(group, ddof, eps)
    places = []
    for row in group:
        called = [k for k, turn in enumerate(row) if turn["calls"] > 0]
        right = called and total(row) > correct_above
        places.append(sum(turn["n"] for turn in row[: called[0] + 1]) if right else None)
    shaped = [place for place in places if place is not None]
    lengths = [sum(turn["n"] for turn in row) for row, place in zip(group, places, strict=True) if place is not None]
    out = []
    for line, place in zip(base, places, strict=True):
        more = 0.0
        if place is not None:
            limit = bound * max(line[0], 0.0)
            more = np.clip(shift * (place - np.mean(shaped)) / np.mean(lengths), -limit, limit)
        out.append([a + more for a in line])
    return out


def oprl(group, step_coef=1.0, use_std=True, ddof=1, eps=1e-6):
    whole = trajectory(group, ddof, eps, use_std)
    every = [sum(turn["implicit"]) for row in group for turn in row]
    return [
        [a + step_coef * norm(every, sum(t["implicit"]), ddof, eps, use_std) for a, t in zip(line, row, strict=True)]
        for line, row in zip(whole, group, strict=True)
    ]


def sweet(group):
    return [[np.mean(turn["implicit"]) for turn in row] for row in group]


def vine(group, discount=1.0):
    out = []
    for row in group:
        after = [turn["p"] for turn in row[1:]] + [0.0]
        out.append([turn["r"] + discount * v - turn["p"] for turn, v in zip(row, after, strict=True)])
    return out


def arpo(group, ddof=1, eps=1e-6, use_std=True):
    base = trajectory(group, ddof, eps, use_std)
    return [
        [
            np.mean([base[m][0] for m, o in enumerate(group) if any(t["branch"] == turn["branch"] for t in o)])
            for turn in r
        ]
        for r in group
    ]


def tree_grpo(group, ddof=1, eps=1e-6, use_std=True):
    whole = trajectory(group, ddof, eps, use_std)
    out = []
    for line, row in zip(whole, group, strict=True):
        tree = [total(other) for other in group if other[0]["branch"] == row[0]["branch"]]
        out.append([a + norm(tree, total(row), ddof, eps, use_std) for a in line])
    return out


def branch_return_loo(group, discount=1.0):
    def history(row, j):
        return tuple(turn["branch"] for turn in row[:j])

    out = []
    for row in group:
        line = []
        for j in range(len(row)):
            alive = [o for o in group if len(o) > j]
            own = [o for o in alive if history(o, j + 1) == history(row, j + 1)]
            family = [o for o in alive if history(o, j) == history(row, j) and o not in own]
            rest = [o for o in alive if o not in own]
            peers = [returns(o, discount)[j] for o in (family or rest)]
            line.append(np.mean([returns(o, discount)[j] for o in own]) - (np.mean(peers) if peers else 0.0))
        out.append(line)
    return out


def turn_gae(rewards, values, mask, bootstrap, turns, discount=0.99, lam=0.9):
    """One row; lists of tokens -> (advantages, returns)."""
    places = [[c for c in range(len(mask)) if mask[c] and turns[c] == j] for j in range(max(turns, default=-1) + 1)]
    advantages, out = np.zeros(len(mask)), np.zeros(len(mask))
    ahead, value = 0.0, bootstrap
    for columns in reversed([p for p in places if p]):
        own = values[columns[0]]
        ahead = sum(rewards[c] for c in columns) + discount * value - own + discount * lam * ahead
        advantages[columns], out[columns] = ahead, ahead + own
        value = own
    return advantages, out


def bilevel_gae(rewards, values, mask, bootstrap, turns, discount=1.0, lam=1.0, turn_discount=0.95, turn_lam=1.0):
    """One row, as `turn_gae`."""
    places = [[c for c in range(len(mask)) if mask[c] and turns[c] == j] for j in range(max(turns, default=-1) + 1)]
    advantages = np.zeros(len(mask))
    ahead, value = 0.0, bootstrap
    for columns in reversed([p for p in places if p]):
        end = values[columns[-1]]
        ahead = sum(rewards[c] for c in columns) + turn_discount * value - end + turn_discount * turn_lam * ahead
        value, carried = end, ahead + end - values[columns[-1]]
        advantages[columns[-1]] = carried
        for c, after in zip(columns[-2::-1], columns[:0:-1], strict=True):
            carried = discount * values[after] - values[c] + discount * lam * carried
            advantages[c] = carried
    return advantages, np.where(mask, advantages + values, 0.0)
