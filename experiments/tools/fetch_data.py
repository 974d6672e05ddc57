"""Downloads the real data sets from their public sources, checks them, and prints where they are.

    python -m experiments.tools.fetch_data --list              # the sets: files, size, licence
    python -m experiments.tools.fetch_data --list hh           # one set: each file's address and sha256
    python -m experiments.tools.fetch_data hh game24           # into ~/.cache/rl_jax/data, where configs look, too
    python -m experiments.tools.fetch_data stats --to=FOLDER

A set is all files that a word of a config needs (`hh` of configs/preferences/stories.py), all files that a claim of
configs/papers needs, or a folder of the data. The same command continues an interrupted download. A file with another
sha256 than in data_sources.json is removed. Only https is used (and http to this machine, for tests), redirects
included.

experiments/parts/data_sources.json has each file's address, size, licence and sha256 (experiments.parts.real_data). The
address is the one at which GitHub serves a file of a commit. Tier A: the repository's licence was read and is
permissive. Tier B: the licence of the data themselves is not stated there or was not checked; read it before use.
"""

import argparse
import gzip
import hashlib
import http.client
import ipaddress
import os
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence

from configs import common
from experiments.parts.real_data import catalogue

ADDRESS = "https://raw.githubusercontent.com/{repo}/{commit}/{path}"
ATTEMPTS, TIMEOUT_S, CHUNK = 3, 60, 1 << 16


class FetchError(RuntimeError):
    """A file could not be downloaded; the message says which, why, and what to do."""


def address(entry: dict) -> str:
    """The URL of a file."""
    return ADDRESS.format(**{name: urllib.parse.quote(entry[name]) for name in ("repo", "commit", "path")})


def check_address(url: str) -> str:
    """`url`, if it is https, or http to this machine.

    Raises:
      FetchError: for any other URL.
    """
    parts = urllib.parse.urlsplit(url)
    if not (parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname)))):
        raise FetchError(f"{url}: only https URLs are fetched (and http from this machine)")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to addresses that check_address accepts."""

    def redirect_request(self, request, file, code, message, headers, url):
        check_address(url)
        if not _is_loopback(urllib.parse.urlsplit(request.full_url).hostname) and not url.startswith("https://"):
            raise FetchError(f"{request.full_url}: redirected to {url}, and only https is followed")
        return super().redirect_request(request, file, code, message, headers, url)

    def http_error_302(self, request, file, code, message, headers):
        target = urllib.parse.urljoin(request.full_url, headers.get("location") or headers.get("uri") or "")
        check_address(target)  # before urllib's own check, whose error would look like the server's
        return super().http_error_302(request, file, code, message, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener() -> urllib.request.OpenerDirector:
    """An opener without handlers for file:, ftp: and data:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener


def fetch(entry: dict, folder: pathlib.Path) -> bool:
    """Downloads one file to folder/entry["file"].

    The bytes received so far are kept in a .partial file next to it, until it is complete and its sha256 is right.

    Args:
      entry: of data_sources.json.
      folder: of the data.

    Returns:
      False if the file was there already.

    Raises:
      FetchError: if the source cannot be reached or refuses (received bytes are kept and the same call resumes), or if
        it serves another file than the expected one (received bytes are removed).
    """
    final = folder / entry["file"]
    if final.exists() and _digest_of(final, entry) == entry["sha256"]:
        return False
    partial = final.with_name(f"{final.name}.partial")
    final.parent.mkdir(parents=True, exist_ok=True)
    url, trouble = check_address(address(entry)), None
    for _ in range(ATTEMPTS):
        try:
            _receive(url, partial, entry)
            break
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            trouble = error
            if isinstance(error, urllib.error.HTTPError):
                error.close()
                if error.code < 500:  # retrying would give the same answer
                    break
    received = partial.stat().st_size if partial.exists() else 0
    if received != entry["bytes"]:
        so_far = f"{received:,} of {entry['bytes']:,} bytes were received"
        raise FetchError(f"{url}: {trouble}; {so_far}: run the same command again to continue")
    digest = hashlib.sha256(partial.read_bytes()).hexdigest()
    if digest != entry["sha256"]:
        partial.unlink()
        raise FetchError(f"{url}: its sha256 is {digest}, expected {entry['sha256']}: the download was removed")
    _put(partial, final, packed=_is_packed_here(entry))
    return True


