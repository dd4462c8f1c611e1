# SPDX-License-Identifier: MIT OR Apache-2.0
"""Start the same programs again and again: fast, supervised, with nothing leaked or lost.

    import spawnfd as sf

    result = sf.run(["rg", "-n", "TODO"], cwd=repo, timeout=30)
    result = await sf.run_async(["git", "status"], cwd=repo)

Exit codes, timeouts and cut output are results. Only a program that could not be started
(SpawnError, an OSError) or a wrong argument (TypeError, ValueError) is an exception,
unless `Result.check()` makes one.
"""

from spawnfd import actions
from spawnfd._child import Child, spawn
from spawnfd._errors import ExitError, SpawnError, StaleTemplate
from spawnfd._run import run, run_async
from spawnfd._spawnfd import Env, Result
from spawnfd._template import CacheStats, Template, TemplateCache
from spawnfd._types import sh

__all__ = [
    "CacheStats",
    "Child",
    "Env",
    "ExitError",
    "Result",
    "SpawnError",
    "StaleTemplate",
    "Template",
    "TemplateCache",
    "actions",
    "run",
    "run_async",
    "sh",
    "spawn",
]
