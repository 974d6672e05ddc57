"""Writes the tables of docs/pages/results.md and results_by_claim.md from the stored results of the claims.

    python docs/results.py

The stored results are experiments/ablation/results. Text outside the marks BEGIN and END is written by hand.
"""

import collections
import json
import pathlib
import re
import sys
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from experiments.ablation import claims  # noqa: E402

PAGES = ROOT / "docs" / "pages"
STORED = ROOT / "experiments" / "ablation" / "results"
BEGIN, END = "<!-- BEGIN: python docs/results.py -->", "<!-- END -->"
SHOWN = 3  # statements of a claim in the short table


def sentence(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def seeds(result: Mapping) -> range:
    """The seeds of a stored result."""
    return range(result["seeds"]["first"], result["seeds"]["last"] + 1)


def short_table(results: list[Mapping]) -> str:
    """One row per claim: claim, verdict, effect with interval, seeds. Comparisons of arms are shown first."""
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
        effects = [f"`{row['statement']}`: {claims.interval_text(row['interval'])}" for row in statements[:SHOWN]]
        effects += [f"and {len(statements) - SHOWN} more"] if len(statements) > SHOWN else []
        verdict = result["verdict"] if result["verdict"] == "reproduced" else f"**{result['verdict']}**"
        lines.append(
            f"| {sentence(result['claim'])} ({result['paper']}) | {verdict} | {'<br>'.join(effects)} "
            f"| {len(seeds(result))} | [{result['key']}](results_by_claim.md#{result['key']}) |"
        )
    return "\n".join(lines)


def by_claim(results: list[Mapping]) -> str:
    """A section per claim: verdict, seeds, date, arms and every statement."""
    sections = []
    for result in results:
        said = [claims.seeds_text(seeds(result)), result["date"]]
        said += [f"{result['wall_minutes']:.1f} min"] if result["wall_minutes"] else []
        said += [claims.tried_text(result["tried"])] if result.get("tried") else []
        said += [f"from the {result['source']}"] if "source" in result else []
        arms = "; ".join(f"{arm} {claims.interval_text(row)}" for arm, row in result["arms"].items())
        note = f" ({result['note']})" if result.get("note") else ""
        rows = [
            f"| `{row['statement']}` | {claims.interval_text(row['interval'])}{claims.more_text(row)} |"
            for row in result["statements"]
        ]
        sections += [
            f"## {result['key']}",
            f"{sentence(result['claim'])} ({result['paper']}): **{result['verdict']}**.",
            f"{', '.join(said)}. Arms, {result['metric']}: {arms}{note}.",
            "\n".join(["| statement | mean or paired difference [95 %] |", "|---|---|", *rows]),
        ]
    return "\n\n".join(sections)


def written() -> dict[pathlib.Path, str]:
    """Page -> its text with the tables made anew. Raises ValueError if a page has no place for them."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(STORED.glob("*.json"))]
    pages = {}
    for name, content in (("results.md", short_table(results)), ("results_by_claim.md", by_claim(results))):
        text = (PAGES / name).read_text(encoding="utf-8")
        place = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.S)
        if not place.search(text):
            raise ValueError(f"{name} has no {BEGIN} ... {END}")
        pages[PAGES / name] = place.sub(lambda _, made=content: f"{BEGIN}\n{made}\n{END}", text)
    return pages


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
