"""What MkDocs calls while it builds the site: pages made from the code, and files of the repository shown as pages.

The API pages follow the packages of rl_jax, the pages on methods and configs are read from configs/. A page with a line
`<!-- FILE: README.md -->` shows that file of the repository, one with `<!-- MADE: methods -->` what MADE makes; what
else it says is for readers of the repository. A name that does not exist is an error.
"""

import ast
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

CONFIGS = """Set a field on the command line with `--config.NAME=VALUE`. A name that does not exist is an error that
names the nearest; `--help` of a program shows its main fields. A value that names a function is looked up in the
module of its slot, and takes that function's keywords. Words after a config file's colon
(`configs/tasks/arithmetic.py:smoke`) change several fields at once; each file below says which it knows.

The first table has every field of a language-model run. The other sections list only what is new in their file,
or has another default there. `configs/methods` and `configs/presets` are on the page [Methods](methods.md)."""
# The files that have a table of all their fields; every other file is compared with one of them.
FULL = {"control": "control/environments.py", "": "tasks/arithmetic.py"}
ELSEWHERE = ("methods", "presets", "papers")  # folders of configs/ that other pages show
SKIPPED = ("programs.", "arms.")  # groups that repeat whole configs


def layers() -> dict[str, list[str]]:
    """Row -> units of the layer table in tests/project/test_layering.py, read without importing the tests."""
    tree = ast.parse((ROOT / "tests" / "project" / "test_layering.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ROWS":
            return ast.literal_eval(node.value)
    raise PluginError("tests/project/test_layering.py has no ROWS, from which the API pages take their order")


def api_pages() -> dict[str, str]:
    """File name -> content, one page per wing of rl_jax; its flat modules, the recipes, share the first one."""
    units = [unit for row in layers().values() for unit in row if unit.startswith("rl_jax.")]
    flat = [unit for unit in units if (ROOT / f"{unit.replace('.', '/')}.py").exists()]
    pages = {"api/recipes.md": page_of("Recipes", flat)}
    for unit in units:
        if unit not in flat:
            pages[f"api/{unit.removeprefix('rl_jax.')}.md"] = page_of(unit, modules_of(unit))
    return pages


def modules_of(unit: str) -> list[str]:
    """The package itself and all its public modules, in the order of their names."""
    folder = ROOT / unit.replace(".", "/")
    names = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(name for name in names if not name.rpartition(".")[2].startswith("_"))


def page_of(title: str, modules: list[str]) -> str:
    """A page with the docstrings of some modules."""
    lines = [f"# {title}"]
    for name in modules:
        # A package re-exports what its modules define; only its own docstring is shown.
        package = (ROOT / name.replace(".", "/")).is_dir()
        lines += ["", f"::: {name}", *(["    options: {members: false}"] if package else [])]
    return "\n".join(lines) + "\n"


def fields(config, prefix: str = "") -> dict[str, str]:
    """{dotted name: value as Python writes it} of a config."""
    result: dict[str, str] = {}
    for name, value in config.items():
        nested = hasattr(value, "items") and len(value) and "fn" not in value
        result |= fields(value, f"{prefix}{name}.") if nested else {prefix + name: repr(methods.describe(value))[1:-1]}
    return {name: value for name, value in result.items() if not name.startswith(SKIPPED)}


def config_files() -> dict[str, tuple[str, dict[str, str]]]:
    """File -> (its docstring, its fields), for every config of a program."""
    result = {}
    for path in sorted((ROOT / "configs").rglob("*.py")):
        file = path.relative_to(ROOT / "configs").as_posix()
        if file.startswith(tuple(f"{folder}/" for folder in ELSEWHERE)):
            continue
        module = importlib.import_module("configs." + file.removesuffix(".py").replace("/", "."))
        if not hasattr(module, "get_config"):
            continue
        try:
            result[file] = module.__doc__.strip(), fields(module.get_config())
        except (ValueError, TypeError) as error:
            raise PluginError(f"configs/{file} has no default to show: {error}") from error
    return result


def config_page() -> str:
    """Every config file of a program: what it says of itself, and its fields with default and description."""
    files = config_files()
    lines = ["# Config reference", "", CONFIGS, ""]
    for file in sorted(files, key=lambda name: (name.startswith("control"), name not in FULL.values(), name)):
        text, result = files[file]
        baseline = FULL["control" if file.startswith("control/") else ""]
        theirs = {} if file == baseline else files[baseline][1]
        shown = {name: value for name, value in result.items() if theirs.get(name) != value}
        lines += [f"## configs/{file}", "", "```text", text, "```", ""]
        if file != baseline:
            lines += [f"Against `configs/{baseline}`:", ""]
        lines += ["| field | default | description |", "|---|---|---|"]
        rows = [(name, cell(shown[name]), prose(describe(name) or "")) for name in sorted(shown)]
        lines += [f"| `{name}` | {default} | {description} |" for name, default, description in rows] + [""]
        missing = sorted({name.partition(".")[0] for name in theirs} - {name.partition(".")[0] for name in result})
        if missing:
            lines += [f"It has no group {', '.join(f'`{name}`' for name in missing)}.", ""]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text as code in a cell of a table."""
    return f"`` {text} ``".replace("|", "\\|") if text else "(empty)"


def prose(text: str) -> str:
    """Plain text in a cell of a table: nothing in it is markup, except for `code`."""
    escaped = "".join(
        part if index % 2 else re.sub(r"([\\*_\[\]<>#])", r"\\\1", part)
        for index, part in enumerate(re.split(r"(`[^`]*`)", text))
    )
    return escaped.replace("|", "\\|").replace("\n", " ")


def on_config(config):
    """Puts the API pages into the navigation, in the order of the layers."""
    for entry in config.nav:
        if "API" in entry:
            entry["API"] = list(api_pages())
    return config


def on_files(files, config):
    """Adds the API pages."""
    for name, content in api_pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def methods_page() -> str:
    """The table of all methods, and a section per method."""
    return methods.markdown([methods.method(key) for key in methods.all_keys()])


MADE = {"methods": methods_page, "configs": config_page}


def on_page_markdown(markdown, page, config, files):
    """Shows the file that a page names, or what is made for it; links into the repository become names."""
    marker = re.search(r"<!-- MADE: (.+?) -->", markdown)
    if marker:
        return MADE[marker.group(1)]()
    shown = re.search(r"<!-- FILE: (.+?) -->", markdown)
    if shown:
        markdown = (ROOT / shown.group(1)).read_text(encoding="utf-8")
        markdown = re.sub(r"\]\((?:\.\./)*docs/pages/", "](", markdown)
        markdown = markdown.replace("](.github/CONTRIBUTING.md", "](contributing.md")
        pages = {file.src_uri for file in files}
        # What is left leads to a file of the repository, which the site does not have.
        return re.sub(
            r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]*)[^)]*\)",
            lambda link: link.group() if link.group(2) in pages else link.group(1),
            markdown,
        )
    return re.sub(r"\[([^\]]+)\]\(\.\./\.\./[^)]*\)", r"\1", markdown)
