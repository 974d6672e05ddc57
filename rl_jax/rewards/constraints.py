"""Constraints beside a reward: a mixture of judges, each of which a response passes or fails (CGPO, arXiv 2409.20370).

`constrained` writes both into the one number that a row has: r for a response that all judges pass, r - PENALTY for
another one. rl_jax.selection.constraints reads them again. Named in config.reward.compose by its import path.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rl_jax.core import binding
from rl_jax.core.violations import PENALTY
from rl_jax.rewards import compose


def constrained(
    terms: compose.Terms,
    weights: compose.Weights,
    *,
    by: Sequence[str],
    threshold: float = 1.0,
    of: str | Callable | Mapping = "weighted_sum",
) -> np.ndarray:
    """The inner composition, less PENALTY where a term of `by` is below the threshold or nan.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      by: names of the judges' terms; they may have weight 0.
      threshold: a term below it is a violation.
      of: the composition of the reward itself, which has to stay within +-PENALTY / 2.

    Returns:
      float32 [B].

    Raises:
      ValueError: if a name of `by` is no term, or a reward is as large as that.
    """
    if missing := sorted(set(by) - set(terms)):
        known = ", ".join(sorted(terms)) or "none"
        raise ValueError(f"constrained: by names {', '.join(missing)}; the terms are {known}")
    rewards = binding.bind(of, compose)(terms, weights)
    if np.abs(rewards).max(initial=0.0) >= PENALTY / 2:
        raise ValueError(f"constrained: a reward of {np.abs(rewards).max():g} is not below {PENALTY / 2:g}: scale it")
    passes = np.logical_and.reduce([terms[name] >= threshold for name in by]) if by else np.True_
    return np.where(passes, rewards, rewards - np.float32(PENALTY)).astype(np.float32)


def mixture_of_judges(
    terms: compose.Terms,
    weights: compose.Weights,
    *,
    sources: Sequence[str],
    tasks: Mapping[str, Mapping],
    threshold: float = 1.0,
) -> np.ndarray:
    """Each task has a reward and judges of its own: `constrained` on the rows of each source of prompts.

    Args:
      terms: name -> float32 [B].
      weights: name -> w, of the sources that `tasks` does not list; they have no judges.
      sources: B names.
      tasks: source -> {"reward": {term: w}, "judges": names}.
      threshold: a judge's term below it is a violation.

    Returns:
      float32 [B].

    Raises:
      ValueError: if a task has other keys, or names a term that there is not.
    """
    reward, names = np.zeros(len(sources), np.float32), np.asarray(sources, dtype=object)
    for source, task in tasks.items():
        if set(task) != {"reward", "judges"}:
            raise ValueError(f"mixture_of_judges: tasks[{source!r}] has {sorted(task)}, not 'judges' and 'reward'")
        if missing := sorted({*task["reward"], *task["judges"]} - set(terms)):
            known = ", ".join(sorted(terms)) or "none"
            raise ValueError(f"mixture_of_judges: {source}: no term {', '.join(missing)}; the terms are {known}")
    for source in sorted(set(sources)):
        rows, task = names == source, tasks.get(source, {"reward": weights, "judges": ()})
        own = {name: term[rows] for name, term in terms.items()}
        reward[rows] = constrained(own, dict(task["reward"]), by=tuple(task["judges"]), threshold=threshold)
    return reward
