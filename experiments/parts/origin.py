"""What a run is made of: its config, data files and code. A resumed run must be made of the same, or say so.

    python -m experiments.grpo ... --workdir=runs/a --fork=runs/b --config.train.optimizer.learning_rate=1e-5

A run keeps what it was first started with in config.json and in run.json ("origin"). On resume a changed config or
changed data is refused, changed code (also your own that the config names) is said in one line. Fields that may change
are in MAY_CHANGE. --fork starts a new run from the newest checkpoints of another one, with new settings.
"""

import functools
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from experiments.parts.budgets import length_field
from experiments.parts.own_code import changed, own_code
from rl_jax.preferences.episodes import FOLDER
from rl_jax.runs import disk
from rl_jax.runs.logging import encode_row, write_atomically
from rl_jax.runs.run_record import ABSENT, config_changes, flatten, is_complete, last_config, read_json

# Fields, or groups of them, that may change when a run is resumed: they move no number of the training, but by how long
# it lasts and in which order sums over devices are taken. But envs:N in a control program's mesh: see `_same_mesh`.
MAY_CHANGE = (
    *("name", "log", "checkpoint", "mesh", "rollout.mesh", "rollout.devices"),
    *("eval.every", "sft.eval_every", "reward.num_workers", "reward.time_limit_s", "flow.timeout_s"),
    *("rollout.engine.url", "rollout.engine.timeout_s", "data.skip_bad_records"),
)
# Of these, those that move no result either, so that a finished run may stand for one that has others.
FREE = tuple(name for name in (*MAY_CHANGE, "spread") if name not in ("eval.every", "sft.eval_every"))
MAY_GROW = ("train.steps", "train.data_epochs", "train.total_steps", "sft.steps")
# Programs that read a part of a config only: a warm start is not made of the rest of the config that names it.
_OF_SFT = (
    *("seed", "task", "data", "model", "sft", "score", "packing.mode", "packing.row_length", "algorithm.masking"),
    *("rollout.prompt_buckets", "rollout.completion_length", "rollout.long_prompts"),
)
PARTS_READ = {"sft": _OF_SFT}
_OF_ITS_END = ("eval", "reward", "denoise")  # what measures the pass@1 that sft.stop_at ends at
DATA_GROUPS = ("task", "data", "sample", "foreign", "reward")
FORKED = "forked_from.json"
START, REFERENCE = "init_from_step", "reference_sha256"  # fields of the origin
KEPT = 2  # checkpoints that a fork takes along: the newest, and one to fall back on
OWN_CODE = "own_code"  # another: the checksums of the modules that the config names
_PATHS = re.compile(r"(^|[._])(paths?|files?|folder)$")
_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


class ChangedError(ValueError):
    """A run is to go on with other settings or data; the message names what differs."""


def named(value: Any) -> Any:
    """A config's values with "module:qualname" for functions, which a notebook may have set."""
    if isinstance(value, dict):
        return {key: named(item) for key, item in value.items()}
    if not callable(value):
        return value
    return f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def begun(workdir: pathlib.Path) -> bool:
    """Whether a start in `workdir` goes on with what an earlier one made there: what a fork begins with is not."""
    steps, given = checkpoint_steps(workdir), _fork_of(workdir).get("step", -1)
    return is_complete(workdir) or (bool(steps) and steps[-1] > given)


def refuse_model_folder(workdir: pathlib.Path) -> None:
    """Keeps a run out of a Hugging Face folder, whose config.json would be renamed to make room for the run's own.

    Raises:
      ValueError: if the config.json in `workdir` is a model's.
    """
    path = workdir / "config.json"
    if path.is_file() and "model_type" in read_json(path):
        raise ValueError(f"--workdir={workdir} is the folder of a model, by its config.json: give a new --workdir")


