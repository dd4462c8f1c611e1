# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes that an owner, or one of its threads, may make to itself after programs were parked.

Each case changes the process or thread that runs it, so it runs in a new process:
    python warm_cases.py WAY CASE [CONFINED]
This parks a program, makes the change, runs the program warm and cold, and prints the outcomes as
JSON. With CONFINED, the program is parked and run under a seccomp filter and Landlock.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import spawnfd as sf
from call_numbers import numbers
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT
from warm_support import FILL_S, Way, add, new_warm

# This program prints everything that it can see of the changes.
PROBE = (
    "sh",
    "-c",
    """umask; pwd; ulimit -a; cd /proc/self
cat limits oom_score_adj coredump_filter personality cgroup timerslack_ns; cd "$OLDPWD"
cut -d' ' -f 19 /proc/self/stat
grep -E '^(Sig[BIC]|Shd|Cap|NoNew|Seccomp:|Uid|Gid|Groups|Cpus_allowed:)' /proc/self/status
for kind in uts mnt net ipc pid user cgroup time; do readlink /proc/self/ns/$kind; done
id; env; ionice; mkdir made && rmdir made""",
)
CURL = ("curl", "--version")

libc = ctypes.CDLL(None, use_errno=True)
# From <sys/prctl.h>, <linux/landlock.h>, <linux/capability.h>, <sched.h>.
PR_SET_TIMERSLACK, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_SECUREBITS = (
    *(29, 24, 38, 22, 28),
)
SYS_PERSONALITY, SYS_CAPSET, SYS_SETRESUID, SYS_SETGROUPS, SYS_UNSHARE = numbers(
    "personality", "capset", "setresuid", "setgroups", "unshare"
)
SYS_SETRESGID, SYS_SET_MEMPOLICY, SYS_MOUNT = numbers("setresgid", "set_mempolicy", "mount")
SYS_KEYCTL, SYS_IOPRIO_SET, SYS_MKDIR, SYS_MKDIRAT = numbers(
    "keyctl", "ioprio_set", "mkdir", "mkdirat"
)
SYS_MKNOD, SYS_MKNODAT = numbers("mknod", "mknodat")
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = numbers(
    "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"
)
ADDR_NO_RANDOMIZE, KEYCTL_JOIN_SESSION_KEYRING, CAP_NET_RAW = 0x0040000, 1, 13
CLONE_NEWUTS, CLONE_NEWTIME, CLONE_NEWNET = 0x04000000, 0x00000080, 0x40000000
CLONE_FS, CLONE_NEWNS = 0x00000200, 0x00020000
MS_BIND, MS_REC, MS_PRIVATE, MPOL_PREFERRED = 4096, 16384, 1 << 18, 1
OOM = "/proc/self/oom_score_adj"


def call(number: int, *args: Any) -> int:
    """Makes a system call in this thread only. libc's wrappers change all threads."""
    found: int = libc.syscall(number, *args)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found


