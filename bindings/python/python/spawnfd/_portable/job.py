# SPDX-License-Identifier: MIT OR Apache-2.0
"""The engine's side of run(), run_async(), start() and start_sync()."""

from __future__ import annotations

import signal as signals
import sys
from typing import Any, Literal

from spawnfd._portable.arguments import data as bytes_of
from spawnfd._portable.arguments import integer, seconds, signed, word
from spawnfd._portable.events import Chunk, Event, EventQueue
from spawnfd._portable.limiter import PermitRequest
from spawnfd._portable.missing import refuse_program
from spawnfd._portable.options import Options
from spawnfd._portable.program import Command
from spawnfd._portable.result import Result
from spawnfd._portable.run_state import RunState
from spawnfd._portable.wakeups import LOCK, Queue, Wakeup
from spawnfd._portable.warning import warn_once


def _prepare(
    program: object,
    args: Any,
    given: dict[str, Any],
    permit: PermitRequest | None,
    call: Literal["run", "start"],
) -> RunState:
    """Checks the arguments of a call, and returns a run that has not started."""
    # Take the permit out of the request first, so that an error returns it to the limiter at once.
    held = None if permit is None else permit.take()
    try:
        refuse_program(program)
        options = Options(given, call)
        command = Command(args, options)
        warn_once()
        options.permit = held
        return RunState(command, options, call == "start")
    except BaseException:
        # The traceback refers to the permit.
        if held is not None:
            held.release()
        raise


class ActiveRun:
    """A run without a job. Dropping it ends the program."""

    __slots__ = ("_run", "done", "grace")

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.done = run.done
        grace = run.options.grace
        self.grace = float("inf") if grace is None else grace

    def result(self) -> Result | None:
        return self._run.result()

    def cancel(self) -> None:
        """Ends the program and its group, if it still runs."""
        self._run.end(None)

    def __del__(self) -> None:
        # An exception may have interrupted __init__().
        run = getattr(self, "_run", None)
        if run is not None and run.is_unfinished() and not sys.is_finalizing():
            run.end(None)


def begin(
    program: object,
    args: Any,
    options: dict[str, Any],
    permit: PermitRequest | None,
    queue: Queue | None,
    started: list[ActiveRun],
) -> None:
    """Starts a program. Appends the run to `started` before, so that an exception finds it."""
    run = _prepare(program, args, options, permit, "run")
    started.append(ActiveRun(run))
    run.start()


def run(program: object, args: Any, options: dict[str, Any]) -> Result:
    """Runs a program to its end, and waits in the calling thread."""
    from spawnfd import _loop

    complete: Any = _loop.complete_sync
    result: Result = complete(program, args, options)
    return result


class Job:
    """The handle of a supervised run. Dropping it ends the program, unless it is detached."""

    __slots__ = ("__weakref__", "_events", "_run", "arrived", "done", "readable", "writable")

    def __init__(self, run: RunState, events: EventQueue) -> None:
        self._run, self._events = run, events
        self.done, self.writable, self.arrived = run.done, run.writable, run.arrived
        self.readable: Wakeup = events.readable

    @staticmethod
    def start(
        program: object,
        args: Any,
        options: dict[str, Any],
        permit: PermitRequest | None,
        queue: Queue | None,
        started: list[Job],
    ) -> None:
        """Starts a program. Appends the job to `started` before, as begin() does.

        `queue`: the task of this event loop that starts the job counts as a reader of events().
        """
        if queue is not None:
            options = {**options, "hold": True} if options.get("hold") in (None, False) else options
        run = _prepare(program, args, options, permit, "start")
        assert run.events is not None
        started.append(Job(run, run.events))
        run.start()

    @property
    def pid(self) -> int:
        return self._run.pid

    @property
    def grace(self) -> float:
        grace = self._run.options.grace
        return float("inf") if grace is None else grace

    @property
    def detached(self) -> bool:
        return self._run.detached

    @property
    def args(self) -> list[str]:
        return list(self._run.command.args)

    @property
    def has_terminal(self) -> Literal[False]:
        return False

    def result(self) -> Result | None:
        return self._run.result()

    def read(self, since: Any) -> Chunk:
        since = integer(since, "since")
        with LOCK:
            return Chunk(*self._run.record.read(since))

    def output_has_ended(self) -> bool:
        return self._run.record.closed

    def idle(self) -> float:
        return self._run.idle()

    def write(self, data: Any) -> int | None:
        given = bytes_of(data, "data")
        if not self._run.is_writable:
            raise ValueError(
                'write(): the program\'s input is not writable: start it with stdin="stream"'
            )
        return self._run.write(given) or (None if given else 0)

    def close_stdin(self) -> None:
        self._run.close_input()

    def stop(self, grace: Any) -> None:
        if grace is None:
            self._run.end(self._run.options.grace)
        else:
            self._run.end(seconds(grace, "grace"))

    def cancel(self) -> None:
        self._run.end(self._run.options.grace)

    def signal(self, signal: Any, tree: bool) -> None:
        number = signed(signal, "signal")
        if number not in {0, *signals.valid_signals()}:
            raise ValueError(f"signal: {number} is not a signal number")
        self._run.signal(number, tree)

    def resize(self, rows: Any, columns: Any) -> None:
        integer(rows, "rows", 0xFFFF)
        integer(columns, "columns", 0xFFFF)
        raise ValueError("resize(): the job was not started with a terminal")

    def detach(self) -> None:
        self._run.detached = True

    def event(self) -> Event | Literal[False] | None:
        with LOCK:
            return False if self._run.is_forked_copy() else self._events.next()

    def has_event(self) -> Literal[True] | None:
        with LOCK:
            return True if self._run.is_forked_copy() or self._events.has_next() else None

    def has_open_line(self) -> bool:
        with LOCK:
            return self._events.has_open_line()

    def flush_lines(self) -> None:
        with LOCK:
            self._events.flush_lines()

    def watch(self, max: Any, until: Any) -> Watcher:
        most = None if max is None else integer(max, "max_line")
        ends = "closed" if until is None else word(until, "until", ("result", "closed"))
        return Watcher(self, self._events, most, ends)

    def release_hold(self) -> None:
        with LOCK:
            self._events.release_hold()

    def __del__(self) -> None:
        # An exception may have interrupted __init__().
        run = getattr(self, "_run", None)
        is_ended = run is None or run.detached or not run.is_unfinished()
        # The engine has ended all programs before the interpreter is finalized.
        if run is not None and not is_ended and not sys.is_finalizing():
            run.end(run.options.grace)


class Watcher:
    """A reader of a job's events. While one exists, the program blocks when they are pending."""

    __slots__ = ("_events", "_job")

    def __init__(self, job: Job, events: EventQueue, max_line: int | None, until: Any) -> None:
        self._job = job
        with LOCK:
            # Set last, so that __del__() undoes exactly this call.
            events.watch(max_line, until)
            self._events = events

    def begin_reading(self) -> list[int | None]:
        # The engine's thread always reads.
        return [None, None]

    def read(self, stream: int) -> Literal["watch", "full", "end"]:
        return "end"

    def is_own(self, stream: int) -> bool:
        return False

    def end_reading(self) -> None:
        pass

    def __del__(self) -> None:
        events = getattr(self, "_events", None)
        if events is not None and not sys.is_finalizing():
            with LOCK:
                events.unwatch()
