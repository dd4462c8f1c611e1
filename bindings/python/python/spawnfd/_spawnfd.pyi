# SPDX-License-Identifier: MIT OR Apache-2.0
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, final, overload

from spawnfd._spawnfd_base import PopenChild, Queue, ShellStart, Wakeup
from spawnfd._spawnfd_remote import (
    Question,
    Remote,
    RemoteSession,
    RemoteShellStart,
    RemoteStart,
    Transfer,
)
from spawnfd._types import Action, Arg, Args, Fd, Leftover, Omitted, OutputPiece, Spilled, Stop

__all__ = [
    "ActiveRun",
    "Child",
    "Chunk",
    "CommandText",
    "Env",
    "Event",
    "Job",
    "Limiter",
    "PermitRequest",
    "PopenChild",
    "Question",
    "Queue",
    "Remote",
    "RemoteSession",
    "RemoteShellStart",
    "RemoteStart",
    "Result",
    "Sandbox",
    "Session",
    "ShellStart",
    "Snapshot",
    "SnapshotCache",
    "Template",
    "TemplateCache",
    "Transfer",
    "Wakeup",
    "Warm",
    "Watcher",
    "__version__",
    "begin",
    "end_idle_threads",
    "explain",
    "pidfd_calls_are_killed",
    "popen",
    "printed_actions",
    "restore",
    "restore_chunk",
    "restore_env",
    "restore_event",
    "run",
    "serve",
    "snapshot",
    "supervise",
]

__version__: str

_T = TypeVar("_T")
_Name = str | bytes | PathLike[str]
_Resource: TypeAlias = Literal["memory", "pids", "cpu_time", "cpus"]
_Enforcer: TypeAlias = Literal["cgroup", "rlimit", "watch", "unenforced"]
_Program: TypeAlias = Template | TemplateCache | Warm | None
_Options: TypeAlias = Mapping[str, object]

