# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions, and the conversion of the core's errors to exceptions."""

from __future__ import annotations

import codecs
import errno as numbers
import os
import signal as signals
from typing import Literal

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
        result = self.result
        _, merged = result._reported
        name = "output" if merged else "stderr"
        lines, is_cut = _last_lines(result, "stdout" if merged else "stderr")
        text = f"{_argv(result)} {_end(result)}"
        if not lines:
            return text
        if is_cut:
            name = f"last lines of {name}"
        return "\n".join(
            [f"{text}; {name}:", *lines] if lines[1:] else [f"{text}; {name}: {lines[0]}"]
        )


# Bounds of ExitError's message.
_MAX_LINES = 10
_MAX_BYTES = 2048
_MAX_ARGV = 500

# The bytes that continue a UTF-8 character.
_CONTINUATION = bytes(range(0x80, 0xC0))


def _argv(result: Result) -> str:
    text = repr(result.args)
    return text if len(text) <= _MAX_ARGV else f"{text[:_MAX_ARGV]}...]"


def _end(result: Result) -> str:
    """Returns a phrase that says how an unsuccessful run ended."""
    reason, _ = result._reported
    if result.code is not None:
        status = f"exited with status {result.code}"
    elif result.signal is not None:
        status = f"was killed by {_signal_name(result.signal)}"
    elif result.status_lost:
        return reason or f"ended, and the status is lost: {_why_lost(result)}"
    elif result.leftovers:
        program = result.leftovers[0]
        why = "not permitted" if program.fate == "not_permitted" else "SIGKILL had no effect"
        status = f"could not be killed ({why}) and still runs as process {program.pid}"
        return f"{reason}, {status}" if reason else status
    else:
        return reason or "ended with an unknown status"
    return f"{reason} and {status}" if reason else status


def _why_lost(result: Result) -> str:
    if result.started != "session":
        return "other code reaped the program, or SIGCHLD is ignored"
    code = result.shell_code
    if code is not None:
        how = f"exited with status {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        return f"the session's shell {how}"
    if result.shell_exited:
        return "the session's shell exited"
    return "the session's shell has not proved that it ran the command to its end"


def _last_lines(result: Result, stream: Literal["stdout", "stderr"]) -> tuple[list[str], bool]:
    """Returns the last lines of a stream, and whether the program wrote more lines to it."""
    output: bytes = getattr(result, stream)
    head: bytes = getattr(result, f"{stream}_head")
    tail: bytes = getattr(result, f"{stream}_tail")
    marker = output[len(head) : len(output) - len(tail)].decode().strip("\n")
    omitted = result.omitted[stream].bytes > 0
    if omitted:
        # Drop the parts of a character that the omission splits.
        head = head[: codecs.utf_8_decode(head, "replace", False)[1]]
        tail = tail.lstrip(_CONTINUATION)
    lines, is_cut = _lines_of(tail, _MAX_LINES, _MAX_BYTES)
    if is_cut:
        return lines, True
    before, is_cut = _lines_of(head, _MAX_LINES - len(lines), _MAX_BYTES - len(tail.rstrip()))
    return [*before, *([marker] if before and marker else []), *lines], is_cut or omitted


def _lines_of(output: bytes, max_lines: int, max_bytes: int) -> tuple[list[str], bool]:
    """Returns the last lines of the bytes, and whether there are more lines."""
    output = output.rstrip()
    start = max(0, len(output) - max_bytes)
    before, tail = output[:start], output[start:]
    prefix = ""
    if before and not before.endswith(b"\n"):
        # The first line is incomplete: drop it, unless it is the only one.
        _, newline, rest = tail.partition(b"\n")
        if newline:
            tail = rest
        else:
            # The cut may have split a UTF-8 character: drop its continuation bytes.
            tail, prefix = tail.lstrip(_CONTINUATION), "..."
    # A progress bar overwrites its line by carriage returns: keep the last text of such a line.
    lines = [
        line.rstrip("\r").rpartition("\r")[2]
        for line in (prefix + tail.decode(errors="replace")).split("\n")
    ]
    is_cut = bool(before) or len(lines) > max_lines
    return (lines[max(0, len(lines) - max_lines) :] if tail else []), is_cut


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
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
