"""From the named terms of a reward to one number per row, in numpy on the host.

    fn(terms: {name: float32 [B]}, weights: {name: float}, *, keywords) -> float32 [B]

A term without a weight, or with weight 0, does not count, whatever it holds (nan too); gates and vetoes may still read
it. Compositions nest: `of` names the one inside, as in dict(fn="clip", low=-1.0, of=dict(fn="saturation", scale=2.0)).
A function that names `sources` (list of B names) or `infos` (list of B dicts) as required keyword-only arguments is
given them (rl_jax.core.binding.supply). `by_source` and rl_jax.rewards.constraints:mixture_of_judges are; only the
outermost composition can be.
"""

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rl_jax.core import binding

Terms = Mapping[str, np.ndarray]
Weights = Mapping[str, float]
Spec = str | Callable | Mapping


def weighted_sum(terms: Terms, weights: Weights) -> np.ndarray:
    """sum_k w_k r_k in float32; one term of weight 1 comes back bit for bit.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.

    Returns:
      float32 [B].

    Raises:
      ValueError: if there is no term, a weight names none, or the terms differ in shape.
    """
    counted = _counted(terms, weights)
    total = None
    for name, term in counted.items():
        part = np.float32(weights[name]) * term
        total = part if total is None else total + part
    return np.zeros(_rows(terms), np.float32) if total is None else total


def gate(
    terms: Terms,
    weights: Weights,
    *,
    by: str,
    threshold: float = 1.0,
    gated: Sequence[str] = (),
    of: Spec = "weighted_sum",
) -> np.ndarray:
    """The gated terms count only where r_by >= threshold: style, once the answer is right.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      by: name of the term that opens the gate; it may have weight 0.
      threshold: smallest value of that term at which the gate is open; a nan keeps it closed.
      gated: names of the terms behind it; empty: all but `by`.
      of: the composition of what is left, in which a closed term is 0.

    Returns:
      float32 [B].
    """
    checked = _checked(terms, weights, (by, *gated))
    behind = set(gated) or set(checked) - {by}
    is_open = checked[by] >= threshold
    zeroed = {n: np.where(is_open, term, np.float32(0.0)) if n in behind else term for n, term in checked.items()}
    return _inner(of)(zeroed, weights)


def veto(
    terms: Terms,
    weights: Weights,
    *,
    by: Sequence[str],
    threshold: float = 1.0,
    value: float = 0.0,
    of: Spec = "weighted_sum",
) -> np.ndarray:
    """`value` where any term of `by` is below the threshold or nan, the inner composition elsewhere.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      by: names of the terms with a veto; they may have weight 0.
      threshold: a term below it vetoes.
      value: the reward of a vetoed row.
      of: the composition of the other rows.

    Returns:
      float32 [B].
    """
    checked = _checked(terms, weights, by)
    passes = np.logical_and.reduce([checked[name] >= threshold for name in by]) if by else True
    return np.where(passes, _inner(of)(checked, weights), np.float32(value))


def product(terms: Terms, weights: Weights) -> np.ndarray:
    """prod_k w_k r_k over the terms that have a weight: 0 as soon as one is 0.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.

    Returns:
      float32 [B].
    """
    counted = _counted(terms, weights, empty=False)
    return np.prod([np.float32(weights[name]) * term for name, term in counted.items()], axis=0, dtype=np.float32)


def signed_geometric_mean(terms: Terms, weights: Weights) -> np.ndarray:
    """s prod_k |r_k|^(w_k / sum w), with s = 1 if every r_k >= 0 and -1 otherwise: (4, 9) -> 6 and (-4, 9) -> -6.

    A good term cannot make up for a bad one, as it does in a sum. Source: arXiv 2305.15801 (Lucy-SKG), whose weights
    are equal.

    Args:
      terms: name -> float32 [B].
      weights: name -> w >= 0.

    Returns:
      float32 [B].

    Raises:
      ValueError: if a weight is negative.
    """
    counted = _counted(terms, weights, empty=False)
    if negative := sorted(name for name in counted if weights[name] < 0):
        raise ValueError(f"signed_geometric_mean takes no negative weight: {', '.join(negative)}")
    values = np.stack(list(counted.values())).astype(np.float64)  # [K, B]
    exponents = np.array([weights[name] for name in counted], np.float64)[:, None]
    size = np.prod(np.abs(values) ** (exponents / exponents.sum()), axis=0)
    return np.where((values < 0).any(axis=0), -size, size).astype(np.float32)