def prctl(*args: int) -> None:
    if libc.prctl(*map(ctypes.c_ulong, args), *[ctypes.c_ulong(0)] * (5 - len(args))) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def op(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    """Returns an instruction of a seccomp filter."""
    return struct.pack("HBBI", code, jump_true, jump_false, value)


def refusal(*calls: int, answer: int = errno.EPERM) -> bytes:
    """Returns a seccomp filter that refuses these calls."""
    return (
        op(0x20, 0, 0, 0)  # load the number
        + b"".join(op(0x15, len(calls) - at, 0, call) for at, call in enumerate(calls))
        + op(0x06, 0, 0, 0x7FFF0000)  # SECCOMP_RET_ALLOW
        + op(0x06, 0, 0, 0x00050000 | answer)  # SECCOMP_RET_ERRNO
    )


def refusal_with(call: int, *arguments: tuple[int, int, int], error: int | None = None) -> bytes:
    """Returns a filter that refuses a call with these arguments.

    Each argument is given by index, mask and value. Without an error number, the filter kills the
    process.
    """
    tests = [(0, 0xFFFF_FFFF, call), *((16 + 8 * place, *what) for place, *what in arguments)]
    answer = 0x8000_0000 if error is None else 0x0005_0000 | error
    text = b""
    for left, (at, mask, value) in zip(range(len(tests) - 1, -1, -1), tests, strict=True):
        # The instructions load, mask and compare. A mismatch jumps to the final "allow".
        text += op(0x20, 0, 0, at) + op(0x54, 0, 0, mask) + op(0x15, 0, 3 * left + 1, value)
    return text + op(0x06, 0, 0, answer) + op(0x06, 0, 0, 0x7FFF_0000)


def no_mkdir(answer: int = errno.EPERM) -> bytes:
    """Returns a filter that refuses to create directories."""
    return refusal(SYS_MKDIR, SYS_MKDIRAT, answer=answer)


def forbid_mkdir() -> None:
    """Installs a filter on this thread that makes mkdir() fail with EPERM."""
    install_filter(no_mkdir())


def install_filter(text: bytes) -> None:
    """Installs a seccomp filter on this thread."""
    program = ctypes.create_string_buffer(text)
    count = len(text) // 8
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", count, ctypes.addressof(program)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(filter))


def ruleset_for(handled: int) -> int:
    """Creates a Landlock ruleset that handles these rights, and has no rules."""
    attributes = ctypes.create_string_buffer(struct.pack("Q", handled), 8)
    return call(SYS_LANDLOCK_CREATE_RULESET, attributes, 8, 0)


def ruleset_against_mkdir() -> int:
    """Creates a Landlock ruleset that forbids creating directories and files."""
    return ruleset_for(1 << 7 | 1 << 8)


def ruleset_for_reading(places: list[str]) -> int:
    """Creates a Landlock ruleset that permits executing and reading below these paths only."""
    rights = 1 << 0 | 1 << 2 | 1 << 3
    ruleset = ruleset_for(rights)
    for place in filter(os.path.exists, places):
        fd = os.open(place, os.O_PATH)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd), 12)
        call(SYS_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)
        os.close(fd)
    return ruleset


def landlock() -> None:
    """Forbids this thread to create files, by Landlock."""
    ruleset = ruleset_against_mkdir()
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    call(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def drop_capabilities() -> None:
    """Drops all capabilities of this thread."""
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    call(SYS_CAPSET, header, ctypes.create_string_buffer(24))


def limit(kind: int, soft: int) -> Callable[[], None]:
    """Returns a function that sets a soft limit."""
    return lambda: resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def write(path: str, text: str) -> Callable[[], None]:
    """Returns a function that writes a file of /proc."""

    def change() -> None:
        with open(path, "w") as file:
            file.write(text)

    return change


def hard_limit(most: int) -> Callable[[], None]:
    """Returns a function that sets the soft and the hard limit of descriptors."""

    def change() -> None:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
        except ValueError as error:
            raise PermissionError(errno.EPERM, str(error)) from error

    return change


def bind_memory() -> None:
    """Makes this thread prefer memory of the first node."""
    call(SYS_SET_MEMPOLICY, MPOL_PREFERRED, ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))


