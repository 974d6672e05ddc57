"""The real data sets: which files they have, and which of them a config names that are missing here.

data_sources.json holds the sets and, for each file: repository, commit and path on GitHub, size, licence, and sha256 of
the file there. experiments.tools.fetch_data downloads them.
"""

import json
import pathlib
from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import common
from experiments.parts import check_config

SOURCES = pathlib.Path(__file__).with_name("data_sources.json")
FETCH = "python -m experiments.tools.fetch_data"
UNREAD = ("arms.", "programs.")  # of the frontier: programs that start with a config of their own


def catalogue() -> tuple[dict[str, list[str]], dict[str, dict]]:
    """(set -> its files, file -> its entry in data_sources.json). A folder of the data is a set, too."""
    known = json.loads(SOURCES.read_text(encoding="utf-8"))
    files = {entry["file"]: entry for entry in known["files"]}
    sets = dict(known["sets"])
    for name in files:
        sets.setdefault(folder := name.partition("/")[0], [])
        if folder not in known["sets"]:
            sets[folder].append(name)
    return sets, files


def check(config: ConfigDict) -> None:
    """Checks that the files of the real data sets which a config names are here. Other paths are not checked.

    Raises:
      ValueError: with each field whose files are missing, and the command that downloads them.
    """
    named = dict(_named(config))
    whole = _set_of(config, named.values())
    chosen = {field: whole or _set_of(config, [path]) for field, path in named.items()}  # or a set for each path
    missing = {
        field: chosen[field][0]
        for field, path in named.items()
        if chosen[field] and not _is_here(check_config.get(config, field), path, chosen[field][1])
    }
    if missing:
        values = ", ".join(f"{field}={check_config.get(config, field)}" for field in missing)
        commands = " && ".join(f"{FETCH} {name}" for name in dict.fromkeys(missing.values()))
        raise ValueError(f"missing data files: {values}. Download them with: {commands}")


def _named(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """(field, path within the data) of every field that names a file or folder of the real data sets."""
    roots = [pathlib.Path(root).expanduser() for root in (common.DATA, common.FETCHED)]
    names = check_config.get(config, "benchmarks.names") or ()
    for field, value in check_config.leaves(config):
        unused = field.startswith("benchmarks.sets.") and field.split(".")[2] not in names
        if not isinstance(value, str) or not value or unused or field.startswith(UNREAD):
            continue
        for root in roots:
            if pathlib.Path(value).is_relative_to(root):
                yield field, pathlib.Path(value).relative_to(root).as_posix()


def _covers(files: list[str], path: str) -> bool:
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _set_of(config: ConfigDict, paths) -> tuple[str, list[str]] | None:
    """The set that has all of these paths: the one named like the data, the task or its kind, or else the smallest."""
    paths = list(paths)
    sets = {name: files for name, files in catalogue()[0].items() if all(_covers(files, path) for path in paths)}
    if not paths or not sets:
        return None
    own = [check_config.get(config, field) for field in ("data.name", "task.name", "task.kind")]
    name = next((name for name in own if name in sets), min(sets, key=lambda name: len(sets[name])))
    return name, sets[name]


def _is_here(value: str, path: str, files: list[str]) -> bool:
    """Whether the file is here or, for a folder, at least one of the set's files in it."""
    place = pathlib.Path(value)
    below = [file.removeprefix(f"{path}/") for file in files if file.startswith(f"{path}/")]
    return any((place / file).exists() for file in below) if below else place.exists()
