"""The record of a run: config.json and run.json in its workdir, enough to run it again on the same code and packages.

run.json also records each attempt: on which machine and when it ran, and how it ended. A process that ends by itself
writes this on exit. A killed process cannot, and its attempt stays "running" until a reader (`run_state`) finds that
the process is gone.
"""

import atexit
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_jax.data.plain_files import check_regular
from rl_jax.runs.logging import decode_row, encode_row, write_atomically

COMPLETE, RUNNING, FAILED, PREEMPTED, INTERRUPTED = "complete", "running", "failed", "preempted", "interrupted"
PATCH_BYTES = 1_000_000  # of uncommitted changes to keep
MAX_UNTRACKED = 200  # names
MAX_ERROR = 4_000  # characters of a traceback
SILENT_S = 900.0  # a run on another machine that has written nothing for this long counts as interrupted
_PACKAGES = (
    "rl_jax jax jaxlib flax optax orbax-checkpoint chex numpy scipy tensorflow-datasets grain ml-collections pyarrow"
).split()
ABSENT = "(absent)"  # in config_changes
_open_attempts: dict[Path, int] = {}  # workdir -> the process that opened it


def write_run_record(
    workdir: str | os.PathLike,
    *,
    config: Mapping[str, Any],
    command: str | Sequence[str],
    task: str,
    algorithm: str,
    devices: Sequence[str] = (),
    origin: Mapping[str, Any] | None = None,
    anew: bool = False,
    longer: bool = False,
) -> None:
    """Writes config.json and run.json to workdir, each atomically, and uncommitted changes as a patch.

    A resumed run keeps the first attempt's config.json, "origin" and "started" and appends the present time to
    "resumed"; each attempt has the fields in which its config differs from config.json. When the process ends, the end
    of the attempt is recorded: "complete" if there is a final.json, "failed" with the error, else "preempted".

    Args:
      workdir: folder of the run.
      config: the resolved configuration, nested dicts of plain values.
      command: as typed, e.g. sys.argv.
      task: name for the report's head.
      algorithm: name for the report's head.
      devices: str(d) of each accelerator.
      origin: what the run is made of besides its config: data, code, the run that it was forked from.
      anew: whether nothing that an earlier attempt made is used. Its config is kept as config_1.json (2, ...) then.
      longer: whether a complete run has another length from here on: it is not complete any more (`reopen`).

    Raises:
      ValueError: if JSON cannot represent a config value; names the field.
    """
    workdir = Path(workdir).absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    now = _now()
    started, resumed, attempts = now, [], []
    if (workdir / "run.json").exists():
        earlier = read_json(workdir / "run.json")
        started, resumed = earlier["started"], [*earlier["resumed"], now]
        attempts = _ended(earlier.get("attempts", []), workdir)
        origin = origin if anew else earlier.get("origin", origin)
    if longer:
        reopen(workdir)  # before config.json or run.json says that it has the new length
    changes = _keep_config(workdir, config, anew)
    git = _git_state(Path(__file__).resolve())
    patch = git.pop("patch")
    if patch:
        git["git_patch"] = f"uncommitted-{hashlib.sha256(patch).hexdigest()[:8]}.patch"
        write_atomically(workdir / git["git_patch"], patch)
    place = {"host": platform.node(), "pid": os.getpid(), "process_started": _process_start(os.getpid())}
    attempt = {"started": now, **place, "state": RUNNING, **{name: git[name] for name in ("git_commit", "git_patch")}}
    attempt |= {"config": json.loads(encode_row(changes))} if changes else {}
    record = {
        "command": command if isinstance(command, str) else list(command),
        **git,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "hardware": {**_hardware(), "devices": list(devices)},
        "started": started,
        "resumed": resumed,
        "attempts": [*attempts, attempt],
        "seed": config.get("seed"),
        "task": task,
        "algorithm": algorithm,
        **({} if origin is None else {"origin": origin}),
    }
    _write(workdir / "run.json", record)
    if not _open_attempts:
        atexit.register(_close_attempts)
    _open_attempts[workdir] = os.getpid()


