"""A seccomp filter as bytes, from the allow-list of syscalls.py. Stdlib only.

A program is a list of BPF instructions over (number, architecture, arguments). Each allowed call is a comparison and a
return; everything that falls through is refused with EPERM, or with ENOSYS if it is newer than NEWEST, for which the C
library has a way without it. A call by another table of numbers (int 0x80, x32) never matches.
"""

import ctypes
import os
import struct
import sys

from rl_jax.rewards.sandbox import syscalls

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
NEWEST = 424  # from here on all architectures share their numbers
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000  # linux/sched.h: the flags of all namespaces that clone takes
_AF_UNIX, _SOCK_STREAM = 1, 1
_PRCTLS = (3, 15, 16, 0x53564D41)  # GET_DUMPABLE, SET_NAME, GET_NAME, SET_VMA
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032, 1034)  # no owner or signal of a descriptor, no lease
_O_ACCESS, _O_TRUNC = 3, 0x200  # asm-generic/fcntl.h
_SET_SECCOMP, _NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def program(*, pid: int = 0, processes: bool = False, files: bool = False, execute: bool = False) -> list[Instruction]:
    """The filter of one program.

    Args:
      pid: of the process that it is for, which may signal itself; 0: any process may be signalled (a PID namespace).
      processes: whether it may start others.
      files: whether it may change files (where it may is Landlock's or the mounts' matter).
      execute: whether it may replace itself by another program.

    Raises:
      RuntimeError: on another architecture than ARCHITECTURES.
    """
    machine = os.uname().machine
    if machine not in ARCHITECTURES or sys.maxsize < 2**32:
        raise RuntimeError(f"no seccomp filter for {machine}; it is written for {' and '.join(ARCHITECTURES)}, 64 bits")
    column = list(ARCHITECTURES).index(machine)
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, ARCHITECTURES[machine]), (_RETURN, 0, 0, EPERM)]
    code.append((_LOAD, 0, 0, _NUMBER))
    simple = dict(syscalls.BASE)
    simple |= syscalls.PROCESSES if processes else {}
    simple |= syscalls.FILES if files else {}
    blocks: dict[str, list[Instruction]] = {
        "ioctl": _one_of(1, _IOCTLS),
        "fcntl": _one_of(1, _FCNTLS),  # F_SETOWN and F_SETSIG send any signal to any process of the user
        "open": _unless_hidden(1),
        "openat": _unless_hidden(2),
        "prctl": _one_of(0, _PRCTLS),
        "prlimit64": _one_of(0, (0,)),  # its own
        "socketpair": [(_LOAD, 0, 0, _low(0)), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, EPERM)]
        + [(_LOAD, 0, 0, _low(1)), (_AND, 0, 0, 0xF), (_EQUAL, 0, 1, _SOCK_STREAM)]
        + [(_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, EPERM)],
        "clone": [(_LOAD, 0, 0, _low(0)), (_ANY_BIT, 0, 1, _CLONE_NEW), (_RETURN, 0, 0, EPERM)]
        + ([] if processes else [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, EPERM)])
        + [(_RETURN, 0, 0, ALLOW)],
        "clone3": [(_RETURN, 0, 0, ENOSYS)],  # its flags are in memory, where no filter looks
        "execve": [(_RETURN, 0, 0, ALLOW if execute else EPERM)],
    }
    for name in ("kill", "tkill", "tgkill"):
        blocks[name] = _one_of(0, (pid,)) if pid else [(_RETURN, 0, 0, ALLOW)]
    for name, block in blocks.items():
        number = syscalls.LIMITED[name][column]
        if number is not None:
            code += [(_EQUAL, 0, len(block), number), *block]
    for numbers in simple.values():
        if numbers[column] is not None:
            code += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, ALLOW)]
    return [*code, (_AT_LEAST, 0, 1, NEWEST), (_RETURN, 0, 0, ENOSYS), (_RETURN, 0, 0, EPERM)]


def _low(argument: int) -> int:
    """Where the lower 32 bits of an argument lie; both architectures are little-endian."""
    return _ARGUMENTS + 8 * argument


def _one_of(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    code = [(_LOAD, 0, 0, _low(argument))]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, ALLOW)]
    return [*code, (_RETURN, 0, 0, EPERM)]


def _unless_hidden(argument: int) -> list[Instruction]:
    """Refuses flags by which a file is emptied with no right to write: Landlock sees that from its ABI 3 on only."""
    code = [(_LOAD, 0, 0, _low(argument)), (_AND, 0, 0, _O_ACCESS | _O_TRUNC)]
    for value in (_O_TRUNC, _O_ACCESS, _O_ACCESS | _O_TRUNC):  # access 3 asks for no right at all
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, EPERM)]
    return [*code, (_RETURN, 0, 0, ALLOW)]


def as_bytes(code: list[Instruction]) -> bytes:
    """The form in which the kernel, and bwrap --seccomp, take it."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(code: list[Instruction]) -> None:
    """Filters this process from now on, and all that it starts.

    Raises:
      OSError: if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    data = ctypes.create_string_buffer(as_bytes(code))
    form = struct.pack("@HP", len(code), ctypes.addressof(data))
    zero = ctypes.c_ulong(0)
    for option, value, extra in ((_NO_NEW_PRIVS, 1, zero), (_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(form))):
        if libc.prctl(option, ctypes.c_ulong(value), extra, zero, zero):
            raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def run(code: list[Instruction], *, number: int, architecture: int, arguments: tuple[int, ...] = ()) -> int:
    """What the filter returns for one call; an interpreter of the instructions, for tests."""
    words = [number & 0xFFFFFFFF, architecture, 0, 0]
    for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        words += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    place = value = 0
    while True:
        op, true, false, constant = code[place]
        place += 1
        if op == _RETURN:
            return constant
        if op == _LOAD:
            value = words[constant // 4]
        elif op == _AND:
            value &= constant
        else:
            tests = {_EQUAL: value == constant, _AT_LEAST: value >= constant, _ANY_BIT: bool(value & constant)}
            place += true if tests[op] else false