def copy_mounts() -> None:
    """Mounts the whole file system below ./copy, in a new mount namespace."""
    os.mkdir("copy")
    call(SYS_UNSHARE, CLONE_NEWNS)
    call(SYS_MOUNT, b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    call(SYS_MOUNT, b"/", b"copy", None, ctypes.c_ulong(MS_REC | MS_BIND), None)


def enter_copy() -> None:
    """Makes ./copy this thread's root directory."""
    call(SYS_UNSHARE, CLONE_FS)
    os.chroot("copy")


def enter_cgroup() -> None:
    """Moves this process into a new cgroup until it exits."""
    with open("/proc/self/mounts") as mounts:
        places = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    with open("/proc/self/cgroup") as cgroups:
        here = [line[4:].rstrip() for line in cgroups if line.startswith("0::/")]
    if not places or not here:
        raise FileNotFoundError(errno.ENOENT, "no cgroup v2")
    before = os.path.join(places[0], here[0])
    group = os.path.join(before, f"spawnfd-test-{os.getpid()}")
    os.mkdir(group)
    # atexit calls the last registered function first.
    atexit.register(os.rmdir, group)
    atexit.register(write(f"{before}/cgroup.procs", "0"))
    write(f"{group}/cgroup.procs", "0")()


@dataclass(frozen=True)
class Case:
    """A change, and its effect on the next start.

    Attributes:
        cold: A part of the reason for a cold start. None: the start is warm, and the program sees
            the change.
        thread: The change affects the calling thread only. Other threads still start warm.
        root: Only root can make the change.
        before: A change that the owner makes before it parks anything.

    A process for any program execs, so it also takes over variables and memory limits.
    """

    id: str
    change: Callable[[], Any] = lambda: None
    cold: str | None = None
    argv: tuple[str, ...] = PROBE
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thread: bool = False
    root: bool = False
    before: Callable[[], Any] = lambda: None


# A change of the calling thread that only root can make.
of_root = partial(Case, thread=True, root=True)
become_nobody = partial(call, SYS_SETRESUID, 65534, 65534, 65534)

CASES = (
    # A parked process takes over the following changes.
    Case("nothing"),
    Case("umask", lambda: os.umask(0o027)),
    Case("directory", lambda: os.chdir("/usr")),
    Case("variable", env={"ADDED": "1"}),
    Case("descriptors", limit(resource.RLIMIT_NOFILE, 77)),
    Case("core", limit(resource.RLIMIT_CORE, 0)),
    Case("cpu", limit(resource.RLIMIT_CPU, 55)),
    Case("mask", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])),
    Case("ignored", lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)),
    Case("default-pipe", lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL)),
    Case("oom-raised", write(OOM, "500")),
    Case("actions", options={"actions": [sf.actions.Umask(0o33), sf.actions.Chdir("/etc")]}),
    # A parked process cannot take over the following changes, or must not.
    Case("nice-raised", lambda: os.nice(3), "scheduling"),
    Case("affinity", lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), "affinity"),
    Case(
        "batch", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), "scheduling"
    ),
    Case("coredump-filter", write("/proc/self/coredump_filter", "1"), "core dump filter"),
    Case("timer-slack", lambda: prctl(PR_SET_TIMERSLACK, 123456), "switches"),
    Case("io-priority", lambda: call(SYS_IOPRIO_SET, 1, 0, 2 << 13 | 6), "I/O priority"),
    Case("session", os.setsid, "session"),
    Case("stack", limit(resource.RLIMIT_STACK, 4 << 20), "memory limits"),
    Case("address-space", limit(resource.RLIMIT_AS, 1 << 40), "memory limits"),
    Case("data", limit(resource.RLIMIT_DATA, 1 << 39), "memory limits"),
    Case("personality", lambda: call(SYS_PERSONALITY, ADDR_NO_RANDOMIZE), "personality"),
    Case("keyring", lambda: call(SYS_KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, None), "keyrings"),
    Case("library-path", cold="variable", env={"LD_LIBRARY_PATH": "/nowhere"}),
    Case("tunables", cold="variable", env={"GLIBC_TUNABLES": "glibc.malloc.check=1"}),
    Case("preload", cold="variable", env={"LD_PRELOAD": "libc.so.6"}),
    Case("read-by-library", cold="variable", argv=CURL, env={"GNUTLS_DEBUG_LEVEL": "0"}),
    Case("switched-off", lambda: os.environ.update(SPAWNFD_WARM="0"), "off"),
    Case("oom-lowered", write(OOM, "100"), "oom_score_adj", before=write(OOM, "500")),
    Case("raised-limits", hard_limit(400), "raised limits", root=True, before=hard_limit(300)),
    Case("memory-policy", bind_memory, "memory policy", thread=True),
    Case("root", enter_copy, "root", thread=True, root=True, before=copy_mounts),
    Case("cgroup", enter_cgroup, "cgroup", root=True),
    # The following changes affect the authority of the calling thread.
    Case("no-new-privs", lambda: prctl(PR_SET_NO_NEW_PRIVS, 1), "no_new_privs", thread=True),
    Case(
        *("seccomp", forbid_mkdir, "seccomp"),
        thread=True,
        before=lambda: prctl(PR_SET_NO_NEW_PRIVS, 1),
    ),
    Case("landlock", landlock, "no_new_privs", thread=True),
    # /proc does not show this change.
    Case(
        *("landlock-alone", landlock, "landlock"),
        thread=True,
        before=lambda: prctl(PR_SET_NO_NEW_PRIVS, 1),
    ),
    of_root("capabilities", drop_capabilities, "capabilities"),
    of_root("bounding-set", lambda: prctl(PR_CAPBSET_DROP, CAP_NET_RAW), "capabilities"),
    of_root("securebits", lambda: prctl(PR_SET_SECUREBITS, 1 << 6), "securebits"),
    of_root("user", become_nobody, "user ids", before=lambda: os.chmod(".", 0o755)),
    # After this change, the new user cannot open the working directory.
    of_root("hidden", become_nobody, "working directory", before=lambda: os.chmod(".", 0o700)),
    of_root("group", lambda: call(SYS_SETRESGID, 65534, 65534, 65534), "group ids"),
    of_root("groups", lambda: call(SYS_SETGROUPS, 1, b"\x39\x30\0\0"), "groups"),
    of_root("host-name", partial(call, SYS_UNSHARE, CLONE_NEWUTS), "namespaces"),
    of_root("network", partial(call, SYS_UNSHARE, CLONE_NEWNET), "namespaces"),
    of_root("clock", partial(call, SYS_UNSHARE, CLONE_NEWTIME), "namespaces"),
)
BY_ID = {case.id: case for case in CASES}