def _keep_config(workdir: Path, config: Mapping[str, Any], anew: bool) -> dict[str, Any]:
    """Writes config.json if there is none yet. Returns the fields, by dotted name, that differ from the one there."""
    path = workdir / "config.json"
    changes = config_changes(stored_config(path), config) if path.exists() else {}
    if changes and anew:
        number = 1
        while (workdir / f"config_{number}.json").exists():
            number += 1
        path.rename(workdir / f"config_{number}.json")
    if not path.exists():
        _write(path, config)
        return {}
    return {name: new for name, (_, new) in changes.items()}


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{dotted name: (value in old, value in new)} of the fields that differ; ABSENT where a config has no such field.

    Args:
      old: of a config.json.
      new: a config, nested dicts of plain values.
    """
    old, new = flatten(decode_row(old)), flatten(decode_row(json.loads(encode_row(new))))
    pairs = {name: (old.get(name, ABSENT), new.get(name, ABSENT)) for name in old | new}
    return {name: pair for name, pair in pairs.items() if not _is_same(*pair)}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of a config are equal; nan is equal to itself."""
    return one == other or encode_row({"": one}) == encode_row({"": other})


def note(name: str, value: str) -> None:
    """Adds a field to this process's open attempts in run.json; does nothing if there are none."""
    for workdir, pid in _open_attempts.items():
        if pid == os.getpid() and (workdir / "run.json").exists():
            record = read_json(workdir / "run.json")
            record["attempts"][-1][name] = value[:MAX_ERROR]
            _write(workdir / "run.json", record)


def note_origin(workdir: str | os.PathLike, name: str, value: Any) -> None:
    """Adds a field to "origin", what the run in `workdir` is made of, in its run.json."""
    path = Path(workdir) / "run.json"
    record = read_json(path)
    record.setdefault("origin", {})[name] = value
    _write(path, record)


def run_state(workdir: str | os.PathLike) -> tuple[str, str]:
    """State of a run: "complete", "running", "failed", "preempted" or "interrupted" (killed, no end recorded).

    "running" is checked with the operating system on the machine of the run; on other machines it means that a file of
    the run was written in the last 15 minutes.

    Returns:
      (state, error). error: the last attempt's, "" if none.

    Raises:
      FileNotFoundError: if there is no run.json.
      ValueError: if run.json is damaged.
    """
    workdir = Path(workdir)
    record = read_json(workdir / "run.json")
    if is_complete(workdir):
        return COMPLETE, ""
    attempts = record.get("attempts", [])
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise ValueError(f"{workdir / 'run.json'}: field 'attempts' is not a list of objects")
    last = attempts[-1] if attempts else {"state": INTERRUPTED}  # an old record without attempts
    state = last.get("state", INTERRUPTED)
    if state == RUNNING and not _is_running(last, workdir):
        state = INTERRUPTED
    return state, last.get("error", "")


def is_complete(workdir: str | os.PathLike) -> bool:
    """Whether a run has finished: programs write final.json last."""
    return (Path(workdir) / "final.json").exists()


def reopen(workdir: str | os.PathLike) -> None:
    """Takes the mark of a finished run away: it goes on beyond what was finished."""
    (Path(workdir) / "final.json").unlink(missing_ok=True)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a.b": value} from nested dicts, such as a config.json; an empty dict is a value."""
    result: dict[str, Any] = {}
    for name, value in tree.items():
        result |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {prefix + name: value}
    return result


def last_config(workdir: str | os.PathLike) -> dict[str, Any]:
    """The config of a run's last attempt: config.json with the fields that the attempt was started with instead.

    Raises:
      FileNotFoundError: if there is no config.json.
      ValueError: if config.json or run.json holds no object; names the file.
    """
    workdir = Path(workdir)
    config = stored_config(workdir / "config.json")
    attempts = read_json(workdir / "run.json").get("attempts") if (workdir / "run.json").exists() else None
    last = attempts[-1] if isinstance(attempts, list) and attempts else {}
    changes = last.get("config") if isinstance(last, Mapping) else None
    changes = dict(changes) if isinstance(changes, Mapping) else {}
    lost = changes.pop("nonfinite", {})
    for name, value in changes.items():
        value = float(lost[name]) if name in lost else value
        *groups, field = name.split(".")
        place = config
        for group in groups:
            place = place.setdefault(group, {})
        if value == ABSENT:
            place.pop(field, None)
        else:
            place[field] = value
    return config


