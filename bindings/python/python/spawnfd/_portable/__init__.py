# SPDX-License-Identifier: MIT OR Apache-2.0
"""The portable engine: what spawnfd._spawnfd has, in pure Python over the platform's subprocess.

The other modules of the package use this one in place of the native part, so arguments, events,
waits and cancellation are the same code for both. docs/portable.md lists the differences.
"""

from __future__ import annotations

from spawnfd._portable.engine import end_idle_threads
from spawnfd._portable.env import Env, restore_env
from spawnfd._portable.events import Chunk, Event, restore_chunk, restore_event
from spawnfd._portable.job import ActiveRun, Job, Watcher, begin, run
from spawnfd._portable.limiter import Limiter, PermitRequest
from spawnfd._portable.missing import (
    Child,
    CommandText,
    PopenChild,
    Question,
    Remote,
    RemoteSession,
    RemoteShellStart,
    RemoteStart,
    Sandbox,
    Session,
    ShellStart,
    Snapshot,
    SnapshotCache,
    Template,
    TemplateCache,
    Warm,
    explain,
    pidfd_calls_are_killed,
    popen,
    printed_actions,
    serve,
    snapshot,
)
from spawnfd._portable.result import Result, restore
from spawnfd._portable.version import VERSION as __version__
from spawnfd._portable.wakeups import Queue, Wakeup

# A pickle of a value can be read with either engine, except that of a Result.
for _function in (restore, restore_chunk, restore_env, restore_event):
    _function.__module__ = "spawnfd._spawnfd"

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
]
