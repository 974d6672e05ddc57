"""Repositories of the Hugging Face Hub as folders: "hf://ORG/NAME@REVISION", and "hf://datasets/ORG/NAME@REVISION/FILE".

    --config.model.path=hf://Qwen/Qwen3-0.6B@main            # a branch, a tag or a commit; without @: main
    --config.model.path=hf://Qwen/Qwen3-0.6B                 # the same

A run downloads when its config names such a path, and never otherwise. Needs `pip install -e '.[hub]'`. The package
huggingface_hub keeps the files in its own cache and reads its own settings: HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, and
the token of `hf auth login`. A connection that breaks is continued at its byte; after an interrupted start the next one
keeps the finished files. What is cached is used without a connection. A run stays at the commit that it began with.

Of a model only config, tokenizer, chat template and model*.safetensors are fetched: no code and no pickles. Each file
is checked once against the checksum by which the Hub names it.
"""

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from rl_jax.models.hf.loading import TEMPLATES
from rl_jax.runs.logging import write_atomically
from rl_jax.training import distributed

PREFIX, MAIN = "hf://", "main"
CHECKED = "~/.cache/rl_jax/hub"  # the list of the files whose checksum was right, one per commit
GROUPS, FILES = ("model", "task", "data", "sample.pairs"), ("path", "test_path")  # fields that may be of the Hub
TABLES = ("sources", "parts")  # in such a group, of groups that have such fields, too
SMALL = ("*.json", "*.jinja", "*.txt", "tokenizer.model")  # of a model, beside its weights
WEIGHTS = ("model*.safetensors",)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib", "*.npy", "*.npz")  # never fetched
CODE = ("*.py", "*.ipynb", "*.sh")
# Folders in a model's repository, but not its chat templates': a pattern can only exclude by one letter after another.
FOLDERS = (
    *(f"{TEMPLATES[:i]}[!{letter}]*/*" for i, letter in enumerate(TEMPLATES)),
    *(f"{TEMPLATES[:i]}/*" for i in range(1, len(TEMPLATES))),
    f"{TEMPLATES}[!/]*/*",
)
_NAME = r"[A-Za-z0-9][\w.-]*"
_PATH = re.compile(rf"(?P<datasets>datasets/)?(?P<repo>{_NAME}/{_NAME})(@(?P<revision>[^@/\s]+))?(/(?P<file>[^@\s]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(ValueError):
    """A repository of the Hub cannot be used; the message says which, why, and what to do."""


class Repo(NamedTuple):
    """A repository of the Hub.

    Attributes:
      name: "ORG/NAME".
      revision: a branch, a tag or a commit.
      kind: "model" or "dataset".
      file: of a dataset; "" is all of it.
    """

    name: str
    revision: str = MAIN
    kind: str = "model"
    file: str = ""

    def __str__(self) -> str:
        kind, file = "datasets/" if self.kind == "dataset" else "", f"/{self.file}" if self.file else ""
        return f"{PREFIX}{kind}{self.name}@{self.revision}{file}"


def is_hub(path: str) -> bool:
    """Whether a path names a repository of the Hub."""
    return str(path).startswith(PREFIX)


def parse(path: str) -> Repo:
    """The repository that "hf://..." names.

    Raises:
      HubError: if the path is not of that form.
    """
    found = _PATH.fullmatch(str(path).removeprefix(PREFIX)) if is_hub(path) else None
    parts = found and [part for part in (found["file"] or "").split("/") if part in (".", "..")]
    if found is None or parts or (found["file"] and not found["datasets"]):
        raise HubError(
            f"{path}: not a repository of the Hub: write {PREFIX}ORG/NAME@REVISION, or "
            f"{PREFIX}datasets/ORG/NAME@REVISION/FILE"
        )
    kind = "dataset" if found["datasets"] else "model"
    return Repo(found["repo"], found["revision"] or MAIN, kind, found["file"] or "")


def local_folder(path: str, *, weights: bool = True) -> str:
    """The folder (or a data set's file) of "hf://...", downloaded if it is not cached; any other path as it is.

    Args:
      path: a folder, a file, or a repository of the Hub.
      weights: whether to fetch a model's weights too.

    Raises:
      HubError: if the repository cannot be reached and is not cached, has no such revision or file, has no safetensors,
        or a file has the wrong checksum; or if a path that does not exist looks like a repository's name.
    """
    if not is_hub(path):
        if re.fullmatch(rf"{_NAME}/{_NAME}(@\S+)?", str(path)) and not pathlib.Path(path).exists():
            raise HubError(f"{path}: no such folder. A repository of the Hub is written {PREFIX}{path}")
        return path
    repo = parse(path)
    folder = _snapshot(repo, _patterns(repo, weights))
    if repo.kind == "model" and weights and not any(folder.glob(WEIGHTS[0])):
        raise HubError(
            f"{path}: the repository has no {WEIGHTS[0]}. Other formats are pickles, or not read here, and are not "
            "fetched: convert it to safetensors (transformers' save_pretrained writes them) and give that folder"
        )
    if repo.file and not any(folder.glob(_literal(repo.file))):
        raise HubError(f"{path}: {repo.name}@{repo.revision} has no file {repo.file!r}")
    _check(repo, folder)
    return str(folder / repo.file)


def pin(path: str) -> str:
    """The "hf://..." with the commit that its branch or tag has now; any other path as it is. Errors: local_folder."""
    if not is_hub(path) or _COMMIT.fullmatch(parse(path).revision):
        return path
    repo = parse(path)
    return str(repo._replace(revision=_snapshot(repo, _patterns(repo, weights=True)).name))


def base_model(path: str) -> dict[str, str]:
    """How an adapter names its base model: keywords of rl_jax.models.hf.peft.save_peft."""
    return {"base_model": parse(path).name, "revision": parse(path).revision} if is_hub(path) else {"base_model": path}


def local_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the fields of config.task or config.data, whose files of the Hub are files of this machine."""
    result = {**fields, **{name: _each(fields[name], local_folder) for name in FILES if fields.get(name)}}
    for table in TABLES:
        if fields.get(table):
            result[table] = {name: local_fields(source) for name, source in fields[table].items()}
    return result


def settle(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Sets the config's paths of the Hub to the commits with which the run in `workdir` began.

    A new run notes them in hub.json. So a resumed run reads the same files, even if a branch has moved. Nothing happens
    without such paths.

    Args:
      config: of the run. The paths of its model, task and data are changed.
      workdir: of the run.
    """
    groups = [*(_group(config, name) for name in GROUPS), *(_group(config, "benchmarks.sets") or {}).values()]
    groups = [nested for group in groups if group for nested in _nested(group)]
    asked = [(group, name) for group in groups for name in FILES if PREFIX in str(group.get(name, ""))]
    if not asked:
        return
    record = workdir / "hub.json"
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    noted = dict(known)
    for group, name in asked:
        for _, path, _ in map(_parted, group[name].split(",")):
            if path and path not in noted and (pinned := pin(path)) != path:
                noted[path] = pinned
        group[name] = _each(group[name], lambda path: noted.get(path, path))
    if noted != known and distributed.is_main():
        workdir.mkdir(parents=True, exist_ok=True)
        write_atomically(record, (json.dumps(noted, sort_keys=True) + "\n").encode())


def _group(config: ConfigDict, names: str) -> ConfigDict | None:
    """The group of a dotted name; None if the config has none."""
    for name in names.split("."):
        config = config.get(name) if isinstance(config, ConfigDict) else None
    return config


def _nested(group: ConfigDict) -> Iterator[ConfigDict]:
    """The group, and those of its TABLES."""
    yield group
    for table in TABLES:
        for part in (group.get(table) or {}).values():
            yield from _nested(part)


def _each(text: str, change: Callable[[str], str]) -> str:
    """`text`, paths with commas between them and maybe a NAME= before each, with those of the Hub changed."""
    return ",".join(head + (change(path) if path else "") + tail for head, path, tail in map(_parted, text.split(",")))


def _parted(item: str) -> tuple[str, str, str]:
    """(what is before hf://, the path of the Hub, the source's weight "@2" after a file); ("...", "", "") if none."""
    head, prefix, rest = item.partition(PREFIX)
    path, at, weight = (prefix + rest).strip().rpartition("@")
    if at and re.fullmatch(r"\d+(\.\d*)?", weight) and (found := _PATH.fullmatch(path.removeprefix(PREFIX))):
        if found["file"]:
            return head, path, at + weight
    return head, (prefix + rest).strip(), ""


def hub() -> Any:
    """The package huggingface_hub.

    Raises:
      HubError: if it is not installed.
    """
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise HubError("a path hf://... needs the package huggingface_hub: pip install -e '.[hub]'") from error


def _patterns(repo: Repo, weights: bool) -> dict[str, list[str]]:
    """What to fetch, as keywords of snapshot_download."""
    if repo.kind == "model":
        return {
            "allow_patterns": [*SMALL, *(WEIGHTS if weights else ())],
            "ignore_patterns": [*PICKLES, *CODE, *FOLDERS],
        }
    allowed = [_literal(repo.file)] if repo.file else None
    return {"allow_patterns": allowed, "ignore_patterns": [*PICKLES, *CODE]}


def _literal(file: str) -> str:
    """The pattern of a file; * and ? stand for several files, as in train-*.parquet."""
    return file.replace("[", "[[]")


def _snapshot(repo: Repo, patterns: dict[str, list[str]]) -> pathlib.Path:
    """The folder of the repository's commit in huggingface_hub's cache, with the files that the patterns allow."""
    download, errors = hub().snapshot_download, importlib.import_module("huggingface_hub.errors")
    wanted = dict(repo_id=repo.name, repo_type=repo.kind, revision=repo.revision, **patterns)
    if _COMMIT.fullmatch(repo.revision):
        with contextlib.suppress(errors.LocalEntryNotFoundError):  # a commit never changes: it may be here, whole
            return pathlib.Path(download(**wanted, local_files_only=True))
    try:
        return pathlib.Path(download(**wanted))
    except errors.GatedRepoError as error:
        raise HubError(f"{repo}: access is restricted: accept its terms on the Hub, then `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{repo}: no such repository, or it is private: check the name, or `hf auth login`") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repo}: the repository has no revision {repo.revision!r}") from error
    except Exception as error:  # of its HTTP client, of the disk, of an incomplete cache
        raise HubError(
            f"{repo}: not cached, and could not be fetched ({first_line(error)}): check the connection, then run the "
            "same command again, which continues the download"
        ) from error


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error) or repr(error)).strip().splitlines()[0]}"


