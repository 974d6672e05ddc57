"""AdaStop with the null of absolute values, one permutation at a time, for what can be listed in full."""

import itertools

import numpy as np


def decisions(scores, pairs, n, interims, alpha):
    """{pair: decision}. Every permutation of every block is walked; no arrays of permutations, no shortcuts."""
    said, boundaries, spent = {}, [], 0.0
    ways = list(itertools.combinations(range(2 * n), n))
    for k in range(interims):
        undecided = [pair for pair in pairs if pair not in said]
        if not undecided:
            break
        rows = []
        for choice in itertools.product(ways, repeat=k + 1):
            path = np.zeros((len(undecided), k + 1))
            for j, (a, b) in enumerate(undecided):
                total = 0.0
                for block, chosen in enumerate(choice):
                    pool = [*scores[a][block * n : (block + 1) * n], *scores[b][block * n : (block + 1) * n]]
                    first = sum(pool[i] for i in chosen)
                    total += (first - (sum(pool) - first)) / n
                    path[j, block] = round(abs(total), 9)
            rows.append(path)
        left = list(range(len(undecided)))
        while True:
            values = []
            for path in rows:
                highest = path[left].max(axis=0)
                if all(highest[i] <= boundaries[i] for i in range(k)):
                    values.append(highest[k])
            for boundary in sorted(set(values)):
                share = sum(value > boundary for value in values) / len(rows)
                if spent + share <= alpha * (k + 1) / interims + 1e-12:
                    break
            observed = {j: rows[0][j, k] for j in left}
            j = max(observed, key=observed.get)
            if observed[j] <= boundary:
                break
            a, b = undecided[j]
            means = [np.mean(scores[agent][: n * (k + 1)]) for agent in (a, b)]
            said[a, b] = "larger" if means[0] > means[1] else "smaller"
            left.remove(j)
            if not left:
                break
        boundaries.append(boundary)
        spent += share
    return {pair: said.get(pair, "equal") for pair in pairs}