def saturation(terms: Terms, weights: Weights, *, scale: float | Weights, of: Spec = "weighted_sum") -> np.ndarray:
    """Positive terms become s (1 - exp(-r / s)), slope 1 at 0 and never above s: more of one term pays less and less.

    Negative values stay as they are.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      scale: s > 0, or name -> s; a term that it does not name stays as it is.
      of: the composition of the transformed terms.

    Returns:
      float32 [B].

    Raises:
      ValueError: if a scale is not positive or names no term.
    """
    scales = dict(scale) if isinstance(scale, Mapping) else dict.fromkeys(terms, scale)
    checked = dict(_checked(terms, weights, scales))
    for name, size in scales.items():
        if not size > 0:
            raise ValueError(f"saturation: scale {size} of {name} must be above 0")
        raised = -size * np.expm1(-np.maximum(checked[name], 0.0) / size)
        checked[name] = np.where(checked[name] > 0, raised, checked[name]).astype(np.float32)
    return _inner(of)(checked, weights)


def interactions(
    terms: Terms, weights: Weights, *, pairs: Sequence[tuple[str, str, float]], of: Spec = "weighted_sum"
) -> np.ndarray:
    """The inner composition + sum over pairs of w_ab r_a r_b: two criteria together are worth more, or less.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      pairs: (a, b, w_ab) each.
      of: the inner composition.

    Returns:
      float32 [B].
    """
    checked = _checked(terms, weights, [name for pair in pairs for name in pair[:2]])
    total = _inner(of)(checked, weights)
    for first, second, weight in pairs:
        total = total + np.float32(weight) * checked[first] * checked[second]
    return total


def clip(
    terms: Terms, weights: Weights, *, low: float = -np.inf, high: float = np.inf, of: Spec = "weighted_sum"
) -> np.ndarray:
    """The inner composition, clipped to [low, high].

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      low: smallest reward.
      high: largest reward.
      of: the inner composition.

    Returns:
      float32 [B].

    Raises:
      ValueError: if low is above high.
    """
    if low > high:
        raise ValueError(f"clip: low {low} is above high {high}")
    return np.clip(_inner(of)(terms, weights), np.float32(low), np.float32(high))


def by_source(
    terms: Terms, weights: Weights, *, sources: Sequence[str], table: Mapping[str, Mapping], of: Spec = "weighted_sum"
) -> np.ndarray:
    """Each source of prompts has weights of its own: rules where an answer can be checked, a judge elsewhere.

    Args:
      terms: name -> float32 [B].
      weights: name -> w, of the sources that the table does not list.
      sources: B names.
      table: source -> {term: w}. What it does not name does not count there.
      of: the composition of each source's rows.

    Returns:
      float32 [B].

    Raises:
      ValueError: if there are not as many sources as rows, or a source's weights name no term.
    """
    checked = _checked(terms, weights, ())
    if len(sources) != _rows(terms):
        raise ValueError(f"by_source: {len(sources)} sources for {_rows(terms)} rows")
    reward = np.zeros(_rows(terms), np.float32)
    compose, names = _inner(of), np.asarray(sources, dtype=object)
    for source in [*table, *sorted(set(sources) - set(table))]:
        own = dict(table.get(source, weights))
        _checked(terms, own, (), where=f"by_source: {source}: ")
        rows = names == source
        if rows.any():
            reward[rows] = compose({name: term[rows] for name, term in checked.items()}, own)
    return reward


def _inner(of: Spec) -> Callable:
    """The composition inside another one."""
    fn = binding.bind(of, sys.modules[__name__])
    if missing := sorted(binding.needs(fn)):
        raise ValueError(f"of={of!r} needs {', '.join(missing)}, which only the outermost composition is given")
    return fn


def _checked(terms: Terms, weights: Weights, named: Sequence[str] | Mapping, where: str = "") -> Terms:
    """The terms, as they are. Raises ValueError if there are none, shapes differ, or a name has no term."""
    if not terms:
        raise ValueError(f"{where}there is no reward term to compose")
    shapes = {name: np.shape(term) for name, term in terms.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"{where}every term must be of shape [B], got {shapes}")
    if unknown := sorted({*weights, *named} - set(terms)):
        raise ValueError(f"{where}no reward term is called {', '.join(unknown)}; terms: {', '.join(sorted(terms))}")
    return terms


def _counted(terms: Terms, weights: Weights, *, empty: bool = True) -> dict[str, np.ndarray]:
    """The terms that have a weight other than 0."""
    checked = _checked(terms, weights, ())
    counted = {name: term for name, term in checked.items() if weights.get(name, 0.0) != 0.0}
    if not counted and not empty:
        raise ValueError(f"no reward term has a weight; terms: {', '.join(sorted(terms))}")
    return counted


def _rows(terms: Terms) -> int:
    return len(next(iter(terms.values())))
