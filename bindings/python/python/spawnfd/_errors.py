# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions, and the conversion of the core's errors to exceptions."""

from __future__ import annotations

import errno as numbers
import os
import signal as signals

from spawnfd._spawnfd import Result

# Two names share each of these numbers. These are the names that the man pages use.
_NAMES = {**numbers.errorcode, numbers.EOPNOTSUPP: "EOPNOTSUPP", numbers.EDEADLK: "EDEADLK"}


class SpawnError(OSError):
    """A program could not be found, started, watched or waited for.

    A failed start leaves no process. Where the errno has a builtin exception class, the error is
    an instance of that class, too: FileNotFoundError for ENOENT, PermissionError for EACCES and
    EPERM. An argument that the core rejects (EINVAL) raises a SpawnError that is a ValueError.

    Attributes:
        errno: The error number.
        strerror: The error in words.
        filename: The program, the directory or the action's path that the error concerns, or None.
        stage: The step that failed: "warm", "validate", "template", "revalidate", "credentials",
            "clone", "descriptors", "stdin", "stdout", "stderr", "cwd", "action", "signals",
            "filter", "exec", "killed", "wait", "capture", "snapshot", "tree" or "limit".
            "killed" (ECANCELED): a signal from outside ended the child before exec; `call` names
            the signal if it is known. If a seccomp filter killed the child (SIGSYS), errno is
            ECANCELED and the stage is the step that the child was in.
        action: The index of the failed action in the caller's list, or None.
        call: The system call that failed, with its arguments.
    """

    stage: str = ""
    action: int | None = None
    call: str = ""

    def __str__(self) -> str:
        if not self.call or self.errno is None:
            return super().__str__()
        where = self.stage if self.action is None else f"{self.stage} {self.action}"
        name = _NAMES.get(self.errno, str(self.errno))
        return f"{where}: {self.call} = -1 {name} ({self.strerror})"


class StaleTemplate(SpawnError):
    """The executable differs from the one that the template recorded (ESTALE).

    Create a new template.
    """


class ExitError(Exception):
    """A run did not end by itself with exit code 0; Result.check() raises this.

    Attributes:
        result: The run's Result.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        result = self.result
        program = result.args[0] if result.args else "program"
        unended = result.code is None and result.signal is None and not result.status_lost
        if unended and result.leftovers:
            left = result.leftovers[0]
            why = "not permitted" if left.fate == "not_permitted" else "SIGKILL had no effect"
            text = f"{program} could not be killed ({why}) and still runs as process {left.pid}"
        elif result.stop == "timeout":
            text = f"{program} was ended after {result.wall:.3f} s"
        elif result.stop == "cancelled":
            text = f"{program} was cancelled"
        elif result.stop == "output_limit":
            text = f"{program} was ended as it had written too much"
        elif result.stop == "limit":
            text = f"{program} reached its limit of {result.limit}"
        elif result.code is not None:
            text = f"{program} exited with code {result.code}"
        elif result.status_lost:
            text = f"how {program} ended is not known: somebody else has taken its status"
        else:
            text = f"{program} was killed by {_signal_name(result.signal)}"
        last = result.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        return f"{text}: {last}" if last else text


def _signal_name(number: int | None) -> str:
    try:
        return signals.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


# Tracebacks show these class names, which include the builtin class.
class SpawnValueError(SpawnError, ValueError):
    pass


class SpawnFileNotFoundError(SpawnError, FileNotFoundError):
    pass


class SpawnPermissionError(SpawnError, PermissionError):
    pass


class SpawnNotADirectoryError(SpawnError, NotADirectoryError):
    pass


class SpawnChildProcessError(SpawnError, ChildProcessError):
    pass


class SpawnBlockingIOError(SpawnError, BlockingIOError):
    pass


class SpawnProcessLookupError(SpawnError, ProcessLookupError):
    pass


_CLASSES: dict[int, type[SpawnError]] = {
    numbers.ESTALE: StaleTemplate,
    numbers.ENOENT: SpawnFileNotFoundError,
    numbers.EACCES: SpawnPermissionError,
    numbers.EPERM: SpawnPermissionError,
    numbers.ENOTDIR: SpawnNotADirectoryError,
    numbers.ECHILD: SpawnChildProcessError,
    numbers.EAGAIN: SpawnBlockingIOError,
    numbers.ESRCH: SpawnProcessLookupError,
}
for _class in {SpawnValueError, *_CLASSES.values()} - {StaleTemplate}:
    _class.__doc__ = SpawnError.__doc__


def make_error(
    errno: int,
    reason: str | None,
    filename: str | None,
    stage: str,
    action: int | None,
    call: str,
) -> SpawnError:
    """Returns the exception for an error of the core; `reason` replaces the text of strerror(3)."""
    refused = stage in ("validate", "action", "template", "wait") and errno == numbers.EINVAL
    cls = SpawnValueError if refused else _CLASSES.get(errno, SpawnError)
    error = cls(errno, reason or os.strerror(errno), filename)
    error.stage = stage
    error.action = action
    error.call = call
    return error
