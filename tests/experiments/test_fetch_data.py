"""tools/fetch_data.py against a server on this machine: resuming, checksums, redirects, what is known of each file."""

import gzip
import hashlib
import http.server
import json
import re
import threading

import pytest

from configs import common
from experiments.parts import real_data
from experiments.tools import fetch_data
from tests.paths import shared_data

TEXT = ("".join(f"line {i}\n" for i in range(20_000))).encode()
BINARY = bytes(range(256)) * 300


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves server.files; server.faults: path -> what goes wrong, one a request."""

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        fault = server.faults.get(self.path, [])
        fault = fault.pop(0) if fault else None
        if fault and fault[0] == "redirect":
            self.send_response(302)
            self.send_header("Location", fault[1])
            self.end_headers()
            return
        if fault and fault[0] == "status":
            self.send_error(fault[1])
            return
        body = server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        if fault and fault[0] == "body":
            body = fault[1]
        start = re.match(r"bytes=(\d+)-$", self.headers.get("Range") or "")
        start = int(start[1]) if start and not (fault and fault[0] == "no ranges") else 0
        self.send_response(206 if start else 200)
        if start:
            shift = 1 if fault and fault[0] == "other range" else 0
            self.send_header("Content-Range", f"bytes {start + shift}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : start + fault[1]] if fault and fault[0] == "cut" else body[start:])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The server, and a catalogue of two files that it has: one kept as gzip, one as it is."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        found.files = {"/o/r/c1/a/text.jsonl": TEXT, "/o/r/c1/model.bin": BINARY}
        found.faults, found.requests = {}, []
        at = dict(repo="o/r", commit="c1", licence="MIT", tier="A")
        files = [
            dict(at, file="prefs/text.jsonl.gz", path="a/text.jsonl", bytes=len(TEXT), sha256=sha(TEXT)),
            dict(at, file="models/model.bin", path="model.bin", bytes=len(BINARY), sha256=sha(BINARY)),
        ]
        sources = tmp_path / "sources.json"
        sources.write_text(json.dumps({"sets": {"both": [f["file"] for f in files]}, "files": files}))
        monkeypatch.setattr(real_data, "SOURCES", sources)
        found.at = f"http://127.0.0.1:{found.server_port}"
        monkeypatch.setattr(fetch_data, "ADDRESS", found.at + "/{repo}/{commit}/{path}")
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run(folder, *names):
    return fetch_data.main([*names, f"--to={folder}"])


def test_a_set_is_brought_once(server, tmp_path, capsys):
    folder = tmp_path / "data"
    assert run(folder, "both") == 0
    assert files_in(folder) == ["models/model.bin", "prefs/text.jsonl.gz"]
    assert gzip.decompress((folder / "prefs/text.jsonl.gz").read_bytes()) == TEXT
    assert (folder / "models/model.bin").read_bytes() == BINARY
    said = capsys.readouterr().out
    assert said.count(": fetched (MIT)") == 2 and f"All of both is in {folder}" in said and "--config.data.path" in said
    server.requests.clear()
    assert run(folder, "prefs", "models") == 0
    assert server.requests == [] and capsys.readouterr().out.count("already downloaded") == 2


def test_an_interrupted_file_goes_on_where_it_stopped(server, tmp_path, capsys):
    folder, path = tmp_path / "data", "/o/r/c1/a/text.jsonl"
    server.faults[path] = [("cut", 1000), ("cut", 500), ("cut", 250)]
    assert run(folder, "prefs") == 1
    said = capsys.readouterr()
    assert f"1,750 of {len(TEXT):,} bytes were received: run the same command again to continue" in said.out
    assert "1 files are missing" in said.err
    assert files_in(folder) == ["prefs/text.jsonl.gz.partial"]
    assert (folder / "prefs/text.jsonl.gz.partial").read_bytes() == TEXT[:1750]
    server.requests.clear()
    assert run(folder, "prefs") == 0
    assert server.requests == [(path, "bytes=1750-")] and files_in(folder) == ["prefs/text.jsonl.gz"]
    assert gzip.decompress((folder / "prefs/text.jsonl.gz").read_bytes()) == TEXT


@pytest.mark.parametrize("fault", ["no ranges", "other range"])
def test_a_server_that_does_not_give_the_rest(server, tmp_path, fault):
    """Without ranges all of it comes again; a range that was not asked for is not appended."""
    folder = tmp_path / "data"
    server.faults["/o/r/c1/model.bin"] = [("cut", 1000), (fault,)]
    assert run(folder, "models") == 0
    assert (folder / "models/model.bin").read_bytes() == BINARY
    assert len(server.requests) == (2 if fault == "no ranges" else 3)


def test_a_wrong_checksum_is_refused_and_removed(server, tmp_path, capsys):
    folder = tmp_path / "data"
    server.faults["/o/r/c1/model.bin"] = [("body", BINARY[:-1] + b"?")]
    assert run(folder, "models") == 1
    assert f"expected {sha(BINARY)}: the download was removed" in capsys.readouterr().out
    assert files_in(folder) == []
    assert run(folder, "models") == 0, "the next try starts anew"


def test_more_bytes_than_the_file_has_are_refused(server, tmp_path, capsys):
    folder = tmp_path / "data"
    server.faults["/o/r/c1/model.bin"] = [("body", BINARY + b"?")]
    assert run(folder, "models") == 1 and "bytes: stopped" in capsys.readouterr().out
    assert not (folder / "models/model.bin").exists() and run(folder, "models") == 0


def test_a_damaged_file_is_brought_again(server, tmp_path):
    folder = tmp_path / "data"
    assert run(folder, "both") == 0
    (folder / "models/model.bin").write_bytes(BINARY[:-1])
    (folder / "prefs/text.jsonl.gz").write_bytes((folder / "prefs/text.jsonl.gz").read_bytes()[:-9])
    assert run(folder, "both") == 0
    assert (folder / "models/model.bin").read_bytes() == BINARY
    assert gzip.decompress((folder / "prefs/text.jsonl.gz").read_bytes()) == TEXT


def test_one_that_is_gone_does_not_stop_the_others(server, tmp_path, capsys):
    del server.files["/o/r/c1/a/text.jsonl"]
    assert run(tmp_path / "data", "both") == 1
    said = capsys.readouterr().out
    assert "prefs/text.jsonl.gz: FAILED" in said and "404" in said and "models/model.bin: fetched" in said
    assert sum(path.endswith("text.jsonl") for path, _ in server.requests) == 1, "a 404 is not asked again"


def test_a_server_in_trouble_is_asked_again(server, tmp_path):
    server.faults["/o/r/c1/model.bin"] = [("status", 503), ("status", 500)]
    assert run(tmp_path / "data", "models") == 0 and len(server.requests) == 3


@pytest.mark.parametrize(
    "target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "http://example.org/x", "data:text/plain,x", "//[::2]/x"]
)
def test_a_redirect_elsewhere_is_refused(server, tmp_path, capsys, target):
    folder = tmp_path / "data"
    server.faults["/o/r/c1/model.bin"] = [("redirect", target)] * fetch_data.ATTEMPTS
    assert run(folder, "models") == 1
    assert "only https URLs are fetched" in capsys.readouterr().out and files_in(folder) == []
    assert len(server.requests) == 1


def test_a_redirect_on_this_machine_is_followed(server, tmp_path):
    server.files["/moved"] = BINARY
    server.faults["/o/r/c1/model.bin"] = [("redirect", f"{server.at}/moved")]
    assert run(tmp_path / "data", "models") == 0
    assert (tmp_path / "data/models/model.bin").read_bytes() == BINARY


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://example.org/x", "ftp://x/y", "https:///x", "http://10.0.0.1/", "http://localhost.x/"],
)
def test_addresses_that_are_refused(url):
    with pytest.raises(fetch_data.FetchError, match="only https"):
        fetch_data.check_address(url)


@pytest.mark.parametrize("url", ["https://example.org/x", "http://127.0.0.1:80/x", "http://localhost/x", "http://[::1]/"])
def test_addresses_that_are_fetched(url):
    assert fetch_data.check_address(url) == url


def test_an_unknown_name_lists_the_known(server, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run(tmp_path / "data", "bothe", "models")
    assert end.value.code == 2 and "unknown bothe; the sets are both, prefs, models" in capsys.readouterr().err
    assert server.requests == []


def test_the_list_fetches_nothing(server, tmp_path, capsys):
    assert fetch_data.main(["--list"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["both", "prefs", "models"]
    assert f"2 files {len(TEXT) + len(BINARY):11,} bytes" in said[0] and "MIT" in said[0]
    assert fetch_data.main(["--list", "models"]) == 0
    said = capsys.readouterr().out
    assert f"{server.at}/o/r/c1/model.bin" in said and sha(BINARY) in said and server.requests == []


# The catalogue itself.


def test_the_catalogue_is_whole():
    sets, files = fetch_data.catalogue()
    assert len(files) == 77 and {"hh", "game24", "stories260k", "prefs", "stats"} <= set(sets)
    assert {file for held in sets.values() for file in held} == set(files)
    for name, entry in files.items():
        assert set(entry) == {"file", "repo", "commit", "path", "bytes", "sha256", "licence", "tier"}
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"]) and re.fullmatch(r"[0-9a-f]{64}", entry["sha256"])
        assert ".." not in name and not name.startswith("/") and entry["licence"] and entry["tier"] in "AB"
        assert fetch_data.check_address(fetch_data.address(entry)).startswith("https://raw.githubusercontent.com/")


def test_what_configs_and_claims_read_is_in_it():
    """Each real file that a config names, by the set of the same name where there is one."""
    from configs.papers import iqm_few_seeds, length_bias
    from configs.preferences import reward_models, stories
    from configs.tasks import game24, stories_sentiment

    sets, files = fetch_data.catalogue()
    configs = {word: stories.get_config(word) for word in stories.REAL}
    configs |= {word: reward_models.get_config(word) for word in reward_models.REAL}
    configs |= {"stories260k": stories_sentiment.get_config("stories260k"), "game24": game24.get_config("real")}
    configs |= {"length_bias": length_bias.get_ablation(), "iqm_few_seeds": iqm_few_seeds.get_ablation()}
    for name, config in configs.items():
        named = set(re.findall(rf"{re.escape(common.DATA)}/([\w./-]+)", str(config.to_dict())))
        assert named, name
        for path in named:
            held = [file for file in sets[name] if file == path or file.startswith(path + "/")]
            assert held, f"{name} reads {path}, which its set does not hold"


def test_the_catalogue_says_what_the_files_are():
    _, files = fetch_data.catalogue()
    for name, entry in files.items():
        data = shared_data(name).read_bytes()
        data = gzip.decompress(data) if fetch_data._is_packed_here(entry) else data
        assert (len(data), sha(data)) == (entry["bytes"], entry["sha256"]), name
