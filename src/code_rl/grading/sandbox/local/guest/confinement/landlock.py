"""Landlock: restricts the files that a process can open, where namespaces are not available. See
landlock(7)."""

from __future__ import annotations

import ctypes
import os
import struct

from code_rl.grading.sandbox.local.guest import kernel

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FS_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_FS_RIGHTS = (1 << 16) - 1
_EXECUTE = 1
_NET_RIGHTS = 0b11
_SCOPES = 0b11
SCOPING_SIGNALS = 6
"""From this version on, Landlock can keep processes from signaling those outside their domain."""
_FILE_RIGHTS = _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15


def version() -> int:
    """Return the kernel's Landlock version. Raises KernelError if it has none."""
    return kernel.raw_syscall(
        "landlock_create_ruleset", _CREATE, None, ctypes.c_size_t(0), _VERSION_QUERY
    )


def ruleset(read_only: tuple[str, ...], writable: tuple[str, ...], executable: bool = False) -> int:
    """Return the descriptor of a rule set: these paths (`executable` or not), no TCP, no signals or
    abstract sockets to the outside. Paths that do not exist are left out. It applies to nothing
    before `restrict`, which closes it.

    Restricting signals needs version 6, TCP version 4; the seccomp filters refuse both anyway.
    Raises KernelError.
    """
    abi = version()
    rights = _FS_RIGHTS_BY_ABI.get(abi, _ALL_FS_RIGHTS)
    attributes = struct.pack(
        "QQQ", rights, _NET_RIGHTS if abi >= 4 else 0, _SCOPES if abi >= SCOPING_SIGNALS else 0
    )
    made = kernel.raw_syscall(
        "landlock_create_ruleset", _CREATE, attributes[: _size(abi)], ctypes.c_size_t(_size(abi)), 0
    )
    execute = _EXECUTE if executable else 0
    for path in read_only:
        _allow(made, path, (_READ_FILE | _READ_DIR | execute) & rights)
    for path in writable:
        _allow(made, path, rights & ~(_EXECUTE | _MAKE_DEVICES) | execute)
    return made


def restrict(rules: int) -> None:
    """Confine this process and its later children to a rule set, for good, and close it in this
    process. Needs no_new_privs or CAP_SYS_ADMIN. Raises KernelError."""
    kernel.raw_syscall("landlock_restrict_self", _RESTRICT, rules, 0)
    os.close(rules)


def _size(abi: int) -> int:
    """Return the bytes of the kernel's ruleset attributes in a Landlock version, which refuses
    more."""
    return 24 if abi >= SCOPING_SIGNALS else 16 if abi >= 4 else 8


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add to a rule set that `rights` are allowed at and below `path`; a path that does not exist
    is left out. A file gets only the rights that files have. Raises KernelError."""
    # Without stat(2): a large number in its result (the machine's number of processes, for /proc)
    # would change the addresses of later allocations.
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        fd, rights = os.open(path, os.O_PATH | os.O_CLOEXEC), rights & _FILE_RIGHTS
    try:
        rule = struct.pack("=Qi", rights, fd)
        kernel.raw_syscall(f"landlock_add_rule({path})", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)
