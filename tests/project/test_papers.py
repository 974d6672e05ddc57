"""docs/papers.tsv: each paper's status, command, test and claim. test_docs.py loads the commands' configs."""

import argparse
import ast
import collections
import contextlib
import functools
import importlib
import re
import shlex
import sys

import pytest

from experiments.parts import check_config
from experiments.parts.help_fields import TAKES
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
    assert {row["status"] for row in ROWS} <= set(papers.STATUSES)
    assert all(row["arxiv"] == "" or re.fullmatch(r"\d{4}\.\d{4,5}", row["arxiv"]) for row in ROWS)
    assert all(value == value.strip() for row in ROWS for value in row.values())


@pytest.mark.parametrize("status", ["works", "partial", "not yet"])
def test_what_a_status_needs(status):
    """What works has a command and a test and lacks nothing; what does not says what is missing."""
    rows = [row for row in ROWS if row["status"] == status]
    assert rows or status == "not yet"
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
RUNS = {
    "multi_domain_study",
    "mpo_mixed",
    "hybridflow",
    "realhf",
    "mm_cold_start",
    "how_to_tune",
    "adastop",
    "orlb_tracking",
    "implicit_rm_eval",
}
RUNS |= {"survey_r1_replication", "survey_rlhf", "survey_rl_llm", "survey_multiturn", "rlm_blueprint"}


def test_the_named_tests_are_tests():
    """A file of cases that another file reads is collected by nobody."""
    assert not [row["key"] for row in ROWS if row["test"] and not row["test"].rpartition("/")[2].startswith("test_")]


def config_of(command: str):
    """The config of a command of a program, with its overrides."""
    words = shlex.split(command)
    (path,) = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    path, _, argument = path.partition(":")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    config = module.get_config(argument or None)
    for name, value in (word.removeprefix("--config.").split("=", 1) for word in words if word.startswith("--config.")):
        group, _, field = name.rpartition(".")
        owner = functools.reduce(getattr, group.split("."), config) if group else config
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
        setattr(owner, field, value)
    return config


@pytest.mark.slow
def test_a_command_is_of_the_program_that_its_config_is_for():
    """...and the config with the command's own fields is one that the program takes."""
    wrong = {}
    for row in ROWS:
        if "--config=" not in row["command"] or re.search(r"experiments\.(plan|tools|sweep)", row["command"]):
            continue
        program, config = row["command"].split()[2].removeprefix("experiments."), config_of(row["command"])
        if config.program not in (program, *TAKES.get(program, ())):
            wrong[row["key"]] = f"is run by {program}, and its config is for {config.program}"
            continue
        try:
            check_config.check(config)
        except ValueError as error:
            wrong[row["key"]] = str(error)
    assert not wrong


def test_an_ablation_is_a_claim_of_this_repository():
    for row in ROWS:
        if row["command"].startswith("python -m experiments.ablation "):
            claim = row["command"].split()[3]
            assert (REPO_ROOT / "configs/papers" / f"{claim}.py").is_file(), row["key"]


class ParsedError(Exception):
    """The command line was read without an error."""


def parse(parser, arguments=None, namespace=None):
    """In place of ArgumentParser.parse_args: what comes after it is not run."""
    rest = parser.parse_known_args(arguments, namespace)[1]
    if rest:
        parser.error(f"unknown: {rest}")
    raise ParsedError


COMMAND = "python -m experiments.tools."
TOOLS = [row for row in ROWS if row["command"].startswith(COMMAND) and "--config=" not in row["command"]]


@pytest.mark.parametrize("row", TOOLS, ids=[row["key"] for row in TOOLS])
def test_a_tools_command_line_is_whole(row, monkeypatch):
    """Nothing that it requires is missing in the table."""
    module, *arguments = shlex.split(row["command"])[2:]
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(ParsedError):
        importlib.import_module(module).main()
