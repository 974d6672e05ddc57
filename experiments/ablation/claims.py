"""The claim of an ablation: verdicts on its statements, seeds needed to decide an open one, and Markdown output."""

import types
from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax import stats

# arm -> metric -> one value per seed, None if a seed has none (a run that never reached the point compared)
Values = Mapping[str, Mapping[str, Sequence[float | None]]]
BOUNDS = {"arm": {"metric", "arm", "at_least", "at_most"}, "increasing": {"metric", "increasing", "by"}}
CONFIDENCE, POWER, INTERIMS = 0.95, 0.8, 5


def judgements(values: Values, expected: Sequence[Mapping]) -> list[dict]:
    """The interval and verdict of every statement of a claim, and the number of seeds it leaves out.

    A seed without a value in an arm is left out of the statement, on both sides of a comparison.

    Args:
      values: results of the arms.
      expected: one mapping per statement. "metric", and either "arm" with bounds on its mean ("at_least", "at_most" or
        both), or "increasing": arms, each with more of the metric than the one before it, by more than "by". Optional:
        "within": (low, high), the range of the metric, without which seeds that all agree decide nothing. With (0, 1),
        values that are all 0 or 1 are taken for a share.

    Returns:
      One dict per statement, as in `judged`.

    Raises:
      ValueError: if a statement has neither form, if the results lack an arm or a metric, or if fewer than two seeds
        are left.
    """
    rows = asked(values, expected)
    return [judged(*one, statements=len(rows)) for one in rows]


def asked(values: Values, expected: Sequence[Mapping]) -> list[tuple]:
    """The statements of a claim as the first four arguments of `judged`; takes and raises what `judgements` does."""
    found = []
    for statement in expected:
        kind = "arm" if "arm" in statement else "increasing"
        named = set(statement) - {"within"}
        if not named <= BOUNDS[kind] or not {"metric", kind} <= named or len(named) < 3:
            fields = " or ".join(", ".join(sorted(names)) for names in BOUNDS.values())
            raise ValueError(f"{dict(statement)} is not a statement: its fields must be {fields}")
        metric, within = statement["metric"], statement.get("within")
        if kind == "arm":
            bounds = {name: statement[name] for name in ("at_least", "at_most") if name in statement}
            said = " and ".join(f"{name.replace('_', ' ')} {bound:g}" for name, bound in bounds.items())
            side = _of(values, statement["arm"], metric)
            found.append((f"{metric} of {statement['arm']} {said}", [side], bounds, within))
            continue
        by, arms = statement["by"], statement["increasing"]
        for less, more in zip(arms, arms[1:], strict=False):
            text = f"{metric}: {less} < {more}" + (f" by {by:g}" if by else "")
            found.append((text, [_of(values, more, metric), _of(values, less, metric)], dict(at_least=by), within))
    return found


def judged(
    text: str,
    sides: Sequence[Sequence[float | None]],
    bounds: Mapping[str, float],
    within: tuple[float, float] | None = None,
    *,
    statements: int = 1,
) -> dict:
    """The result of one statement about the mean of one side, or about the paired difference of two.

    Args:
      text: the statement in words.
      sides: one or two sequences with one value per seed, None if a seed has no value.
      bounds: "at_least", "at_most" or both.
      within: the metric's range, as in `judgements`.
      statements: of the claim. One of many is not reproduced only if an interval wider by their number says so
        (`stats.widened`): any of them refutes the claim, so each has to be less likely to do so by chance.

    Returns:
      statement, interval, verdict, dropped (seeds left out) and, if undecided, more_seeds (see `shortfall`).

    Raises:
      ValueError: if the sides have different numbers of seeds, or fewer than two seeds have a value.
    """
    if len({len(side) for side in sides}) != 1:
        raise ValueError(f"{text}: pairs need the same seeds on both sides, got {[len(side) for side in sides]}")
    rows = [row for row in zip(*sides, strict=True) if None not in row]
    if len(rows) < 2:
        raise ValueError(f"{text}: {len(rows)} of {len(sides[0])} seeds have a value, but an interval needs two")
    numbers = np.asarray(rows, np.float64)
    differences = numbers[:, 0] - numbers[:, 1] if len(sides) == 2 else numbers[:, 0]
    measure = stats.paired_difference if len(sides) == 2 else stats.bootstrap_mean
    interval = measure(*numbers.T, within=within)
    verdict, confidence = stats.judge(interval, **bounds), CONFIDENCE
    if verdict == stats.NOT_REPRODUCED:
        confidence = 1.0 - (1.0 - CONFIDENCE) / statements
        verdict = stats.judge(stats.widened(interval, len(rows), statements), **bounds)
    result = dict(statement=text, interval=interval._asdict(), verdict=verdict, dropped=len(sides[0]) - len(rows))
    if verdict == stats.UNDECIDED and not stats.all_equal(*numbers.T):  # equal values have no spread to plan by
        result["more_seeds"] = shortfall(differences, interval, bounds, confidence)
    return result


