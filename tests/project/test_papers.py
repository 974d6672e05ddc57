"""docs/papers.tsv: each paper's status, command, test and claim. test_docs.py loads the commands' configs."""

import collections
import re

import pytest

from tests.paths import REPO_ROOT
from tests.project.test_docs import module_at

papers = module_at("docs/papers.py")
ROWS = papers.rows()


def test_the_page_is_the_table():
    assert papers.PAGE.read_text() == papers.written(), "run python docs/papers.py"


def test_each_paper_has_one_row():
    assert sorted(int(row["id"]) for row in ROWS) == list(range(len(ROWS)))
    for column in ("key", "title"):
        assert not [name for name, count in collections.Counter(row[column] for row in ROWS).items() if count > 1]
    assert {row["status"] for row in ROWS} == set(papers.STATUSES)
    assert all(row["arxiv"] == "" or re.fullmatch(r"\d{4}\.\d{4,5}", row["arxiv"]) for row in ROWS)
    assert all(value == value.strip() for row in ROWS for value in row.values())


@pytest.mark.parametrize("status", ["works", "partial", "not yet"])
def test_what_a_status_needs(status):
    """What works has a command and a test and lacks nothing; what does not says what is missing."""
    rows = [row for row in ROWS if row["status"] == status]
    assert rows
    for row in rows:
        works = status == "works"
        assert works == (row["missing"] == ""), row["key"]
        assert not works or (row["command"].startswith("python -m experiments.") and row["test"]), row["key"]
        assert status != "not yet" or not (row["command"] or row["test"] or row["claim"]), row["key"]


def test_tests_and_claims_exist():
    for row in ROWS:
        assert not row["test"] or (REPO_ROOT / row["test"]).is_file(), row["key"]
        assert not row["claim"] or (REPO_ROOT / "configs/papers" / f"{row['claim']}.py").is_file(), row["key"]


def test_the_readme_counts_them():
    counts = [sum(row["status"] == status for row in ROWS) for status in ("works", "partial")]
    said = f"{counts[0]} of {len(ROWS)} work whole, {counts[1]} in part"
    assert said in (REPO_ROOT / "README.md").read_text(), f"README.md should say: {said}"


def test_what_works_is_cited_in_the_code():
    """Whoever comes from a paper finds it by its arXiv id."""
    code = "".join(path.read_text() for name in ("configs", "rl_jax") for path in (REPO_ROOT / name).rglob("*.py"))
    uncited = {row["key"] for row in ROWS if row["status"] == "works" and row["arxiv"] not in code}
    assert uncited <= RUNS


# About runs, or surveys with a page of their own (docs/pages/surveys.md).
RUNS = {"hybridflow", "realhf", "mm_cold_start", "how_to_tune", "adastop", "orlb_tracking", "implicit_rm_eval"}
RUNS |= {"survey_r1_replication", "survey_rlhf", "survey_rl_llm", "survey_multiturn"}
