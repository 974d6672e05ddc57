"""Sweeps: generators of overrides, {"dotted.field": value} each, and functions that combine them.

A config file holds its own, as functions that experiments.sweep finds by name:

    def sweep_lr(arg=None):                                     # --sweep=lr, or --sweep=lr:1e-4/1e-3
        return sweeps.grid("train.optimizer.learning_rate", sweeps.numbers(arg, (1e-4, 3e-4, 1e-3)))

    def sweep_lr_and_clip(arg=None):                            # not all combinations, but ten of them
        return sweeps.subsample(sweeps.product(sweep_lr(), sweep_clip()), 10)

arg is the text after the colon, None without one. `--sweep=lr,seed` is the product of the two. Two names are not
fields of a config: "config" is another file instead of the first, "argument" one more word after its colon.

Seeds for tuning and for tests are disjoint by construction: test seeds are below FIRST_TUNING_SEED, tuning seeds are
not (`check_seeds`). So a hyper-parameter chosen on some seeds is always measured on others.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Overrides = dict[str, Any]
FIRST_TUNING_SEED = 10_000


def grid(name: str, values: Iterable[Any]) -> Iterator[Overrides]:
    """{name: value} for each value."""
    for value in values:
        yield {name: value}


def seeds(arg: str | None = None, default: int = 5) -> Iterator[Overrides]:
    """Test seeds: "8" is 0 to 7, "3/5" those two; `default` of them without arg. ValueError for a tuning seed."""
    return grid("seed", check_seeds(_seeds(arg, default), tuning=False))


def tuning_seeds(arg: str | None = None, default: int = 3) -> Iterator[Overrides]:
    """Tuning seeds: "3" is 10000 to 10002, "10007/10009" those two; `default` of them without arg.

    Raises:
      ValueError: if one is a test seed, or if a single seed is given as a number of seeds.
    """
    first = FIRST_TUNING_SEED if arg is None or "/" not in arg else 0
    if first and arg is not None and arg.isdecimal() and int(arg) >= FIRST_TUNING_SEED:
        raise ValueError(f"{arg} is read as a number of seeds (3: 10000 to 10002); to name seeds, write 10007/10009")
    return grid("seed", check_seeds([first + seed for seed in _seeds(arg, default)], tuning=True))


def check_seeds(seeds: Sequence[int], *, tuning: bool) -> list[int]:
    """`seeds` as a list, if all are tuning seeds, or none.

    Raises:
      ValueError: if seeds are of the other kind, or repeated; the message names them.
    """
    wrong = [seed for seed in seeds if (seed >= FIRST_TUNING_SEED) != tuning]
    if wrong:
        kind, other = ("tuning", "test") if tuning else ("test", "tuning")
        raise ValueError(
            f"{wrong} are {other} seeds, not {kind} seeds: tuning and testing use different seeds; test seeds "
            f"are below {FIRST_TUNING_SEED}, tuning seeds are not"
        )
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed is named twice: {list(seeds)}")
    return list(seeds)


def product(*sweeps: Iterable[Overrides]) -> Iterator[Overrides]:
    """Every combination, the last sweep fastest. Raises ValueError if two sweeps set the same field."""
    if not sweeps:
        yield {}
        return
    rest = list(product(*sweeps[1:]))
    for overrides in sweeps[0]:
        for more in rest:
            yield _joined(overrides, more)


def chain(*sweeps: Iterable[Overrides]) -> Iterator[Overrides]:
    """One after the other; repeated points are left out."""
    seen = []
    for sweep in sweeps:
        for overrides in sweep:
            if overrides not in seen:
                seen.append(overrides)
                yield overrides


def subsample(sweep: Iterable[Overrides], count: int, seed: int = 0) -> Iterator[Overrides]:
    """`count` of the points in their order, sampled without replacement by `seed`.

    Raises:
      ValueError: if there are fewer points.
    """
    points = list(sweep)
    if not 0 < count <= len(points):
        raise ValueError(f"{count} points cannot be sampled from a sweep of {len(points)}")
    for index in sorted(random.Random(seed).sample(range(len(points)), count)):
        yield points[index]


def numbers(arg: str | None, default: Sequence[float]) -> tuple[float, ...]:
    """The numbers of "1e-4/1e-3", or the default. Raises ValueError for any other text."""
    if arg is None:
        return tuple(default)
    try:
        return tuple(float(part) for part in arg.split("/"))
    except ValueError:
        raise ValueError(f"{arg!r} must be numbers with / between them, as in 1e-4/1e-3") from None


def words(arg: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The words of "a/b", or all known ones. Raises ValueError for an unknown word."""
    result = tuple(known) if arg is None else tuple(arg.split("/"))
    unknown = sorted(set(result) - set(known))
    if unknown:
        raise ValueError(f"{unknown} is none of {', '.join(known)}")
    return result


def _seeds(arg: str | None, default: int) -> list[int]:
    parts = [str(default)] if arg is None else arg.split("/")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{arg!r} is neither a number of seeds (8) nor seeds with / between them (3/5)")
    if len(parts) > 1:
        return [int(part) for part in parts]
    return list(range(int(parts[0])))


def _joined(first: Overrides, second: Overrides) -> Overrides:
    twice = sorted(set(first) & set(second))
    if twice:
        raise ValueError(f"two sweeps set {', '.join(twice)}")
    return first | second
