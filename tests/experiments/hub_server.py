"""A loopback server with the part of the Hub's API that huggingface_hub uses to read and to write repositories."""

import base64
import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse


def git_id(content: bytes) -> str:
    """The name of a small file's content."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class Repository:
    """Files by commit, and the commit of each branch. kind: "models" or "datasets"."""

    def __init__(self, name, files, *, kind="models", private=False):
        self.name, self.kind, self.private = name, kind, private
        self.commits, self.branches = {}, {}
        self.push("main", files)

    def push(self, branch, files):
        """A commit with exactly these files, {name: bytes}."""
        text = repr(sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files.items()))
        commit = hashlib.sha1(f"{len(self.commits)} {text}".encode()).hexdigest()
        self.commits[commit], self.branches[branch] = dict(files), commit
        return commit

    def commit_of(self, revision):
        return revision if revision in self.commits else self.branches.get(revision)


class Hub:
    """The server's state.

    Attributes:
      repositories: by kind and name, ("models", "org/tiny").
      seen: (method, path, Range header or None) of each request.
      cut: name of a file -> how many bytes of each answer to send before the connection ends; None sends all.
      damaged: names of files whose last byte is sent wrong.
      token: that uploads and private repositories need.
    """

    def __init__(self):
        self.repositories, self.seen, self.cut, self.damaged, self.token = {}, [], {}, set(), "hf_secret"
        self.created = []

    def add(self, name, files, **options):
        repository = Repository(name, files, **options)
        self.repositories[repository.kind, name] = repository
        return repository

    def paths(self, start=""):
        return [path for _, path, _ in self.seen if path.startswith(start)]


def _large(name):
    return name.endswith((".safetensors", ".bin", ".parquet"))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self):
        self._begin()
        parts = self.path_only.strip("/").split("/")
        if parts[:1] == ["api"] and parts[1:2] == ["whoami-v2"]:
            return self._json({"type": "user", "name": "org"}) if self._authorized() else self._refuse(401, "")
        if parts[0] == "api":
            known = len(parts) >= 4
            return self._api(parts[1], "/".join(parts[2:4]), parts[4:]) if known else self._refuse(404, "EntryNotFound")
        kind = "datasets" if parts[0] == "datasets" else "models"
        org, name, verb, revision, *file = parts[1:] if kind == "datasets" else parts
        if verb == "resolve":
            return self._file(kind, f"{org}/{name}", urllib.parse.unquote(revision), "/".join(file))
        return self._refuse(404, "EntryNotFound")

    do_HEAD = do_GET

    def do_POST(self):
        self._begin()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._authorized():
            return self._refuse(401, "")
        parts = self.path_only.strip("/").split("/")
        if parts == ["api", "repos", "create"]:
            wanted = json.loads(body)
            name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
            if ("models", name) in self.hub.repositories:
                return self._refuse(409, "RepoExists", f"{self.hub.url}/{name}")
            self.hub.created.append(wanted)
            self.hub.add(name, {})
            return self._json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        if parts == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        repository = self.hub.repositories[parts[1], "/".join(parts[2:4])]
        verb, revision = parts[4], urllib.parse.unquote(parts[5]) if len(parts) > 5 else "main"
        if verb == "preupload":
            files = json.loads(body)["files"]
            plain = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._json({"files": [{"path": file["path"]} | plain for file in files]})
        if verb == "commit":
            lines = [json.loads(line) for line in body.decode().splitlines() if line]
            files = dict(repository.commits[repository.commit_of(revision)])
            for line in lines:
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            commit = repository.push(revision, files)
            url = f"{self.hub.url}/{repository.name}/commit/{commit}"
            return self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})
        return self._refuse(404, "EntryNotFound")

    def _begin(self):
        self.path_only = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.hub.seen.append((self.command, self.path_only, self.headers.get("Range")))

    def _authorized(self):
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _find(self, kind, name, revision):
        """(repository, commit); None after an error was sent."""
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.private and not self._authorized()):
            return self._refuse(404, "RepoNotFound")
        if (commit := repository.commit_of(revision)) is None:
            return self._refuse(404, "RevisionNotFound")
        return repository, commit

    def _api(self, kind, name, rest):
        verb, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        if (found := self._find(kind, name, revision)) is None:
            return None
        repository, commit = found
        files = repository.commits[commit]
        if verb == "tree":
            return self._json([
                {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
                | ({"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
                   if _large(path) else {})
                for path, content in sorted(files.items())
            ])  # fmt: skip
        return self._json({"id": name, "sha": commit, "private": repository.private, "tags": [], "downloads": 0,
                           "siblings": [{"rfilename": path} for path in sorted(files)]})  # fmt: skip

    def _file(self, kind, name, revision, file):
        if (found := self._find(kind, name, revision)) is None:
            return None
        repository, commit = found
        if file not in repository.commits[commit]:
            return self._refuse(404, "EntryNotFound")
        content = repository.commits[commit][file]
        etag = hashlib.sha256(content).hexdigest() if _large(file) else git_id(content)
        sent = content[:-1] + bytes([content[-1] ^ 1]) if file in self.hub.damaged else content
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        if self.command != "HEAD":  # an answer cut short ends the connection: said, or a client could use it once more
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return None
        limit = self.hub.cut.get(file)
        with contextlib.suppress(OSError):
            self.wfile.write(sent[start:] if limit is None else sent[start : start + limit])
            self.wfile.flush()
        return None

    def _json(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _refuse(self, status, code, url=""):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        text = json.dumps({"error": code, "url": url}).encode()
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_):
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # huggingface_hub asks for 8 files at once; the standard 5 would drop a connection


@contextlib.contextmanager
def serving():
    """A Hub on 127.0.0.1, its address in `url`."""
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
