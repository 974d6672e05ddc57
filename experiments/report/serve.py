"""Serves a report that follows running runs, on this machine only:

    python -m experiments.report SWEEP --serve [--port=8000]

There are two addresses, "/" (the page) and "/version" (a word that changes when a run has written something). The path
of a request never reaches the file system. The server listens on 127.0.0.1 only and refuses requests sent to another
host name, so that no other web page can read the runs through DNS rebinding.
"""

import http.server
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

from experiments.report import arms_page, cli
from rl_jax.core.visible import visible

HOST = "127.0.0.1"
IDLE_S = 20.0  # seconds that a connection may send nothing
MAX_CONNECTIONS = 32  # at once; a browser opens six
WATCHED = ("*.json", "*.jsonl")


def version(paths: Sequence[Path]) -> str:
    """A word that changes when a file of these runs, or of a sweep's points, is written."""
    folders = [*paths, *(point for path in paths if arms_page.is_sweep(path) for point in path.glob("points/*/"))]
    files = sorted(file for folder in folders for pattern in WATCHED for file in folder.glob(pattern))
    latest = max((file.stat().st_mtime_ns for file in files), default=0)
    return f"{len(files)}-{sum(file.stat().st_size for file in files)}-{latest}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the page or its version. server: a Server."""

    timeout = IDLE_S

    def do_GET(self) -> None:
        """Answers a GET request."""
        if self.headers.get("Host") not in (f"{name}:{self.server.server_port}" for name in (HOST, "localhost")):
            self._answer(403, "text/plain", "this report is served at 127.0.0.1 and localhost only\n")
        elif self.path in ("/", "/version"):
            try:
                page = self.path == "/"
                kind, text = ("html", self.server.page()) if page else ("plain", version(self.server.paths))
            except (OSError, ValueError) as error:  # a run is being moved, or a file is damaged
                self._answer(500, "text/plain", visible(f"report: {error}\n"))
            else:
                self._answer(200, f"text/{kind}", text)
        elif self.path == "/favicon.ico":
            self._answer(204, "image/x-icon", "")  # browsers always request it, and log an error on 404
        else:
            self._answer(404, "text/plain", "the report is at /\n")

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode("utf-8", errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Logs nothing: a page that asks every five seconds would fill the terminal."""


class Server(http.server.ThreadingHTTPServer):
    """The live page of some runs and sweeps. port: 0 takes a free one, see server_port.

    Raises:
      OSError: if the port is in use or not allowed.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, paths: Sequence[Path], *, port: int = 0, metric: str | None = None):
        try:
            super().__init__((HOST, port), Handler)
        except PermissionError as error:
            said = f"port {port} is not allowed for this user: use one above 1023, or 0 for a free one"
            raise PermissionError(said) from error
        self.paths = [Path(path) for path in paths]
        self._metric, self._nonce = metric, secrets.token_urlsafe(16)
        self._lock, self._made = threading.Lock(), ("", "")
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request, client_address) -> None:
        """Answers in a thread, or closes the connection if there are too many already."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        """What the thread does."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def page(self) -> str:
        """The page, rebuilt if a run has written something since."""
        with self._lock:
            now = version(self.paths)
            if now != self._made[0]:
                self._made = now, cli.page(self.paths, metric=self._metric, nonce=self._nonce, version=now)
            return self._made[1]


def serve(paths: Sequence[Path], *, port: int, metric: str | None = None) -> None:
    """Serves until Ctrl-C.

    Args:
      paths: folders of runs and sweeps.
      port: 0 takes a free one.
      metric: as in `cli.page`.

    Raises:
      FileNotFoundError: if a folder is missing, before anything is served.
      ValueError: if a folder is damaged, before anything is served.
    """
    with Server(paths, port=port, metric=metric) as server:
        server.page()
        print(f"http://{HOST}:{server.server_port}/ (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