def shortfall(
    differences: np.ndarray, interval: stats.Interval, bounds: Mapping[str, float], confidence: float = CONFIDENCE
) -> dict:
    """How many more seeds an undecided statement would take if further seeds are like these.

    With two bounds, the result is for the one that needs more.

    Args:
      differences: float [N], one per seed.
      interval: of their mean.
      bounds: "at_least", "at_most" or both.
      confidence: of the interval that has to clear a bound; with more than CONFIDENCE, for a refutation.

    Returns:
      power: further seeds until the interval would clear the bound 8 times out of 10 (Student's t); None if 10,000 are
        not enough.
      adastop: further seeds until AdaStop stops (paired, 5 interims of as many seeds as there are, alpha .05; median of
        100 continuations).
      decided: the fraction of these continuations in which AdaStop finds a difference.
    """
    asked = []
    for bound in bounds.values():
        if confidence == CONFIDENCE and not interval.low <= bound <= interval.high:
            continue  # this bound is clear of the interval
        needed = stats.seeds_for_power(differences, bound=bound, power=POWER, confidence=confidence)
        adastop_seeds = stats.seeds_wanted(differences - bound, interims=INTERIMS)
        missing = None if needed is None else max(needed - len(differences), 1)
        asked.append(dict(power=missing, adastop=adastop_seeds.more, decided=adastop_seeds.decided))
    return max(asked, key=lambda row: (row["power"] is None, row["power"] or 0))


def _of(values: Values, arm: str, metric: str) -> Sequence[float | None]:
    if arm not in values or metric not in values[arm]:
        metrics_of_arm = {name: sorted(metrics) for name, metrics in values.items()}
        raise ValueError(f"the results have no {metric!r} of the arm {arm!r}; they have: {metrics_of_arm}")
    return values[arm][metric]


def ranges(expected: Sequence[Mapping]) -> dict[str, tuple[float, float]]:
    """The ranges of the metrics whose statements have one."""
    return {row["metric"]: tuple(row["within"]) for row in expected if "within" in row}


def cell(values: Sequence[float | None], within: Sequence[float] | None = None) -> str:
    """"mean [low, high]", with "of N" if only N seeds have a value; "-" if fewer than two do.

    Args:
      values: one per seed.
      within: the metric's range, as in `judgements`.
    """
    present = [value for value in values if value is not None]
    if len(present) < 2:
        return "-"
    text = "{:.3g} [{:.3g}, {:.3g}]".format(*stats.bootstrap_mean(present, within=within and tuple(within)))
    return text if len(present) == len(values) else f"{text} of {len(present)}"


def verdict_cell(row: Mapping) -> str:
    """The verdict of a statement, the seeds left out, and the seeds needed to decide it, in words."""
    text = row["verdict"]
    if row.get("dropped"):
        text += f", {row['dropped']} seeds left out"
    if "more_seeds" not in row:
        return text
    asked = row["more_seeds"]
    power = "over 10,000" if asked["power"] is None else f"{asked['power']:,}"
    return text + (
        f"; if further seeds are like these: {power} more for a power of {POWER:.0%} (t), "
        f"AdaStop needs {asked['adastop']} more and then decides {asked['decided']:.0%} of the time"
    )


def tables(
    values: Values, statements: Sequence[Mapping], within: Mapping[str, Sequence[float]] = types.MappingProxyType({})
) -> str:
    """Two Markdown tables: every metric per arm, and every statement with its interval and verdict.

    Args:
      values: results of the arms.
      statements: of `judgements`.
      within: of `ranges`.
    """
    metrics = list(next(iter(values.values())))
    lines = ["| arm | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for arm, row in values.items():
        lines.append(f"| {arm} | " + " | ".join(cell(row[name], within.get(name)) for name in metrics) + " |")
    lines += ["", "| statement | mean or paired difference | verdict |", "|---|---|---|"]
    for row in statements:
        lines.append("| {} | {mean:.3g} [{low:.3g}, {high:.3g}] | {} |".format(
            row["statement"], verdict_cell(row), **row["interval"]))
    return "\n".join(lines)


def seeds_text(seeds: Sequence[int]) -> str:
    """"20 seeds (0 to 19)"; lists the seeds if they are not consecutive."""
    seeds = list(seeds)
    in_a_row = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{len(seeds)} seeds ({f'{seeds[0]} to {seeds[-1]}' if in_a_row else ', '.join(map(str, seeds))})"


def tried_text(tried: int | Mapping[str, int]) -> str:
    """"1 setting tried per arm", or the number of each arm."""
    if isinstance(tried, int):
        return f"{tried} setting{'s' * (tried > 1)} tried per arm"
    return "settings tried: " + ", ".join(f"{arm} {count}" for arm, count in tried.items())


def report(outcome: Mapping) -> str:
    """The ablation's report in Markdown."""
    words = dict(
        note=f" {outcome['note']}." if outcome["note"] else "",
        seeds=seeds_text(outcome["seeds"]),
        tried=tried_text(outcome["tried"]),
    )
    return (
        "{paper}: {claim}\n\nScaled down: {scaled_down}.{note}\n\n{table}\n\n**{verdict}**, {seeds}, {date}, "
        "{wall_seconds:.0f} s, {tried}: `{command}`"
    ).format(**{**outcome, **words})


def interval_text(interval: Mapping[str, float]) -> str:
    """"mean [low, high]", or the mean alone."""
    return "{mean:.3g} [{low:.3g}, {high:.3g}]".format(**interval) if "low" in interval else f"{interval['mean']:.3g}"


def more_text(row: Mapping) -> str:
    """The seeds an undecided statement would need, in short form."""
    if "more_seeds" not in row:
        return ""
    asked = row["more_seeds"]
    power = "> 10,000" if asked["power"] is None else f"{asked['power']:,}"
    return f"; undecided, {power} more seeds (power) or {asked['adastop']} (AdaStop, {asked['decided']:.0%} decided)"
