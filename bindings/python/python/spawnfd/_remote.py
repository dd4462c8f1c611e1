# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs, jobs and sessions on another machine, or in a container."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from spawnfd import _signatures, _spawnfd
from spawnfd._errors import make_error
from spawnfd._job import Job, SyncJob
from spawnfd._loop import (
    END_TIMEOUT,
    acquire_permit,
    complete_sync,
    end_started,
    limiter_of,
    wait_shielded,
    wait_until,
    wait_until_sync,
)
from spawnfd._options import method_like
from spawnfd._session import Session, SyncSession
from spawnfd._spawnfd import Result
from spawnfd._start import Starting
from spawnfd._types import Arg, Args, NotPickled, SessionProcess, deadline, remaining

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds without a sign of life after which a side regards the connection as lost.
_LEASE = 30.0
# Seconds that the connection may take until the server answers.
_CONNECT_TIMEOUT = 60.0


class Remote(NotPickled):
    """A connection to another machine, or to a container, where programs run.

        async with sf.Remote.ssh("host") as box:
            result = await box.run_async(["pytest", "-q"], timeout=600)
            async with box.session("bash") as session: ...

    The other machine needs the command `spawnfd` of this project; with `program`, the library
    copies it there. The library starts a transport, such as `ssh host spawnfd serve`, and talks to
    this server through the standard input and output of the transport. Nothing listens on a port.
    The server starts the programs and supervises them, so timeouts, limits and process trees are
    kept on that machine.

    command(), local(), ssh(), docker() and kubectl() create a connection. They start the transport
    and do not wait. The first call waits for the server, and so do ready(), connect() and the
    beginning of a block. If the connection ends, the server ends all programs. Any number of
    threads and event loops can share a connection.

    Results are those of run(), and their `where` names the place. If the connection is lost during
    a run, the `stop` of its result is "lost": the program has ended, or ends soon, and its status
    is not known. Later calls raise SpawnError (ENOTCONN) with the last words of the transport.

    Leaving a block closes the connection and waits for the end of the transport. Without a block,
    dropping the last reference to the connection and to its jobs and sessions closes it. A forked
    process cannot use the connection. docs/remote.md describes all of this.
    """

    __slots__ = ("__weakref__", "_core", "_deadline", "_is_ready", "_timeout")
    _core: _spawnfd.Remote
    _timeout: float | None
    # The time.monotonic() at which the server must have answered.
    _deadline: float | None
    _is_ready: bool

    def __init__(self) -> None:
        raise TypeError(
            "a Remote cannot be created directly; use Remote.command(), local(), ssh(), docker() "
            "or kubectl()"
        )

    @classmethod
    def command(
        cls,
        argv: Args,
        *,
        program: Arg | Sequence[Arg] | None = None,
        lease: float | None = _LEASE,
        connect_timeout: float | None = _CONNECT_TIMEOUT,
    ) -> Self:
        """Connects through a command whose standard input and output lead to the server.

            sf.Remote.command(["ssh", "host", "spawnfd", "serve"])
            sf.Remote.command(["podman", "exec", "-i", container, "spawnfd", "serve"])
            sf.Remote.command(["podman", "exec", "-i", container], program="./spawnfd-linux-x86_64")

        Args:
            argv: The command and its arguments. It may print text before the server does.
            program: A file of this machine: the static command `spawnfd`, or a list of it for
                several processors. If the other side does not have this file, the library copies it
                there through the transport, into a directory that only the user can write. `argv`
                then runs a command that follows as further arguments. The other side needs sh,
                uname, mkdir, head, chmod and mv. None: `argv` starts the server.
            lease: Seconds after which each side regards the other one as lost if it gives no sign
                of life. The server then ends all programs. None: only the end of the pipe counts.
            connect_timeout: Seconds that the connection may take until the server answers, from
                now on. None: no limit.

        Raises:
            SpawnError: The command could not be started; see run().
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        return cls._begin(argv, program, False, lease, connect_timeout)

    @classmethod
    def _begin(
        cls,
        argv: Args,
        program: Arg | Sequence[Arg] | None,
        joins: bool,
        lease: float | None,
        connect_timeout: float | None,
    ) -> Self:
        """Starts a transport. `joins`: it joins further arguments to a line, as ssh does."""
        self = object.__new__(cls)
        self._timeout, self._is_ready = connect_timeout, False
        self._deadline = deadline(connect_timeout, "connect_timeout")
        self._core = _spawnfd.Remote(argv, lease, _programs(program), joins)
        return self

    @classmethod
    def local(
        cls,
        *,
        server: Arg = "spawnfd",
        lease: float | None = _LEASE,
        connect_timeout: float | None = _CONNECT_TIMEOUT,
    ) -> Self:
        """Connects to a server that this call starts on this machine, for tests.

        Args:
            server: The path of the command `spawnfd`, or its name in PATH.
            lease: As for command().
            connect_timeout: As for command().

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as command().
        """
        argv = [server, "serve"]
        return cls.command(argv, lease=lease, connect_timeout=connect_timeout)

    @classmethod
    def ssh(
        cls,
        host: str,
        *,
        server: str = "spawnfd",
        program: Arg | Sequence[Arg] | None = None,
        options: Sequence[str] = (),
        lease: float | None = _LEASE,
        connect_timeout: float | None = _CONNECT_TIMEOUT,
    ) -> Self:
        """Connects to a host by ssh, without a terminal and without questions (BatchMode).

        The command `spawnfd` must be installed on the host, or `program` brings it there.

        Args:
            host: The host as ssh accepts it: a name, USER@NAME or a Host of ~/.ssh/config.
            server: The path of the command `spawnfd` on the host, or its name in PATH there.
            program: As for command(). The server of the other machine is not used then.
            options: Further options of ssh, such as ["-p", "2222"].
            lease: As for command().
            connect_timeout: As for command().

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as command().
        """
        import shlex

        # ssh passes one text to the login shell of the host.
        serve = [] if program is not None else [f"exec {shlex.quote(server)} serve"]
        argv = ["ssh", "-T", "-o", "BatchMode=yes", *options, "--", _name(host, "host"), *serve]
        return cls._begin(argv, program, True, lease, connect_timeout)

    @classmethod
    def docker(
        cls,
        container: str,
        *,
        server: str = "spawnfd",
        program: Arg | Sequence[Arg] | None = None,
        user: str | None = None,
        lease: float | None = _LEASE,
        connect_timeout: float | None = _CONNECT_TIMEOUT,
    ) -> Self:
        """Connects to a running container by `docker exec -i`.

        The command `spawnfd` must be in the container, or `program` brings it there.

        Args:
            container: The id or the name of the container.
            server: The path of the command `spawnfd` in the container, or its name in PATH there.
            program: As for command(). The server of the other machine is not used then.
            user: The user who runs the programs, by name or number. None: that of the container.
            lease: As for command().
            connect_timeout: As for command().

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as command().
        """
        chosen = [] if user is None else ["--user", user]
        serve = [] if program is not None else [server, "serve"]
        argv = ["docker", "exec", "-i", *chosen, _name(container, "container"), *serve]
        return cls._begin(argv, program, False, lease, connect_timeout)

    @classmethod
    def kubectl(
        cls,
        pod: str,
        *,
        namespace: str | None = None,
        container: str | None = None,
        server: str = "spawnfd",
        program: Arg | Sequence[Arg] | None = None,
        lease: float | None = _LEASE,
        connect_timeout: float | None = _CONNECT_TIMEOUT,
    ) -> Self:
        """Connects to a pod of Kubernetes by `kubectl exec -i`.

        The command `spawnfd` must be in the container, or `program` brings it there.

        Args:
            pod: The name of the pod, or TYPE/NAME as kubectl accepts it.
            namespace: The namespace. None: that of kubectl's context.
            container: The name of the container in the pod. None: the pod's default container.
            server: The path of the command `spawnfd` in the container, or its name in PATH there.
            program: As for command(). The server of the other machine is not used then.
            lease: As for command().
            connect_timeout: As for command().

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as command().
        """
        argv = ["kubectl", "exec", "-i", _name(pod, "pod")]
        argv += [] if namespace is None else ["--namespace", namespace]
        argv += [] if container is None else ["--container", container]
        argv += ["--"] if program is not None else ["--", server, "serve"]
        return cls._begin(argv, program, False, lease, connect_timeout)

    @property
    def where(self) -> str:
        """The place where programs run: the host name and the transport.

        Before the server answers, only the transport is known.
        """
        return self._core.where

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, by close() or by the end of a block."""
        return self._core.closed

    async def ready(self) -> None:
        """Waits until the server has answered, and returns at once if it has.

        Raises:
            SpawnError: ENOTCONN: the transport has ended; the message has its last words. EPROTO:
                the other side is no server of this version. ETIMEDOUT: the server has not answered
                within `connect_timeout`.
        """
        if not self._is_ready:
            core = self._core
            answered = await wait_until(core.has_answered, core.answered, remaining(self._deadline))
            self._note_answer(answered)

    def connect(self) -> Self:
        """Waits like ready(), blocking, and returns the connection.

        Raises:
            SpawnError: In the same cases as ready().
        """
        if not self._is_ready:
            core, left = self._core, remaining(self._deadline)
            self._note_answer(wait_until_sync(core.has_answered, core.answered, left))
        return self

    def _note_answer(self, answered: bool | None) -> None:
        if answered is None:
            raise self._core.give_up(cast(float, self._timeout))
        self._is_ready = True

    @method_like(_signatures.run)
    def run(self, argv: Args, **options: Any) -> Result:
        """Runs a program on the other machine to its end: run() at once, run_async() when awaited.

        The arguments and the Result are those of spawnfd.run(). Paths, PATH and users are those of
        the other machine. Without `env`, the program has the environment of the server;
        Env.inherit() and Env.only() choose from that environment, too. The directory is that of the
        server, or `cwd`. A file of a `spill` is on the other machine, until the connection ends.
        The `limiter` is the only option that applies on this side.

        Ctrl-C and the cancellation of the task end the program, as for spawnfd.run().

        Raises:
            SpawnError: The program could not be started, for the reasons of spawnfd.run().
                ENOTCONN: the connection is lost. In the cases of ready(), too.
            TypeError, ValueError: An argument is invalid, or has a meaning in this process alone,
                such as a descriptor, `warm` or `sandbox`; the message names it.
        """
        self.connect()
        return complete_sync(self._core, argv, options)

    @method_like(_signatures.run)
    async def run_async(self, argv: Args, **options: Any) -> Result:
        """The awaitable form of run(); it does nothing until it is awaited."""
        await self.ready()
        request = None
        if options.get("limiter") is not None:
            request = await acquire_permit(limiter_of(options))
        started: list[_spawnfd.ActiveRun] = []
        try:
            _spawnfd.begin(self._core, argv, options, request, None, started)
            [run] = started
            return cast(Result, await wait_until(run.result, run.done))
        except BaseException as error:
            await end_started(started, error)
            raise

    @method_like(_signatures.start)
    def start(self, argv: Args, **options: Any) -> Starting:
        """Starts a job on the other machine: start() when awaited, start_sync() at once.

        The job is that of spawnfd.start(), with the same arguments except for those that run()
        refuses. Its `pid` is a number of the other machine.

        Raises:
            SpawnError: In the same cases as run(). If the connection was lost during this call
                (ENOTCONN), the program may have started.
            TypeError, ValueError: In the same cases as run().
        """
        return Starting(self._start(argv, options))

    async def _start(self, argv: Args, options: dict[str, Any]) -> Job:
        await self.ready()
        return await Job._start(self._core, argv, options)

    @method_like(_signatures.start)
    def start_sync(self, argv: Args, **options: Any) -> SyncJob:
        """The blocking form of start()."""
        self.connect()
        return SyncJob._start(self._core, argv, options)

    @method_like(_signatures.session)
    def session(self, program: Arg = "bash", args: Args = (), **options: Any) -> RemoteSession:
        """Prepares a session on the other machine; its block, or its first command, opens it.

            async with box.session("bash", cwd="/srv") as session:
                result = await session.run("make test", timeout=600)

        session_sync() returns the blocking form. The arguments are those of Session, except for a
        Template, `sandbox` and `warm`.

        Raises:
            TypeError, ValueError: An argument is invalid, or has a meaning in this process alone;
                the message names it.
        """
        return RemoteSession._of(self, program, args, options)

    @method_like(_signatures.session)
    def session_sync(
        self, program: Arg = "bash", args: Args = (), **options: Any
    ) -> SyncRemoteSession:
        """The blocking form of session()."""
        return SyncRemoteSession._of(self, program, args, options)

    def put(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies a file or directory to the other machine: put() at once, put_async() when awaited.

        A file replaces the one that is there, once it is complete. A directory is merged with the
        one that is there. Symbolic links below it stay links; owners and set-user-ID bits are not
        copied. The server's command unpacks the files; the other machine needs no tar.

        Ctrl-C and the cancellation of the task end the transfer. Then no part of a file stays, but
        whole files of a directory do.

        Args:
            source: The file or directory on this machine.
            target: The path on the other machine, with the name of the copy.
            max_bytes: The largest size of the transfer in bytes, with about 1 KiB for each file.
            timeout: Seconds that the transfer may take.

        Raises:
            SpawnError: A file cannot be read or written; EFBIG: the transfer is larger than
                `max_bytes`; ETIMEDOUT; ENOTCONN: the connection is lost; EOPNOTSUPP: the server has
                no command for files. The message names the path. In the cases of ready(), too.
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        self._transfer_sync(True, source, target, max_bytes, timeout)

    async def put_async(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """The awaitable form of put()."""
        await self._transfer(True, source, target, max_bytes, timeout)

    def get(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Copies a file or a directory from the other machine: the same as put() the other way.

        Nothing is written outside of `target`, whatever the other machine sends.
        """
        self._transfer_sync(False, source, target, max_bytes, timeout)

    async def get_async(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """The awaitable form of get()."""
        await self._transfer(False, source, target, max_bytes, timeout)

    def _transfer_sync(self, is_put: bool, *arguments: Any) -> None:
        transfer = self.connect()._core.transfer(is_put, *arguments)
        try:
            wait_until_sync(transfer.result, transfer.done)
        except BaseException:
            transfer.cancel()
            wait_until_sync(transfer.has_ended, transfer.done, END_TIMEOUT)
            raise

    async def _transfer(self, is_put: bool, *arguments: Any) -> None:
        await self.ready()
        transfer = self._core.transfer(is_put, *arguments)
        try:
            await wait_until(transfer.result, transfer.done)
        except BaseException as error:
            transfer.cancel()
            if not isinstance(error, GeneratorExit):
                await wait_shielded(transfer.has_ended, transfer.done, END_TIMEOUT)
            raise

    def doctor(self) -> dict[str, Any]:
        """Reports what the other machine offers: doctor() at once, doctor_async() when awaited.

        Returns the findings of `spawnfd doctor --json` on that machine: the machine and its limits,
        each kernel feature and what the library does without it, and the shims in PATH.

        Raises:
            SpawnError: EOPNOTSUPP: the server is not the command `spawnfd`. In the cases of run().
            ExitError: The command failed.
        """
        self.connect()
        return _findings(self.run(self._doctor()))

    async def doctor_async(self) -> dict[str, Any]:
        """The awaitable form of doctor()."""
        await self.ready()
        return _findings(await self.run_async(self._doctor()))

    def _doctor(self) -> list[Arg]:
        program = self._core.program
        if program is None:
            message = "the server is not the command spawnfd, so it has no findings"
            call = "remote: doctor"
            raise make_error(errno.EOPNOTSUPP, None, None, "capture", None, call, message)
        return [program, "doctor", "--json"]

    def ping(self) -> float:
        """Returns the seconds until the server answers: ping() at once, ping_async() when awaited.

        Raises:
            SpawnError: ENOTCONN: the connection is lost. In the cases of ready(), too.
        """
        question = self.connect()._core.ping()
        wait_until_sync(question.answer, question.done)
        return question.elapsed()

    async def ping_async(self) -> float:
        """The awaitable form of ping()."""
        await self.ready()
        question = self._core.ping()
        await wait_until(question.answer, question.done)
        return question.elapsed()

    def close(self) -> None:
        """Closes the connection: the server ends all programs, and the transport ends.

        The call does not wait. Runs that are active have a Result with the `stop` "lost".
        """
        self._core.close()

    def __enter__(self) -> Self:
        """Waits like connect(). The end of the block closes the connection."""
        try:
            return self.connect()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        core = self._core
        core.close()
        wait_until_sync(core.has_ended, core.ended, END_TIMEOUT)

    async def __aenter__(self) -> Self:
        """Waits like ready(). The end of the block closes the connection."""
        try:
            await self.ready()
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        core = self._core
        core.close()
        if kind is not GeneratorExit:
            await wait_shielded(core.has_ended, core.ended, END_TIMEOUT)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<spawnfd.Remote {self.where}{state}>"

    run_async.__doc__ = run.__doc__
    start_sync.__doc__ = start.__doc__
    session_sync.__doc__ = session.__doc__
    ping_async.__doc__ = ping.__doc__
    put_async.__doc__ = put.__doc__
    get_async.__doc__ = get.__doc__
    doctor_async.__doc__ = doctor.__doc__


def _findings(result: Result) -> dict[str, Any]:
    import json

    return cast(dict[str, Any], json.loads(result.check().stdout))


def _programs(program: Arg | Sequence[Arg] | None) -> list[str] | None:
    if program is None:
        return None
    one = isinstance(program, (str, bytes, os.PathLike))
    return [os.fsdecode(path) for path in cast(Sequence[Arg], [program] if one else program)]


def _name(value: str, argument: str) -> str:
    """Returns the name of a place. A name must not be an option of the transport.

    Raises:
        TypeError, ValueError: `value` is not such a name.
    """
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{argument}: expected str, not {type(value).__qualname__}")
    if not value or value.startswith("-"):
        raise ValueError(f'{argument}: must not be empty or begin with "-", got {value!r}')
    return value


class RemoteSession(Session):
    """A Session on another machine; Remote.session() creates it.

    It has the methods of Session, with these differences: processes() is awaitable, and
    side_command() is not available. `pid` is the number of the first shell on its machine.
    """

    __slots__ = ("_remote",)
    _core: Any
    _remote: Remote

    def __init__(self) -> None:
        raise TypeError("a RemoteSession cannot be created directly; use Remote.session()")

    @classmethod
    def _of(cls, remote: Remote, program: Arg, args: Args, options: dict[str, Any]) -> Self:
        self = object.__new__(cls)
        self._attach(remote._core.session(_path(program), args, options), options)
        self._remote = remote
        return self

    @property
    def where(self) -> str:
        """The place of the shell: the host name and the transport."""
        return self._remote.where

    async def _ensure_shell(self, text: _spawnfd.CommandText | None = None) -> None:
        await self._remote.ready()
        await super()._ensure_shell(text)

    async def processes(self) -> list[SessionProcess]:  # type: ignore[override]
        """Returns the processes of the session except its shell, as far as /proc shows them.

        These are the processes of the running command, and background jobs.

        Raises:
            SpawnError: ENOTCONN: the connection is lost.
        """
        question: _spawnfd.Question | None = self._core.processes()
        if question is None:
            return []
        return _processes(await wait_until(question.answer, question.done))

    async def side_command(self, argv: Args, **options: Any) -> NoReturn:
        """Not available: use run_async() of the Remote, with `cwd` and `env`.

        Raises:
            ValueError: Always.
        """
        raise _no_side_command()


class SyncRemoteSession(SyncSession):
    """The blocking form of RemoteSession; Remote.session_sync() creates it."""

    __slots__ = ("_remote",)
    _core: Any
    _remote: Remote

    def __init__(self) -> None:
        raise TypeError("a SyncRemoteSession cannot be created directly; use Remote.session_sync()")

    @classmethod
    def _of(cls, remote: Remote, program: Arg, args: Args, options: dict[str, Any]) -> Self:
        self = object.__new__(cls)
        self._attach(remote._core.session(_path(program), args, options), options)
        self._remote = remote
        return self

    @property
    def where(self) -> str:
        """The place of the shell: the host name and the transport."""
        return self._remote.where

    def _ensure_shell(self, text: _spawnfd.CommandText | None = None) -> None:
        self._remote.connect()
        super()._ensure_shell(text)

    def processes(self) -> list[SessionProcess]:
        """The blocking form of RemoteSession.processes()."""
        question: _spawnfd.Question | None = self._core.processes()
        if question is None:
            return []
        return _processes(wait_until_sync(question.answer, question.done))

    def side_command(self, argv: Args, **options: Any) -> NoReturn:
        """The blocking form of RemoteSession.side_command()."""
        raise _no_side_command()

    processes.__doc__ = RemoteSession.processes.__doc__
    side_command.__doc__ = RemoteSession.side_command.__doc__


def _path(program: Arg) -> Arg:
    if isinstance(program, (str, bytes, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return program
    found = type(program).__qualname__
    raise TypeError(f"program: expected str, bytes or os.PathLike, not {found}")


def _processes(found: list[tuple[int, str]] | None) -> list[SessionProcess]:
    return [SessionProcess(*process) for process in found or ()]


def _no_side_command() -> ValueError:
    return ValueError("side_command(): not available in a remote session; use run() of the Remote")
