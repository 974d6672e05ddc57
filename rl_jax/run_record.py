"""What a run was: config.json and run.json in its workdir, enough to run it again on the same code and packages."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_jax.logging import encode_row, write_atomically

_PACKAGES = (
    "rl_jax jax jaxlib flax optax orbax-checkpoint chex numpy tensorflow-datasets grain ml-collections".split()
)


def write_run_record(
    workdir: str | os.PathLike,
    *,
    config: Mapping[str, Any],
    command: str | Sequence[str],
    task: str,
    algorithm: str,
    devices: Sequence[str] = (),
) -> None:
    """Write workdir/config.json and workdir/run.json, each atomically.

    config: the resolved configuration, nested dicts of plain values. command: what was typed, e.g. sys.argv.
    task, algorithm: names for the report's head. devices: str(d) of each accelerator.
    A resumed run keeps the first attempt's "started" and adds the present time to "resumed".
    Raises ValueError naming the field of a config value that JSON cannot hold.
    """
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    started, resumed = now, []
    if (workdir / "run.json").exists():
        earlier = read_json(workdir / "run.json")
        started, resumed = earlier["started"], [*earlier["resumed"], now]
    commit, dirty = _git_state(Path(__file__).resolve())
    record = {
        "command": command if isinstance(command, str) else list(command),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "hardware": {**_hardware(), "devices": list(devices)},
        "started": started,
        "resumed": resumed,
        "task": task,
        "algorithm": algorithm,
    }
    for name, content in (("config.json", config), ("run.json", record)):
        pretty = json.dumps(json.loads(encode_row(content)), indent=2)
        write_atomically(workdir / name, (pretty + "\n").encode())


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file. Raises FileNotFoundError, and ValueError naming the file that holds no object."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: damaged file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _git_state(source: Path) -> tuple[str, bool | None]:
    """(commit, are there uncommitted changes) of the checkout that `source` belongs to; ("unknown", None) if none."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(source.parent), *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    try:
        # An installed copy may lie in a .venv inside somebody else's checkout: that commit would say nothing.
        git("ls-files", "--error-unmatch", source.name)
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hardware() -> dict[str, Any]:
    """Platform, CPU count and memory in bytes (None where the system does not tell)."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        memory = None
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": memory,
    }