def check_config(config: ConfigDict, workdir: pathlib.Path, program: str) -> None:
    """Compares the config with the one that the run in `workdir` was first started with.

    Raises:
      ChangedError: if a field differs that must not; names each with its old and its new value.
    """
    if not _is_known(workdir) or not (workdir / "config.json").is_file():
        return
    record = read_json(workdir / "run.json")
    _refuse_other_program(workdir, record, program)
    changes, new_fields = _changes(config.to_dict(), read_json(workdir / "config.json"), record, program)
    wrong = {name: change for name, change in changes.items() if not _may(name, *change)}
    if "mesh" in changes and config.get("spread") == "pmap":
        wrong["mesh"] = changes["mesh"]  # its states have an axis of devices
    if program not in PARTS_READ and changes.get("sft.steps"):
        wrong["sft.steps"] = changes["sft.steps"]  # its params are where this run began
    lasting = {name: changes[name] for name in ("train.total_steps", "train.steps") if name in changes}
    spread = _spread(config) if lasting and program not in PARTS_READ else []
    if lines := _lines(wrong | lasting if spread else wrong, record, program):
        lines += [f"  {name} is spread over all steps of the run" for name in spread]
        raise ChangedError("\n".join([f"{workdir} has a run that was started with other settings:", *lines, _ways()]))
    if new_fields:
        print(f"{workdir}: fields that only one of the two versions of the code has: {', '.join(new_fields)}")


def outgrown(config: ConfigDict, workdir: pathlib.Path, program: str) -> bool:
    """Whether the run in `workdir` is complete, at another length than `config` has."""
    if not is_complete(workdir) or not (workdir / "config.json").is_file():
        return False
    name = length_field(config, program)
    return flatten(config.to_dict()).get(name) != flatten(last_config(workdir)).get(name)


def check_result(config: ConfigDict, workdir: pathlib.Path, program: str, *, free: tuple[str, ...] = ()) -> None:
    """Compares the config with the one that the run in `workdir` last went on with, for a reader of its results.

    Stricter than `check_config`: a longer run or other evaluations are other results. If modules that the config names
    have changed since, a line on stderr says so.

    Args:
      config: what is asked for.
      workdir: of the run.
      program: that is asked for.
      free: fields, or groups of them, that may differ besides FREE.

    Raises:
      ChangedError: if another field differs; names each with its value in the run and the one that is asked for.
    """
    record = read_json(workdir / "run.json") if (workdir / "run.json").is_file() else {}
    _refuse_other_program(workdir, record, program)
    changes, _ = _changes(config.to_dict(), last_config(workdir), record, program)
    wrong = _bound(changes, (*FREE, *free))
    if lines := _lines(wrong, record, program):
        head = f"{workdir} has a run of other settings (the run's -> what is asked for):"
        raise ChangedError("\n".join([head, *lines, "Delete that folder, or give a new --workdir"]))
    if said := changed(workdir, record.get("origin", {}).get(OWN_CODE, {}), own_code(named(config.to_dict()))):
        print(f"{said}: its results are of the old one", file=sys.stderr, flush=True)


def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is written beside a result that is no run's: the settings it is made with, as JSON, for `check_kept`.

    Args:
      settings: the fields of a config, and {"--FLAG": value} of a command.
    """
    return {"settings": json.loads(encode_row(_plain(settings))), "origin": {"code_sha256": code_sha256()}}


def but_for_length(config: ConfigDict) -> dict[str, Any]:
    """A config's fields without those that a resumed run may raise, unless its course is spread over its length."""
    fields = config.to_dict()
    if not _spread(config):
        for group, name in (field.split(".") for field in MAY_GROW):
            fields.get(group, {}).pop(name, None)
    return fields


