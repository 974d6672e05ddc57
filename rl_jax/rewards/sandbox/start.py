"""Which sandbox, and its proof: a backend by name, never a weaker one instead.

landlock     Landlock and a seccomp allow-list on a forked interpreter: no root, no namespaces, works in containers
bubblewrap   private namespaces by bwrap, the same seccomp filter, and a bounded disk; commands, several processes
none         limits and a fresh directory only: the program can read, write and connect as its user can
""           the first of landlock and bubblewrap that holds; none of them: an error with both reasons
"""

from rl_jax.rewards.sandbox import client, prove
from rl_jax.rewards.sandbox.protocol import SandboxError

BACKENDS = ("", *client.MODES)
_kept: dict[tuple, client.ProcessSandbox] = {}


def make(backend: str = "", *, python: str = "", bwrap: str = "") -> client.ProcessSandbox:
    """Starts a sandbox and proves it; the caller closes it.

    Args:
      backend: see above.
      python: interpreter of the programs; "": this one, or /usr/bin/python3 if this is root's own.
      bwrap: path of bwrap; "": as on PATH.

    Raises:
      SandboxError: if it cannot be had here, or something got out; the message says what.
    """
    if backend not in BACKENDS:
        raise SandboxError(f"no sandbox {backend!r}; the sandboxes are {', '.join(client.MODES)}, or '' for the first")
    reasons = []
    for mode in [backend] if backend else ["landlock", "bubblewrap"]:
        try:
            sandbox = client.ProcessSandbox(mode, python=python, bwrap=bwrap)
        except SandboxError as error:
            reasons.append(f"{mode}: {error}")
            continue
        try:
            if mode != "none":
                prove.prove(sandbox)
            return sandbox
        except SandboxError as error:
            sandbox.close()
            reasons.append(f"{mode}: {error}")
    help_text = "; backend='none' runs programs unconfined, on a machine of their own only"
    raise SandboxError("no sandbox holds here: " + "; ".join(reasons) + help_text)


def kept(backend: str = "", *, python: str = "") -> client.ProcessSandbox:
    """Like `make`, but one per process and setting, which stays; for reward functions and tools."""
    key = (backend, python)
    if key not in _kept or not _kept[key].alive:
        _kept[key] = make(backend, python=python)
    return _kept[key]
