"""JSON over HTTP to one completions server, standard library only: many requests at once, limits and retries."""

import contextlib
import functools
import http.client
import io
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from rl_jax.core.visible import visible

CONNECT_S = 10.0  # timeout of a connection attempt, in seconds
BACKOFF_S = 0.5  # seconds before the first retry; doubled before each further one
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
SHOWN = 300  # characters of an answer quoted in an error
MAX_HEAD = 1 << 18  # bytes of an answer's status line and headers, with all interim answers
MAX_BODY = 1 << 20  # bytes of an answer's body, unless the request says that it needs more


class Client:
    """Posts to {url}/v1/completions, and to other paths of that server. For the arguments see external.OpenAIGenerate.

    Connects directly and only to that host: no proxies, no redirects. An answer is read up to a number of bytes and to
    one deadline, headers included, however slowly or endlessly a server sends.
    """

    def __init__(self, url: str, *, timeout_s: float, retries: int = 3, concurrency: int = 1):
        base = url.rstrip("/").removesuffix("/v1")
        parts = urllib.parse.urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url={url!r} is not of the form http://HOST:PORT")
        if parts.username or parts.password:
            raise ValueError("url holds a user name or password, which would be written into logs")
        if not (timeout_s > 0 and retries >= 0 and concurrency >= 1):
            raise ValueError(f"timeout_s={timeout_s} must be above 0, {retries=} at least 0, {concurrency=} at least 1")
        self.address, self.url = base, base + COMPLETIONS
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path
        self._timeout_s, self._retries, self._concurrency = timeout_s, retries, concurrency

    def post_all(
        self, bodies: Sequence[dict], max_bytes: Sequence[int] | None = None, *, path: str = COMPLETIONS
    ) -> list:
        """The parsed answers, in the order of `bodies`. The first failure cancels the other requests and is raised.

        Args:
          bodies: of the requests.
          max_bytes: of the body of each answer; None is MAX_BODY.
          path: where they are posted to.
        """
        live = _Live()
        pool = ThreadPoolExecutor(min(self._concurrency, len(bodies)))
        try:
            payloads = [json.dumps(body).encode() for body in bodies]
            caps = [MAX_BODY] * len(bodies) if max_bytes is None else max_bytes
            futures = [
                pool.submit(self._post, payload, live, path, cap) for payload, cap in zip(payloads, caps, strict=True)
            ]
            for future in as_completed(futures):
                future.result()
            return [future.result() for future in futures]
        finally:  # also after an error or a signal: no thread keeps running
            live.close()
            pool.shutdown(wait=True, cancel_futures=True)

    def post(self, path: str, body: dict):
        """The parsed answer of another path ("/reset_prefix_cache") to one body; None if it is empty. Retried, too."""
        return self._post(json.dumps(body).encode(), _Live(), path)

    def _post(self, payload: bytes, live: "_Live", path: str, max_bytes: int = MAX_BODY):
        """The parsed answer to one body. The body has a seed, so a retry is the same request."""
        url = self.address + path
        for attempt in range(self._retries + 1):
            try:
                status, text = self._exchange(payload, live, path, max_bytes)
            except TimeoutError as error:
                raise TimeoutError(f"{url}: no full answer within timeout_s={self._timeout_s}") from error
            except _TooLongError as error:
                raise RuntimeError(f"{url}: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                failure = ConnectionError(f"{url}: {type(error).__name__}: {error} (attempt {attempt + 1})")
            else:
                if status == 200:
                    return self._parse(text, url) if text or path == COMPLETIONS else None
                failure = RuntimeError(f"{url}: HTTP {status}: {_message(text)} (attempt {attempt + 1})")
                if status < 500 and status != 429:
                    break
            if attempt == self._retries or live.closed.wait(BACKOFF_S * 2**attempt):
                break
        raise failure

    def _exchange(self, payload: bytes, live: "_Live", path: str, max_bytes: int) -> tuple[int, bytes]:
        """(status, body) of one attempt."""
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection(self._host, self._port, timeout=min(CONNECT_S, self._timeout_s))
        with contextlib.closing(connection):
            try:
                connection.connect()
            except TimeoutError as error:
                raise ConnectionError("no connection in time") from error
            sock = connection.sock  # the connection drops its reference if the server closes after its answer
            with live.hold(sock), _Source(sock, deadline) as source:
                sock.settimeout(max(deadline - time.monotonic(), 1e-3))
                connection.response_class = functools.partial(_response, source)
                connection.request("POST", self._prefix + path, payload, {"Content-Type": "application/json"})
                response = connection.getresponse()
                with response:
                    return response.status, _read(response, source, max_bytes)

    def _parse(self, text: bytes, url: str):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RuntimeError(f"{url}: the answer is not JSON ({error}): {_quote(text)}") from error


class _Live:
    """The sockets of one post_all, so that another thread can shut all of them down at once."""

    def __init__(self):
        self.closed = threading.Event()
        self._lock, self._sockets = threading.Lock(), set()

    @contextlib.contextmanager
    def hold(self, sock: socket.socket):
        with self._lock:
            if self.closed.is_set():
                raise ConnectionError("cancelled, because another request failed")
            self._sockets.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(sock)

    def close(self) -> None:
        with self._lock:
            self.closed.set()
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


class _TooLongError(Exception):
    """An answer has more bytes than it may."""


class _Source(io.RawIOBase):
    """The bytes that a socket receives, up to one deadline and to a number of them (MAX_HEAD before the body).

    http.client reads headers byte by byte or line by line, each with the socket's whole time limit.
    """

    def __init__(self, sock: socket.socket, deadline: float):
        # A file of the socket keeps it open after http.client, which closes its own at "Connection: close".
        self._sock, self._deadline, self._file = sock, deadline, sock.makefile("rb", buffering=0)
        self._left, self._part = MAX_HEAD, f"its status line and headers are over {MAX_HEAD} bytes"

    def begin_body(self, max_bytes: int) -> None:
        """From here on, `max_bytes` may come (some were read with the headers)."""
        self._left, self._part = max_bytes, f"its body is over {max_bytes} bytes, more than any answer needs"

    def makefile(self, *_) -> io.BufferedReader:
        """What http.client.HTTPResponse asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer) -> int:
        """Receives into `buffer`, as sockets do, until the deadline (TimeoutError) or the last byte (_TooLongError)."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)
        count = self._file.readinto(memoryview(buffer)[: self._left + 1]) or 0
        self._left -= count
        if self._left < 0:
            raise _TooLongError(self._part)
        return count

    def close(self) -> None:
        """Closes the socket's file."""
        self._file.close()
        super().close()


def _response(source: _Source, sock, **options) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(source, **options)


def _read(response: http.client.HTTPResponse, source: _Source, max_bytes: int) -> bytes:
    """The body. Raises IncompleteRead if the connection ends early."""
    source.begin_body(max_bytes)
    if (response.length or 0) > max_bytes:
        raise _TooLongError(f"its body has {response.length} bytes, over {max_bytes}, more than any answer needs")
    parts = []
    while part := response.read1(1 << 16):
        parts.append(part)
    if response.length:  # bytes of Content-Length that never came
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)


def _message(text: bytes) -> str:
    """The message of a server's error body: {"error": {"message"}}, {"message"}, {"detail"}, or the text itself."""
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(text)
        if isinstance(body, dict):
            error = body.get("error")
            inner = error.get("message") if isinstance(error, dict) else error
            message = inner or body.get("message") or body.get("detail")
            if message:
                return visible(str(message)[:SHOWN])
    return _quote(text)


def _quote(text: bytes) -> str:
    return repr(text[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN])
