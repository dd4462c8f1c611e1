# SPDX-License-Identifier: MIT OR Apache-2.0
"""The numbers of system calls on this processor, for seccomp filters and syscall(2)."""

from __future__ import annotations

import platform

# No program makes this call.
NONE = 0xFFFF_FFFF
# By the name of the call: x86_64 (asm/unistd_64.h), and aarch64 (asm-generic/unistd.h).
_BOTH = {
    "capset": (126, 91),
    "chdir": (80, 49),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup3": (292, 24),
    "execve": (59, 221),
    "execveat": (322, 281),
    "faccessat2": (439, 439),
    "fchdir": (81, 50),
    "fork": (57, NONE),
    "get_mempolicy": (239, 236),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "memfd_create": (319, 279),
    "mkdir": (83, NONE),
    "mkdirat": (258, 34),
    "mknod": (133, NONE),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "mount": (165, 40),
    "openat": (257, 56),
    "openat2": (437, 437),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "prctl": (157, 167),
    "recvmsg": (47, 212),
    "rt_sigprocmask": (14, 135),
    "set_mempolicy": (238, 237),
    "setgroups": (116, 159),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "statx": (332, 291),
    "umask": (95, 166),
    "unshare": (272, 97),
    "vfork": (58, NONE),
}
NUMBERS = {name: both[platform.machine() == "aarch64"] for name, both in _BOTH.items()}


def numbers(*names: str) -> list[int]:
    """Returns the numbers of these calls."""
    return [NUMBERS[name] for name in names]