def check_kept(
    settings: Mapping[str, Any], record: Mapping[str, Any], path: pathlib.Path, place: str = "--workdir"
) -> None:
    """Compares settings with those that a result was made with, before the result is taken for one of these.

    Args:
      settings: that are asked for, as for `kept`.
      record: has what `kept` gave, if anything.
      path: of the result, for messages.
      place: the option that names the folder, for messages.

    Raises:
      ChangedError: if one differs, besides FREE, or if there is no record.
    """
    if "settings" not in record:
        raise ChangedError(f"{path}: no settings were kept, as by older versions: give a new {place}")
    changes, _ = _changes(_plain(settings), record["settings"], record, "")
    if lines := _lines(_bound(changes, FREE), {}, ""):
        head = f"{path}: made with other settings (its own -> what is asked for):"
        raise ChangedError("\n".join([head, *lines, f"Give the old ones back, or give a new {place}"]))


def keep(path: pathlib.Path, settings: Mapping[str, Any], *, made: bool, place: str = "--workdir") -> None:
    """Writes the settings of a result that is about to be made to `path`; one that is made is compared with them.

    Args:
      path: a JSON file beside the result.
      settings: as for `kept`.
      made: whether the result, or a part of it that would be used, is there already.
      place: as for `check_kept`.

    Raises:
      ChangedError: as `check_kept`.
    """
    if made:
        check_kept(settings, read_json(path) if path.is_file() else {}, path, place)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(kept(settings), indent=2) + "\n").encode())


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as values of JSON: paths as text."""
    return {name: str(value) if isinstance(value, os.PathLike) else named(value) for name, value in settings.items()}


def made_of(config: ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
    """The "origin" of a run.json: data files with sizes and checksums, checksums of the code and of the modules that
    the config names, where it was forked; and the newest step of the run that it starts from."""
    result = {"data": data_files(config), "code_sha256": code_sha256(), OWN_CODE: own_code(named(config.to_dict()))}
    init_from = config.get("init_from")
    if init_from and (steps := checkpoint_steps(pathlib.Path(init_from))):
        result[START] = steps[-1]
    if fork := _fork_of(workdir):
        result["forked_from"] = fork
        result |= {} if fork.get("part") else _start_of(pathlib.Path(fork["workdir"]), config)
    return result


def _fork_of(workdir: pathlib.Path) -> dict[str, Any]:
    """The run and step that a fork began with, {"part": true} for the warm start it took along; {} if it is no fork."""
    path = workdir / FORKED
    return read_json(path) if path.is_file() else {}


def _start_of(forked: pathlib.Path, config: ConfigDict) -> dict[str, Any]:
    """Where a run that was forked had started, if the fork starts from the same: its reference is that one's."""
    path, origin = forked / "config.json", _origin_of(forked)
    if not path.is_file() or read_json(path).get("init_from") != config.get("init_from"):
        return {}
    return {name: origin[name] for name in (START, REFERENCE) if name in origin}


def _origin_of(workdir: pathlib.Path) -> dict[str, Any]:
    """The "origin" of the run in `workdir`; {} if there is no run.json."""
    path = workdir / "run.json"
    return read_json(path).get("origin", {}) if path.is_file() else {}


def spent(config: ConfigDict, workdir: pathlib.Path, program: str, step: int, total: int) -> str:
    """Why a run that is complete passes another one's results for its own: it is a fork, of other settings, that has
    not trained; "" if it does not.

    Args:
      config: of the run.
      workdir: its folder.
      program: that runs.
      step: the last one done.
      total: the number of steps.
    """
    fork = _fork_of(workdir)
    old = pathlib.Path(fork.get("workdir", ""))
    if step > fork.get("step", -1) or not (old / "config.json").is_file():
        return ""
    record = read_json(old / "run.json") if (old / "run.json").is_file() else {}
    changes, _ = _changes(config.to_dict(), last_config(old), record, program)
    lines = _lines(_bound(changes, FREE), record, program)
    if not lines:
        return ""
    way = f"raise {length_field(config, program)}" if step >= total else f"{old} ended there by itself"
    head = (
        f"--fork={workdir}: the newest checkpoint of {old} is at step {step} of {total}, so no step would be taken with"
    )
    return "\n".join([f"{head} other settings: {way}", *lines])


