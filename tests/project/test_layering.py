"""Reads the imports of every module and holds the layer table of the design: imports only point downwards."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPO_ROOT

# Top row first; a unit (a module, or a package with all its modules) may import its own modules and the rows below.
ROWS = {
    "experiments": ["experiments"],
    "configs": ["configs"],
    "recipes": [
        "rl_jax.sft",
        "rl_jax.grpo",
        "rl_jax.ppo",
        "rl_jax.dpo",
        "rl_jax.reward_model",
        "rl_jax.control",
        "rl_jax.testing",
    ],
    "credit": ["rl_jax.credit"],
    "machinery": ["rl_jax.training", "rl_jax.rollout", "rl_jax.runs", "rl_jax.flow"],
    "leaves": [
        "rl_jax.models",
        "rl_jax.rewards",
        "rl_jax.tasks",
        "rl_jax.tokenizers",
        "rl_jax.preferences",
        "rl_jax.envs",
        "rl_jax.experience",
    ],
    "objectives": ["rl_jax.advantages", "rl_jax.token_weights", "rl_jax.losses", "rl_jax.selection"],
    "ground": ["rl_jax.core", "rl_jax.data", "rl_jax.stats", "rl_jax"],
}
# Imports within a row, each one wanted; the arrows must not form a circle.
SIDEWAYS = {
    ("rl_jax.ppo", "rl_jax.grpo"),
    ("rl_jax.control", "rl_jax.ppo"),
    ("rl_jax.control", "rl_jax.grpo"),
    ("rl_jax.control", "rl_jax.dpo"),
    ("rl_jax.control", "rl_jax.reward_model"),
    ("rl_jax.testing", "rl_jax.grpo"),
    ("rl_jax.testing", "rl_jax.ppo"),
    ("rl_jax.testing", "rl_jax.dpo"),
    ("rl_jax.losses", "rl_jax.token_weights"),
    ("rl_jax.training", "rl_jax.rollout"),
    ("rl_jax.flow", "rl_jax.runs"),
    ("rl_jax.tasks", "rl_jax.tokenizers"),
    ("rl_jax.tasks", "rl_jax.rewards"),
    ("rl_jax.preferences", "rl_jax.tasks"),
    ("rl_jax.envs", "rl_jax.tasks"),
    ("rl_jax.envs", "rl_jax.rewards"),
    ("rl_jax.envs", "rl_jax.tokenizers"),
    ("rl_jax.preferences", "rl_jax.tokenizers"),
    ("rl_jax.preferences", "rl_jax.experience"),
}
# Downward arrows that are refused all the same: who trains or samples takes an `apply`, never a model class, and
# who knows tasks and rewards is the experiment.
REFUSED = {(row, unit) for row in ("recipes", "machinery") for unit in ROWS["leaves"]} | {("configs", "rl_jax")}
# Packages that the row's modules may not import, whatever they are for.
REFUSED_PACKAGES = {"rl_jax": {"ml_collections", "absl", "pickle", "cloudpickle", "dill", "marshal", "shelve"}}
REFUSED_PACKAGES["experiments"] = REFUSED_PACKAGES["rl_jax"] - {"ml_collections", "absl"}
# Importable, with everything they import, on a machine or in a worker process without jax.
JAX_FREE = ["data", "runs", "core.binding", "tokenizers", "tasks", "rewards", "preferences", "stats"]
JAX_FREE += ["training.ref_log_prob_cache", "experience", "flow"]
MAX_LINES = {"rl_jax": 300, "configs": 300, "experiments": 400}
MAX_FUNCTION_LINES = 80

UNIT_ROWS = {unit: row for row, units in ROWS.items() for unit in units}
FILES = [path for top in MAX_LINES for path in sorted((REPO_ROOT / top).rglob("*.py"))]


def every_file(test):
    """One test of all files, that names each one that fails: a test for each takes longer to make than to run."""

    def of_all():
        failures = []
        for path in FILES:
            try:
                test(path)
            except AssertionError as error:
                failures.append(f"{path.relative_to(REPO_ROOT)}: {error}")
        assert not failures, "\n".join(failures)

    of_all.__name__, of_all.__doc__ = test.__name__, test.__doc__
    return of_all


def module_name(path: Path) -> str:
    """rl_jax/losses/kl.py -> rl_jax.losses.kl; a package's __init__.py -> the package."""
    parts = path.relative_to(REPO_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The entry of the table that a module falls under."""
    parts = module.split(".")
    unit = parts[0] if parts[0] in ("experiments", "configs") else ".".join(parts[:2])
    if unit not in UNIT_ROWS:
        raise LookupError(f"{module} is in no row of the layer table: add it to ROWS in tests/project/test_layering.py")
    return unit


def imports_of(tree: ast.AST) -> set[str]:
    """Every module that a syntax tree imports, at the top or inside a function; `from a import b` gives a.b and a."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: write the full name instead of a relative import")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def our_module(name: str) -> str | None:
    """The longest prefix of an imported name that is a module of this repository; None for somebody else's."""
    parts = name.split(".")
    if parts[0] not in MAX_LINES:
        return None
    for length in range(len(parts), 0, -1):
        stem = REPO_ROOT.joinpath(*parts[:length])
        if stem.with_suffix(".py").exists() or (stem / "__init__.py").exists() or stem.is_dir():
            return ".".join(parts[:length])
    return name


