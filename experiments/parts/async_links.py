"""The link between a trainer and its samplers, a folder or the network; where a sampler's own workers come to."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

from rl_jax.flow import Folder, Link
from rl_jax.flow.flight import FlightTrainer
from rl_jax.flow.flight_sampler import FlightSampler
from rl_jax.flow.local import KEEP, MAX_WAITING
from rl_jax.flow.requests import RequestServer

ROLES = ("both", "trainer", "sampler")
LINK = "link"  # folder in the workdir
FILES = ("token", "cert.pem", "key.pem")  # of the folder of secrets


class Secrets(NamedTuple):
    """What the sides of a link over the network know each other by.

    Attributes:
      token: that both sides send.
      certificate: of the trainer, in PEM; a sampler checks the trainer's against it. None is no encryption.
      key: of the certificate, in PEM; the trainer's only.
    """

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    @classmethod
    def read(cls, folder: str | None, own: str = "") -> "Secrets":
        """The files `token`, `cert.pem` and `key.pem` of --link_secrets; what is not there is None.

        Args:
          folder: theirs; None has no secrets.
          own: what the names of the certificate and of its key begin with, if they are not of the trainer.

        Raises:
          ValueError: if there is no `token`, or a file that cannot be read.
        """
        if folder is None:
            return cls()
        paths = [pathlib.Path(folder) / name for name in (FILES[0], *(own + name for name in FILES[1:]))]
        if not paths[0].is_file():
            raise ValueError(f"--link_secrets={folder}: no file {FILES[0]!r} there, with a secret that both sides have")
        try:
            token, *tls = (path.read_bytes() if path.exists() else None for path in paths)
        except OSError as error:
            raise ValueError(f"--link_secrets={folder}: {error.filename}: {error.strerror}") from error
        return cls(token.decode("ascii", "replace").strip(), *tls)


NONE = Secrets()


def make_link(
    role: str,
    workdir: pathlib.Path,
    address: str,
    secrets: Secrets = NONE,
    *,
    keep: int = KEEP,
    max_waiting: int = MAX_WAITING,
) -> Link | None:
    """The link of a role.

    Args:
      role: one of ROLES.
      workdir: of the run.
      address: "" is a folder in the workdir; a path is another one; "grpc://HOST:PORT" is the network, on this machine
        or through a tunnel; "grpc+tls://HOST:PORT" is the network with encryption.
      secrets: of a link over the network.
      keep: versions of the weights that stay readable.
      max_waiting: groups that may wait; a batch is taken as a whole, so it must have room.

    Returns:
      The link; None for "both".

    Raises:
      ValueError: if the address or the token cannot be.
    """
    if role == "both":
        if address or secrets != NONE:
            what = f"--link={address}" if address else "--link_secrets"
            raise ValueError(f"{what}: one process has no link; give --role=trainer or --role=sampler")
        return None
    if not address.startswith("grpc"):
        if secrets != NONE:
            raise ValueError(
                "--link_secrets: a link that is a folder has none, its rights decide; leave it out or give "
                "--link=grpc://..."
            )
        link = Folder(address or workdir / LINK, role=role, keep=keep, max_waiting=max_waiting)
        return _begun(link) if role == "trainer" else link
    _check_secrets(role, address, secrets)
    if role == "sampler":
        return FlightSampler(address, token=secrets.token, tls_root=secrets.certificate)
    options = dict(token=secrets.token, keep=keep, max_waiting=max_waiting, **place_of("--link", address, secrets))
    return _begun(FlightTrainer(workdir / LINK, **options))


def room_of(config) -> int:
    """Groups that may wait in the link of a run: two batches fit, however large. A trainer takes a whole one."""
    return max(MAX_WAITING, 2 * config.sample.prompts_per_step)


def make_server(address: str, secrets: Secrets, check: Callable) -> RequestServer:
    """Where a process listens for workers of its own.

    Args:
      address: "grpc://HOST:PORT", or with grpc+tls.
      secrets: its token, certificate and key.
      check: see RequestServer.

    Raises:
      ValueError: if the address or a secret cannot be.
    """
    if not address.startswith(("grpc://", "grpc+tls://")):
        raise ValueError(f"--listen={address}: give grpc://HOST:PORT or grpc+tls://HOST:PORT")
    if secrets.token is None:
        raise ValueError(f"--listen={address}: give --link_secrets=FOLDER; its file 'token' is a secret of all sides")
    encrypted = address.startswith("grpc+tls://")
    if encrypted != bool(secrets.certificate and secrets.key):
        what = "has no listen_cert.pem or no listen_key.pem" if encrypted else "has them: give grpc+tls://HOST:PORT"
        raise ValueError(f"--listen={address}: --link_secrets {what}")
    return RequestServer(token=secrets.token, check=check, **place_of("--listen", address, secrets))


def place_of(flag: str, address: str, secrets: Secrets) -> dict:
    """host, port and tls of an address to listen on."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"{flag}={address}: it has no port, as in {address.partition('://')[0]}://127.0.0.1:4000")
    tls = (secrets.certificate, secrets.key) if secrets.key else None
    return dict(host=host, port=int(port), tls=tls)


def _check_secrets(role: str, address: str, secrets: Secrets) -> None:
    """Raises ValueError if a link over the network lacks a secret, or has one that is not its own."""
    if secrets.token is None:
        raise ValueError(f"--link={address}: give --link_secrets=FOLDER; its file 'token' is a secret of both sides")
    if not address.startswith("grpc+tls://"):
        if secrets.certificate or secrets.key:
            raise ValueError(f"--link={address} is without TLS, and there is a certificate: give grpc+tls://HOST:PORT")
    elif role == "sampler" and secrets.key:
        raise ValueError("--link_secrets: key.pem is the trainer's alone: take it off this machine")
    elif role == "trainer" and not (secrets.certificate and secrets.key):
        raise ValueError(
            f"--link={address}: the trainer's --link_secrets has no cert.pem or no key.pem (openssl req -x509 -newkey "
            "rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=HOST -addext subjectAltName=DNS:HOST); samplers "
            "get the certificate"
        )


def _begun(link: Link) -> Link:
    """A trainer's link, which no longer says that an earlier trainer has ended: its sampler may still be there."""
    link.say("end", None)
    return link