def checkpoint_steps(run: pathlib.Path) -> list[int]:
    """The steps of a run's checkpoints, in order."""
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdecimal())


def started_from(init_from: str, workdir: pathlib.Path) -> str:
    """`init_from`, at the checkpoint that the run in `workdir` first started from: that run may have gone on since.

    `init_from` itself if that checkpoint is not there any more, or the run in `workdir` is not known.
    """
    pinned = pathlib.Path(init_from, "checkpoints", str(_origin_of(workdir).get(START)))
    return str(pinned) if pinned.is_dir() else init_from


def other_reference(workdir: pathlib.Path, digest: str) -> str:
    """Why a reference is not the one that the run in `workdir` was started with; "" if it is, or is not known.

    Args:
      workdir: of the run.
      digest: checkpoint.checksum of the reference.
    """
    origin = _origin_of(workdir)
    if origin.get(REFERENCE, digest) == digest:
        return ""
    step = f" (its checkpoint {origin[START]})" if START in origin else ""
    return (
        f"{workdir} was started with another reference than it would have now: what it starts from has changed, and "
        f"is read again. Put back what was there{step}, or start a new run: a new --workdir"
    )


def compare(workdir: pathlib.Path, found: Mapping[str, Any]) -> tuple[str, str]:
    """(why the run in `workdir` cannot go on with this data, a line on what else differs); "" each if nothing is wrong.

    Args:
      workdir: of the run.
      found: of made_of, now.
    """
    if not _is_known(workdir):
        return "", ""
    record = read_json(workdir / "run.json")
    origin = record.get("origin")
    if origin is None:
        return "", f"{workdir} was begun by an older version: whether its data is still the same is not known"
    lines = [
        f"  {path}: {_file(origin['data'].get(path))} -> {_file(found['data'].get(path))}"
        for path in origin["data"] | found["data"]
        if origin["data"].get(path) != found["data"].get(path)
    ]
    if lines:
        return "\n".join([f"{workdir} has a run that was started with other data:", *lines, _ways()]), ""
    differ = ": numbers from here on may differ from those of an undisturbed run"
    said = [said + differ] if (said := changed(workdir, origin.get(OWN_CODE, {}), found[OWN_CODE])) else []
    if origin["code_sha256"] != found["code_sha256"]:
        commit = record.get("attempts", [{}])[0].get("git_commit", "unknown")
        said.append(f"{workdir}: the code has changed since this run was started (at commit {commit[:12]}){differ}")
    return "", "\n".join(said)