def layer_errors(module: str, tree: ast.AST) -> list[str]:
    """What the table refuses about one module, in words."""
    unit = unit_of(module)
    row, top, order = UNIT_ROWS[unit], module.split(".")[0], list(ROWS)
    errors = []
    for name in sorted(imports_of(tree)):
        target = our_module(name)
        if target is None:
            package = name.split(".")[0]
            if package in REFUSED_PACKAGES.get(top, ()):
                errors.append(f"{module} imports {package}, which nothing under {top}/ may")
            if top == "configs" and package != "ml_collections" and package not in sys.stdlib_module_names:
                errors.append(f"{module} imports {package}: a config is plain data")
            continue
        target_unit = unit_of(target)
        target_row = UNIT_ROWS[target_unit]
        below = order.index(target_row) > order.index(row)
        refused = (row, target_unit) in REFUSED or (row == "configs" and target.startswith("rl_jax"))
        if target_unit != unit and ((unit, target_unit) not in SIDEWAYS) and (refused or not below):
            errors.append(f"{module} ({row}) imports {target} ({target_row}): the table does not allow it")
    return errors


def forbidden_calls(tree: ast.AST, *, library: bool) -> list[str]:
    """Calls of eval, exec and pickle loading anywhere, and reads of the environment in the library."""
    errors = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            errors.append(f"line {node.lineno}: calls {node.func.id}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            errors.append(f"line {node.value.lineno}: allow_pickle")
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        if library and name in ("environ", "getenv", "environb", "putenv"):
            errors.append(f"line {node.lineno}: reads the environment ({name})")
    return errors


@every_file
def test_imports_point_downwards(path):
    assert layer_errors(module_name(path), ast.parse(path.read_text())) == []


PROGRAMS = sorted(  # as config.program names them: "grpo", "control.ppo"
    module_name(path).removeprefix("experiments.")
    for place in ("", "control")
    for path in (REPO_ROOT / "experiments" / place).glob("*.py")
    if path.stem != "__init__"
)


def program_errors(module: str, tree: ast.AST) -> list[str]:
    """What experiments/ refuses about one of its modules: programs share parts, never each other; a part knows neither
    a program nor a tool. Tools (the packages beside parts/) may use programs."""
    own = module.removeprefix("experiments.")
    kind = "program" if own in PROGRAMS else "part" if own.startswith("parts") else "tool"
    own = own.split(".") if kind == "program" else own.split(".")[:1]
    errors = []
    for name in sorted(imports_of(tree)):
        target = (our_module(name) or "").split(".")
        if target[0] != "experiments" or len(target) < 2 or target[1 : 1 + len(own)] == own:
            continue
        if kind != "tool" and target[1] != "parts":
            errors.append(f"{module} ({kind}) imports {'.'.join(target)}: only experiments.parts is shared")
    return errors


@pytest.mark.parametrize("path", sorted((REPO_ROOT / "experiments").rglob("*.py")), ids=lambda path: path.stem)
def test_programs_share_parts_and_never_each_other(path):
    assert program_errors(module_name(path), ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("experiments.ppo", "from experiments import grpo", True),
        ("experiments.ppo", "from experiments.report.cli import main", True),
        ("experiments.control.ppo", "from experiments.control import replay", True),
        ("experiments.control.ppo", "from experiments.parts import flags", False),
        ("experiments.ppo", "from experiments.parts import policy", False),
        ("experiments.parts.run", "from experiments import grpo", True),
        ("experiments.parts.run", "from experiments.sweep import points", True),
        ("experiments.parts.run", "from experiments.parts import setup", False),
        ("experiments.frontier.cli", "from experiments import grpo", False),
    ],
)
def test_what_experiments_refuses(module, source, refused):
    assert bool(program_errors(module, ast.parse(source))) == refused


def test_the_top_floors_stay_small():
    """`ls rl_jax` answers what is implemented, `ls experiments` what can be run."""
    recipes = {path.stem for path in (REPO_ROOT / "rl_jax").glob("*.py")} - {"__init__"}
    assert recipes == {"sft", "grpo", "ppo", "dpo", "reward_model"}
    assert len([name for name in PROGRAMS if "." not in name]) <= 11


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_can_be_read(name):
    """The run of every program is at most 35 lines."""
    tree = ast.parse((REPO_ROOT / "experiments" / f"{name.replace('.', '/')}.py").read_text())
    lengths = [node.end_lineno - node.lineno + 1 for node in tree.body if getattr(node, "name", "") == "run"]
    assert len(lengths) == 1 and lengths[0] <= 35


