# SPDX-License-Identifier: MIT OR Apache-2.0
"""Start the same programs again and again: fast, supervised, with nothing leaked or lost.

    import spawnfd as sf

    result = sf.run(["rg", "-n", "TODO"], cwd=repo, timeout=30)
    result = await sf.run_async(["git", "status"], cwd=repo)
    async with sf.start(["npm", "test"], cwd=repo) as job:
        async for event in job.events(lines=True): ...
    async with sf.Session("bash", cwd=repo) as session:
        await session.run("cd src && export X=1")  # the shell keeps its state

The main functions and classes; help() describes each:

    run, run_async      run a program to its end; returns a Result
    start, start_sync   start a program as a Job (SyncJob): stream, write, wait, stop
    Session             a shell that keeps its state; SyncSession for threads
    sh                  the argv of a shell command line
    Env                 an environment: inherited, denied and set variables
    Limits, Limiter     limits of a program's resources, and of concurrent runs
    Warm                programs that are started ahead
    Remote              programs on another machine, or in a container
    Sandbox, actions    a confining command, and steps of the child before exec
    spawn, Template     a program without supervision, and one that is searched once
    subprocess, asyncio, install   for programs that should not change

Exit codes, timeouts and truncated output are results, not exceptions. A call raises SpawnError
(an OSError) if the program cannot be started, and TypeError or ValueError for an invalid
argument. `Result.check()` raises ExitError for a result that is not ok.
"""

from typing import TYPE_CHECKING, Any

# Chooses the engine, so it comes before all other modules.
from spawnfd._select import PORTABLE as portable  # isort: skip

from spawnfd._child import Child, spawn
from spawnfd._errors import (
    ExitError,
    PortableWarning,
    SpawnError,
    StaleTemplate,
    Unsupported,
)
from spawnfd._job import Job, SyncJob
from spawnfd._options import Environment
from spawnfd._run import run, run_async
from spawnfd._search import OutputMatch
from spawnfd._session import Session, SyncSession
from spawnfd._signatures import (
    CommandOptions,
    RunOptions,
    SideOptions,
    SpawnOptions,
    StartOptions,
)
from spawnfd._snapshot import SnapshotCache, SnapshotStats, snapshot
from spawnfd._spawnfd import (
    Chunk,
    Env,
    Event,
    Limiter,
    Result,
    Sandbox,
    Snapshot,
    __version__,
)
from spawnfd._start import start, start_sync
from spawnfd._template import CacheStats, Template, TemplateCache
from spawnfd._types import (
    Args,
    Input,
    Leftover,
    Limits,
    Omitted,
    OutputPiece,
    SessionProcess,
    Spill,
    Spilled,
    sh,
)
from spawnfd._warm import Warm, WarmExplanation, WarmStats

if TYPE_CHECKING:
    from spawnfd import actions, asyncio, subprocess
    from spawnfd._install import install, uninstall
    from spawnfd._popen import Stats, stats
    from spawnfd._remote import Remote, RemoteSession, SyncRemoteSession

__all__ = [
    "Args",
    "CacheStats",
    "Child",
    "Chunk",
    "CommandOptions",
    "Env",
    "Environment",
    "Event",
    "ExitError",
    "Input",
    "Job",
    "Leftover",
    "Limiter",
    "Limits",
    "Omitted",
    "OutputMatch",
    "OutputPiece",
    "PortableWarning",
    "Remote",
    "RemoteSession",
    "Result",
    "RunOptions",
    "Sandbox",
    "Session",
    "SessionProcess",
    "SideOptions",
    "Snapshot",
    "SnapshotCache",
    "SnapshotStats",
    "SpawnError",
    "SpawnOptions",
    "Spill",
    "Spilled",
    "StaleTemplate",
    "StartOptions",
    "Stats",
    "SyncJob",
    "SyncRemoteSession",
    "SyncSession",
    "Template",
    "TemplateCache",
    "Unsupported",
    "Warm",
    "WarmExplanation",
    "WarmStats",
    "__version__",
    "actions",
    "asyncio",
    "install",
    "portable",
    "run",
    "run_async",
    "sh",
    "snapshot",
    "spawn",
    "start",
    "start_sync",
    "stats",
    "subprocess",
    "uninstall",
]

# Names that are imported on first use: their modules import asyncio, subprocess or dataclasses.
_LAZY = {
    "Remote": "_remote",
    "RemoteSession": "_remote",
    "Stats": "_popen",
    "SyncRemoteSession": "_remote",
    "actions": "actions",
    "asyncio": "asyncio",
    "install": "_install",
    "stats": "_popen",
    "subprocess": "subprocess",
    "uninstall": "_install",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_LAZY[name]}")
    value = module if _LAZY[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