@final
class Env:
    """An immutable environment for spawns: inherited, removed and set variables.

    The Env is encoded once, and every spawn reuses the encoded form. Every method returns a new Env
    and leaves the original unchanged.
    """

    @staticmethod
    def inherit(*, deny: Args | None = None) -> Env:
        """Returns this process's current environment without the variables that match `deny`.

        In a pattern `*` matches any characters and `?` matches one:
        `Env.inherit(deny=["*_TOKEN", "*_KEY"])`.

        Without a sandbox, a program of the same user can still read them in /proc/PID/environ of
        this process.

        Raises:
            TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
        """
    @staticmethod
    def only(patterns: Args) -> Env:
        """Returns only those variables of this process that match one of `patterns`.

        `Env.only(["PATH", "HOME", "LC_*"])`. The pattern syntax is that of inherit().

        Raises:
            TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
        """
    @staticmethod
    def empty() -> Env:
        """Returns an environment without variables."""
    def set(self, name: _Name, value: Arg) -> Env:
        """Returns a copy with one variable set: `env.set("LANG", "C.UTF-8")`.

        Raises:
            ValueError: `name` is empty or contains "=", or `name` or `value` contains a null byte.
            TypeError: `name` or `value` is neither str, bytes nor a path.
        """
    def update(self, variables: Mapping[Any, Any]) -> Env:
        """Returns a copy with all variables of a mapping set.

        Raises:
            TypeError, ValueError: In the same cases as set().
        """
    def unset(self, *names: _Name) -> Env:
        """Returns a copy without these variables. Absent names are ignored.

        Raises:
            TypeError, ValueError: A name is not a str, bytes or path, or contains a null byte.
        """
    def deny(self, patterns: Args) -> Env:
        """Returns a copy without the variables that match one of `patterns`.

        Raises:
            TypeError, ValueError: A pattern is not a str, bytes or path, or contains a null byte.
        """
    def noninteractive(self) -> Env:
        """Returns a copy in which common tools do not prompt, page or colour their output.

        Sets PAGER, GIT_PAGER, MANPAGER and SYSTEMD_PAGER to "cat", GIT_TERMINAL_PROMPT=0,
        GIT_EDITOR, EDITOR and VISUAL to "true", DEBIAN_FRONTEND=noninteractive, PIP_NO_INPUT=1,
        npm_config_yes=true, NO_COLOR=1, CLICOLOR=0, TERM=dumb and CI=1. Removes the variables that
        force colour.
        """
    @overload
    def get(self, name: _Name, default: None = None) -> str | None:
        """Returns the value of a variable, or `default` if it is not set."""
    @overload
    def get(self, name: _Name, default: _T) -> str | _T: ...
    def keys(self) -> list[str]:
        """Returns the sorted names."""
    def values(self) -> list[str]:
        """Returns the values, in the order of the names."""
    def items(self) -> list[tuple[str, str]]:
        """Returns pairs of name and value, in the order of the names."""
    def __getitem__(self, key: _Name, /) -> str: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __eq__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Result:
    """The outcome of a run: exit status, captured output and resource usage.

    A nonzero exit code, a timeout and truncated output are results, not exceptions. `check()`
    raises ExitError for a result that is not ok.
    """

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
    @property
    def code(self) -> int | None:
        """The exit code.

        None if a signal ended the program, its status is lost, or it could not be killed.
        """
    @property
    def returncode(self) -> int | None:
        """The exit code, or -N if signal N ended the program, as in subprocess.

        None if the status is lost, or if the program could not be killed.
        """
    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the program.

        None if the program exited, its status is lost, or it could not be killed.
        """
    @property
    def status_lost(self) -> bool:
        """Whether the exit status is unknown. The result is then not ok.

        Other code reaped the program: a wait(-1) of this process, or an ignored SIGCHLD, takes the
        status. From Linux 6.15 on the kernel keeps the status and nothing is lost.

        Or a session's shell has not proved that it ran the command to its end, for example because
        the command called exit.
        """
    @property
    def stop(self) -> Stop:
        """Why the run ended.

        "exited": the program ended by itself or by a signal that the library did not send.
        "timeout", "idle_timeout", "output_limit", "limit": the library ended the program, because
        of that argument (`limits` for "limit"). "cancelled": the caller ended it. "lost": the
        program ended, and its status is lost (see `status_lost`).
        """
    @property
    def limit(self) -> str | None:
        """The limit that was reached, and its enforcer, such as "memory (cgroup)".

        None unless `stop` is "limit".
        """
    @property
    def limits(self) -> dict[_Resource, _Enforcer]:
        """The enforcer of each of the run's Limits.

        "cgroup": the kernel, for the whole process tree. "rlimit": the kernel, for each process or
        for all processes of the user. "watch": this library, by periodic checks. "unenforced": the
        limit is not enforced.
        """
    @property
    def stdout(self) -> bytes:
        """Captured standard output: head, marker line if bytes are omitted, tail.

        The option `marker` sets the text of the line. `stdout_head`, `stdout_tail` and `omitted`
        have the exact bytes.
        """
    @property
    def stderr(self) -> bytes:
        """Captured standard error: head, marker line if bytes are omitted, tail.

        Empty if merged into standard output.
        """
    @property
    def text(self) -> str:
        """`stdout` decoded as UTF-8; invalid bytes become U+FFFD.

        A character that is split by omitted output is dropped.
        """
    @property
    def stderr_text(self) -> str:
        """`stderr` decoded as UTF-8; invalid bytes become U+FFFD.

        A character that is split by omitted output is dropped.
        """
    @property
    def stdout_head(self) -> bytes:
        """The kept bytes of standard output before omitted bytes; all bytes if none is omitted."""
    @property
    def stdout_tail(self) -> bytes:
        """The kept bytes of standard output after omitted bytes; empty if none is omitted."""
    @property
    def stderr_head(self) -> bytes:
        """The kept bytes of standard error before omitted bytes; all bytes if none is omitted."""
    @property
    def stderr_tail(self) -> bytes:
        """The kept bytes of standard error after omitted bytes; empty if none is omitted."""
    @property
    def omitted(self) -> dict[Literal["stdout", "stderr"], Omitted]:
        """How many bytes of "stdout" and "stderr" were not kept, and where they begin."""
    @property
    def output(self) -> list[OutputPiece] | None:
        """The output of both streams in order of arrival. None without the option `combined`.

        The bytes of all pieces of a stream equal `stdout` or `stderr`. If bytes of a stream are
        omitted, one piece has the marker line, at the place where the first of them arrived.
        """
    @property
    def omitted_bytes(self) -> int:
        """How many bytes of both streams together were not kept: those between head and tail."""
    @property
    def seen_bytes(self) -> int:
        """How many bytes the program wrote to both streams."""
    @property
    def spill_path(self) -> str | None:
        """The file with all of the output.

        None if no spill was requested or needed, or if the file could not be created. Unless it is
        persistent, the process that ran the program removes the file with its last reference to
        this result and its job. A pickled result only names the file and does not keep it.
        """
    @property
    def spilled(self) -> Spilled | None:
        """The length of the spill file, and whether it is complete.

        None if no spill was requested or needed.
        """
    @property
    def input_refused(self) -> bool:
        """Whether the program did not get all of its input: `input`, and data passed to write().

        It ended or stopped reading before, or a terminal has cut a line above 4,095 bytes.
        """
    @property
    def drain(self) -> str:
        """How reading ended: "eof", or "cut: " and pids.

        The pids are those of processes that kept the pipe or terminal open after the program's end.
        """
    @property
    def tree(self) -> Literal["group", "guard", "subreaper", "cgroup", "pidns"]:
        """The tier that controlled the process tree: "group", "guard", "subreaper", "cgroup" or
        "pidns".

        See docs/trees.md.
        """
    @property
    def tree_complete(self) -> bool:
        """Whether the tier (see `tree`) tracks processes that leave the session.

        If False (tiers "group" and "guard"), a process that called setsid() may have survived
        without being listed in `leftovers`.
        """
    @property
    def leftovers(self) -> list[Leftover]:
        """Processes of the program's tree that outlived it, and their fates.

        The list has the processes that the tier (see `tree`) can find. A program that could not be
        killed comes
        first: it still runs, and the library reaps it when it ends.
        """
    @property
    def leftovers_unknown(self) -> bool:
        """Whether the library could not search for surviving processes.

        No descriptor was free for the search, or /proc cannot be read. Processes may have survived;
        those that only a search finds were not killed.
        """
    @property
    def wall(self) -> float:
        """Seconds from the start of the spawn to the end of reading."""
    @property
    def cpu(self) -> float:
        """Seconds of user and system time used by the program and by descendants it waited for.

        0 if other code reaped the program, or if SIGCHLD is ignored and the kernel reaped it.
        """
    @property
    def max_rss(self) -> int:
        """The largest resident set of the program and of descendants it waited for, in bytes.

        0 in the same cases as `cpu`. Never less than the resident set of this process when it
        started the program.
        """
    @property
    def started(self) -> str:
        """How the program was started.

        "clone"; "kernel" (one system call of a kernel with this project's patches); from a Warm
        "reserve", "fork", "zygote" or "pool"; or "cold: " and the reason why no parked process was
        used (docs/warm-reference.md). "session": a session's shell ran the command. "portable":
        the package has no native part (docs/portable.md).
        """
    @property
    def args(self) -> list[str]:
        """The program's argv, preceded by the sandbox's command if there is one.

        A command of a session has one item, its text. Bytes and paths are decoded like
        os.fsdecode() does.
        """
    @property
    def where(self) -> str | None:
        """The place where the program has run, if a Remote has started it: the host name and the
        transport.

        None if it has run on this machine.
        """
    @property
    def cwd(self) -> Path | None:
        """The working directory of a session's shell after the command.

        The path is the value of `$PWD` if that names the directory.

        None if the shell has exited, and for other runs.
        """
    @property
    def shell_exited(self) -> bool:
        """Whether the session's shell exited during the command.

        The command called exit or exec, a signal ended the shell, or the library killed the shell
        because the command did not end otherwise. The command's own status is then lost. False for
        other runs.
        """
    @property
    def shell_code(self) -> int | None:
        """The exit code of a shell that exited during the command, or -N if signal N ended it.

        A trap may have chosen the code, so it is not the status of the command. None if the shell
        has not exited, and for other runs.
        """
    @property
    def running(self) -> Literal[False]:
        """False. The running job that run() of a session may return has True.

        Type checkers know which of the two it is after `isinstance(job, spawnfd.Job)`.
        """
    def _exit_message(self) -> str:
        """Returns the message of ExitError."""
    def check(self) -> Result:
        """Returns this result if it is ok.

        Raises:
            ExitError: The result is not ok. The exception's `result` is this result.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the result as values that json.dumps() accepts.

        The keys are those of `spawnfd run --capture --json`, which its --help explains, without
        `prepare_seconds`. Output, arguments and paths are str; invalid bytes become U+FFFD.
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
    """A piece of a job's output, in order of arrival."""

    @property
    def stream(self) -> Literal["stdout", "stderr"] | None:
        """The stream: "stdout" or "stderr".

        None if this event reports dropped output: see `lost`.
        """
    @property
    def bytes(self) -> bytes:
        """The bytes. A line includes its line ending."""
    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8; invalid bytes become U+FFFD.

        A character that is split between two chunks belongs to the text of the second one.
        """
    @property
    def partial(self) -> bool:
        """Whether this is a piece of a line: `max_line` or `flush_after` of events() has split it.

        The next event of the same stream continues the line. False for the last piece.
        """
    @property
    def lost(self) -> int:
        """How many bytes of both streams were dropped here because they were not read in time.

        0 for an event that has output.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Chunk:
    """The output of both streams from a position on, in order of arrival."""

    @property
    def bytes(self) -> bytes:
        """The bytes.

        While the job runs, an incomplete character at the end is left for the next read.
        """
    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8; invalid bytes become U+FFFD."""
    @property
    def next(self) -> int:
        """The position to pass to the next read()."""
    @property
    def lost(self) -> int:
        """How many bytes after the requested position are no longer available."""
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Job:
    @staticmethod
    def start(
        program: _Program,
        args: Args,
        options: _Options,
        permit: PermitRequest | None,
        queue: Queue | None,
        started: list[Job],
    ) -> None: ...
    @property
    def pid(self) -> int: ...
    @property
    def grace(self) -> float: ...
    @property
    def detached(self) -> bool: ...
    @property
    def args(self) -> list[str]: ...
    @property
    def has_terminal(self) -> bool: ...
    def result(self) -> Result | None: ...
    def read(self, since: int) -> Chunk: ...
    def write(self, data: Any) -> int | None: ...
    def close_stdin(self) -> None: ...
    def stop(self, grace: float | None) -> None: ...
    def cancel(self) -> None: ...
    def signal(self, signal: int, tree: bool) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def detach(self) -> None: ...
    def event(self) -> Event | Literal[False] | None: ...
    def has_event(self) -> Literal[True] | None: ...
    def has_open_line(self) -> bool: ...
    def flush_lines(self) -> None: ...
    def watch(self, max: int | None, until: str | None) -> Watcher: ...
    def release_hold(self) -> None: ...
    @property
    def done(self) -> Wakeup: ...
    @property
    def writable(self) -> Wakeup: ...
    @property
    def readable(self) -> Wakeup: ...
    @property
    def arrived(self) -> Wakeup: ...
    def output_has_ended(self) -> bool: ...
    def idle(self) -> float: ...

@final
class Watcher:
    def begin_reading(self) -> list[int | None]: ...
    def read(self, stream: int) -> Literal["watch", "full", "end"]: ...
    def is_own(self, stream: int) -> bool: ...
    def end_reading(self) -> None: ...

@final
class Warm:
    def __new__(
        cls,
        mode: str,
        trusted: bool,
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
        entry: Arg | None,
        sandbox: Sandbox | None,
        cwd: Arg | None,
        mode: str | None,
        no_new_privs: bool,
        landlock: Fd | None,
        seccomp: bytes | None,
    ) -> None: ...
    def template(self, cold: Template, adds: bool) -> Template: ...
    def cache(self, capacity: int) -> TemplateCache: ...
    def add_any(self, depth: int, mode: str | None) -> None: ...
    def fill(self, timeout: float | None) -> bool: ...
    def stats(self) -> tuple[Any, ...]: ...
    @staticmethod
    def turn_off() -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Sandbox:
    """A command that starts other programs in confinement, and the descriptors it receives.

        box = sf.Sandbox(["bwrap", "--ro-bind", "/", "/", "--seccomp", "9", "--"], fds={9: filter})
        sf.run(["bash", "-c", command], sandbox=box)

    The command gets its own arguments, followed by the program and the program's arguments. The
    command alone decides what it confines, and how. A Sandbox is immutable: any number of calls
    can share it, also concurrently. Warm.add() can keep programs parked inside it.

    Args:
        argv: The command and its arguments. The command is an absolute path, or a name that is
            searched now in this process's PATH. The PATH of a call's `env` applies to the
            confined program only.
        fds: Descriptors that the command receives, at most 64, by their number in the command
            (3 or more). They are duplicated, and kept as long as this object exists. Each start
            opens a readable regular file again, read-only, at the offset that the descriptor
            has now, so one call's reads do not affect the next call. All calls share any other
            descriptor. For a file that the command writes, pass a write-only descriptor.

    Raises:
        SpawnError: FileNotFoundError: the command does not exist. EINVAL: it is a relative
            path. EMFILE, E2BIG.
        TypeError, ValueError: An argument is invalid; the message names it.
    """

    def __new__(cls, argv: Args, *, fds: Mapping[int, Fd] | None = None) -> Sandbox: ...
    @property
    def argv(self) -> list[str]:
        """The command and its arguments."""

@final
class CommandText:
    def __new__(cls, command: Arg, options: _Options, watched: bool) -> CommandText: ...

@final
class Session:
    def __new__(cls, program: Arg | Template, args: Args, options: _Options) -> Session: ...
    def needs_shell(self) -> bool: ...
    def begin_shell(
        self, text: CommandText | None, permit: PermitRequest | None
    ) -> ShellStart | None: ...
    def finish_shell(self, start: ShellStart) -> None: ...
    def start(
        self,
        command: CommandText,
        turn: PermitRequest,
        permit: PermitRequest,
        queue: Queue | None,
        jobs: list[Job],
    ) -> RemoteStart | None: ...
    @property
    def queue(self) -> bool | None: ...
    @property
    def turns(self) -> Limiter: ...
    def interrupt(self) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def processes(self) -> list[tuple[int, str]]: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def grace(self) -> float: ...
    @property
    def ended(self) -> Wakeup: ...
    def begin_close(self) -> None: ...
    def has_ended(self) -> Literal[True] | None: ...
    def stop(self, grace: float) -> None: ...

@final
class Snapshot:
    """The contents of a file at one moment; snapshot() and SnapshotCache.get() create it.

        with sf.snapshot("/usr/bin/rg") as snapshot:
            sf.Template.from_fd(snapshot).run(["-n", "TODO"])

    The snapshot's descriptor (fileno()) can be read, mapped and executed. The file offset is 0 at
    first. The descriptor is closed at the end of the block, by close(), or with the last reference.
    Snapshots of one version from one cache share the file offset: read them with os.pread().
    """

    def fileno(self) -> int:
        """Returns the descriptor.

        Raises:
            ValueError: The snapshot is closed.
            SpawnError: EBADF: the descriptor number now refers to another file.
        """
    @property
    def kind(self) -> Literal["reflink", "memfd"]:
        """How the contents are stored: "reflink" or "memfd".

        "reflink": an unnamed file in the same file system that shares the file's extents. "memfd":
        a sealed copy in memory.

        Raises:
            ValueError: The snapshot is closed.
        """
    @property
    def closed(self) -> bool:
        """Whether the snapshot is closed."""
    def close(self) -> None:
        """Closes the descriptor."""
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
    """Bounds the number of concurrent runs: `run(argv, limiter=limiter)`, and the like.

    Before it starts its program, a run waits for a permit, first come, first served. It keeps
    the permit until its Result is available. Any number of threads and event loops can share a
    limiter. A forked process begins with the same limit and all permits free.

    Args:
        limit: The number of permits. With 0 no run starts until `limit` is raised.

    Raises:
        TypeError, ValueError: `limit` is not a valid count.
    """

    def __new__(cls, limit: int) -> Limiter: ...
    @property
    def limit(self) -> int:
        """How many runs may be active at once.

        The limit can be changed at any time. Lowering the limit does not end active runs.
        """
    @limit.setter
    def limit(self, value: int, /) -> None: ...
    @property
    def running(self) -> int:
        """How many runs are active."""
    @property
    def waiting(self) -> int:
        """How many runs wait for a permit."""

@final
class PermitRequest:
    def __new__(cls, limiter: Limiter | None) -> PermitRequest: ...
    def is_granted(self) -> Literal[True] | None: ...
    def cancel(self) -> None: ...
    def __enter__(self) -> PermitRequest: ...
    def __exit__(self, *_error: object) -> None: ...
    @property
    def ready(self) -> Wakeup: ...

@final
class ActiveRun:
    @property
    def done(self) -> Wakeup: ...
    @property
    def grace(self) -> float: ...
    def result(self) -> Result | None: ...
    def cancel(self) -> None: ...

def restore(state: dict[str, Any]) -> Result: ...
def restore_chunk(bytes: bytes, next: int, lost: int) -> Chunk: ...
def restore_event(
    stream: int | None, bytes: bytes, before: bytes, decoded: int, lost: int, partial: bool
) -> Event: ...
def restore_env(variables: list[tuple[bytes, bytes]]) -> Env: ...
def serve(files: Sequence[str] = ...) -> None: ...
def supervise(argv: Sequence[str]) -> int: ...
def run(program: _Program, args: Args, options: _Options) -> Result: ...
def pidfd_calls_are_killed() -> bool: ...
def printed_actions(actions: Iterable[Action]) -> list[str]: ...
def popen(
    call: dict[str, Any],
    audit: Callable[[], None],
    warm: Warm | None,
    started: list[PopenChild],
) -> tuple[int, str]: ...
def begin(
    program: _Program | Session | Remote,
    args: Args,
    options: _Options,
    permit: PermitRequest | None,
    queue: Queue | None,
    started: list[ActiveRun],
) -> None: ...
def explain(
    warm: Warm, argv: Args, options: dict[str, Any]
) -> tuple[str, float, str | None, str | None, str]: ...
def end_idle_threads() -> None: ...
