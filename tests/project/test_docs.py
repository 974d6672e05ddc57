"""What the documents name exists: links, files, tests, programs, make targets, config fields. Their snippets run."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_jax.rewards.terms import TERMS
from tests.paths import REPO_ROOT
from tests.project.test_layering import ROWS

PAGES = sorted((REPO_ROOT / "docs" / "pages").glob("*.md"))
GUIDES = ["README.md", ".github/CONTRIBUTING.md", *(path.relative_to(REPO_ROOT).as_posix() for path in PAGES)]
DOCUMENTS = ["experiments/LOG.md", "tests/README.md", *GUIDES]
every_document = pytest.mark.parametrize("name", DOCUMENTS)
every_guide = pytest.mark.parametrize("name", GUIDES)
MAX_PAGE_LINES = 100  # of a page that somebody reads from top to bottom
LOOKED_UP = {"results_by_claim.md", "papers.md"}  # pages that nobody reads so
NEEDS_FILES = {"models.md"}  # whose snippets read a folder of the reader's; tests/models does what they say
# What a snippet cannot see by itself: a config is plain data, and binding it looks its names up.
AFTER = {
    "agents.md": """
from configs import agents
from rl_jax import tasks
from rl_jax.tokenizers.dialogue import dialogue_of
config, world = agents.get_config("own"), Guess()
task = tasks.load(**config.task)
begun = dialogue_of(task.tokenizer).start(world.reset(task.data_source("train")[0], 0))
assert 0 < len(begun.ids) <= max(config.rollout.prompt_buckets)
assert not world.step("").done and world.step(str(world.number)).done
""",
    "losses.md": "from experiments.tools.method_families import bound_functions\nbound_functions(config)\n",
    "tasks.md": """
task = load(largest=9, data_dir="data")
record = task.data_source("test")[0]
assert task.reward_fn(record["prompt"], record["completion"], json.loads(record["info"])) == {"reward": 1.0}
assert task.reward_fn(record["prompt"], "", json.loads(record["info"])) == {"reward": 0.0}
assert get_config("smoke").task.name == "my_task:load"
""",
}


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


def config_of(file: str, arg: str | None = None):
    """The config of a file, as --config=FILE:ARG gives it."""
    return importlib.import_module(file.removesuffix(".py").replace("/", ".")).get_config(arg)


@pytest.fixture(scope="module")
def fields() -> set[str]:
    """The dotted names of all fields and groups of all configs."""

    def names(config, prefix=""):
        for name, value in config.items():
            yield prefix + name
            if hasattr(value, "items"):
                yield from names(value, f"{prefix}{name}.")

    files = [path.relative_to(REPO_ROOT).as_posix() for path in sorted((REPO_ROOT / "configs").rglob("*.py"))]
    folders = (
        "configs/task.py",
        "configs/tasks/",
        "configs/preferences/",
        "configs/control/",
        "configs/plans.py",
        "configs/grpo_async.py",
        "configs/masked_diffusion.py",
    )
    with_config = [f for f in files if f.startswith(folders) and "def get_config" in (REPO_ROOT / f).read_text()]
    assert len(with_config) > 10
    return {name for file in with_config for name in names(config_of(file))}


def missing_fields(text: str, fields: set[str]) -> list[str]:
    """Fields that code in the text sets or names (config.a.b) and that no config has; `config.a.b` itself is none."""
    named = re.findall(r"\bconfig\.([a-z]\w*(?:\.\w+)*)", code_of(text))
    return [name for name in named if name not in fields and name not in ("a.b", "NAME")]


def refused_configs(text: str) -> list[str]:
    """Configs of commands in the text, --config=FILE or --config=FILE:ARGUMENT, that cannot be loaded."""
    refused = []
    for file, arg in re.findall(r"--config=(configs/[\w/]+\.py)(?::([\w,]+))?", code_of(text)):
        try:
            config_of(file, arg or None)
        except (ImportError, ValueError) as error:
            refused.append(f"{file}:{arg} ({error})")
    return refused


@every_guide
def test_commands_name_fields_and_configs_that_exist(name, fields):
    text = (REPO_ROOT / name).read_text()
    assert missing_fields(text, fields) == []
    assert refused_configs(text) == []


def python_blocks(text: str) -> str:
    """The Python snippets of a page, one after the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))


