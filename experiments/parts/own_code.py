"""The modules of one's own that a config names, "my_losses:my_surrogate": checksums of their sources.

Nothing is imported: what a module does when it is imported may be slow, or belong into another process.
"""

import hashlib
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rl_jax.runs.run_record import flatten

PACKAGES = ("rl_jax", "experiments")  # their sources are hashed as a whole, see origin.code_sha256
_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"(?<![\w.:])([^\W\d][\w.]*):[^\W\d]")


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """{module: sha256 of its source} of the modules that a config names, but for those of this package.

    A package stands for all its Python files: its functions may be imported from any of them. What a module imports
    from elsewhere is not looked at.

    Args:
      config: nested dicts of plain values, functions as "module:function" (`origin.named`).
    """
    modules = sorted({name for text in _texts(list(flatten(config).values())) for name in _NAMED.findall(text)})
    found = {name: _sources(name) for name in modules}
    return {name: _sha256(files) for name, files in found.items() if files}


def changed(workdir: pathlib.Path, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """That modules of a run have changed, if they have, or "".

    Args:
      workdir: of the run, for the text.
      old: `own_code` of its start; {} if an older version has not kept it.
      new: `own_code` of now.
    """
    names = ", ".join(name for name in new if name in old and old[name] != new[name])
    return f"{workdir}: the code of {names} has changed since this run was started" if names else ""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _sources(module: str) -> list[pathlib.Path]:
    """The Python files of a module; none if it is not there, of the standard library, or of PACKAGES."""
    top, *parts = module.split(".")
    if top in sys.stdlib_module_names or not all([top, *parts]):
        return []
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a script's __main__ has no spec
        file = getattr(sys.modules.get(module), "__file__", None)
        return [pathlib.Path(file)] if file and pathlib.Path(file).is_file() else []
    for place in range(len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return []
        name = ".".join([top, *parts[: place + 1]])
        spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is None or not spec.has_location or not pathlib.Path(spec.origin).is_file():
        return []
    file = pathlib.Path(spec.origin)
    if any(file.resolve().is_relative_to(_CHECKOUT / name) for name in PACKAGES):
        return []
    return sorted(file.parent.rglob("*.py")) if spec.submodule_search_locations is not None else [file]


def _sha256(files: list[pathlib.Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
