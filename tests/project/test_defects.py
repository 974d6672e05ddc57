"""Each defect of the review has a test that is there, or a word on where else it is: tests/defects.tsv."""

import csv
import re

from tests.paths import REPO_ROOT


def rows() -> list[dict[str, str]]:
    with open(REPO_ROOT / "tests/defects.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_each_defect_names_a_test_that_there_is():
    missing = []
    for row in rows():
        if row["test"].startswith("other: "):
            continue
        file, _, name = row["test"].partition("::")
        path = REPO_ROOT / file
        if not path.exists() or not re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE):
            missing.append(f"{row['where']}: {row['test']}")
    assert missing == []


def test_every_section_is_there():
    found = {row["where"] for row in rows()}
    wanted = {f"D{number}" for number in range(1, 21)} | {f"3.0 {number}" for number in range(1, 18)}
    assert wanted | {"1b", "1c", "2"} | {f"3.{number}" for number in range(1, 9)} <= found
    elsewhere = {row["where"] for row in rows() if row["test"].startswith("other: ")}
    assert elsewhere == {"D19", "D20", "3.1"}