def data_files(config: ConfigDict) -> dict[str, dict[str, Any]]:
    """{path: {"bytes", "sha256"}} of the files that the config's data groups name. Folders stand for their files."""
    result = {}
    for name, value in flatten(named(config.to_dict())).items():
        if not _within(name, DATA_GROUPS) or not _PATHS.search(name):
            continue
        for text in [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []:
            for path in _files(str(text)):
                result[str(path)] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    return result


@functools.cache
def code_sha256() -> str:
    """Of the sources of rl_jax and experiments."""
    digest = hashlib.sha256()
    for path in sorted(path for top in ("rl_jax", "experiments") for path in (_CHECKOUT / top).rglob("*.py")):
        digest.update(f"{path.relative_to(_CHECKOUT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def fork(old: pathlib.Path, new: pathlib.Path, *, first: bool = True, patience_s: float = 600.0) -> pathlib.Path:
    """Makes a run that begins with the newest checkpoints, logs, recorded episodes and warm start of another.

    Returns its folder.

    A fork that is there already is left as it is, so the same command resumes it.

    Args:
      old: folder of the run; only read.
      new: folder of the new one.
      first: whether this process copies. The others wait for it.
      patience_s: how long the others wait.

    Raises:
      FileNotFoundError: if the old run has no checkpoint.
      ValueError: if the new folder has something else.
      TimeoutError: if the first process does not copy.
    """
    old, new = old.absolute(), new.absolute()
    give_up = time.monotonic() + patience_s
    while not first and not (new / FORKED).is_file():
        if time.monotonic() > give_up:
            raise TimeoutError(f"--fork={new}: the first process has not made it within {patience_s:g} s")
        time.sleep(0.1)
    if (there := _fork_of(new).get("workdir")) == str(old):
        return new
    if new.exists() and (not new.is_dir() or any(new.iterdir())):
        of = f"the fork of another run, {there}" if there else "not empty"
        raise ValueError(f"--fork={new} is {of}: give a new folder")
    folder = old / "checkpoints"
    steps = checkpoint_steps(old)
    if not steps:
        raise FileNotFoundError(f"--fork: no checkpoint under {folder}, so there is nothing to begin with")
    partial = new.with_name(f".{new.name}.partial")
    with disk.named(new):
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "checkpoints").mkdir(parents=True)
        for step in steps[-KEPT:]:
            shutil.copytree(folder / str(step), partial / "checkpoints" / str(step))
        if (old / "sft").is_dir():
            shutil.copytree(old / "sft", partial / "sft", ignore=shutil.ignore_patterns(disk.LOCK_FILE))
            write_atomically(partial / "sft" / FORKED, b'{"part": true}\n')
        for path in [*old.glob("*.jsonl"), *old.glob("hub.json")]:
            shutil.copy2(path, partial)
        _take_episodes(old, partial, steps[-1])
        content = {"workdir": str(old), "step": steps[-1]}
        write_atomically(partial / FORKED, (json.dumps(content) + "\n").encode())
        if new.is_dir():
            new.rmdir()
        os.rename(partial, new)
    print(f"{new} begins with step {steps[-1]} of {old}")
    return new


def _take_episodes(old: pathlib.Path, new: pathlib.Path, newest: int) -> None:
    """Takes along the episodes that were recorded up to a step, which replays read from step 1 on.

    As links where the disk has them: their files are only ever replaced as a whole.
    """
    for path in sorted((old / FOLDER).glob("*.parquet")):
        if path.stem.isdecimal() and int(path.stem) <= newest:
            (new / FOLDER).mkdir(exist_ok=True)
            try:
                os.link(path, new / FOLDER / path.name)
            except OSError:  # another disk, or one without links
                shutil.copy2(path, new / FOLDER)


def _changes(
    config: Mapping[str, Any], old: Mapping[str, Any], record: Mapping[str, Any], program: str
) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """(the fields that differ from a run's config and that its program reads, those that only one of two versions of
    the code has: nobody set them, so they are not among the former)."""
    changes = config_changes(old, named(config))
    if program in PARTS_READ:
        ends_by_itself = config.get("sft", {}).get("stop_at", math.inf) <= 1.0
        read = PARTS_READ[program] + (_OF_ITS_END if ends_by_itself else ())
        changes = {name: change for name, change in changes.items() if _within(name, read)}
    other_code = record.get("origin", {}).get("code_sha256") != code_sha256()
    new_fields = [name for name, change in changes.items() if other_code and ABSENT in change]
    return {name: change for name, change in changes.items() if name not in new_fields}, new_fields


def _refuse_other_program(workdir: pathlib.Path, record: Mapping[str, Any], program: str) -> None:
    """Raises ChangedError if a run is another program's: all its fields differ, and none of them is what is wrong."""
    if (other := record.get("algorithm", program)) != program:
        raise ChangedError(f"{workdir} has a run of another program: {other}, not {program}. Give a new --workdir")


def _lines(wrong: Mapping[str, tuple[Any, Any]], record: Mapping[str, Any], program: str) -> list[str]:
    """What differs, one line per field, and the program if that differs."""
    lines = [f"  {name}: {_shown(before)} -> {_shown(after)}" for name, (before, after) in wrong.items()]
    if record.get("algorithm", program) != program:
        lines.insert(0, f"  program: {record['algorithm']} -> {program}")
    return lines


def _is_known(workdir: pathlib.Path) -> bool:
    """Whether a start in `workdir` goes on with a run whose settings are known and bind it.

    A fork takes the warm start of the other run as it is.
    """
    return begun(workdir) and (workdir / "run.json").is_file() and not _fork_of(workdir).get("part")


def _spread(config: ConfigDict) -> list[str]:
    """The fields that shape a course over all steps of a run: in a longer one, the steps so far would be others."""
    values, found = flatten(named(config.to_dict())), []
    if "train.total_steps" in values:  # train.steps has decays of their own number of updates
        ends = [f"train.{name}.final_fraction" for name in ("optimizer", "actor_optimizer")]
        found += [name for name in ends if values.get(name, 1.0) != 1.0]
        explore = "algorithm.exploration."
        first, last, part = (values.get(explore + name, 0.0) for name in ("initial", "final", "fraction"))
        found += ["algorithm.exploration"] * (first != last and part != 0)
        swept = [name for name, _ in values.get("sweep", ())]
        swept += [name for _, pairs in values.get("runs", ()) for name, _ in pairs]
        found += [name for name in swept if name in ends or name.startswith(explore)]
        found += ["online.after"] * ("online.after" in values)
        found += ["continual.values"] * ("continual.values" in values and "continual.held_out" not in values)
    trackers = {name.removesuffix(".fn"): value for name, value in values.items() if name.endswith(".fn")}
    return found + [
        name
        for name, fn in trackers.items()
        if _within(name, ("algorithm.kl_control", "algorithm.trackers"))
        and str(fn).rpartition(":")[2] == "annealed_kl"
        and f"{name}.updates" not in values
    ]


def _within(name: str, groups: tuple[str, ...]) -> bool:
    return any(name == group or name.startswith(f"{group}.") for group in groups)


def _may(name: str, old: Any, new: Any) -> bool:
    grows = name in MAY_GROW and ABSENT not in (old, new) and new > old
    return grows or not _bound({name: (old, new)}, MAY_CHANGE)


def _bound(changes: Mapping[str, tuple[Any, Any]], free: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """The changes of fields outside of the groups `free`, and that of a mesh which makes another run."""
    return {name: pair for name, pair in changes.items() if not _within(name, free) or not _same_mesh(name, *pair)}


def _same_mesh(name: str, old: Any, new: Any) -> bool:
    """False for a mesh with other parts of a control program's environments, envs:N: each part draws by its own key."""
    one, other = (re.findall(r"\benvs:0*(\d+)", str(mesh)) or ["1"] for mesh in (old, new))
    return name != "mesh" or one == other


def _ways() -> str:
    return (
        "Give the old ones back to go on with it. With the new ones, either start anew in another --workdir, or add "
        "--fork=NEW_WORKDIR: a new run that begins with this one's newest checkpoint. May change without either: "
        f"{', '.join(MAY_CHANGE).replace(' mesh,', ' mesh (but not envs:N of it),')}; may grow: {', '.join(MAY_GROW)}"
    )


def _shown(value: Any) -> str:
    return value if value == ABSENT else json.dumps(value)


def _file(entry: Mapping[str, Any] | None) -> str:
    return f"{entry['bytes']} bytes, sha256 {entry['sha256'][:12]}" if entry else ABSENT


def _files(text: str) -> Iterator[pathlib.Path]:
    """The files that "NAME=PATH@WEIGHT,PATH,..." names: files, folders and globs."""
    for part in text.split(","):
        for form in (part, part.rpartition("@")[0], part.partition("=")[2], part.partition("=")[2].rpartition("@")[0]):
            found = sorted(glob.glob(os.path.expanduser(form.strip()))) if form.strip() else []
            if found:
                break
        for path in map(pathlib.Path, found):
            yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
