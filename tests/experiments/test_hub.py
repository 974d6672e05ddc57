"""experiments/parts/hub.py against a loopback server that speaks the Hub's API."""

import fnmatch
import glob
import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from experiments.parts import hub
from tests.experiments import hub_server
from tests.paths import REPO_ROOT

pytest.importorskip("huggingface_hub")
constants = importlib.import_module("huggingface_hub.constants")
file_download = importlib.import_module("huggingface_hub.file_download")
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": os.urandom(3000),
    "model-00002-of-00002.safetensors": os.urandom(50),
    "model.safetensors.index.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"of tools",
}
REFUSED = {
    "pytorch_model.bin": b"a pickle",
    "modeling_evil.py": b"raise SystemExit",
    "onnx/config.json": b"{}",
    "original/model.safetensors": b"another",
    "adapters/config.json": b"{}",
    "training_args.bin": b"a pickle",
    "README.md": b"card",
}
HEAVY = "model-00001-of-00002.safetensors"


def redirect(monkeypatch, server, home):
    """Makes huggingface_hub read and write there, as HF_ENDPOINT and HF_HOME do for a process that starts."""
    home.mkdir()
    old = constants.ENDPOINT
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(old, server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # what a broken connection keeps are whole chunks
    monkeypatch.setattr(hub, "CHECKED", str(home / "checked"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub with org/tiny."""
    with hub_server.serving() as server:
        redirect(monkeypatch, server, tmp_path / "home")
        server.repository = server.add("org/tiny", FILES | REFUSED)
        yield server


def read(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("path", "repo"),
    [
        ("hf://org/tiny", hub.Repo("org/tiny", "main")),
        ("hf://Org-1/Tiny_0.5B.x@v1.0", hub.Repo("Org-1/Tiny_0.5B.x", "v1.0")),
        ("hf://datasets/org/data", hub.Repo("org/data", kind="dataset")),
        ("hf://datasets/org/data@dev/a/b.jsonl", hub.Repo("org/data", "dev", "dataset", "a/b.jsonl")),
        ("hf://datasets/org/data/b.jsonl", hub.Repo("org/data", kind="dataset", file="b.jsonl")),
        ("hf://tiny", None),
        ("hf://org/tiny@", None),
        ("hf://org/tiny@a b", None),
        ("hf://org/tiny/model.safetensors", None),
        ("hf://../tiny", None),
        ("hf://datasets/org/data@dev/../../secret", None),
        ("hf://datasets/org/data@dev/.", None),
    ],
)
def test_what_a_path_names(path, repo):
    if repo is None:
        with pytest.raises(hub.HubError, match="hf://ORG/NAME@REVISION"):
            hub.parse(path)
    else:
        assert hub.parse(path) == repo and hub.parse(str(repo)) == repo


def test_other_paths_are_taken_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("org/tiny").mkdir(parents=True)
    for path in ("", "org/tiny", str(tmp_path), "/no/such", "no_such"):
        assert hub.local_folder(path) == path and hub.pin(path) == path
    for path in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main"):
        with pytest.raises(hub.HubError, match=f"no such folder.*hf://{path}"):
            hub.local_folder(path)


def test_a_model_is_fetched_without_code_and_pickles(server):
    folder = pathlib.Path(hub.local_folder("hf://org/tiny"))
    assert read(folder) == FILES
    assert not [path for path in server.paths("/org/tiny/resolve") if path.rpartition("/")[2] in REFUSED]
    only = pathlib.Path(hub.local_folder("hf://org/tiny@main", weights=False))
    assert only == folder
    server.seen.clear()
    pinned = f"hf://org/tiny@{server.repository.branches['main']}"
    assert hub.local_folder(pinned) == str(folder) and server.seen == [], "a cached commit asks nobody"


def test_only_the_config_is_fetched_where_no_weights_are_needed(server):
    folder = pathlib.Path(hub.local_folder("hf://org/tiny", weights=False))
    assert set(read(folder)) == {name for name in FILES if not name.endswith(".safetensors")}


def test_without_a_connection_the_cache_is_used(server, monkeypatch):
    folder = hub.local_folder("hf://org/tiny@main")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.local_folder("hf://org/tiny@main") == folder
    assert hub.pin("hf://org/tiny") == f"hf://org/tiny@{server.repository.branches['main']}"
    with pytest.raises(hub.HubError, match="hf://org/other@main: not cached, and could not be fetched .*again"):
        hub.local_folder("hf://org/other")


def test_a_broken_connection_goes_on_at_its_byte(server, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    server.cut[HEAVY] = 1050
    assert read(pathlib.Path(hub.local_folder("hf://org/tiny"))) == FILES
    ranges = [header for method, path, header in server.seen if method == "GET" and path.endswith(HEAVY)]
    assert ranges == [None, "bytes=1000-", "bytes=2000-"]


def test_an_interrupted_download_is_not_taken_for_whole_and_is_completed(server, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    server.cut[HEAVY] = 0
    with pytest.raises(hub.HubError, match="run the same command again, which continues"):
        hub.local_folder("hf://org/tiny")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(hub.HubError, match="not cached"):  # offline, with a part of it
        hub.local_folder("hf://org/tiny")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    server.cut.clear()
    server.seen.clear()
    assert read(pathlib.Path(hub.local_folder("hf://org/tiny"))) == FILES
    again = {path.rpartition("/")[2] for method, path, _ in server.seen if method == "GET" and "/resolve/" in path}
    assert again == {HEAVY}, "the others were there"


@pytest.mark.parametrize("file", [HEAVY, "config.json"])
def test_a_damaged_file_is_found_removed_and_fetched_again(server, file):
    server.damaged.add(file)
    for _ in range(2):
        with pytest.raises(hub.HubError, match=rf"{file} has the checksum [0-9a-f]+, expected [0-9a-f]+: .*removed"):
            hub.local_folder("hf://org/tiny")
    server.damaged.clear()
    folder = pathlib.Path(hub.local_folder("hf://org/tiny"))
    assert read(folder) == FILES
    blob = (folder / file).resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + b"!")  # later, on this disk
    os.utime(blob, ns=(1, 1))
    with pytest.raises(hub.HubError, match=file):
        hub.local_folder("hf://org/tiny")


def test_blobs_in_a_store_that_repositories_share(server, tmp_path):
    """huggingface_hub may keep a large file there, under another hash, with a link at blobs/SHA256."""
    folder = pathlib.Path(hub.local_folder("hf://org/tiny"))
    blob, shared = (folder / HEAVY).resolve(), tmp_path / ("f" * 64)
    blob.rename(shared)
    blob.symlink_to(shared)
    os.utime(shared, ns=(5, 5))
    assert read(pathlib.Path(hub.local_folder("hf://org/tiny"))) == FILES
    shared.write_bytes(b"!" * 3000)
    with pytest.raises(hub.HubError, match=f"{HEAVY} has the checksum"):
        hub.local_folder("hf://org/tiny")
    assert not shared.exists() and not blob.is_symlink()
    assert read(pathlib.Path(hub.local_folder("hf://org/tiny"))) == FILES


def test_a_checksum_is_computed_once(server, monkeypatch):
    hub.local_folder("hf://org/tiny")
    assert len(list(pathlib.Path(hub.CHECKED).iterdir())) == 1, "and no scratch file"
    monkeypatch.setattr(hub, "_digest", None)
    hub.local_folder("hf://org/tiny")


def test_a_home_that_cannot_be_written_to(server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(hub, "CHECKED", str(tmp_path / "file" / "checked"))
    assert read(pathlib.Path(hub.local_folder("hf://org/tiny"))) == FILES


def test_pickles_are_refused(server):
    server.add("org/pickled", {"config.json": b"{}", "pytorch_model.bin": b"a pickle", "model.pkl": b"a pickle"})
    with pytest.raises(hub.HubError, match=r"hf://org/pickled: .* no model\*.safetensors. .*pickles.*convert it"):
        hub.local_folder("hf://org/pickled")
    assert not [path for path in server.paths("/org/pickled/resolve") if "config.json" not in path]


def test_what_is_not_there_is_said(server):
    for path, said in {
        "hf://org/nope": "no such repository, or it is private",
        "hf://org/tiny@v9": "no revision 'v9'",
        "hf://datasets/org/tiny": "no such repository",
    }.items():
        with pytest.raises(hub.HubError, match=said):
            hub.local_folder(path)


def test_a_private_repository_needs_the_users_own_login(server, tmp_path):
    server.add("org/private", FILES, private=True)
    with pytest.raises(hub.HubError, match="private: .*hf auth login"):
        hub.local_folder("hf://org/private")
    (tmp_path / "home" / "token").write_text(server.token)
    assert read(pathlib.Path(hub.local_folder("hf://org/private"))) == FILES


def test_data_sets(server):
    rows = {"data/train.jsonl": b'{"prompt": "a"}\n', "data/test[1].jsonl": b"{}\n", "load.py": b"evil", "x.pkl": b"p"}
    server.add("org/data", rows, kind="datasets")
    file = hub.local_folder("hf://datasets/org/data@main/data/test[1].jsonl")
    assert pathlib.Path(file).read_bytes() == b"{}\n"
    assert not [path for path in server.paths("/datasets/org/data/resolve") if "train" in path]
    folder = pathlib.Path(hub.local_folder("hf://datasets/org/data"))
    assert set(read(folder)) == {"data/train.jsonl", "data/test[1].jsonl"}
    several = hub.local_folder("hf://datasets/org/data/data/*.jsonl")
    assert sorted(glob.glob(several)) == sorted(str(path) for path in (folder / "data").iterdir())
    with pytest.raises(hub.HubError, match="no file 'data/nope.jsonl'"):
        hub.local_folder("hf://datasets/org/data/data/nope.jsonl")


def test_a_run_stays_at_the_commit_with_which_it_began(server, tmp_path):
    first = server.repository.branches["main"]

    def path_of(workdir, asked="hf://org/tiny"):
        config = ConfigDict({"model": {"path": asked}}).lock()
        hub.settle(config, workdir)
        return config.model.path

    assert path_of(tmp_path / "run") == f"hf://org/tiny@{first}"
    second = server.repository.push("main", FILES | {"config.json": b'{"model_type": "llama"}'})
    assert path_of(tmp_path / "run") == f"hf://org/tiny@{first}" and path_of(tmp_path / "new").endswith(second)
    assert path_of(tmp_path / "run", "hf://org/tiny@main").endswith(second), "another path is another question"
    assert path_of(tmp_path / "run", f"hf://org/tiny@{second}") == f"hf://org/tiny@{second}"
    noted = json.loads((tmp_path / "run" / "hub.json").read_text())
    assert noted == {"hf://org/tiny": f"hf://org/tiny@{first}", "hf://org/tiny@main": f"hf://org/tiny@{second}"}
    assert path_of(tmp_path / "plain", "FOLDER") == "FOLDER" and not (tmp_path / "plain").exists()
    hub.settle(ConfigDict({"env": {}}), tmp_path / "plain")  # a program without a language model


def test_files_of_a_data_set_stay_at_their_commit_too(server, tmp_path):
    data = server.add("org/data", {"a=1/x.jsonl": b"first\n", "b.jsonl": b"b\n"}, kind="datasets")
    first, file = data.branches["main"], "hf://datasets/org/data@main/a=1/x.jsonl"
    asked = f"one={file}@2.5, local.jsonl@2,hf://datasets/org/data/b.jsonl"

    def config_of(workdir):
        sources = {"more": {"path": file, "weight": 3}, "own": {"path": "z.jsonl"}}
        task = {"name": "records", "path": asked, "test_path": "", "sources": sources}
        config = ConfigDict({"task": task, "data": {"path": "x=y.jsonl"}})
        hub.settle(config.lock(), workdir)
        return config

    pinned = f"one=hf://datasets/org/data@{first}/a=1/x.jsonl@2.5, local.jsonl@2,hf://datasets/org/data@{first}/b.jsonl"
    assert config_of(tmp_path / "run").task.path == pinned
    data.push("main", {"a=1/x.jsonl": b"second\n", "b.jsonl": b"b\n"})
    config = config_of(tmp_path / "run")
    assert config.task.sources.more.path == f"hf://datasets/org/data@{first}/a=1/x.jsonl"
    assert config.task.path == pinned and config.data.path == "x=y.jsonl"
    fields = hub.local_fields(config.task.to_dict())
    name, _, found = fields["path"].split(",")[0].partition("=")
    assert found.endswith("@2.5")
    assert fields["sources"]["more"]["path"] + "@2.5" == found and fields["sources"]["own"] == {"path": "z.jsonl"}
    found = found.removesuffix("@2.5")
    assert (name, pathlib.Path(found).read_text()) == ("one", "first\n") and fields["test_path"] == ""
    assert fields["path"].split(",")[1] == " local.jsonl@2" and fields["name"] == "records"
    assert hub.local_fields(config.data.to_dict()) == {"path": "x=y.jsonl"}
    tables = {"data": {"parts": {"a": {"path": file}}}}
    tables |= {"benchmarks": {"sets": {"b": {"path": file}, "c": {"parts": {"d": {"path": file}}}}}}
    config = ConfigDict(tables)
    hub.settle(config, tmp_path / "run")
    assert config.data.parts.a.path == config.benchmarks.sets.b.path == f"hf://datasets/org/data@{first}/a=1/x.jsonl"
    assert config.benchmarks.sets.c.parts.d.path == config.data.parts.a.path
    assert pathlib.Path(hub.local_fields(config.data.to_dict())["parts"]["a"]["path"]).read_text() == "first\n"


def test_of_a_models_folders_only_that_of_its_templates_is_fetched():
    def fetched(path):
        return not any(fnmatch.fnmatch(path, pattern) for pattern in hub.FOLDERS)

    assert fetched("additional_chat_templates/tool_use.jinja") and fetched("config.json")
    others = ("onnx", "add", "a", "additional_chat_template", "additional_chat_templates_old", "adapters", "1_Pooling")
    assert not any(fetched(f"{folder}/config.json") for folder in others)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.HubError, match=r"pip install -e '.\[hub\]'"):
        hub.local_folder("hf://org/tiny")


@pytest.mark.slow
def test_a_process_takes_the_endpoint_and_the_cache_from_the_packages_own_settings(tmp_path):
    with hub_server.serving() as server:
        server.add("org/tiny", FILES)
        program = "from experiments.parts import hub; print(hub.local_folder('hf://org/tiny'))"
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}
        options = dict(cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
        done = subprocess.run([sys.executable, "-c", program], env=environment, **options)
        assert done.returncode == 0, done.stderr
        folder = pathlib.Path(done.stdout.strip())
        assert read(folder) == FILES and folder.is_relative_to(tmp_path / "hf")
        count = len(server.seen)
        offline = environment | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run([sys.executable, "-c", program], env=offline, **options)
    assert done.stdout.strip() == str(folder) and len(server.seen) == count, done.stderr
