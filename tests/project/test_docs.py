"""What the documents name exists: links, files, tests, programs and make targets."""

import ast
import re
from pathlib import Path

import pytest

from tests.paths import REPO_ROOT

DOCUMENTS = ["README.md", "experiments/LOG.md", "tests/README.md", ".github/CONTRIBUTING.md"]
every_document = pytest.mark.parametrize("name", DOCUMENTS)


def code_of(text: str) -> str:
    """Everything between backticks, fenced or inline, one piece a line."""
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return "\n".join(fenced + inline)


def heading_anchors(text: str) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links whose file, or whose heading in a Markdown file, is missing."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = folder / path if path else None
        if target is not None and not target.exists():
            broken.append(link)
        elif anchor and (target is None or target.suffix == ".md"):
            page = text if target is None else target.read_text()
            if anchor not in heading_anchors(page):
                broken.append(link)
    return broken


def missing_paths(text: str) -> list[str]:
    """Paths of this repository (globs too) and tests (file::name) that code in the text names but nobody has."""
    missing = []
    pattern = r"(?<![\w./-])((?:rl_jax|experiments|configs|tests|notebooks|docs|\.ci|\.github)/[\w./*-]*)(::\w+)?"
    for path, test in re.findall(pattern, code_of(text)):
        path = path.rstrip(".")
        found = list(REPO_ROOT.glob(path)) if "*" in path else [p for p in [REPO_ROOT / path] if p.exists()]
        if not found:
            missing.append(path)
        elif test:
            nodes = ast.walk(ast.parse(found[0].read_text()))
            names = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
            if test.removeprefix("::") not in names:
                missing.append(path + test)
    return missing


def missing_programs(text: str) -> list[str]:
    """Modules of `python -m ...` commands that are ours by name and are not there."""
    modules = re.findall(r"python[\d.]* -m ((?:experiments|configs|rl_jax|tests)[\w.]*)", code_of(text))
    places = {m: REPO_ROOT / m.replace(".", "/") for m in modules}
    return [m for m, at in places.items() if not (at.with_suffix(".py").exists() or (at / "__main__.py").exists())]


def missing_targets(text: str) -> list[str]:
    """Targets of `make ...` commands that the Makefile does not have."""
    targets = set(re.findall(r"^([\w-]+):", (REPO_ROOT / "Makefile").read_text(), flags=re.M))
    named = re.findall(r"(?:^|[;&|`] *)make ((?:[\w=-]+ ?)+)", code_of(text), flags=re.M)
    return [word for words in named for word in words.split() if "=" not in word and word not in targets]


@every_document
def test_document_names_only_what_exists(name):
    text = (REPO_ROOT / name).read_text()
    assert broken_links(text, (REPO_ROOT / name).parent) == []
    assert missing_paths(text) == []
    assert missing_programs(text) == []
    assert missing_targets(text) == []


def test_the_site_shows_sections_and_files_that_exist():
    """What docs/hooks.py would refuse, without building the site (make docs)."""
    headings = re.findall(r"^## (.*)$", (REPO_ROOT / "README.md").read_text(), flags=re.M)
    pages = {path.name: path.read_text() for path in (REPO_ROOT / "docs" / "pages").glob("*.md")}
    shown = re.findall(r"<!-- README: (.+?) -->", "".join(pages.values()))
    assert shown and set(shown) <= set(headings)
    files = re.findall(r"<!-- FILE: (.+?) -->", "".join(pages.values()))
    assert files and all((REPO_ROOT / name).exists() for name in files)


def test_the_checks_see_what_is_missing():
    text = (
        "[a](no_such.md) [b](#no-such-heading) [c](https://example.org) [d](#here)\n# Here\n"
        "`tests/no_such.py` `tests/conftest.py` `tests/project/test_docs.py::test_gone` `rl_jax/*.pyx`\n"
        "```bash\npython -m experiments.no_such --x\npython -m venv .venv\nmake test JOBS=4\nmake nothing\n```\n"
    )
    assert broken_links(text, REPO_ROOT) == ["no_such.md", "#no-such-heading"]
    assert missing_paths(text) == ["tests/no_such.py", "tests/project/test_docs.py::test_gone", "rl_jax/*.pyx"]
    assert missing_programs(text) == ["experiments.no_such"]
    assert missing_targets(text) == ["nothing"]
