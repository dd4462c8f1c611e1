# SPDX-License-Identifier: MIT OR Apache-2.0
"""Actions: steps that a child performs, in the caller's order, before exec.

    spawn(["make"], actions=[Setsid(), Umask(0o077), Descriptor(fd), Limit(RLIMIT_CPU, 10, 10)])

The child performs them after it has connected the standard streams and changed the working
directory. A list has at most 256 actions, and all are checked before a child exists. If an action
fails, the SpawnError's `action` is its index in the list. The classes from InheritDescriptors on
are attributes: their position in the list makes no difference (but see InheritSignals).

There are two kinds of descriptors: the caller's (an int, or an object with fileno()), and numbers
in the child's own table, which are always named `number` or `to`. A number in a path below
/proc/self/fd or /dev/fd is the child's, too, as the child resolves paths. To enter a directory that
the caller has open, use Fchdir.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spawnfd._types import Action as Action
from spawnfd._types import Arg, Fd

# generated: classes (scripts/generate writes them from crates/spawnfd/src/command/table.rs)


@dataclass(frozen=True, slots=True)
class Descriptor(Action):
    """Passes the caller's descriptor `source` to the program as `to`; None: the same number."""

    source: Fd
    to: int | None = None


@dataclass(frozen=True, slots=True)
class Dup2(Action):
    """Duplicates the child's descriptor `number` to `to`; `number` must be open at that point."""

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
    """Opens a file in the child as the program's descriptor `to`.

    `flags` and `mode` are those of os.open(), `resolve` has the RESOLVE_* flags of openat2(2). A
    relative path starts at the caller's open directory `dir`, else at the child's working
    directory.
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
    """Changes the working directory to a directory that the caller has open."""

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
    """Moves the program to process group `group` of this session; 0 creates a new group.

    A supervised run stays in this process's session with this action. Without it, the run gets a
    session of its own.
    """

    group: int = 0


@dataclass(frozen=True, slots=True)
class Foreground(Action):
    """Makes the child's process group the foreground group of the terminal on `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class ControllingTerminal(Action):
    """Makes the terminal on `number` the controlling one; the child must be a session leader."""

    number: int


@dataclass(frozen=True, slots=True)
class Limit(Action):
    """Sets a resource limit (`resource.RLIMIT_*`); None and RLIM_INFINITY mean unlimited."""

    resource: int
    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Nice(Action):
    """Sets the nice value, -20 to 19."""

    value: int


@dataclass(frozen=True, slots=True)
class Scheduler(Action):
    """Sets the scheduling policy (`os.SCHED_*`) and priority (FIFO and RR: 1 to 99, others: 0)."""

    policy: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Affinity(Action):
    """Restricts the program to the processors `cpus`."""

    cpus: Iterable[int]


@dataclass(frozen=True, slots=True)
class Uid(Action):
    """Sets the real, effective and saved user id.

    If the list has no Groups action, root's supplementary groups are cleared first. Put Gid and
    Groups before Uid: after a change from root to another user, the child may not change its
    groups.
    """

    uid: int


@dataclass(frozen=True, slots=True)
class Gid(Action):
    """Sets the real, effective and saved group id. Put it before Uid."""

    gid: int


@dataclass(frozen=True, slots=True)
class UserIds(Action):
    """Sets the user ids individually; None leaves an id unchanged. See Uid."""

    real: int | None = None
    effective: int | None = None
    saved: int | None = None


@dataclass(frozen=True, slots=True)
class GroupIds(Action):
    """Sets the group ids individually; None leaves an id unchanged."""

    real: int | None = None
    effective: int | None = None
    saved: int | None = None


@dataclass(frozen=True, slots=True)
class Groups(Action):
    """Sets the supplementary groups. Put it before Uid."""

    groups: Iterable[int]


@dataclass(frozen=True, slots=True)
class Capabilities(Action):
    """Sets the capability sets, as masks in which bit n is capability number n."""

    effective: int = 0
    permitted: int = 0
    inheritable: int = 0
    bounding: int = 0
    ambient: int = 0


@dataclass(frozen=True, slots=True)
class NoNewPrivs(Action):
    """Prevents exec from adding privileges: set-uid and file capabilities have no effect."""


@dataclass(frozen=True, slots=True)
class Cgroup(Action):
    """Starts the program in the cgroup v2 whose directory is open as `dir`.

    The child does not share memory with the caller before exec. Otherwise the kernel's
    out-of-memory killer, if it selected the child in that cgroup, would kill the caller, too.
    """

    dir: Fd


@dataclass(frozen=True, slots=True)
class JoinNamespace(Action):
    """Enters an existing namespace, or several namespaces of a process given by its pidfd.

    `kinds` has the CLONE_NEW* flags of the namespaces; 0 accepts a namespace of any kind.
    """

    namespace: Fd
    kinds: int = 0


@dataclass(frozen=True, slots=True)
class OomScoreAdj(Action):
    """Sets oom_score_adj, the out-of-memory killer's preference, -1000 to 1000."""

    value: int


@dataclass(frozen=True, slots=True)
class Landlock(Action):
    """Confines the program by a Landlock ruleset; requires NoNewPrivs or CAP_SYS_ADMIN."""

    ruleset: Fd


@dataclass(frozen=True, slots=True)
class InheritDescriptors(Action):
    """Passes all inheritable descriptors of the caller to the program."""


@dataclass(frozen=True, slots=True)
class InheritSignals(Action):
    """Keeps the calling thread's signal mask and ignored signals, as posix_spawn does.

    It overrides SignalMask and DefaultSignals before it in the list, not those after it.
    """


@dataclass(frozen=True, slots=True)
class SignalMask(Action):
    """Sets the signals that are blocked when the program starts; none by default."""

    blocked: Iterable[int]


@dataclass(frozen=True, slots=True)
class DefaultSignals(Action):
    """Sets which ignored signals are reset to default; without this, SIGPIPE and SIGXFSZ."""

    signals: Iterable[int]


@dataclass(frozen=True, slots=True)
class ParentDeathSignal(Action):
    """Sends the program a signal when the *thread* that started it ends (PR_SET_PDEATHSIG)."""

    signal: int


@dataclass(frozen=True, slots=True)
class Namespaces(Action):
    """Makes the program the first process of new namespaces (CLONE_NEW* flags)."""

    kinds: int


@dataclass(frozen=True, slots=True)
class UserNamespace(Action):
    """Starts the program in a new user namespace that maps the caller to `uid` and `gid`."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Seccomp(Action):
    """Installs a seccomp filter as the child's last step before exec.

    `filter` has the bytes of an array of struct sock_filter, 8 bytes each. It must allow execve and
    exit_group. Requires NoNewPrivs or CAP_SYS_ADMIN.
    """

    filter: bytes


# end of classes
