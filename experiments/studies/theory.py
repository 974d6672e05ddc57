"""Two statements about rewards that can be checked exactly, by enumeration: the laws of best-of-n, and STARC."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special
import scipy.stats

from experiments.studies.base import Outcome
from rl_jax.stats import best_of_n, starc


def best_of_n_limit(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping[str, int]], nats_per_token: float, tokens: int = 3
) -> Outcome:
    """Best-of-n with n = exp(length * nats_per_token) beside KL-regularized RL at the same KL, for texts of a length.

    A text is `length` independent tokens of a random categorical policy, its reward the mean of random token rewards,
    so that texts with the same counts are one outcome and everything is summed over the counts, exactly. Metrics:
    reward_gap = E_RL[r] - E_BoN[r]; kl_per_token = KL(BoN || RL) / length; slack = log n - (n - 1) / n -
    KL(BoN || policy) >= 0. Source: arXiv 2404.01730, whose memoryless sources these are.

    Args:
      seeds: of the policies and rewards.
      arms: name -> dict(length=...), of the texts.
      nats_per_token: log n per token.
      tokens: of the vocabulary.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for arm, settings in arms.items():
        length = settings["length"]
        metrics = values[arm] = {"reward_gap": [], "kl_per_token": [], "slack": []}
        counts = _counts(length, tokens)
        for seed in seeds:
            rng = np.random.default_rng(seed)
            policy, of_token = rng.dirichlet(np.full(tokens, 4.0)), rng.normal(size=tokens)
            multiplicity = scipy.special.gammaln(length + 1) - scipy.special.gammaln(counts + 1).sum(axis=1)
            log_probs, rewards = multiplicity + counts @ np.log(policy), counts @ of_token / length
            log_probs = log_probs - scipy.special.logsumexp(log_probs)  # of rounding alone
            log_n = length * nats_per_token
            best = best_of_n.best_of_n_law(log_probs, rewards, log_n)
            divergence = best_of_n.kl(best, log_probs)
            strength = best_of_n.matched_strength(log_probs, rewards, divergence)
            tilted = best_of_n.tilted_law(log_probs, rewards, strength)
            metrics["reward_gap"].append(float(np.exp(tilted) @ rewards - np.exp(best) @ rewards))
            metrics["kl_per_token"].append(best_of_n.kl(best, tilted) / length)
            metrics["slack"].append(log_n + np.expm1(-log_n) - divergence)
    return Outcome({arm: {name: np.array(x) for name, x in metrics.items()} for arm, metrics in values.items()})


def reward_distances(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping[str, str]],
    states: int = 8,
    actions: int = 3,
    discount: float = 0.9,
    proxies: int = 40,
    shaping: float = 3.0,
) -> Outcome:
    """How well a distance between two rewards tells the regret of optimizing the other one, in random MDPs.

    A proxy is the true reward turned by a random angle towards another one, plus potential shaping and s'-rewards of
    mean 0, which change no policy. Metric: correlation, Spearman's between the distance and the regret of the proxy's
    best policy under the true reward, over the proxies of a seed's MDP; the same regrets in all arms.
    Source: arXiv 2309.15257.

    Args:
      seeds: of the MDPs.
      arms: name -> dict(canonical=...), a function of rl_jax.stats.starc.
      states: S.
      actions: A.
      discount: gamma.
      proxies: of each MDP.
      shaping: standard deviation of the potentials and of the s'-rewards.
    """
    found = {arm: [] for arm in arms}
    forms = {arm: getattr(starc, settings["canonical"]) for arm, settings in arms.items()}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        moves = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
        true = rng.normal(size=(states, actions, states))
        regrets, measured = [], {arm: [] for arm in arms}
        for _ in range(proxies):
            angle, potential = rng.uniform(0, np.pi), shaping * rng.normal(size=states)
            proxy = np.cos(angle) * true + np.sin(angle) * rng.normal(size=true.shape)
            blind = shaping * rng.normal(size=true.shape)
            blind -= np.sum(blind * moves, axis=2, keepdims=True)
            proxy = rng.uniform(0.1, 10) * (proxy + blind + discount * potential[None, None] - potential[:, None, None])
            regrets.append(starc.regret(true, proxy, moves, discount=discount))
            for arm, canonical in forms.items():
                measured[arm].append(starc.distance(true, proxy, moves, discount=discount, canonical=canonical))
        for arm, distances in measured.items():
            found[arm].append(scipy.stats.spearmanr(distances, regrets).statistic)
    return Outcome({arm: {"correlation": np.array(x)} for arm, x in found.items()})


def _counts(length: int, tokens: int) -> np.ndarray:
    """All counts of the tokens in a text of this length, int [T, tokens]."""
    grid = np.indices((length + 1,) * (tokens - 1)).reshape(tokens - 1, -1).T
    grid = grid[grid.sum(axis=1) <= length]
    return np.concatenate([grid, length - grid.sum(axis=1, keepdims=True)], axis=1)