def _receive(url: str, partial: pathlib.Path, entry: dict) -> None:
    """Appends the missing part of entry["bytes"] to `partial`."""
    received = partial.stat().st_size if partial.exists() else 0
    if received >= entry["bytes"]:
        if received > entry["bytes"]:
            partial.unlink()
            raise OSError(f"{received:,} bytes were received, more than the file has: starting over")
        return
    headers = {"Accept-Encoding": "identity", "User-Agent": "rl_jax"}
    headers |= {"Range": f"bytes={received}-"} if received else {}
    with _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        goes_on = response.status == 206 and str(response.headers.get("Content-Range")).startswith(f"bytes {received}-")
        if response.status == 206 and not goes_on:
            raise OSError(f"requested the bytes from {received} on, got {response.headers.get('Content-Range')}")
        received = received if goes_on else 0  # a server without ranges sends the whole file again
        with open(partial, "ab" if goes_on else "wb") as file:
            while chunk := response.read(CHUNK):
                received += len(chunk)
                if received > entry["bytes"]:
                    file.truncate(0)
                    raise FetchError(f"{url}: it sends more than the file's {entry['bytes']:,} bytes: stopped")
                file.write(chunk)
    if received < entry["bytes"]:
        raise OSError("the connection ended early")


def _is_packed_here(entry: dict) -> bool:
    """Whether the file is stored as gzip here but not at its source."""
    return entry["file"].endswith(".gz") and not entry["path"].endswith(".gz")


def _digest_of(final: pathlib.Path, entry: dict) -> str:
    """sha256 of the source's bytes held in `final`; "" if it cannot be read."""
    try:
        data = final.read_bytes()
        return hashlib.sha256(gzip.decompress(data) if _is_packed_here(entry) else data).hexdigest()
    except (OSError, EOFError):
        return ""


def _put(partial: pathlib.Path, final: pathlib.Path, *, packed: bool) -> None:
    """Moves the complete file to its place, atomically."""
    if packed:
        scratch = final.with_name(f".{final.name}.{os.getpid()}")
        scratch.write_bytes(gzip.compress(partial.read_bytes(), mtime=0))
        scratch.replace(final)
        partial.unlink()
    else:
        partial.replace(final)


def listing(names: Sequence[str]) -> str:
    """All sets, one line each; with names, the files of these sets."""
    sets, files = catalogue()
    if not names:
        rows = []
        for name, held in sets.items():
            licences = "; ".join(dict.fromkeys(files[file]["licence"] for file in held))
            tiers = "".join(sorted({files[file]["tier"] for file in held}))
            rows.append(f"{name:14} {len(held):2} files {sum(files[file]['bytes'] for file in held):11,} bytes  "
                        f"tier {tiers:2}  {licences}")
        return "\n".join(rows)
    lines = []
    for file in dict.fromkeys(file for name in names for file in sets[name]):
        entry = files[file]
        lines.append(f"{file}\n  {entry['bytes']:,} bytes, tier {entry['tier']}: {entry['licence']}\n"
                     f"  {address(entry)}\n  sha256 {entry['sha256']}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to download; --list names them")
    parser.add_argument("--list", action="store_true", help="only list the sets, or the files of the given sets")
    parser.add_argument("--to", default=common.FETCHED, metavar="FOLDER", help=f"default: {common.FETCHED}")
    options = parser.parse_args(arguments)
    sets, files = catalogue()
    if unknown := sorted(set(options.names) - set(sets)):
        parser.error(f"unknown {', '.join(unknown)}; the sets are {', '.join(sets)}")
    if options.list or not options.names:
        print(listing(options.names))
        return 0
    folder, failed = pathlib.Path(options.to).expanduser().absolute(), 0
    for file in dict.fromkeys(file for name in options.names for file in sets[name]):
        try:
            news = "fetched" if fetch(files[file], folder) else "already downloaded"
        except FetchError as error:
            failed, news = failed + 1, f"FAILED: {error}"
        print(f"{file}: {news} ({files[file]['licence']})", flush=True)
    if failed:
        print(f"{failed} files are missing: run the same command again", file=sys.stderr)
        return 1
    print(f"All of {', '.join(options.names)} is in {folder}")
    if folder != pathlib.Path(common.FETCHED).expanduser().absolute():
        print(f"Configs look in {common.DATA} and {common.FETCHED}: to use this folder, set the config's path "
              "fields, such as --config.data.path")
    return 0


if __name__ == "__main__":
    sys.exit(main())