def main(way: Way, name: str, confined: str = "") -> None:
    """Prints how the program was started before and after the change, and both outcomes.

    "elsewhere" is a start by a thread without the change.
    """
    case = BY_ID[name]
    found: dict[str, Any] = {}
    case.before()
    parking: dict[str, Any] = {}
    actions: list[sf.actions.Action] = []
    if confined:
        # This confinement refuses rights that the program does not use: to create symbolic links
        # and FIFOs.
        ruleset, filter = ruleset_for(1 << 12), refusal(SYS_MKNOD, SYS_MKNODAT, answer=errno.EDOM)
        parking = {"no_new_privs": True, "landlock": ruleset, "seccomp": filter}
        actions += sf.actions.NoNewPrivs(), sf.actions.Landlock(ruleset), sf.actions.Seccomp(filter)
    with new_warm(way) as warm:
        add(warm, way, case.argv[0], 2, env=ENVIRONMENT, **parking)
        found["filled"] = warm.fill(FILL_S)

        def run(start: Callable[..., sf.Result], **options: Any) -> sf.Result:
            env = ENVIRONMENT | options.pop("env", {})
            options["actions"] = [*actions, *options.pop("actions", [])]
            return start(list(case.argv), env=env, timeout=TIMEOUT_S, **options)

        def change_and_run() -> None:
            try:
                case.change()
            except OSError as error:
                found["cannot"] = str(error)
                return
            results = {
                how: run(start, env=case.env, **case.options)
                for how, start in (("warm", warm.run), ("cold", sf.run))
            }
            found["after"] = results["warm"].started
            for how, result in results.items():
                outcome = result.code, result.signal, result.text, os.fsdecode(result.stderr)
                found[how] = outcome

        found["before"] = run(warm.run).started
        warm.fill(FILL_S)
        if case.thread:
            thread = threading.Thread(target=change_and_run)
            thread.start()
            thread.join()
            found["elsewhere"] = run(warm.run).started
        else:
            change_and_run()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
