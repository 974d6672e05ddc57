"""Writes the tables of docs/pages/results.md and results_by_claim.md from the stored results of the claims.

    python docs/results.py

The stored results are experiments/ablation/results. Text outside the marks BEGIN and END is written by hand.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from experiments.ablation.summary import by_claim, short_table  # noqa: E402

PAGES = ROOT / "docs" / "pages"
STORED = ROOT / "experiments" / "ablation" / "results"
BY_CLAIM = "results_by_claim.md"
BEGIN, END = "<!-- BEGIN: python docs/results.py -->", "<!-- END -->"


def written() -> dict[pathlib.Path, str]:
    """Page -> its text with the tables made anew. Raises ValueError if a page has no place for them."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(STORED.glob("*.json"))]
    pages = {}
    for name, content in (("results.md", short_table(results, page=BY_CLAIM)), (BY_CLAIM, by_claim(results))):
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