def run_snippets(names: list[str], folder: Path) -> None:
    """Each page by itself, in a fresh Python in `folder` that has nothing but this checkout to import from."""
    program = [f"import json, sys; sys.path.insert(0, {str(REPO_ROOT)!r})"]
    for name in names:
        code = python_blocks((REPO_ROOT / name).read_text()) + AFTER.get(Path(name).name, "")
        given = f"{{'json': json, '__file__': {str(REPO_ROOT / name)!r}}}"
        program.append(f"exec(compile({code!r}, {name!r}, 'exec'), {given})")
    command = [sys.executable, "-c", "\n".join(program)]
    home = os.environ | {"HOME": str(folder)}  # where data sets are prepared
    done = subprocess.run(command, cwd=folder, env=home, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_readme_s_snippet_runs(tmp_path):
    run_snippets(["README.md"], tmp_path)


@pytest.mark.slow
def test_snippets_run(tmp_path):
    pages = [name for name in GUIDES if python_blocks((REPO_ROOT / name).read_text())]
    pages = [name for name in pages if Path(name).name not in NEEDS_FILES | {"README.md"}]
    assert {f"docs/pages/{name}.md" for name in ("losses", "preferences", "tasks")} <= set(pages)
    run_snippets(pages, tmp_path)


def test_the_readme_is_a_page_for_five_minutes():
    text = (REPO_ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert len(lines) <= 150
    assert len(text.split()) <= 1500
    assert [line.startswith("```") for line in lines].index(True) + 1 < 30
    first = re.search(r"```python\n(.*?)```", text, flags=re.S).group(1)
    assert len(first.strip().splitlines()) == 8
    assert re.search(r"!\[.+\]\(docs/pages/pictures/.+\)", text)


def test_each_wish_has_a_command_and_a_page():
    text = (REPO_ROOT / "README.md").read_text()
    section = text.partition("## I want to")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert 10 <= len(rows) <= 16  # a table that one can scan
    for row in rows:
        assert re.fullmatch(r"\| [^|`]+ \| `(make|python -m) [^|`]+` \| \[[^|]+\]\(docs/pages/\w+\.md\) \|", row), row


def test_the_readme_s_claims_are_rows_of_the_results():
    """No number of theirs is written by hand only here."""
    section = (REPO_ROOT / "README.md").read_text().partition("## Claims")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    results = (REPO_ROOT / "docs/pages/results_by_claim.md").read_text()
    for row in rows:
        paper, verdict = re.search(r"\d{4}\.\d{5}", row).group(), row.split("|")[2].strip(" *")
        claims = [part for part in results.split("\n## ") if paper in part and f"**{verdict}**" in part]
        effects = re.findall(r"-?[\d.]+ \[[^\]]+\]", row)
        assert effects and any(all(effect in claim for effect in effects) for claim in claims), row


def test_pages_are_short_and_in_the_navigation():
    navigation = yaml.safe_load((REPO_ROOT / "docs" / "mkdocs.yml").read_text())["nav"]
    listed = re.findall(r"[\w/]+\.md", str(navigation))
    assert sorted(listed) == [path.name for path in PAGES]
    for path in PAGES:
        by_hand = re.sub(r"<!-- BEGIN:.*?<!-- END -->", "", path.read_text(), flags=re.DOTALL)  # tables may grow
        assert path.name in LOOKED_UP or len(by_hand.splitlines()) <= MAX_PAGE_LINES, path.name


def test_the_reading_order_has_every_package_of_the_layer_table():
    text = (REPO_ROOT / "docs/pages/reading.md").read_text().partition("## Who may import whom")[2]
    rows = {row.split(" | ")[0].strip("| "): row for row in text.splitlines() if row.startswith("| ")}
    assert [name for name in rows if name != "row"] == list(ROWS)
    for name, units in ROWS.items():
        for unit in set(units) - {"rl_jax"}:
            place = unit.replace(".", "/")
            assert f"`{place}`" in rows[name] or f"{Path(place).name}.py`" in rows[name], f"{unit} in the row {name}"


def test_the_page_of_verifiers_has_every_term():
    """And no other: `boxes.` `near`, `click`; `fuzzing.distance` are boxes.near, boxes.click and fuzzing.distance."""
    text = (REPO_ROOT / "docs/pages/verifiers.md").read_text()
    named = set()
    for table in re.findall(r"^\| (?:short name|fn) \|.*?\n\n", text, flags=re.M | re.S):
        for row in table.splitlines()[2:]:
            prefix = ""
            for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0]):
                prefix = name if name.endswith(".") else prefix
                named |= {name if "." in name else prefix + name} - {prefix}
    assert named == set(TERMS) - {"math"}, "math is math.score"


