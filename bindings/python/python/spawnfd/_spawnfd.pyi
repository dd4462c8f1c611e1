# SPDX-License-Identifier: MIT OR Apache-2.0
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypeVar, final, overload

from spawnfd._types import Arg, Args, Fd, Leftover, Spilled

__all__ = [
    "Child",
    "Chunk",
    "Env",
    "Event",
    "Job",
    "Limiter",
    "Queue",
    "Result",
    "Running",
    "Sandbox",
    "Snapshot",
    "SnapshotCache",
    "Template",
    "TemplateCache",
    "Turn",
    "Wakeup",
    "Warm",
    "Watcher",
    "begin",
    "end_idle_threads",
    "pidfds_are_killed",
    "popen",
    "restore",
    "restore_chunk",
    "restore_env",
    "restore_event",
    "run",
    "snapshot",
]

_T = TypeVar("_T")
_Name = str | bytes | PathLike[str]
_Resource: TypeAlias = Literal["memory", "pids", "cpu_time", "cpus"]
_Enforcer: TypeAlias = Literal["cgroup", "rlimit", "watch", "nobody"]
_Program: TypeAlias = Template | TemplateCache | None
_Options: TypeAlias = Mapping[str, object]

@final
class Env:
    """An environment as a value: what is inherited, kept back, set. Encoded once, reused by
    every spawn.

    Every method returns a new Env; the old one is as it was.
    """

    @staticmethod
    def inherit(*, deny: Args | None = None) -> Env:
        """The environment of this process as it is now, without the variables that one of the
        patterns in `deny` matches.

        `*` stands for any characters, `?` for one: `Env.inherit(deny=["*_TOKEN", "*_KEY"])`.
        """
    @staticmethod
    def only(patterns: Args) -> Env:
        """Those variables of this process that one of `patterns` matches.

        `Env.only(["PATH", "HOME", "LC_*"])`; patterns as for inherit().
        """
    @staticmethod
    def empty() -> Env:
        """No variables at all."""
    def set(self, name: _Name, value: Arg) -> Env:
        """With one variable set: `env.set("LANG", "C.UTF-8")`.

        Raises:
            ValueError: An empty name, or one with "="; a null byte in either.
            TypeError: `name` or `value` is neither str, bytes nor a path.
        """
    def update(self, variables: Mapping[Any, Any]) -> Env:
        """With all of a mapping's variables set.

        Raises:
            TypeError, ValueError: As set().
        """
    def unset(self, *names: _Name) -> Env:
        """Without these variables, which need not be there."""
    def deny(self, patterns: Args) -> Env:
        """Without the variables that one of `patterns` matches."""
    def noninteractive(self) -> Env:
        """With what keeps common tools from asking, paging and colouring.

        Sets PAGER, GIT_PAGER, MANPAGER and SYSTEMD_PAGER to "cat", GIT_TERMINAL_PROMPT=0,
        GIT_EDITOR, EDITOR and VISUAL to "true", DEBIAN_FRONTEND=noninteractive,
        PIP_NO_INPUT=1, npm_config_yes=true, NO_COLOR=1, CLICOLOR=0, TERM=dumb, CI=1, and
        removes what forces colour.
        """
    @overload
    def get(self, name: _Name, default: None = None) -> str | None:
        """A variable's value, or `default`."""
    @overload
    def get(self, name: _Name, default: _T) -> str | _T: ...
    def keys(self) -> list[str]:
        """The names, in order."""
    def values(self) -> list[str]:
        """The values, in order of the names."""
    def items(self) -> list[tuple[str, str]]:
        """Names and values, in order of the names."""
    def __getitem__(self, key: _Name, /) -> str: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Result:
    """What came of a run: how it ended, what it wrote, what it used.

    An exit code, a timeout and cut output are results, not exceptions; `check()` makes one of
    them.
    """

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
    @property
    def code(self) -> int | None:
        """The exit code; None if a signal ended the program, its status is lost, or it could not be
        killed.
        """
    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the program; None if it exited, its status is lost,
        or it could not be killed.
        """
    @property
    def status_lost(self) -> bool:
        """Whether somebody else has taken the program's status (a wait(-1) of this process, SIGCHLD
        ignored), and the kernel does not keep it (before Linux 6.15): how it ended is not known
        then, and it is not ok.
        """
    @property
    def stop(self) -> Literal["exited", "timeout", "cancelled", "output_limit", "limit"]:
        """Why it ended: "exited" (by itself, or by somebody else's signal), "timeout",
        "cancelled", "output_limit" or "limit".
        """
    @property
    def limit(self) -> str | None:
        """The limit it had reached, and who enforced it, where `stop` is "limit", as in "memory
        (cgroup)"; else None.
        """
    @property
    def limits(self) -> dict[_Resource, _Enforcer]:
        """Who enforced each of its Limits: "cgroup" (the kernel, the tree together), "rlimit"
        (the kernel, each process for itself, or all of the user), "watch" (this library,
        which looks now and then) or "nobody".
        """
    @property
    def stdout(self) -> bytes:
        """Captured standard output: its head, then its tail."""
    @property
    def stderr(self) -> bytes:
        """Captured standard error, likewise; empty if merged into standard output."""
    @property
    def text(self) -> str:
        """Standard output decoded from UTF-8, what is none replaced; a character cut by an omission
        is left out.
        """
    @property
    def omitted_bytes(self) -> int:
        """How many bytes of both streams were not kept: they lie between head and tail."""
    @property
    def seen_bytes(self) -> int:
        """How many bytes both streams had."""
    @property
    def spill_path(self) -> str | None:
        """The file with all of the output; None if none was asked for, needed, or could be made.

        Unless it is to persist it goes with the last reference to this result, and to its job, in
        the process that ran the program: a pickled result names it, no more.
        """
    @property
    def spilled(self) -> Spilled | None:
        """What became of that file: its length, and whether it is whole; None if none was asked for
        or needed.
        """
    @property
    def input_refused(self) -> bool:
        """Whether the program stopped reading, or ended, before all of `input` (or what was
        written) was taken.
        """
    @property
    def drain(self) -> str:
        """How reading ended: "eof", or "cut: " and the pids that still held the pipe, or the
        terminal, after the program had ended.
        """
    @property
    def tree(self) -> Literal["group", "guard", "cgroup", "pidns"]:
        """How far control of the process tree reached: "group", "guard", "cgroup" or "pidns"; see
        docs/trees.md.
        """
    @property
    def tree_complete(self) -> bool:
        """Whether leaving the session was no way out of that. Where it is one ("group", "guard") a
        process that has called setsid may have survived, and is not among the leftovers.
        """
    @property
    def leftovers(self) -> list[Leftover]:
        """Processes of the program's tree that outlived it, as far as the tier finds them, and
        their fates. A program that could not be killed comes first: it still runs, and the
        library reaps it when it ends.
        """
    @property
    def leftovers_unknown(self) -> bool:
        """Whether it could not be looked who outlived it: no descriptor was free for that, or
        /proc cannot be read. There may be somebody then, and whom only looking finds lives on.
        """
    @property
    def wall(self) -> float:
        """Seconds from the start of the spawn to the end of reading."""
    @property
    def cpu(self) -> float:
        """Seconds of user and system time that the program, and descendants it waited for, used.
        0 where somebody else has waited for it, as the kernel does where SIGCHLD is ignored.
        """
    @property
    def max_rss(self) -> int:
        """The largest resident set of any of them, in bytes; 0 as `cpu`. Never less than this
        process's own as it started the program.
        """
    @property
    def started(self) -> str:
        """How the program was started: "clone"; "kernel" (by one call, of a kernel that has our
        patches); from a Warm "reserve", "fork", "zygote" or "pool", or "cold: " and why it was not
        (docs/warm.md).
        """
    @property
    def args(self) -> list[str]:
        """The program's argv, a sandbox's before it; what came as bytes or path is a str here,
        decoded as os.fsdecode() does.
        """
    def check(self) -> Result:
        """Returns this result if it is ok.

        Raises:
            ExitError: It is not; `result` of it is this.
        """
    def __copy__(self) -> Result: ...
    def __deepcopy__(self, memo: object, /) -> Result: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Template:
    def __new__(cls, program: Arg, path: str | bytes | None = None) -> Template: ...
    @staticmethod
    def from_fd(fd: Fd) -> Template: ...
    def by_descriptor(self) -> Template: ...
    def revalidate(self) -> None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def name(self) -> str: ...
    @property
    def interpreters(self) -> list[str]: ...

@final
class TemplateCache:
    def __new__(cls, capacity: int) -> TemplateCache: ...
    @staticmethod
    def shared() -> TemplateCache: ...
    def get(self, program: Arg, path: str | bytes | None = None) -> Template: ...
    def clear(self) -> None: ...
    def stats(self) -> tuple[int, int, int, int, int]: ...

@final
class Child:
    def __new__(cls, program: _Program, args: Args, options: _Options) -> Child: ...
    @property
    def started(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def fileno(self) -> int: ...
    def take_pipes(self) -> tuple[int | None, int | None, int | None]: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None) -> int | None: ...
    def send_signal(self, signal: int) -> None: ...
    def usage(self) -> tuple[float, int] | None: ...

@final
class Event:
    """Something of a job's output, as it came."""

    @property
    def stream(self) -> Literal["stdout", "stderr"] | None:
        """Which one: "stdout" or "stderr"; None where output is missing: see `lost`."""
    @property
    def bytes(self) -> bytes:
        """The bytes, in lines with what ends the line."""
    @property
    def text(self) -> str:
        """The same decoded from UTF-8, what is none replaced. A character cut by the end of a chunk
        is part of the next one's text.
        """
    @property
    def lost(self) -> int:
        """How many bytes of both streams were dropped here, as nobody took them; 0 in what is
        output.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Chunk:
    """What both streams of a job wrote from a position on, in order of arrival."""

    @property
    def bytes(self) -> bytes:
        """The bytes. While the job runs, a last character that is not whole yet is left for the
        next read.
        """
    @property
    def text(self) -> str:
        """The same decoded from UTF-8, what is none replaced."""
    @property
    def next(self) -> int:
        """The position to read from next."""
    @property
    def lost(self) -> int:
        """How many bytes from the position asked for on are held no more."""
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Job:
    def __new__(
        cls, program: _Program, args: Args, options: _Options, watched: bool, turn: Turn | None
    ) -> Job: ...
    @property
    def pid(self) -> int: ...
    @property
    def grace(self) -> float: ...
    @property
    def detached(self) -> bool: ...
    @property
    def args(self) -> list[str]: ...
    def result(self) -> Result | None: ...
    def read(self, since: int) -> Chunk: ...
    def write(self, data: Any) -> int | None: ...
    def close_stdin(self) -> None: ...
    def stop(self, grace: float | None) -> None: ...
    def signal(self, signal: int, tree: bool) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def detach(self) -> None: ...
    def event(self) -> Event | Literal[False] | None: ...
    def watch(self, max: int | None) -> Watcher: ...
    def let_go(self) -> None: ...
    @property
    def done(self) -> Wakeup: ...
    @property
    def writable(self) -> Wakeup: ...
    @property
    def readable(self) -> Wakeup: ...

@final
class Watcher: ...

@final
class Warm:
    def __new__(
        cls,
        mode: str,
        memory: int,
        processes: int,
        keep: int,
        idle: float | None,
        delay: float,
        forks: int,
        age: float | None,
    ) -> Warm: ...
    def add(
        self,
        program: Arg | Template,
        depth: int,
        args: Sequence[Arg],
        env: Env | Mapping[Any, Any] | None,
        preimport: Sequence[str],
        sandbox: Sandbox | None,
        cwd: Arg | None,
        mode: str | None,
        no_new_privs: bool,
        landlock: Fd | None,
        seccomp: bytes | None,
    ) -> None: ...
    def template(self, cold: Template) -> Template: ...
    def cache(self, capacity: int) -> TemplateCache: ...
    def add_any(self, depth: int, mode: str | None) -> None: ...
    def fill(self, timeout: float | None) -> bool: ...
    def stats(self) -> dict[str, Any]: ...
    @staticmethod
    def turn_off() -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Sandbox:
    """A command through which programs are started, and descriptors it is given.

        box = sf.Sandbox(["bwrap", "--ro-bind", "/", "/", "--seccomp", "9", "--"], fds={9: filter})
        sf.run(["bash", "-c", command], sandbox=box)

    It is started with its own arguments, then the program and its; what it confines, and how,
    is its own affair. A value: any number of calls can have it, at once too, and Warm.add()
    keeps programs parked inside it.

    Args:
        argv: The command: an absolute path, or a name that is searched now, in this process's
            PATH (not in that of the calls, which is for what is confined), and its arguments.
        fds: Descriptors it is given, 64 at most, by the number it has them as, 3 or more.
            They are duplicated, and kept as long as this is. A regular file that can be read
            is there for reading only, and each start reads for itself, from where yours
            stands now: what one call has read is not missing in the next. Anything else is
            shared by all calls; so give what is to be written a descriptor that is for
            writing only.

    Raises:
        SpawnError: There is no such command (FileNotFoundError); EMFILE; E2BIG; EINVAL: it is
            a relative path.
        TypeError, ValueError: An argument cannot be what it is; the message names it.
    """

    def __new__(cls, argv: Args, *, fds: Mapping[int, Fd] | None = None) -> Sandbox: ...
    @property
    def argv(self) -> list[str]:
        """The command."""

@final
class Snapshot:
    """A file's contents as they were: snapshot() and SnapshotCache.get() make these.

        with sf.snapshot("/usr/bin/rg") as snapshot:
            sf.Template.from_fd(snapshot).run(["-n", "TODO"])

    It has a descriptor (fileno()), which can be read, mapped and executed, and stands at the
    beginning; it is closed when the block is left, with close(), or with the last reference.
    Those that a cache gives of one version share where they stand: read them by os.pread().
    """

    def fileno(self) -> int:
        """The descriptor.

        Raises:
            ValueError: It is closed.
            SpawnError: EBADF: something else has been put at its number.
        """
    @property
    def kind(self) -> Literal["reflink", "memfd"]:
        """How the contents are kept: "reflink" (it shares the file's extents, in an unnamed file
        beside it) or "memfd" (a sealed copy in memory).
        """
    @property
    def closed(self) -> bool:
        """Whether it is closed."""
    def close(self) -> None:
        """Closes its descriptor."""
    def __enter__(self) -> Snapshot: ...
    def __exit__(self, *_error: object) -> None: ...

def snapshot(file: Arg | Fd) -> Snapshot: ...

@final
class SnapshotCache:
    def __new__(cls, capacity: int) -> SnapshotCache: ...
    def get(self, file: Arg | Fd) -> Snapshot: ...
    def clear(self) -> None: ...
    def stats(self) -> tuple[int, int, int, int, int]: ...

@final
class Limiter:
    """Bounds how many runs are under way at once: `run(argv, limiter=limiter)`, and the like.

    A run waits for a place before its program is started, first come, first served, and holds
    it until its Result is there. Any number of threads and event loops can share one. A
    forked process begins with the same limit and all places free.

    Args:
        limit: How many; 0: none until there are more.

    Raises:
        TypeError, ValueError: `limit` is no such number.
    """

    def __new__(cls, limit: int) -> Limiter: ...
    @property
    def limit(self) -> int:
        """How many runs may be under way. It can be changed at any time; with fewer than there are
        nothing is ended.
        """
    @limit.setter
    def limit(self, value: int, /) -> None: ...
    @property
    def running(self) -> int:
        """How many runs are under way."""
    @property
    def waiting(self) -> int:
        """How many wait for their turn."""

@final
class Turn:
    def __new__(cls, limiter: Limiter) -> Turn: ...
    def has_come(self) -> Literal[True] | None: ...
    def give_up(self) -> None: ...
    @property
    def ready(self) -> Wakeup: ...

@final
class Wakeup:
    def listen(self, queue: Queue, key: int) -> None: ...
    def unlisten(self, queue: Queue, key: int) -> None: ...

@final
class Queue:
    def __new__(cls) -> Queue: ...
    def fileno(self) -> int: ...
    def is_whole(self) -> bool: ...
    def drain(self, pending: dict[int, Any]) -> None: ...
    def block(self, timeout: float | None) -> None: ...

@final
class Running:
    @property
    def grace(self) -> float: ...
    def cancel(self) -> None: ...

def restore(state: dict[str, Any]) -> Result: ...
def restore_chunk(bytes: bytes, next: int, lost: int) -> Chunk: ...
def restore_event(stream: int | None, bytes: bytes, text: str, lost: int) -> Event: ...
def restore_env(variables: list[tuple[bytes, bytes]]) -> Env: ...
def run(program: _Program, args: Args, options: _Options) -> Result: ...
def pidfds_are_killed() -> bool: ...
def popen(
    call: dict[str, Any], audit: Callable[[], None], warm: Warm | None = None
) -> tuple[int, int, str]: ...
def begin(
    queue: Queue,
    key: int,
    program: _Program,
    args: Args,
    options: _Options,
    turn: Turn | None,
    died: bool,
) -> Running: ...
def end_idle_threads() -> None: ...
