# SPDX-License-Identifier: MIT OR Apache-2.0
# scripts/generate writes this file.
"""The signatures of the functions that start programs.

No code calls these functions: `like()` shows their signatures for the functions of the package.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from spawnfd._options import (
    Actions,
    CommandStdin,
    Environment,
    RunStderr,
    RunStdin,
    RunStdout,
    SpawnStderr,
    SpawnStdio,
    StartStdin,
    Variables,
    Warm,
)
from spawnfd._spawnfd import Limiter, Sandbox
from spawnfd._types import Arg, Args, Cwd, Input, Keep, Limits, Spill


class ProgramOptions(TypedDict, total=False):
    """The keyword arguments of spawn(), without the streams."""

    cwd: Cwd | None
    env: Environment | None
    actions: Actions | None
    arg0: Arg | None
    sandbox: Sandbox | None
    warm: Warm | None


class CapturedOptions(TypedDict, total=False):
    """The keyword arguments of all runs."""

    timeout: float | None
    grace: float
    drain: float
    limiter: Limiter | None
    idle_timeout: float | None
    input: Input | None
    keep: Keep
    marker: str | None
    combined: bool
    spill: Spill | None
    output_limit: int | None


class SupervisedOptions(CapturedOptions, total=False):
    """The keyword arguments of run() and start(), without the program's."""

    stdout: RunStdout | None
    stderr: RunStderr | None
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None
    leftovers: Literal["kill", "adopt", "detach"]
    terminal: tuple[int, int] | None
    limits: Limits | None


class SpawnOptions(ProgramOptions, total=False):
    """The keyword arguments of spawn()."""

    stdin: SpawnStdio | None
    stdout: SpawnStdio | None
    stderr: SpawnStderr | None


class RunOptions(ProgramOptions, SupervisedOptions, total=False):
    """The keyword arguments of run(), for wrappers: `**options: Unpack[RunOptions]`."""

    stdin: RunStdin | None


class StartOptions(ProgramOptions, SupervisedOptions, total=False):
    """The keyword arguments of start()."""

    stdin: StartStdin | None
    window: int
    hold: bool


class CommonCommandOptions(CapturedOptions, total=False):
    """The keyword arguments of a session's commands, without stdin."""

    cwd: Arg | None
    env: Variables | None
    window: int


class CommandOptions(CommonCommandOptions, total=False):
    """The keyword arguments of run() and start() of a session."""

    stdin: CommandStdin | None


class SideOptions(SupervisedOptions, total=False):
    """The keyword arguments of side_command() of a session."""

    stdin: RunStdin | None


def run(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    stdin: RunStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limiter: Limiter | None = None,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    terminal: tuple[int, int] | None = None,
    limits: Limits | None = None,
) -> None: ...


def start(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    stdin: StartStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limiter: Limiter | None = None,
    window: int = 1 << 20,
    hold: bool = False,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    terminal: tuple[int, int] | None = None,
    limits: Limits | None = None,
) -> None: ...


def spawn(
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
) -> None: ...


def template_run(
    args: Args = (),
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    stdin: RunStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limiter: Limiter | None = None,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    terminal: tuple[int, int] | None = None,
    limits: Limits | None = None,
) -> None: ...


def template_start(
    args: Args = (),
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    stdin: StartStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limiter: Limiter | None = None,
    window: int = 1 << 20,
    hold: bool = False,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    terminal: tuple[int, int] | None = None,
    limits: Limits | None = None,
) -> None: ...


def template_spawn(
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
) -> None: ...


def command_run(
    command: Arg,
    *,
    yield_after: float | None = None,
    cwd: Arg | None = None,
    env: Variables | None = None,
    stdin: CommandStdin | None = "null",
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    limiter: Limiter | None = None,
    window: int = 1 << 20,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
) -> None: ...


def command_start(
    command: Arg,
    *,
    hold: bool = False,
    cwd: Arg | None = None,
    env: Variables | None = None,
    stdin: CommandStdin | None = "null",
    timeout: float | None = None,
    grace: float = 2.0,
    drain: float = 0.1,
    limiter: Limiter | None = None,
    window: int = 1 << 20,
    idle_timeout: float | None = None,
    input: Input | None = None,
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
) -> None: ...


def session(
    program: Any = "bash",
    args: Args = (),
    *,
    warm: Warm | None = None,
    cwd: Arg | None = None,
    env: Environment | None = None,
    stderr: Literal["separate", "merge"] | int | None = "separate",
    login: bool = False,
    restart: bool = False,
    queue: bool | None = None,
    terminal: tuple[int, int] | None = None,
    echo: bool = False,
    startup_timeout: float | None = 30.0,
    sandbox: Sandbox | None = None,
    grace: float = 2.0,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    limits: Limits | None = None,
    limiter: Limiter | None = None,
) -> None: ...