@every_file
def test_no_eval_no_pickle_no_environment(path):
    library = path.relative_to(REPO_ROOT).parts[0] == "rl_jax"
    assert forbidden_calls(ast.parse(path.read_text()), library=library) == []


@every_file
def test_files_and_functions_stay_short(path):
    """Docstrings do not count: one argument per line is longer, and easier to read."""
    text = path.read_text()
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    lines = len(text.splitlines()) - sum(node.end_lineno - node.lineno + 1 for node in docstrings)
    assert lines <= MAX_LINES[path.relative_to(REPO_ROOT).parts[0]]
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.body[0].lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}, f"functions over {MAX_FUNCTION_LINES} lines in {path.name}"


@every_file
def test_public_functions_say_what_they_do(path):
    """A config's get_config needs no more than the text at the head of its file."""
    tree = ast.parse(path.read_text())
    silent = [
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and not (path.relative_to(REPO_ROOT).parts[0] == "configs" and node.name in ("get_config", "sweep"))
        and not ast.get_docstring(node)
    ]
    assert ast.get_docstring(tree), f"{path.name} has no docstring at its head"
    assert silent == []


@pytest.mark.slow
def test_jax_free_modules_load_without_jax():
    prefixes = tuple(f"rl_jax.{name}" for name in JAX_FREE)
    modules = ["rl_jax"] + [
        name for name in map(module_name, FILES) if any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)
    ]
    assert len(modules) > len(JAX_FREE) - 1
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'jax' in sys.modules or 'tensorflow' in sys.modules:\n"
        "        sys.exit(name + ' imports jax or tensorflow')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_parts_form_no_circle():
    """Any part may be imported first. An import inside a function is not counted."""
    files = {module_name(path): path for path in (REPO_ROOT / "experiments" / "parts").rglob("*.py")}
    remaining = {}
    for name, path in files.items():
        top = ast.Module([node for node in ast.parse(path.read_text()).body if not hasattr(node, "name")], [])
        imported = {our_module(other) for other in imports_of(top)}
        packages = {other.rpartition(".")[0] for other in imported if other} - {name.rpartition(".")[0]}
        remaining[name] = (imported | packages) & set(files) - {name, "experiments.parts"}
    while remaining:
        leaves = {name for name, others in remaining.items() if not others & set(remaining)}
        assert leaves, f"a circle among {sorted(remaining)}"
        remaining = {name: others for name, others in remaining.items() if name not in leaves}


def test_sideways_arrows_form_no_circle():
    remaining = set(SIDEWAYS)
    while remaining:
        leaves = {target for _, target in remaining} - {source for source, _ in remaining}
        assert leaves, f"a circle among {remaining}"
        remaining = {(source, target) for source, target in remaining if target not in leaves}


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("rl_jax.losses.policy", "from rl_jax import grpo", "does not allow"),
        ("rl_jax.grpo", "def f():\n    from rl_jax.models import transformer", "does not allow"),
        ("rl_jax.rollout.lm.engine", "import rl_jax.models.transformer.model", "does not allow"),
        ("rl_jax.core.masked", "import configs.tasks.arithmetic", "does not allow"),
        ("rl_jax.training.step", "from ml_collections import ConfigDict", "imports ml_collections"),
        ("rl_jax.training.step", "from absl import flags", "imports absl"),
        ("rl_jax.training.checkpoint", "import pickle", "imports pickle"),
        ("configs.tasks.arithmetic", "from rl_jax import types", "does not allow"),
        ("configs.tasks.arithmetic", "import jax", "plain data"),
    ],
)
def test_the_table_refuses(module, source, complaint):
    errors = layer_errors(module, ast.parse(source))
    assert len(errors) == 1 and complaint in errors[0]


def test_the_table_allows_what_it_should():
    assert layer_errors("rl_jax.grpo", ast.parse("from rl_jax.losses import kl\nimport rl_jax.core.types")) == []
    assert layer_errors("configs.papers.x", ast.parse("from configs import common\nimport ml_collections")) == []
    assert layer_errors("experiments.grpo", ast.parse("from rl_jax import grpo\nfrom absl import app")) == []


def test_a_module_outside_the_table_must_be_added():
    with pytest.raises(LookupError, match="add it to ROWS"):
        layer_errors("rl_jax.brand_new", ast.parse(""))


@pytest.mark.parametrize("source", ["eval('1')", "exec('1')", "np.load(f, allow_pickle=True)", "os.environ['A']"])
def test_forbidden_calls_are_seen(source):
    assert forbidden_calls(ast.parse(source), library=True)


def test_no_file_is_a_link():
    """A link to a virtual environment, added by accident, takes the place of the real one in every clone."""
    if not (REPO_ROOT / ".git").exists():
        pytest.skip("no checkout")
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if line.startswith(("120000", "160000"))] == []
