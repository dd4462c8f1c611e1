# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions, and the conversion of the core's errors to exceptions."""

from __future__ import annotations

import errno as numbers
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spawnfd._spawnfd import Result

# errno.errorcode has one name per number. For two numbers the man pages use the other name.
_NAMES = {**numbers.errorcode, numbers.EOPNOTSUPP: "EOPNOTSUPP", numbers.EDEADLK: "EDEADLK"}


class SpawnError(OSError):
    """A program could not be found, started, supervised or waited for.

    A failed start leaves no process. If the errno has a builtin exception class, the error is an
    instance of that class, too: FileNotFoundError for ENOENT, PermissionError for EACCES and EPERM.
    An argument that the core rejects (EINVAL) raises a SpawnError that is a ValueError.

    The message says what failed, followed by the stage, the system call and the errno:
    `rg: not found in PATH [template: search("rg", PATH="/usr/bin") = -1 ENOENT]`.

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
        message: One sentence that says what happened. str() adds stage, call and errno.
    """

    stage: str = ""
    action: int | None = None
    call: str = ""
    message: str = ""

    def __str__(self) -> str:
        if not self.call or self.errno is None:
            return super().__str__()
        where = self.stage if self.action is None else f"{self.stage} {self.action}"
        name = _NAMES.get(self.errno, str(self.errno))
        subject = ""
        if self.action is not None:
            subject = f"actions[{self.action}]: "
        elif self.stage in ("stdin", "stdout", "stderr", "cwd") and self.filename is None:
            subject = f"{self.stage}: "
        what = self.message or self.strerror
        return f"{subject}{what} [{where}: {self.call} = -1 {name}]"


class StaleTemplate(SpawnError):
    """The executable differs from the one that the template recorded (ESTALE).

    Create a new template.
    """


class Unsupported(SpawnError):
    """The portable engine does not provide a function, a class, or the value of an option.

    See spawnfd.portable. The errno is EOPNOTSUPP.

    Attributes:
        what: The name of the missing function, class or option.
        why: The reason.
    """

    def __init__(self, what: str, why: str) -> None:
        message = f"{what}: not available in portable mode: {why}"
        super().__init__(numbers.EOPNOTSUPP, message)
        self.what, self.why = what, why
        self.stage, self.message = "validate", message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[Unsupported], tuple[str, str]]:
        return type(self), (self.what, self.why)


class PortableWarning(UserWarning):
    """The package runs without its native part, which is for development; see spawnfd.portable."""


class ExitError(Exception):
    """A run did not end by itself with exit code 0; Result.check() raises this.

    The message has the argv, the exit status or signal, a timeout or exceeded limit, and the last
    lines of standard error (at most 10 lines and 2 KiB). If bytes are omitted between these lines,
    the marker line stands there. If the run merged standard error into standard output, the message
    has the last lines of the merged output.

    Attributes:
        result: The run's Result.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return self.result._exit_message()


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
    message: str,
) -> SpawnError:
    """Returns the exception for an error of the core; `reason` replaces the text of strerror(3)."""
    refused = stage in ("validate", "action", "template", "wait") and errno == numbers.EINVAL
    cls = SpawnValueError if refused else _CLASSES.get(errno, SpawnError)
    error = cls(errno, reason or os.strerror(errno), filename)
    error.stage = stage
    error.action = action
    error.call = call
    error.message = message
    return error
