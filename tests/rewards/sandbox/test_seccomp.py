"""sandbox/seccomp.py: what the filter says, call by call, read by an interpreter of its instructions."""

import os
import pathlib
import re

import pytest

from rl_jax.rewards.sandbox import seccomp, syscalls

MACHINE = os.uname().machine
pytestmark = pytest.mark.skipif(MACHINE not in seccomp.ARCHITECTURES, reason=f"no filter for {MACHINE}")
ALL = {**syscalls.BASE, **syscalls.FILES, **syscalls.PROCESSES, **syscalls.LIMITED}
PID = 4242


def number(name):
    return ALL[name][list(seccomp.ARCHITECTURES).index(MACHINE)]


def verdict(name_or_number, *arguments, architecture=None, **options):
    value = number(name_or_number) if isinstance(name_or_number, str) else name_or_number
    code = seccomp.program(pid=PID, **options)
    architecture = seccomp.ARCHITECTURES[MACHINE] if architecture is None else architecture
    return seccomp.run(code, number=value, architecture=architecture, arguments=arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "options", "expected"),
    [
        ("read", (), {}, seccomp.ALLOW),
        ("openat", (), {}, seccomp.ALLOW),
        ("clone", (0x3D0F00,), {}, seccomp.ALLOW),  # a thread of glibc
        ("clone", (0x11,), {}, seccomp.EPERM),  # a process
        ("clone", (0x11,), {"processes": True}, seccomp.ALLOW),
        ("clone", (0x10000011,), {"processes": True}, seccomp.EPERM),  # a user namespace
        ("clone", (0x10000 | 0x40000000,), {}, seccomp.EPERM),  # a thread with a network of its own
        ("clone3", (), {"processes": True}, seccomp.ENOSYS),
        ("execve", (), {}, seccomp.EPERM),
        ("execve", (), {"execute": True}, seccomp.ALLOW),
        ("kill", (PID,), {}, seccomp.ALLOW),
        ("kill", (PID + 1,), {}, seccomp.EPERM),
        ("kill", (2**64 - 1,), {}, seccomp.EPERM),  # -1, everybody
        ("kill", (0,), {}, seccomp.EPERM),
        ("tgkill", (PID, PID + 1), {}, seccomp.ALLOW),
        ("tgkill", (1, 1), {}, seccomp.EPERM),
        ("prctl", (15,), {}, seccomp.ALLOW),
        ("prctl", (4, 1), {}, seccomp.EPERM),  # SET_DUMPABLE
        ("prctl", (1, 0), {}, seccomp.EPERM),  # SET_PDEATHSIG
        ("prlimit64", (0,), {}, seccomp.ALLOW),
        ("prlimit64", (1,), {}, seccomp.EPERM),
        ("socketpair", (1, 0x80001), {}, seccomp.ALLOW),  # stream, close on exec
        ("socketpair", (1, 2), {}, seccomp.EPERM),  # datagrams go anywhere
        ("socketpair", (2, 1), {}, seccomp.EPERM),
        ("ioctl", (1, 0x5401), {}, seccomp.ALLOW),
        ("ioctl", (0, 0x5412), {}, seccomp.EPERM),  # TIOCSTI, typing into the terminal
        ("fcntl", (5, 1030), {}, seccomp.ALLOW),  # DUPFD_CLOEXEC
        ("fcntl", (5, 4, 0o4000), {}, seccomp.ALLOW),  # SETFL
        ("fcntl", (5, 8, PID), {}, seccomp.EPERM),  # SETOWN: whom to signal
        ("fcntl", (5, 10, 9), {}, seccomp.EPERM),  # SETSIG: with SIGKILL
        ("fcntl", (5, 15), {}, seccomp.EPERM),  # SETOWN_EX
        ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC), {}, seccomp.ALLOW),
        ("openat", (0, 0, os.O_WRONLY | os.O_TRUNC), {}, seccomp.ALLOW),  # Landlock's matter
        ("openat", (0, 0, os.O_RDONLY | os.O_TRUNC), {}, seccomp.EPERM),  # empties it with no right to write
        ("openat", (0, 0, 3), {}, seccomp.EPERM),
        ("openat", (0, 0, 3 | os.O_TRUNC), {"files": True}, seccomp.EPERM),
        ("unlinkat", (), {}, seccomp.EPERM),
        ("unlinkat", (), {"files": True}, seccomp.ALLOW),
        ("setsid", (), {}, seccomp.EPERM),
    ],
)
def test_verdicts(name, arguments, options, expected):
    assert verdict(name, *arguments, **options) == expected


def test_another_table_of_numbers_is_refused():
    assert verdict("read", architecture=0x40000003) == seccomp.EPERM  # i386, int 0x80
    assert verdict(0x40000000 | number("read")) == seccomp.ENOSYS  # x32
    for newer in (424, 425, 434, 438, 450, 471, 999, 2**31):
        assert verdict(newer) == seccomp.ENOSYS, newer


def test_everything_else_is_refused():
    allowed = {number(name) for name in (*syscalls.BASE, *syscalls.LIMITED)}
    for value in range(424):
        if value not in allowed:
            assert verdict(value) == seccomp.EPERM, value
    assert len(seccomp.program()) < 4096  # the kernel's bound


def test_numbers_are_those_of_this_machine_s_headers():
    header = pathlib.Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if MACHINE != "x86_64" or not header.exists():
        pytest.skip("no kernel headers of x86_64 here")
    text = header.read_text()
    known = {name: int(value) for name, value in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    assert {name: numbers[0] for name, numbers in ALL.items()} == {name: known[name] for name in ALL}
