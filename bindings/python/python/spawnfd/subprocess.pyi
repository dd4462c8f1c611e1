# SPDX-License-Identifier: MIT OR Apache-2.0
# At run time Popen is a subclass. Its stub would have to repeat all overloads for str and bytes.
from subprocess import (
    DEVNULL,
    PIPE,
    STDOUT,
    CalledProcessError,
    CompletedProcess,
    Popen,
    SubprocessError,
    TimeoutExpired,
    call,
    check_call,
    check_output,
    getoutput,
    getstatusoutput,
    run,
)

from spawnfd._popen import Stats, stats

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "CalledProcessError",
    "CompletedProcess",
    "Popen",
    "Stats",
    "SubprocessError",
    "TimeoutExpired",
    "call",
    "check_call",
    "check_output",
    "getoutput",
    "getstatusoutput",
    "run",
    "stats",
]
