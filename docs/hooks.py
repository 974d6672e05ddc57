"""What MkDocs calls while it builds the site: pages made from the code, and text that lives in the README.

Nothing that the code or the README says is written a second time: a page names it, and what is named and not there is
an error.
"""

import importlib
import pathlib
import re
import sys

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from configs.fields import describe  # noqa: E402
from experiments.tools import methods  # noqa: E402
from tests.project.test_layering import FILES, ROWS, module_name  # noqa: E402

MEANING = {
    "recipes": "A batch in, (Mean, metrics) out: the pages to read for what a method is here.",
    "credit": "From rewards to the advantages and weights of a batch.",
    "machinery": "Train step, meshes, checkpoints, input, generation, scoring and records of runs.",
    "leaves": "Networks and Hugging Face folders, tasks, environments, verifiers, preference data.",
    "objectives": "The mathematics: from rewards to advantages and weights, and the losses.",
    "ground": "What everything else stands on: shapes, masked means, binding by name, statistics.",
}
CONFIG_FOLDERS = ("tasks", "preferences", "control", ".")  # methods and presets are on the page of methods
CONFIGS = """A field is set on the command line as `--config.NAME=VALUE`; a misspelt name is an error that names the
nearest. A value that names a function is looked up in the module that the slot belongs to, and takes that function's
keywords. A file's words, after its colon, change several fields at once."""


def api_page(row: str) -> str:
    """The modules of one row of the layer table, each with what it exports."""
    lines = [f"# {row.capitalize()}", "", MEANING[row]]
    units = set(ROWS[row]) - {"rl_jax"}
    for name in sorted(map(module_name, FILES)):
        if ".".join(name.split(".")[:2]) in units and not name.rsplit(".", 1)[-1].startswith("_"):
            # A package's page is its modules': what it exports again would stand there twice.
            package = (ROOT / name.replace(".", "/")).is_dir()
            lines += ["", f"::: {name}", *(["    options: {members: false}"] if package else [])]
    return "\n".join(lines) + "\n"


def fields(config, prefix: str = "") -> dict[str, str]:
    """{dotted name: value as Python writes it} of a config."""
    found: dict[str, str] = {}
    for name, value in config.items():
        nested = hasattr(value, "items") and len(value) and "fn" not in value
        found |= fields(value, f"{prefix}{name}.") if nested else {prefix + name: repr(methods.describe(value))[1:-1]}
    return found


def config_page() -> str:
    """Every config file of a program: what it says of itself, and each field with its default."""
    lines = ["# Config reference", "", CONFIGS, ""]
    for path in (path for folder in CONFIG_FOLDERS for path in sorted((ROOT / "configs" / folder).glob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
        if not hasattr(module, "get_config"):
            continue
        try:
            found = fields(module.get_config())
        except (ValueError, TypeError) as error:
            raise PluginError(f"{name} has no default to show: {error}") from error
        lines += [f"## {name}", "", "```text", module.__doc__.strip(), "```", ""]
        lines += ["| field | default | |", "|---|---|---|"]
        lines += [f"| `{field}` | {cell(value)} | {said(field)} |" for field, value in found.items()] + [""]
    return "\n".join(lines)


def said(field: str) -> str:
    """A field's description in a cell of a table."""
    return (describe(field) or "").replace("|", "\\|").replace("<", "&lt;").replace("**", "\\*\\*")


def cell(text: str) -> str:
    """Text as code in a cell of a table."""
    return f"`` {text} ``".replace("|", "\\|") if text else "(empty)"


def on_files(files, config):
    """Adds the pages that are made from the code."""
    pages = {f"api/{row}.md": api_page(row) for row in MEANING}
    table = methods.markdown([methods.method(key) for key in methods.all_keys()])
    pages["methods.md"] = table
    pages["configs.md"] = config_page()
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def readme_section(title: str) -> str:
    """A section of the README with its heading. Raises PluginError where it is not there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}$.*?(?=^## |\Z)", text, flags=re.M | re.S)
    if found is None:
        raise PluginError(f"README.md has no section {title!r}, which the site shows")
    return found.group()


def on_page_markdown(markdown, page, config, files):
    """Puts in the text that a page names; links to files of the repository become their names."""
    markdown = re.sub(r"<!-- README: (.+?) -->", lambda match: readme_section(match.group(1)), markdown)
    markdown = re.sub(r"<!-- FILE: (.+?) -->", lambda match: (ROOT / match.group(1)).read_text("utf-8"), markdown)
    if page.file.src_uri in ("index.md", "contributing.md"):
        markdown = re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", markdown)
    return markdown
