# SPDX-License-Identifier: MIT OR Apache-2.0
"""The connection of a job's terminal with the terminal of this process."""

from __future__ import annotations

import os
import select
import threading

from spawnfd import _spawnfd
from spawnfd._loop import wait_until, wait_until_sync
from spawnfd._spawnfd import Result

# Seconds between two checks of the terminal's size, and of a cancellation.
_CHECK_S = 0.1
_READ_SIZE = 4096


def interact(
    core: _spawnfd.Job,
    stdin: int,
    stdout: int,
    escape: bytes,
    stop: threading.Event | None = None,
) -> Result | None:
    """Passes input and output between two terminals until the job's end, `escape`, or `stop`."""
    if not core.has_terminal:
        raise ValueError("interact(): the job was not started with a terminal")
    if not os.isatty(stdin):
        raise ValueError(f"interact(): stdin: descriptor {stdin} is not a terminal")
    if len(escape) > 1:
        raise ValueError("interact(): escape: expected one byte")
    # Windows has no such modules, and no job with a terminal.
    import termios
    import tty

    before = termios.tcgetattr(stdin)
    watcher = core.watch(None, None)
    try:
        tty.setraw(stdin, termios.TCSADRAIN)
        if not _pass_on(core, stdin, stdout, escape, stop):
            return None
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        del watcher
    return wait_until_sync(core.result, core.done)


def _pass_on(
    core: _spawnfd.Job, stdin: int, stdout: int, escape: bytes, stop: threading.Event | None
) -> bool:
    """Returns True at the end of the output, False at the escape character or `stop`."""
    queue, size = _spawnfd.Queue(False), None
    pending, is_open = b"", True
    while stop is None or not stop.is_set():
        if size != (size := os.get_terminal_size(stdin)):
            core.resize(size.lines, size.columns)
        for wakeup in (core.readable, core.writable):
            wakeup.listen(queue, 0)
        try:
            while event := core.event():
                _write(stdout, event.bytes)
            if event is False:
                return True
            if pending:
                pending = pending[core.write(pending) or 0 :]
            reads = [stdin] if is_open and not pending else []
            if stdin in select.select([queue.fileno(), *reads], [], [], _CHECK_S)[0]:
                typed = os.read(stdin, _READ_SIZE)
                is_open = typed != b""
                before, escaped, _ = typed.partition(escape) if escape else (typed, b"", b"")
                pending = before
                if escaped:
                    core.write(pending)
                    return False
            queue.drain({})
        except BrokenPipeError:
            # The program no longer reads, and is about to end.
            pending, is_open = b"", False
        finally:
            for wakeup in (core.readable, core.writable):
                wakeup.unlisten(queue, 0)
    return False


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


async def interact_async(
    core: _spawnfd.Job, stdin: int, stdout: int, escape: bytes
) -> Result | None:
    """The awaitable form of interact()."""
    stop = threading.Event()
    outcome: list[Result | BaseException | None] = []
    # At its end the thread raises the limit, which wakes the task that waits for a permit.
    limiter = _spawnfd.Limiter(0)
    ended = _spawnfd.PermitRequest(limiter)

    def work() -> None:
        try:
            outcome.append(interact(core, stdin, stdout, escape, stop))
        except BaseException as error:
            outcome.append(error)
        limiter.limit = 1

    thread = threading.Thread(target=work, name="spawnfd-interact", daemon=True)
    thread.start()
    try:
        await wait_until(ended.is_granted, ended.ready)
    except BaseException:
        # The thread restores the terminal before the call ends.
        stop.set()
        thread.join()
        raise
    [result] = outcome
    if isinstance(result, BaseException):
        raise result
    return result
