"""Brings the real data sets from their public sources, checks them, and says where they are.

    python -m experiments.tools.fetch_data --list              # the sets: files, size, licence
    python -m experiments.tools.fetch_data --list hh           # one set: each file's address and sha256
    python -m experiments.tools.fetch_data hh game24           # into ~/.cache/rl_jax/data, where configs look, too
    python -m experiments.tools.fetch_data stats --to=FOLDER

A set is all that a word of a config needs (`hh` of configs/preferences/stories.py), all that a claim of configs/papers
needs, or a folder of the data. Interrupted, the same command goes on where it stopped. A file whose sha256 is not the
one in data_sources.json is refused and removed. Only https is spoken (and http to this machine, for tests), redirects
included.

data_sources.json holds what is known of each file: repository, commit and path on GitHub, size, licence, sha256 of the
file there. The address is where GitHub serves a file of a commit. Tier A: the repository's licence was read and is
permissive; tier B: the licence of the data themselves is not stated there or was not checked; read it before use.
"""

import argparse
import gzip
import hashlib
import http.client
import ipaddress
import json
import os
import pathlib
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence

from configs import common

SOURCES = pathlib.Path(__file__).with_name("data_sources.json")
ADDRESS = "https://raw.githubusercontent.com/{repo}/{commit}/{path}"
ATTEMPTS, TIMEOUT_S, CHUNK = 3, 60, 1 << 16


class FetchError(RuntimeError):
    """A file could not be brought; the message says which, why, and what to do."""


def catalogue() -> tuple[dict[str, list[str]], dict[str, dict]]:
    """(set -> its files, file -> what is known of it). A folder of the data is a set, too."""
    known = json.loads(SOURCES.read_text(encoding="utf-8"))
    files = {entry["file"]: entry for entry in known["files"]}
    sets = dict(known["sets"])
    for name in files:
        sets.setdefault(folder := name.partition("/")[0], [])
        if folder not in known["sets"]:
            sets[folder].append(name)
    return sets, files


def address(entry: dict) -> str:
    """Where a file is served."""
    return ADDRESS.format(**{name: urllib.parse.quote(entry[name]) for name in ("repo", "commit", "path")})


def check_address(url: str) -> str:
    """`url`, if it is https, or http to this machine. Raises FetchError for anything else."""
    parts = urllib.parse.urlsplit(url)
    if not (parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname)))):
        raise FetchError(f"{url}: only https is fetched (and http from this machine)")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where the first request could have gone."""

    def redirect_request(self, request, file, code, message, headers, url):
        check_address(url)
        if not _is_loopback(urllib.parse.urlsplit(request.full_url).hostname) and not url.startswith("https://"):
            raise FetchError(f"{request.full_url}: redirected to {url}, and only https is followed")
        return super().redirect_request(request, file, code, message, headers, url)

    def http_error_302(self, request, file, code, message, headers):
        target = urllib.parse.urljoin(request.full_url, headers.get("location") or headers.get("uri") or "")
        check_address(target)  # before urllib's own check, whose error would read as the server's
        return super().http_error_302(request, file, code, message, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener() -> urllib.request.OpenerDirector:
    """One without handlers for file:, ftp: and data:."""
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
    """Brings one file to folder/entry["file"]. False where it was there already.

    What has arrived is kept in a file beside it, named .partial, until all of it is there and its sha256 is right.

    Raises:
      FetchError: the source cannot be reached or refuses (what has arrived stays, the same call goes on), or what it
        serves is not the file that is known (what has arrived is removed).
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
                if error.code < 500:  # asked again it says the same
                    break
    here = partial.stat().st_size if partial.exists() else 0
    if here != entry["bytes"]:
        so_far = f"{here:,} of {entry['bytes']:,} bytes are here"
        raise FetchError(f"{url}: {trouble}; {so_far}: the same command goes on from there")
    found = hashlib.sha256(partial.read_bytes()).hexdigest()
    if found != entry["sha256"]:
        partial.unlink()
        raise FetchError(f"{url}: its sha256 is {found}, expected {entry['sha256']}: what was fetched is removed")
    _put(partial, final, packed=_is_packed_here(entry))
    return True


def _receive(url: str, partial: pathlib.Path, entry: dict) -> None:
    """Appends to `partial` what is missing of entry["bytes"]."""
    here = partial.stat().st_size if partial.exists() else 0
    if here >= entry["bytes"]:
        if here > entry["bytes"]:
            partial.unlink()
            raise OSError(f"{here:,} bytes had arrived, more than the file has: started anew")
        return
    headers = {"Accept-Encoding": "identity", "User-Agent": "rl_jax"} | ({"Range": f"bytes={here}-"} if here else {})
    with _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        goes_on = response.status == 206 and str(response.headers.get("Content-Range")).startswith(f"bytes {here}-")
        if response.status == 206 and not goes_on:
            raise OSError(f"asked for the bytes from {here} on, got {response.headers.get('Content-Range')}")
        here = here if goes_on else 0  # a server without ranges sends all of it again
        with open(partial, "ab" if goes_on else "wb") as file:
            while chunk := response.read(CHUNK):
                here += len(chunk)
                if here > entry["bytes"]:
                    file.truncate(0)
                    raise FetchError(f"{url}: more than the {entry['bytes']:,} bytes that the file has: it is refused")
                file.write(chunk)
    if here < entry["bytes"]:
        raise OSError("the connection ended early")


def _is_packed_here(entry: dict) -> bool:
    """Whether the file is kept as gzip here, which it is not at its source."""
    return entry["file"].endswith(".gz") and not entry["path"].endswith(".gz")


def _digest_of(final: pathlib.Path, entry: dict) -> str:
    """sha256 of the bytes at the source that `final` holds; "" where it cannot be read."""
    try:
        data = final.read_bytes()
        return hashlib.sha256(gzip.decompress(data) if _is_packed_here(entry) else data).hexdigest()
    except (OSError, EOFError):
        return ""


def _put(partial: pathlib.Path, final: pathlib.Path, *, packed: bool) -> None:
    """Moves the whole file to its place, at once."""
    if packed:
        scratch = final.with_name(f".{final.name}.{os.getpid()}")
        scratch.write_bytes(gzip.compress(partial.read_bytes(), mtime=0))
        scratch.replace(final)
        partial.unlink()
    else:
        partial.replace(final)


def listing(names: Sequence[str]) -> str:
    """All sets, a line each; of those named, their files."""
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
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to bring; --list says which there are")
    parser.add_argument("--list", action="store_true", help="what there is, or what a set holds; fetches nothing")
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
            news = "fetched" if fetch(files[file], folder) else "is here already"
        except FetchError as error:
            failed, news = failed + 1, f"FAILED: {error}"
        print(f"{file}: {news} ({files[file]['licence']})", flush=True)
    if failed:
        print(f"{failed} files are missing: run the same command again", file=sys.stderr)
        return 1
    print(f"All of {', '.join(options.names)} is in {folder}")
    if folder != pathlib.Path(common.FETCHED).expanduser().absolute():
        print(f"Configs look in {common.DATA} and {common.FETCHED}: give this folder's files by the config's path "
              "fields, such as --config.data.path")
    return 0


if __name__ == "__main__":
    sys.exit(main())
