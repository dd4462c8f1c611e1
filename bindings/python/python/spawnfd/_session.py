# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions: shells that keep their state from command to command, awaitable and blocking."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from spawnfd import _signatures, _spawnfd
from spawnfd._job import Job, SyncJob
from spawnfd._loop import (
    END_TIMEOUT,
    acquire_permit,
    acquire_permit_sync,
    complete,
    complete_sync,
    current_adapter,
    end_started,
    end_started_sync,
    enter,
    finish_start,
    finish_start_sync,
    limiter_of,
    wait_shielded,
    wait_until,
    wait_until_sync,
)
from spawnfd._options import (
    CommandStdin,
    Given,
    Wraps,
    method_like,
)
from spawnfd._signatures import CommonCommandOptions, SideOptions
from spawnfd._spawnfd import Limiter, Result
from spawnfd._start import Starting
from spawnfd._types import (
    Arg,
    Args,
    NotPickled,
    SessionProcess,
    deadline,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


def _no_job() -> None:
    return None


class _SessionBase(NotPickled):
    """The methods of a session that neither await nor block."""

    __slots__ = ("__weakref__", "_core", "_latest", "_limiter", "_starts", "_waiting")
    _core: _spawnfd.Session
    # The limiter of the shells.
    _limiter: Limiter | None
    # Has one permit: only one command waits for `_limiter`, and the others then use its shell.
    _starts: Limiter
    # The thread that has started the latest command of a SyncSession, and the command's job.
    _latest: tuple[int, Callable[[], SyncJob | None]]
    # The threads that wait for a turn in a SyncSession.
    _waiting: set[int]

    @method_like(_signatures.session)
    def __init__(
        self,
        program: Arg | Wraps[_spawnfd.Template] = "bash",
        args: Args = (),
        **options: Any,
    ) -> None:
        """Prepares a session; its block, or its first command, starts the shell.

        Args:
            program: The shell, bash or dash: a path, a name that is searched in PATH, or a
                Template.
            args: The shell's arguments. Without arguments, bash reads no startup files, unless it
                is a login shell. With "-i" it reads ~/.bashrc. dash reads the file that the
                variable ENV names.
            warm: A Warm. If it has a suitable parked process, the program starts from that process.
            cwd: A path. The directory in which the shell starts.
            env: An Env, or a mapping. The shell's environment. By default it is a copy of the
                environment of this process.
            stderr: Whether the standard error of each command is part of its standard output.
            login: Whether the shell is a login shell, which reads `/etc/profile` and the user's
                profile.
            restart: Whether the next command starts a new shell after the shell has exited. The new
                shell gets the working directory, the exported variables and the umask of the last
                completed command. By default the next command fails with ESRCH.
            queue: Whether a command waits for the end of the commands that were started before it.
                Commands then run in the order of their calls. The waiting time does not count for
                the command's `timeout`. A thread or task must not start a command while it has the
                job of a running one, because it would wait for itself. By default the second
                command fails with EBUSY. None (default): False in a Session; in a SyncSession, True
                for commands of other threads.
            terminal: A pair (rows, columns), or an os.terminal_size. Gives the session a terminal
                of this size, which all commands share. It is the standard output and error of each
                command, the standard input of a command that has input, and the controlling
                terminal of the shell (`/dev/tty`). The output is all standard output, as the
                terminal transmits it (`\\n` becomes `\\r\\n`). By default there is no terminal.
            echo: Whether the terminal writes input back to the output.
            startup_timeout: The time that the shell has for its startup files. In seconds.
            sandbox: A Sandbox. A sandbox that the shell runs in: a command that confines it, such
                as `bwrap … --unshare-pid --proc /proc`. It must have `/proc`, and must pass
                inherited descriptors on.
            grace: The time that the shell has to exit when the session is closed. Each command has
                a grace period of its own. In seconds.
            tree: How the library controls the process tree of the shell. By default the tier is
                `auto`, so daemons end with the session where the machine allows it.
                "group": The session, the process group and known descendants, without a helper
                process: the tree outlives this process.
                "guard": The same processes. A helper process (the guard) ends the tree if this
                process ends, however that happens. An error if no guard can be started.
                "subreaper": Every process, by a helper that becomes the program's parent. An error
                if no helper can be started.
                "cgroup": Every process that does not leave the cgroup. An error if no cgroup can be
                created.
                "pidns": Every process, by a pid namespace. An error if no pid namespace can be
                created.
                "auto": The most complete tier available of `cgroup`, `subreaper`, `guard` and
                `group`.
            limits: A Limits. Limits of the resources of the shell and its process tree: all
                commands together. The result of a command names the limits, and the one that ended
                the command or the shell.
            limiter: A Limiter. Limits how many shells run at once: the session waits for a permit
                before it starts a shell, which keeps the permit until it ends. The commands need
                another limiter.

        Each start of a shell raises the auditing event "subprocess.Popen", as run() does.

        Raises:
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        core: Any = getattr(program, "_core", program)
        self._attach(_spawnfd.Session(core, args, options), options)

    def _attach(self, core: Any, options: Given) -> None:
        self._core = core
        self._limiter, self._starts = options.get("limiter"), Limiter(1)
        self._latest, self._waiting = (0, _no_job), set()

    @property
    def pid(self) -> int | None:
        """The shell's process id; None before its start and after its end."""
        return self._core.pid

    @property
    def closed(self) -> bool:
        """Whether the session was closed, by close() or by the end of its block."""
        return self._core.closed

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the terminal; its foreground process group gets SIGWINCH.

        Raises:
            ValueError: The session was created without a terminal, or a size is out of range.
        """
        self._core.resize(rows, columns)

    def interrupt(self) -> None:
        """Sends SIGINT to the running command, and to the shell, as Ctrl-C in a terminal does.

        The shell abandons the rest of the command. The call does not wait for the command's end.
        Without a running command, it has no effect.
        """
        self._core.interrupt()

    def processes(self) -> list[SessionProcess]:
        """Returns the processes of the session except its shell, as far as /proc shows them.

        These are the processes of the running command, and background jobs.
        """
        return [SessionProcess(*process) for process in self._core.processes()]

    def __repr__(self) -> str:
        pid = self.pid
        state = "closed" if self.closed else "no shell" if pid is None else f"shell {pid}"
        return f"<spawnfd.{type(self).__name__}: {state}>"


class Session(_SessionBase):
    """A shell, bash or dash, that stays open and runs one command after the other.

        async with sf.Session("bash", cwd=repo) as session:
            await session.run("cd src && export X=1")
            result = await session.run("pytest -q", timeout=600)
            print(result.code, result.cwd, result.text)

    The shell itself runs the text of a command, so the working directory, variables, functions,
    aliases, options, the umask and traps stay as a command leaves them. The shell behaves like an
    interactive shell without a terminal. With `set -e`, a command whose last status is not 0 ends
    the shell. docs/sessions.md describes all of this.

    Each command has its own streams and its own result. Output of a background job goes to the
    command that has started the job.

    Leaving the block closes the session; see close(). Without a block, dropping the session ends
    the shell and its processes, and so does the end of this process. A forked process cannot use
    the session (ChildProcessError).

    Session works on asyncio, uvloop, trio and anyio. SyncSession blocks, and is for threads.
    """

    __slots__ = ()

    async def _ensure_shell(self, text: _spawnfd.CommandText | None = None) -> None:
        """Starts a shell if the session needs one, and waits until the shell is ready.

        If the shell's last directory is gone, a new shell starts in the directory of `text`.
        """
        core, request = self._core, None
        with await acquire_permit(self._starts if core.needs_shell() else None):
            # Another command may have started the shell meanwhile.
            if core.needs_shell():
                request = await enter({"limiter": self._limiter})
            start = core.begin_shell(text, request)
        if start is not None:
            await wait_until(start.is_over, start.done)
            core.finish_shell(start)

    async def _start(
        self,
        command: Arg,
        options: Given,
        started: list[_spawnfd.Job],
        *,
        watched: bool,
        hold: bool = False,
    ) -> Job:
        core = self._core
        text = _spawnfd.CommandText(command, options, watched)
        with await acquire_permit(core.turns if core.queue else None) as turn:
            await self._ensure_shell(text)
            request = await acquire_permit(limiter_of(options))
            queue = current_adapter().queue
            await finish_start(core.start(text, turn, request, queue, started), started)
            job = Job._of(started[0])
        if watched and not hold:
            current_adapter().call_soon(job._core.release_hold)
        return job

    @overload
    async def run(
        self,
        command: Arg,
        *,
        yield_after: None = None,
        stdin: Literal["null"] | None = "null",
        **options: Unpack[CommonCommandOptions],
    ) -> Result: ...
    @overload
    async def run(
        self,
        command: Arg,
        *,
        yield_after: float | None,
        stdin: CommandStdin | None = "null",
        **options: Unpack[CommonCommandOptions],
    ) -> Result | Job: ...
    async def run(
        self, command: Arg, *, yield_after: float | None = None, **options: Any
    ) -> Result | Job:
        """Runs a command in the shell, and returns its Result.

            result = await session.run("make -j4", timeout=600)

            job = await session.run("npm test", yield_after=10, stdin="stream")
            if isinstance(job, sf.Job):  # job.running, but type checkers do not know what it says
                print(job.read().text)
                await job.write("y\\n")
                result = await job.wait(60)
                if result is None:
                    job.interrupt()

        The Result also has `cwd`, the shell's directory after the command, `shell_exited` and
        `shell_code`. A status that the shell has not proved is lost: `stop` is "lost" and `code` is
        None, for example after `exit 3`, and `shell_code` is then 3. A
        command that has to end gets SIGINT, SIGTERM after half of its `grace`, and SIGKILL after
        all of it. The shell abandons the rest of the command and keeps its state. If the shell does
        not return within 1 s after SIGKILL, the library kills the shell.

        Cancelling run(), or a signal handler that raises during a blocking run(), ends the command
        and not the session. The call waits for the end of the command, and the exception has the
        Result as its `result`, as for spawnfd.run().

        Args:
            command: Text that the shell runs like a line of a script: any number of commands,
                here-documents and newlines. A str with surrogate escapes, bytes and a path may have
                bytes that are not UTF-8.
            yield_after: Seconds after which the call returns the running job instead of a Result.
                The job can wait, read, write, interrupt and stop. The session runs no other command
                until the job has its Result. Dropping the job ends the command. None: no such time.
            cwd: The directory of this command alone: a path. Afterwards the shell returns to the
                session's directory. If the directory cannot be entered, the code is that of `cd`.
                If run() has to start a shell in a directory that is gone, the shell starts in this
                one, which must be absolute.
            env: Variables of this command alone: a mapping of names to values. The command has them
                besides the session's variables.
            options: These options of spawnfd.run() and start(): timeout, idle_timeout, grace,
                input, keep, marker, combined, spill, output_limit, drain, limiter, window, and
                stdin: "null" (default), or "stream" (with yield_after, and in start()): the command
                reads the data passed to write(). Without "stream", write() raises ValueError. The
                limiter and the output options concern this command only. stderr, tree, limits,
                sandbox and warm belong to the session.

        Raises:
            SpawnError: EBUSY: another command of the session runs; wait for its end, stop it, or
                create the session with `queue`.
                ESRCH (ProcessLookupError): the shell has exited; open a new session, or use
                `restart`. A shell that run() has to start can fail in the same cases as the start
                of the block.
            TypeError, ValueError: An argument is invalid, or belongs to the session, and the
                message names it; or the session is closed.
        """
        _check_stream(yield_after, options.get("stdin"))
        started: list[_spawnfd.Job] = []
        try:
            job = await self._start(command, options, started, watched=False)
            result = await wait_until(job._core.result, job._core.done, yield_after)
        except BaseException as error:
            await end_started(started, error)
            raise
        return job if result is None else result

    @method_like(_signatures.command_start)
    def start(self, command: Arg, *, hold: bool = False, **options: Any) -> Starting:
        """Starts a command in the shell as a job, to stream its output or to write to it.

            async with session.start("npm test", timeout=600) as job:
                async for event in job.events(lines=True):
                    print(event.text, end="")

        Leaving the block ends the command, if it still runs, and waits for its end. Without a
        block, dropping the job ends the command, unless the job is detached. The job has the pid of
        the shell. events() ends with the command's Result. With until="closed", it also has later
        output of the command's background jobs, and ends when these close the command's streams.

        Args:
            command: Text that the shell runs, as for run().
            cwd, env: As for run().
            hold: Whether the command blocks, once `window` bytes are pending, until events() is
                called; see spawnfd.start().
            options: The options of run(), without yield_after.

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as run().
        """
        return Starting(self._start(command, options, [], watched=True, hold=hold))

    async def side_command(self, argv: Args, **options: Unpack[SideOptions]) -> Result:
        """Runs a program beside the shell, also while the shell runs a command.

            job = await session.run("npm test", yield_after=10)
            status = await session.side_command(["git", "status", "--short"], timeout=30)

        The program has the working directory, the exported variables and the umask of the last
        completed command. It is a run like those of spawnfd.run(), and no process of the session.
        Its auditing event has this directory and an Env of these variables. A short-lived shell
        reads the variables, and raises an event of its own.

        Args:
            argv: The program and its arguments, as for run(). For a command line see sh().
            options: The options of run(), except cwd, env, actions, arg0, sandbox and warm.

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.run(). ValueError also:
                the session was created without `restart`, which saves the shell's state after
                each command; or it has a sandbox, outside of which the program would run.
        """
        return await complete(self._core, argv, _side_options(options))

    async def close(self) -> None:
        """Ends the shell, waits for its end, and kills the other processes of the session.

        A running command is interrupted. The shell reads the end of its input, runs its EXIT trap
        and exits. If it has not exited after the session's `grace`, the library kills it.
        Cancelling the call does not shorten it. The session then runs no more commands.
        """
        core = self._core
        core.begin_close()
        try:
            await wait_shielded(core.has_ended, core.ended, core.grace)
        finally:
            core.stop(0)
            await wait_shielded(core.has_ended, core.ended, END_TIMEOUT)

    async def __aenter__(self) -> Self:
        """Starts the shell, and waits until it has read its startup files.

        Raises:
            SpawnError: The shell could not be started, with the causes of spawnfd.run(). ESRCH: it
                exited, or was not ready within `startup_timeout`; the message has its output.
                EOPNOTSUPP: /proc does not show this process.
            ValueError: The session is closed.
        """
        try:
            await self._ensure_shell()
        except GeneratorExit:
            self._abandon()
            raise
        except BaseException:
            self._core.stop(0)
            await self.close()
            raise
        return self

    def _abandon(self) -> None:
        """Ends the session without waiting."""
        self._core.begin_close()
        self._core.stop(self._core.grace)

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is GeneratorExit:
            # The coroutine is being closed, and cannot await.
            self._abandon()
        else:
            await self.close()


class SyncSession(_SessionBase):
    """The blocking form of Session, for threads.

        with sf.SyncSession("bash", cwd=repo) as session:
            session.run("cd src && export X=1")
            result = session.run("pytest -q", timeout=600)
            print(result.code, result.cwd, result.text)

    Methods that are awaitable in Session block here, and jobs are SyncJobs. `with` replaces
    `async with`. A blocking call releases the GIL, and Python's signal handlers run meanwhile.

    Threads can share a session: their commands run one after the other, in the order of the calls.
    """

    __slots__ = ()

    def _ensure_shell(self, text: _spawnfd.CommandText | None = None) -> None:
        core, request = self._core, None
        waits = self._limiter is not None
        with acquire_permit_sync(self._starts if waits and core.needs_shell() else None):
            # Another command may have started the shell meanwhile.
            if waits and core.needs_shell():
                request = acquire_permit_sync(self._limiter)
            start = core.begin_shell(text, request)
        if start is not None:
            wait_until_sync(start.is_over, start.done)
            core.finish_shell(start)

    def _start(
        self,
        command: Arg,
        options: Given,
        started: list[_spawnfd.Job],
        *,
        hold: bool = False,
    ) -> SyncJob:
        core = self._core
        text = _spawnfd.CommandText(command, options, hold)
        with self._take_turn() as turn:
            self._ensure_shell(text)
            request = acquire_permit_sync(limiter_of(options))
            finish_start_sync(core.start(text, turn, request, None, started), started)
            job = SyncJob._of(started[0])
        self._latest = threading.get_ident(), weakref.ref(job)
        return job

    def _take_turn(self) -> _spawnfd.PermitRequest:
        """Waits for the turn of a command, unless the session has no queue.

        By default a thread waits for commands of other threads. It would wait for ever for a job
        that it has itself, and in a signal handler for the wait that the handler interrupts.
        """
        own, queue = threading.get_ident(), self._core.queue
        thread, latest = self._latest
        if queue is None:
            queue = thread != own or (job := latest()) is None or not job.running
        if not queue or own in self._waiting:
            return acquire_permit_sync(None)
        self._waiting.add(own)
        try:
            return acquire_permit_sync(self._core.turns)
        finally:
            self._waiting.discard(own)

    @overload
    def run(
        self,
        command: Arg,
        *,
        yield_after: None = None,
        stdin: Literal["null"] | None = "null",
        **options: Unpack[CommonCommandOptions],
    ) -> Result: ...
    @overload
    def run(
        self,
        command: Arg,
        *,
        yield_after: float | None,
        stdin: CommandStdin | None = "null",
        **options: Unpack[CommonCommandOptions],
    ) -> Result | SyncJob: ...
    def run(
        self, command: Arg, *, yield_after: float | None = None, **options: Any
    ) -> Result | SyncJob:
        """The blocking form of Session.run()."""
        _check_stream(yield_after, options.get("stdin"))
        started: list[_spawnfd.Job] = []
        try:
            job = self._start(command, options, started)
            result = wait_until_sync(job._core.result, job._core.done, yield_after)
        except BaseException as error:
            end_started_sync(started, error)
            raise
        return job if result is None else result

    @method_like(_signatures.command_start)
    def start(self, command: Arg, *, hold: bool = False, **options: Any) -> SyncJob:
        """The blocking form of Session.start()."""
        started: list[_spawnfd.Job] = []
        try:
            return self._start(command, options, started, hold=hold)
        except BaseException as error:
            end_started_sync(started, error)
            raise

    def side_command(self, argv: Args, **options: Unpack[SideOptions]) -> Result:
        """The blocking form of Session.side_command()."""
        return complete_sync(self._core, argv, _side_options(options))

    def close(self) -> None:
        """The blocking form of Session.close()."""
        core = self._core
        core.begin_close()
        try:
            wait_until_sync(core.has_ended, core.ended, core.grace)
        finally:
            core.stop(0)
            wait_until_sync(core.has_ended, core.ended, END_TIMEOUT)

    def __enter__(self) -> Self:
        """The blocking form of Session.__aenter__()."""
        try:
            self._ensure_shell()
        except BaseException:
            self._core.stop(0)
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    run.__doc__ = Session.run.__doc__
    start.__doc__ = Session.start.__doc__
    side_command.__doc__ = Session.side_command.__doc__
    close.__doc__ = Session.close.__doc__
    __enter__.__doc__ = Session.__aenter__.__doc__


def _check_stream(yield_after: float | None, stdin: object) -> None:
    """Checks the arguments of run() before the command starts."""
    deadline(yield_after, "yield_after")
    if yield_after is None and stdin in ("stream", -1):
        raise ValueError('stdin: "stream" needs yield_after; to write at once use start()')


def _side_options(options: SideOptions) -> Given:
    """Returns the options of a program beside the shell, which chooses some of them."""
    return dict(cwd=None, env=None, actions=None, **options)


# A decorator would hide the overloads from type checkers.
for _run in (Session.run, SyncSession.run):
    method_like(_signatures.command_run)(_run)