def stored_config(path: str | os.PathLike) -> dict[str, Any]:
    """The content of a run's config.json, as its first start wrote it; inf and nan are numbers again.

    Raises:
      FileNotFoundError: if there is no file.
      ValueError: if it is damaged; names the file.
    """
    try:
        return decode_row(read_json(path))
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      FileNotFoundError: if there is no file.
      ValueError: if it does not hold an object, or is no regular file (a pipe would never end); names the file.
    """
    check_regular(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path}: damaged file (nested too deep)") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _close_attempts() -> None:
    """Records how the attempts of this process ended. The interpreter keeps the error that it ends with."""
    error = getattr(sys, "last_value", None)
    if error is None or isinstance(error, KeyboardInterrupt):
        _end_attempts(PREEMPTED)
    else:
        _end_attempts(FAILED, "".join(traceback.format_exception(error)))


def fail(text: str) -> None:
    """Records that this process's open attempts have failed, before an end that is no error to the interpreter.

    Such as SystemExit with a status, of which the interpreter keeps nothing.

    Args:
      text: the error.
    """
    _end_attempts(FAILED, text)


def _end_attempts(state: str, error: str = "") -> None:
    """Records the end of this process's open attempts: "complete" for finished runs, `state` and `error` for others."""
    for workdir, pid in _open_attempts.items():
        if pid != os.getpid():  # a forked child of the run
            continue
        try:
            record = read_json(workdir / "run.json")
            attempt = record["attempts"][-1]
            if (attempt["pid"], attempt["state"]) != (pid, RUNNING):
                continue
            attempt |= {"ended": _now(), "state": COMPLETE if is_complete(workdir) else state}
            if error and attempt["state"] == state:
                attempt["error"] = error[-MAX_ERROR:]
            _write(workdir / "run.json", record)
        except (OSError, ValueError, LookupError, TypeError):  # the folder was removed or damaged in the meantime
            continue


def _ended(attempts: Sequence[Mapping[str, Any]], workdir: Path) -> list[dict[str, Any]]:
    """Earlier attempts, when a new one begins: those without a recorded end were complete or interrupted."""
    state = COMPLETE if is_complete(workdir) else INTERRUPTED
    return [{**attempt, "state": state} if attempt["state"] == RUNNING else dict(attempt) for attempt in attempts]


def _write(path: Path, content: Mapping[str, Any]) -> None:
    pretty = json.dumps(json.loads(encode_row(content)), indent=2)
    write_atomically(path, (pretty + "\n").encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _is_running(attempt: Mapping[str, Any], workdir: Path) -> bool:
    if attempt.get("host") == platform.node():
        pid, started = attempt.get("pid"), attempt.get("process_started")
        if started is not None:
            return _process_start(pid) == started
    newest = max((path.stat().st_mtime for path in workdir.iterdir() if path.is_file()), default=0.0)
    return datetime.datetime.now().timestamp() - newest < SILENT_S


def _process_start(pid: int) -> int | None:
    """Ticks between boot and the start of a process, to tell it from a later one with the same pid.

    None if there is no such process (or it is a zombie), or if the system does not report it (only Linux does).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _git_state(source: Path) -> dict[str, Any]:
    """The checkout that `source` belongs to.

    Returns:
      git_commit ("unknown" if none), git_dirty (whether there are uncommitted changes, None if unknown), git_patch
      (None: to be named), git_untracked (names), patch (bytes).
    """

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(source.parent), *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout

    result = {"git_commit": "unknown", "git_dirty": None, "git_patch": None, "git_untracked": [], "patch": b""}
    try:
        # An installed copy may be in a .venv inside another checkout, whose commit would be meaningless.
        git("ls-files", "--error-unmatch", source.name)
        root = git("rev-parse", "--show-toplevel").decode().strip()
        result["git_commit"] = git("rev-parse", "HEAD").decode().strip()
        result["patch"] = git("-C", root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv")
        untracked = git("-C", root, "ls-files", "-z", "--others", "--exclude-standard").decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return result | {"patch": b""}
    names = sorted(filter(None, untracked.split("\0")))
    more = [f"... and {len(names) - MAX_UNTRACKED} more"] if len(names) > MAX_UNTRACKED else []
    result |= {"git_dirty": bool(result["patch"]), "git_untracked": names[:MAX_UNTRACKED] + more}
    if len(result["patch"]) > PATCH_BYTES:
        note = f"\n# cut here: {len(result['patch'])} bytes of changes, of which {PATCH_BYTES} are kept\n"
        result["patch"] = result["patch"][:PATCH_BYTES] + note.encode()
    return result


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hardware() -> dict[str, Any]:
    """Platform, CPU count and memory in bytes (None if the system does not report it)."""
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
