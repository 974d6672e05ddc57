"""Landlock: which files a process may open. Stdlib only.

What no rule names cannot be opened, /proc included. Further rights of the kernel's ABI (TCP, abstract sockets, signals)
are all refused; the seccomp filter refuses the calls besides.
"""

import ctypes
import os
import stat
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the numbers are those of every architecture
_ABI, _BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE, _READ_FILE, _READ_DIR = 2, 4, 8  # linux/landlock.h
# Rights on files that each ABI has, and which further ones the kernel knows.
_FILES = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
_TCP, _SCOPES = (4, 3), (6, 3)  # from that ABI on: bind and connect; abstract sockets and signals

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def abi() -> int:
    """The kernel's Landlock ABI; 0 if it has none, or does not let this process use it."""
    return max(0, _libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(_ABI)))


class Rules:
    """A set of rules, made by one process and put on by itself or its children."""

    def __init__(self, readable: list[str], writable: list[str] = ()):
        """Rules for existing paths; a folder stands for what is below it.

        Raises:
          OSError: if the kernel has no Landlock, or a path is missing.
        """
        version = abi()
        handled = max((rights for least, rights in _FILES.items() if least <= version), default=0)
        tcp, scopes = (rights if version >= least else 0 for least, rights in (_TCP, _SCOPES))
        attributes = struct.pack("=QQQ", handled, tcp, scopes)
        size = 8 if version < _TCP[0] else 16 if version < _SCOPES[0] else 24
        self.fd = _libc.syscall(ctypes.c_long(_CREATE), attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "landlock_create_ruleset failed")
        for paths, rights in ((readable, _READ_FILE | _READ_DIR), (writable, _READ_FILE | _WRITE_FILE)):
            for path in paths:
                self.allow(path, rights)

    def allow(self, path: str, rights: int = _READ_FILE | _READ_DIR) -> None:
        """Adds a path."""
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(place).st_mode):
                rights &= ~_READ_DIR
            rule = struct.pack("=Qi", rights, place)
            added = _libc.syscall(
                ctypes.c_long(_ADD), ctypes.c_int(self.fd), ctypes.c_int(_BENEATH), rule, ctypes.c_uint(0)
            )
            if added:
                raise OSError(ctypes.get_errno(), f"landlock_add_rule({path}) failed")
        finally:
            os.close(place)

    def put_on(self) -> None:
        """Restricts this process and all that it starts, for good.

        Raises:
          OSError: if the kernel refuses.
        """
        one, zero = ctypes.c_ulong(1), ctypes.c_ulong(0)
        failed = _libc.prctl(_NO_NEW_PRIVS, one, zero, zero, zero)
        failed = failed or _libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(self.fd), ctypes.c_uint(0))
        if failed:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self failed")
