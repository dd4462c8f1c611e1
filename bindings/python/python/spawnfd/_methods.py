# SPDX-License-Identifier: MIT OR Apache-2.0
"""run(), start() and spawn() as methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from spawnfd import _spawnfd
from spawnfd._child import Child
from spawnfd._job import Job, SyncJob
from spawnfd._loop import complete
from spawnfd._options import (
    Actions,
    Environment,
    NoOptions,
    RunStderr,
    RunStdin,
    RunStdout,
    SpawnStderr,
    SpawnStdio,
    StartStdin,
    Warm,
    hide_unknown,
)
from spawnfd._spawnfd import Limiter, Result, Sandbox
from spawnfd._start import Starting
from spawnfd._types import Arg, Args, Cwd, Input, Keep, Limits, NotPickled, Spill

if TYPE_CHECKING:
    from typing_extensions import Unpack


class StartMethods(NotPickled):
    """The functions that start a program, as methods of a TemplateCache or a Warm."""

    __slots__ = ()
    # The native object.
    _core: Any

    def run(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: RunStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """Runs a program like spawnfd.run(), through this cache or Warm."""
        return _spawnfd.run(self._core, argv, locals())

    async def run_async(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: RunStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """The awaitable form of run(); it does nothing until it is awaited."""
        return await complete(self._core, argv, locals())

    def start(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: StartStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        window: int = 1 << 20,
        hold: bool = False,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Starting:
        """Starts a job through this cache or Warm: start() when awaited, start_sync() at once."""
        return Starting(Job._start(self._core, argv, locals()))

    def start_sync(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: StartStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        window: int = 1 << 20,
        hold: bool = False,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> SyncJob:
        """The blocking form of start()."""
        return SyncJob._start(self._core, argv, locals())

    def spawn(
        self,
        argv: Args,
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        stdin: SpawnStdio | None = "inherit",
        stdout: SpawnStdio | None = "inherit",
        stderr: SpawnStderr | None = "inherit",
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Child:
        """Starts a program like spawnfd.spawn(), through this cache or Warm."""
        return Child._spawn(self._core, argv, locals())


class TemplateMethods(NotPickled):
    """The functions that start a program, as methods of its Template."""

    __slots__ = ()
    # The native object.
    _core: Any

    def run(
        self,
        args: Args = (),
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: RunStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """Runs the program to its end, like spawnfd.run(); `args` does not include argv[0].

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.run().
        """
        return _spawnfd.run(self._core, args, locals())

    async def run_async(
        self,
        args: Args = (),
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: RunStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """The awaitable form of run(); it does nothing until it is awaited."""
        return await complete(self._core, args, locals())

    def start(
        self,
        args: Args = (),
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: StartStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        window: int = 1 << 20,
        hold: bool = False,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Starting:
        """Starts the program as a job: start() when awaited, start_sync() at once.

        `args` does not include argv[0]. See spawnfd.start().

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.start().
        """
        return Starting(Job._start(self._core, args, locals()))

    def start_sync(
        self,
        args: Args = (),
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        grace: float = 2.0,
        input: Input | None = None,
        stdin: StartStdin | None = "null",
        stdout: RunStdout | None = "capture",
        stderr: RunStderr | None = "separate",
        keep: Keep = (64_000, 64_000),
        marker: str | None = "[… {omitted} omitted …]",
        combined: bool = False,
        spill: Spill | None = None,
        output_limit: int | None = None,
        drain: float = 0.1,
        tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
        leftovers: Literal["kill", "adopt", "detach"] = "kill",
        limits: Limits | None = None,
        limiter: Limiter | None = None,
        window: int = 1 << 20,
        hold: bool = False,
        terminal: tuple[int, int] | None = None,
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> SyncJob:
        """The blocking form of start()."""
        return SyncJob._start(self._core, args, locals())

    start_sync.__doc__ = start.__doc__

    def spawn(
        self,
        args: Args = (),
        *,
        cwd: Cwd | None = None,
        env: Environment | None = None,
        stdin: SpawnStdio | None = "inherit",
        stdout: SpawnStdio | None = "inherit",
        stderr: SpawnStderr | None = "inherit",
        actions: Actions | None = None,
        arg0: Arg | None = None,
        sandbox: Sandbox | None = None,
        warm: Warm | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Child:
        """Starts the program, like spawnfd.spawn(); `args` does not include argv[0].

        Raises:
            StaleTemplate: The executable differs from the recorded one.
            SpawnError, TypeError, ValueError: In the same cases as spawnfd.spawn().
        """
        return Child._spawn(self._core, args, locals())

    """Counters of a TemplateCache.

    Attributes:
        hits: Templates found in the cache and used.
        misses: Templates created because the cache did not have them.
        renewed: Templates created again because they had become stale.
        evicted: Templates dropped because the cache was full or the file had been removed.
        entries: Templates in the cache now.
    """

    hits: int
    misses: int
    renewed: int
    evicted: int
    entries: int


for _class in (StartMethods, TemplateMethods):
    hide_unknown(_class.run, _class.run_async, _class.start, _class.start_sync, _class.spawn)
    _class.run_async.__doc__ = _class.run.__doc__
    _class.start_sync.__doc__ = _class.start.__doc__
