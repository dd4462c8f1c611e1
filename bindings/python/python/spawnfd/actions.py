# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a child does, in the caller's order, before it becomes the program.

    spawn(["make"], actions=[Setsid(), Umask(0o077), Descriptor(fd), Limit(RLIMIT_CPU, 10, 10)])

They run after the standard streams are connected and the working directory is changed. All are
checked before a child exists, at most 256 can be. One that fails is reported by a SpawnError whose
`action` is its index in the list. The last ones, from InheritDescriptors on, are attributes: where
in the list they stand makes no difference (but see InheritSignals).

Descriptors are of two kinds: the caller's (an int, or anything with fileno()), and numbers in the
child's own table, which are always called `number` or `to`. A number in a path below /proc/self/fd
or /dev/fd is the child's, too, as it looks paths up: Fchdir enters a directory that is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spawnfd._types import Arg, Fd


class Action:
    """What all actions are."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Descriptor(Action):
    """Gives the program the caller's descriptor `source` as its `to`; None: the same number."""

    source: Fd
    to: int | None = None


@dataclass(frozen=True, slots=True)
class Dup2(Action):
    """Makes the program's `to` a copy of its `number`, which is open by then."""

    number: int
    to: int


@dataclass(frozen=True, slots=True)
class Close(Action):
    """Closes a descriptor of the program; it need not be open."""

    number: int


@dataclass(frozen=True, slots=True)
class CloseRange(Action):
    """Closes the program's descriptors from `first` to `last`."""

    first: int
    last: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Open(Action):
    """Opens a file as the program's descriptor `to`, in the child.

    `flags` and `mode` as for os.open(), `resolve` the RESOLVE_* flags of openat2(2); a relative
    path starts at the directory open as `dir`, or the child's working directory.
    """

    path: Arg
    to: int
    flags: int = 0
    mode: int = 0o666
    dir: Fd | None = None
    resolve: int = 0


@dataclass(frozen=True, slots=True)
class Chdir(Action):
    """Changes the working directory."""

    path: Arg


@dataclass(frozen=True, slots=True)
class Fchdir(Action):
    """Changes the working directory to an open one."""

    dir: Fd


@dataclass(frozen=True, slots=True)
class Chroot(Action):
    """Changes the root directory; the program's path must name the same file there."""

    path: Arg


@dataclass(frozen=True, slots=True)
class Umask(Action):
    """Sets the file mode creation mask, up to 0o777."""

    mask: int


@dataclass(frozen=True, slots=True)
class Setsid(Action):
    """Makes the program the leader of a new session."""


@dataclass(frozen=True, slots=True)
class ProcessGroup(Action):
    """Puts the program into a process group of this session; 0 makes it one of its own.

    A supervised run, which otherwise has a session of its own, stays in this process's with it.
    """

    group: int = 0


@dataclass(frozen=True, slots=True)
class Foreground(Action):
    """Makes its process group the foreground one of the terminal on its descriptor `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class ControllingTerminal(Action):
    """Makes the terminal on its descriptor `number` the controlling one; it must lead a session."""

    number: int


@dataclass(frozen=True, slots=True)
class Limit(Action):
    """Sets a resource limit: a `resource.RLIMIT_*`; None and RLIM_INFINITY are unlimited."""

    resource: int
    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Nice(Action):
    """Sets the nice value, -20 to 19."""

    value: int


@dataclass(frozen=True, slots=True)
class Scheduler(Action):
    """Sets the scheduling policy (`os.SCHED_*`) and priority: 1 to 99 for FIFO and RR, else 0."""

    policy: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Affinity(Action):
    """Restricts the program to these processors."""

    cpus: Iterable[int]


@dataclass(frozen=True, slots=True)
class Uid(Action):
    """Sets real, effective and saved user id.

    Root's supplementary groups are cleared first, unless the list has Groups.
    """

    uid: int


@dataclass(frozen=True, slots=True)
class Gid(Action):
    """Sets real, effective and saved group id."""

    gid: int


@dataclass(frozen=True, slots=True)
class UserIds(Action):
    """Sets user ids one by one; None leaves one as it is. See Uid."""

    real: int | None = None
    effective: int | None = None
    saved: int | None = None


@dataclass(frozen=True, slots=True)
class GroupIds(Action):
    """Sets group ids one by one; None leaves one as it is."""

    real: int | None = None
    effective: int | None = None
    saved: int | None = None


@dataclass(frozen=True, slots=True)
class Groups(Action):
    """Sets the supplementary groups."""

    groups: Iterable[int]


@dataclass(frozen=True, slots=True)
class Capabilities(Action):
    """Sets the capability sets: masks with bit n for capability number n."""

    effective: int = 0
    permitted: int = 0
    inheritable: int = 0
    bounding: int = 0
    ambient: int = 0


@dataclass(frozen=True, slots=True)
class NoNewPrivs(Action):
    """Keeps exec from ever giving more privileges: setuid and file capabilities have no effect."""


@dataclass(frozen=True, slots=True)
class Cgroup(Action):
    """Starts the program in the cgroup v2 whose directory is open.

    The child has memory of its own until it executes the program: others may be in that cgroup, and
    who is killed there for want of memory takes along all who share it.
    """

    dir: Fd


@dataclass(frozen=True, slots=True)
class JoinNamespace(Action):
    """Enters an existing namespace, or several by a pidfd; CLONE_NEW* flags, 0: whatever it is."""

    namespace: Fd
    kinds: int = 0


@dataclass(frozen=True, slots=True)
class OomScoreAdj(Action):
    """Sets the preference of the out-of-memory killer, -1000 to 1000."""

    value: int


@dataclass(frozen=True, slots=True)
class Landlock(Action):
    """Confines the program by a Landlock ruleset; needs NoNewPrivs, or CAP_SYS_ADMIN."""

    ruleset: Fd


@dataclass(frozen=True, slots=True)
class InheritDescriptors(Action):
    """Gives the program all descriptors of the caller that are inheritable, too."""


@dataclass(frozen=True, slots=True)
class InheritSignals(Action):
    """Keeps the thread's signal mask, and every ignored signal ignored, as posix_spawn does.

    It takes back what SignalMask and DefaultSignals before it say; those after it hold.
    """


@dataclass(frozen=True, slots=True)
class SignalMask(Action):
    """Sets the signals the program starts with blocked; none by default."""

    blocked: Iterable[int]


@dataclass(frozen=True, slots=True)
class DefaultSignals(Action):
    """Sets the signals that are made default if ignored; SIGPIPE and SIGXFSZ without this."""

    signals: Iterable[int]


@dataclass(frozen=True, slots=True)
class ParentDeathSignal(Action):
    """Sends the program a signal when the *thread* that starts it ends."""

    signal: int


@dataclass(frozen=True, slots=True)
class Namespaces(Action):
    """Makes the program the first process of new namespaces, by CLONE_NEW* flags."""

    kinds: int


@dataclass(frozen=True, slots=True)
class UserNamespace(Action):
    """Starts it in a new user namespace, in which the caller's user and group appear as these."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Seccomp(Action):
    """Lays a seccomp filter over the program, last of all: bytes of struct sock_filter, 8 each.

    It has to allow execve and exit_group. Needs NoNewPrivs, or CAP_SYS_ADMIN.
    """

    filter: bytes