def _check(repo: Repo, folder: pathlib.Path) -> None:
    """Compares each file with the checksum that names it in the cache, once.

    Raises:
      HubError: for the first file that differs; it is removed, so that the next start fetches it again.
    """
    stamp = pathlib.Path(CHECKED).expanduser() / f"{repo.name.replace('/', '--')}-{folder.name}.json"
    known = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else {}
    found = dict(known)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, stat = path.relative_to(folder).as_posix(), path.stat()
        state = [stat.st_size, stat.st_mtime_ns]
        if known.get(name) == state:
            continue
        # A file is a link to blobs/CHECKSUM, which may be a link in turn, to a store that all repositories share.
        expected = pathlib.Path(os.readlink(path)).name if path.is_symlink() else ""
        if (digest := _digest(path, expected)) not in (None, expected):
            for place in (path.resolve(), folder.parent.parent / "blobs" / expected, path):
                place.unlink(missing_ok=True)
            raise HubError(
                f"{repo}: {name} has the checksum {digest}, expected {expected}: it was damaged on its way and is "
                "removed; run the same command again to fetch it"
            )
        found[name] = state
    if found != known:
        scratch = stamp.with_name(f".{stamp.name}.{uuid.uuid4().hex}")  # several processes may be here at once
        with contextlib.suppress(OSError):  # a home that cannot be written to: the next start checks again
            stamp.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(found, sort_keys=True) + "\n", encoding="utf-8")
            scratch.replace(stamp)


def _digest(path: pathlib.Path, expected: str) -> str | None:
    """The checksum of a file, of the kind of the expected one: sha256 if it is large, else git's; None if neither."""
    kinds = {64: hashlib.sha256(), 40: hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)}
    digest = kinds.get(len(expected))
    if digest is None:  # a file system without links
        return None
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
