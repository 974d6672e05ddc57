"""Writes docs/pages/papers.md from docs/papers.tsv: every paper that this project sets out to serve, and how far it is.

    python docs/papers.py

A row's columns: id, key, title, arxiv, group, status, command, test, claim (a file of configs/papers), missing.
"""

import collections
import csv
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA, PAGE = ROOT / "docs" / "papers.tsv", ROOT / "docs" / "pages" / "papers.md"
STORED = ROOT / "experiments" / "ablation" / "results"
STATUSES = {
    "works": "its defining part runs by the command, and the test holds it",
    "partial": "some of it is there; the last column says what is missing",
    "not yet": "nothing of it runs",
    "out of scope": "nothing in it trains a policy",
}


def rows() -> list[dict[str, str]]:
    """The rows of docs/papers.tsv, by column."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def verdict(claim: str) -> str:
    """What the stored result of a claim says, "not run" where there is none."""
    path = STORED / f"{claim}.json"
    return json.loads(path.read_text(encoding="utf-8"))["verdict"] if path.exists() else "not run"


def line(row: dict[str, str]) -> str:
    """A row of the page's tables."""
    title = row["title"].replace("|", r"\|")
    paper = f"[{title}](https://arxiv.org/abs/{row['arxiv']})" if row["arxiv"] else title
    held = [f"`{row['command']}`"] if row["command"] else []
    held += [f"`{row['test']}`"] if row["test"] else []
    held += [f"claim `{row['claim']}`: {verdict(row['claim'])}"] if row["claim"] else []
    missing = row["missing"].replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
    return f"| {row['id']} | {paper} (`{row['key']}`) | {row['status']} | {'<br>'.join(held)} | {missing} |"


def written() -> str:
    """The page's text."""
    papers = rows()
    counts = collections.Counter(row["status"] for row in papers)
    lines = [
        "# Papers",
        "",
        "<!-- Written by docs/papers.py from docs/papers.tsv: change that, then run python docs/papers.py. -->",
        "",
        f"The {len(papers)} papers that this project sets out to serve, by group. Search the page for an id, a key, an",
        "arXiv id or a word of the title. What stands in for a model or data is said in the config.",
        "Surveys are mapped to commands on [a page of their own](surveys.md).",
        "",
        "| status | papers | meaning |",
        "|---|---|---|",
        *(f"| {status} | {counts[status]} | {meaning} |" for status, meaning in STATUSES.items()),
    ]
    groups = sorted({row["group"] for row in papers})
    for group in groups:
        inside = sorted((row for row in papers if row["group"] == group), key=lambda row: int(row["id"]))
        works = sum(row["status"] == "works" for row in inside)
        lines += ["", f"## {group}", "", f"{works} of {len(inside)} work.", ""]
        lines += ["| id | paper | status | command, test, claim | missing |", "|---|---|---|---|---|"]
        lines += [line(row) for row in inside]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