def test_the_page_of_hosts_says_which_programs_run_on_several():
    page = (REPO_ROOT / "docs/pages/meshes.md").read_text().partition("## Several hosts")[2].partition("\n## ")[0]
    table, sentence = page.partition("| programs |")[2], page.partition("All training programs")[2].partition("\n")[0]
    folder = REPO_ROOT / "experiments"
    several, alone = set(), set()
    for path in [*folder.glob("*.py"), *folder.glob("control/*.py"), *folder.glob("frontier/cli.py")]:
        name = path.relative_to(folder).with_suffix("").as_posix().replace("/", ".").removesuffix(".cli")
        if "flags.main(" in (text := path.read_text()):
            (several if "several_processes=True" in text else alone).add(name)
    programs = re.compile("|".join(f"`{re.escape(name)}`" for name in several | alone))
    assert {name.strip("`") for name in programs.findall(table)} == several
    assert {name.strip("`") for name in programs.findall(sentence)} == alone | {"evaluate"}


def test_slices_that_commands_name_have_the_dimensions_of_their_chip():
    names = [*GUIDES, "docs/papers.tsv", "experiments/plan/cli.py", "experiments/plan/placement.py"]
    named = {shape for name in names for shape in re.findall(r"\b(v\d\w?):([\dx]+)", (REPO_ROOT / name).read_text())}
    assert {("v5e", "8x8"), ("v5p", "2x2x4")} <= named
    assert {chip for chip, shape in named if len(shape.split("x")) == 3} == {"v4", "v5p"}
    assert {chip for chip, shape in named if len(shape.split("x")) == 2} == {"v5e", "v6e"}


def test_pages_show_files_that_exist():
    """What docs/hooks.py would refuse, without building the site (make docs)."""
    shown = re.findall(r"<!-- FILE: (.+?) -->", "".join(path.read_text() for path in PAGES))
    assert sorted(shown) == [".github/CONTRIBUTING.md", "README.md"]
    assert all((REPO_ROOT / name).exists() for name in shown)


def module_at(path: str):
    """A file of docs/, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, REPO_ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_claims_are_the_stored_results():
    pages = module_at("docs/results.py").written()
    assert len(pages) == 2
    for path, text in pages.items():
        assert path.read_text() == text, "run python docs/results.py"


def test_docstrings_are_shown_as_text_and_code_stays_code():
    module = module_at("docs/docstrings.py")
    text = "u[i][j] of <pad>, a*b*c.\n\n    l = a*b*c[i][j]\n\nArgs:\n    **keywords: x*y*z, `a*b*c`."
    assert module.escaped(text).splitlines() == [
        r"u[i]\[j] of &lt;pad>, a\*b\*c.",
        "",
        "    l = a*b*c[i][j]",
        "",
        "Args:",
        r"    **keywords: x\*y\*z, `a*b*c`.",
    ]


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
    names = "`--config.train.steps=3` and `config.no.such`, as in `--config.a.b=1`; config.not_code\n"
    assert missing_fields(names, {"train", "train.steps"}) == ["no.such"]
    command = "`python -m experiments.grpo --config=configs/tasks/arithmetic.py:smoke`, `:x` is none of its words\n"
    assert refused_configs(command) == []
    assert len(refused_configs(command.replace("smoke", "smok"))) == 1
    assert len(refused_configs(command.replace("arithmetic", "no_such"))) == 1
