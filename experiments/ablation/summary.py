"""Tables of the results of many claims, in Markdown: one row per claim, or one section per claim.

A result is the content of an ablation.json, or of a file of experiments/ablation/results, which has means and
intervals in place of the values of each seed.
"""

import collections
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from experiments.ablation.claims import cell, interval_text, more_text, seeds_text, tried_text

SHOWN = 3  # statements of a claim in the short table


def load_results(settings: Mapping[str, str], runs: pathlib.Path, stored: pathlib.Path | None = None) -> list[dict]:
    """The results of the ablations that have one, in the order of `settings`.

    A result of other settings (of a smoke run, of overrides, of the claim as it was before) is none of the claim: it is
    named on stderr and left out.

    Args:
      settings: ablation -> the settings that a result in `runs` must have, as they are kept in it.
      runs: the folder of results, runs/KEY/ablation.json.
      stored: the folder to look in if `runs` has no result.
    """
    found = []
    for key, asked in settings.items():
        path, kept = runs / key / "ablation.json", stored / f"{key}.json" if stored else None
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if result is not None and result.get("settings") != asked:
            print(f"{path} is of other settings: left out", file=sys.stderr)
            result = None
        if result is None and kept and kept.exists():
            result = json.loads(kept.read_text(encoding="utf-8"))
        found += [] if result is None else [result]
    return found


def sentence(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def seeds_of(result: Mapping) -> Sequence[int]:
    """The seeds of a result."""
    if "values" in result:
        return result["seeds"]
    return range(result["seeds"]["first"], result["seeds"]["last"] + 1)


def short_table(results: Sequence[Mapping], *, page: str = "") -> str:
    """One row per claim: claim, verdict, effect with interval, seeds, key. Comparisons of arms are shown first.

    Args:
      results: the results.
      page: the page with a section per claim, to which the keys are linked; "" for plain keys.
    """
    if not results:
        return "No results yet: run python -m experiments.ablation KEY, or --all."
    count = collections.Counter(result["verdict"] for result in results)
    lines = [
        f"{len(results)} claims: {', '.join(f'{count[name]} {name}' for name in sorted(count, key=count.get)[::-1])}.",
        "`a < b` means that arm b has more of the metric than arm a; the number is how much more.",
        "",
        "| claim | verdict | effect: mean or paired difference [95 %] | seeds | key |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        statements = sorted(result["statements"], key=lambda row: "<" not in row["statement"])
        effects = [f"`{row['statement']}`: {interval_text(row['interval'])}" for row in statements[:SHOWN]]
        effects += [f"and {len(statements) - SHOWN} more"] if len(statements) > SHOWN else []
        verdict = result["verdict"] if result["verdict"] == "reproduced" else f"**{result['verdict']}**"
        key = f"[{result['key']}]({page}#{result['key']})" if page else result["key"]
        lines.append(
            f"| {sentence(result['claim'])} ({result['paper']}) | {verdict} | {'<br>'.join(effects)} "
            f"| {len(seeds_of(result))} | {key} |"
        )
    return "\n".join(lines)


def by_claim(results: Sequence[Mapping]) -> str:
    """A section per claim: verdict, seeds, date, arms and every statement."""
    sections = []
    for result in results:
        if "values" in result:
            within = result.get("ranges", {}).get(result["metric"])
            arms = {arm: cell(row[result["metric"]], within) for arm, row in result["values"].items()}
            minutes = max(result["wall_seconds"] / 60, 0.1)
        else:
            arms = {arm: interval_text(row) for arm, row in result["arms"].items()}
            minutes = result["wall_minutes"]
        # Older results lack the run time and the number of settings tried.
        said = [seeds_text(seeds_of(result)), result["date"], *([f"{minutes:.1f} min"] if minutes else [])]
        said += [tried_text(result["tried"])] if result.get("tried") else []
        said += [f"from the {result['source']}"] if "source" in result else []
        note = f" ({result['note']})" if result.get("note") else ""
        rows = [
            f"| `{row['statement']}` | {interval_text(row['interval'])}{more_text(row)} |"
            for row in result["statements"]
        ]
        sections += [
            f"## {result['key']}",
            f"{sentence(result['claim'])} ({result['paper']}): **{result['verdict']}**.",
            f"{', '.join(said)}. Arms, {result['metric']}: "
            f"{'; '.join(f'{arm} {text}' for arm, text in arms.items())}{note}.",
            "\n".join(["| statement | mean or paired difference [95 %] |", "|---|---|", *rows]),
        ]
    return "\n\n".join(sections)
