# SPDX-License-Identifier: MIT OR Apache-2.0
"""The state of one supervised run: it starts, reads output, and ends.

A thread of the caller starts the program, and the engine's thread does the rest.
"""

from __future__ import annotations

import _thread
import errno
import os
import selectors
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Literal

from spawnfd._errors import SpawnError, make_error
from spawnfd._portable import engine as engines
from spawnfd._portable import platforms
from spawnfd._portable.events import EventQueue
from spawnfd._portable.options import Options
from spawnfd._portable.program import Command
from spawnfd._portable.record import Record
from spawnfd._portable.result import Outcome, Result
from spawnfd._portable.wakeups import LOCK, Owned, Wakeup
from spawnfd._types import Leftover

if TYPE_CHECKING:
    import subprocess

# The first and the longest pause between two checks whether the program has ended, in seconds. The
# end of its output causes a check, too.
_POLL_PAUSES = 0.001, 0.05
# The same for processes that outlive the program.
_LEFTOVER_PAUSES = 0.001, 0.05
# Seconds between two checks for adopted processes.
_ADOPTED_CHECK_INTERVAL = 1.0
# Seconds between two SIGKILLs, and from the first one until the run ends without its program.
_KILL_INTERVAL, _KILL_TIMEOUT = 0.02, 1.0
_READ_SIZE = 64 << 10
# The number of reads or writes of one stream before the thread serves other runs.
_IN_A_ROW = 4
# How many bytes of input may wait for the program.
_WRITABLE = 64 << 10
# At least this many bytes may be pending for events().
_MIN_PENDING = 64 << 10

_End = Literal["timeout", "idle_timeout", "cancelled", "output_limit"]


class _Phase(Enum):
    STARTING = "the program does not run yet"
    RUNNING = "the program runs"
    ENDING = "the run has sent SIGTERM"
    KILLING = "the run has sent SIGKILL"
    DRAINING = "the program has ended, and the run reads its pipes"
    CUT = "the run has its result"


def _not_ours() -> SpawnError:
    message = (
        "a forked process cannot wait for this program: "
        "the program is a child of the original process"
    )
    call = "wait(), in a forked process"
    return make_error(errno.ECHILD, None, None, "wait", None, call, message)


def _not_started() -> SpawnError:
    message = "the run was ended before the program had started"
    return make_error(errno.ECANCELED, None, None, "clone", None, "start()", message)


def _no_thread(error: RuntimeError) -> SpawnError:
    message = f"the library cannot start a thread: {error}"
    return make_error(errno.EAGAIN, None, None, "clone", None, "pthread_create()", message)


class RunState(Owned):
    """A run, from before its program starts.

    Attributes:
        done: Fires when the result is available.
        writable: Fires when the input has space, or the program reads no more.
        arrived: Fires when output has arrived, and when the result is available.
        detached: Whether the program runs on when its handle is dropped.
        pid: The process id, once the program has started.
    """

    def __init__(self, command: Command, options: Options, is_job: bool) -> None:
        super().__init__()
        self.command, self.options = command, options
        self.done, self.writable, self.arrived = Wakeup(), Wakeup(), Wakeup()
        self.record = Record(options.keep, options.marker, options.combined, options.window)
        self.events: EventQueue | None = None
        if is_job:
            pending = max(options.window, _MIN_PENDING)
            self.events = EventQueue(pending, options.hold, self._resume_reading)
        leftovers = options.leftovers
        self._leftovers = "kill" if leftovers == "adopt" and not is_job else leftovers
        self.detached = False
        self.pid = 0
        self._permit = options.permit
        self._process: platforms.Process | None = None
        self._engine: engines.Engine | None = None
        self._outcome: Result | BaseException | None = None
        self._phase = _Phase.STARTING
        self._stop: Literal["exited"] | _End = "exited"
        # When the current phase ends; None: no time is set.
        self._phase_end: float | None = None
        self._give_up_at = self._begun = self._next_poll = self._next_check = 0.0
        self._poll_pause, self._check_pause = _POLL_PAUSES[0], _LEFTOVER_PAUSES[0]
        self._sigterm_sent = self._kill_refused = self._given_up = False
        self._cancelled_with: float | None = None
        self._is_cancelled = self._is_claimed = False
        # After the result, the run may read the output of adopted processes.
        self._adopted = False
        self._outputs: list[platforms.OutputPipe | None] = [None, None]
        self._paused_outputs: set[int] = set()
        self._input: platforms.InputPipe | None = None
        self._input_watched = self._input_closed = self._input_refused = False
        self._unwritten = bytearray(options.input or b"")
        self._writer_waits = False
        self._is_writable = options.stdin == "stream"

    # The start, in a thread of the caller.

    def start(self) -> None:
        """Starts the program, and returns once it has executed it.

        A thread of its own starts the program. It has the attributes of the calling thread, but no
        signal handler of Python runs in it, so an exception cannot separate the start of the
        program from its registration.
        """

        finished = _thread.allocate_lock()
        finished.acquire()

        def work() -> None:
            try:
                platforms.unblock_signals()
                if self._claim_start():
                    self._start()
            except BaseException as error:
                self._fail(error)
            finally:
                finished.release()

        # A Thread has weak references, whose callbacks lose the exception of a signal handler.
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError as error:
            self._fail(_no_thread(error))
        else:
            finished.acquire()
        if isinstance(self._outcome, BaseException):
            raise self._outcome

    def _claim_start(self) -> bool:
        """Returns True for the first caller, who starts the program, or ends the run without."""
        with LOCK:
            is_first, self._is_claimed = not self._is_claimed, True
        return is_first

    def _start(self) -> None:
        begun = time.monotonic()
        popen = self.command.popen(self.options, self._needs_input())
        try:
            self._register(popen, begun)
        except BaseException:
            popen.kill()
            # Closes the pipes, and reaps the program.
            popen.__exit__(None, None, None)
            raise

    def _register(self, popen: subprocess.Popen[bytes], begun: float) -> None:
        """Lets the engine drive the run from now on."""
        process = platforms.Process(popen)
        with LOCK:
            self._process, self.pid, self._begun = process, popen.pid, begun
            self.record.latest = begun
            for stream, pipe in enumerate((popen.stdout, popen.stderr)):
                if pipe is not None:
                    self._outputs[stream] = platforms.OutputPipe(pipe)
            if popen.stdin is not None:
                self._input = platforms.InputPipe(popen.stdin)
            # The input of a call ends after its bytes.
            self._input_closed = not self._is_writable
            self._phase = _Phase.RUNNING
            timeout = self.options.timeout
            self._phase_end = None if timeout is None else begun + timeout
            self._next_poll = time.monotonic() + self._poll_pause
            try:
                self._engine = engines.add(self)
            except RuntimeError as error:
                raise _no_thread(error) from None
            if self._is_cancelled:
                self._engine.call(lambda: self._end("cancelled", self._cancelled_with))

    def _needs_input(self) -> bool:
        return self._is_writable or self.options.input is not None

    def _fail(self, error: BaseException) -> None:
        """Ends a run that has no result."""
        with LOCK:
            self._phase, self._outcome = _Phase.CUT, error
            self.record.closed = True
            self._release_permit()
            if self.events is not None:
                self.events.end()
        self.done.fire()
        self.arrived.fire()

    def _release_permit(self) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.release()

    # Calls of the owner, in any thread.

    def result(self) -> Result | None:
        """Returns the result; None while the program runs.

        Raises:
            SpawnError: The program could not be started, or this is a forked process.
        """
        if self.is_forked_copy():
            raise _not_ours()
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def is_unfinished(self) -> bool:
        return self._outcome is None and not self.is_forked_copy()

    def idle(self) -> float:
        """Returns the seconds since the latest output, or since the start."""
        return max(0.0, time.monotonic() - self.record.latest)

    def end(self, grace: float | None) -> None:
        """Ends the program and its group as after a timeout."""
        if self.is_forked_copy():
            return
        with LOCK:
            self._cancelled_with, self._is_cancelled = grace, True
            if self._engine is not None:
                self._engine.call(lambda: self._end("cancelled", grace))
        if self._claim_start():
            # An exception has interrupted start().
            self._fail(_not_started())

    def signal(self, number: int, group: bool) -> None:
        """Sends a signal to the program if it runs, or to its group."""
        with LOCK:
            process = self._process
            if self.is_forked_copy() or process is None or process.poll():
                return
            (process.signal_group if group else process.signal)(number)

    def write(self, data: bytes) -> int:
        """Takes input for the program. Returns how many bytes it took.

        Raises:
            BrokenPipeError: The program reads no more.
        """
        with LOCK:
            if self._input is None or self._input_closed or self.is_forked_copy():
                raise BrokenPipeError(errno.EPIPE, "the program no longer reads its input")
            taken = data[: max(0, _WRITABLE - len(self._unwritten))]
            self._unwritten += taken
            self._writer_waits = len(taken) < len(data)
            if taken and self._engine is not None:
                self._engine.call(self._write)
            return len(taken)

    @property
    def is_writable(self) -> bool:
        return self._is_writable

    def close_input(self) -> None:
        """Ends the program's input after the bytes that it has taken so far."""
        with LOCK:
            if self._is_writable and not self._input_closed and self._engine is not None:
                self._input_closed = True
                self._engine.call(self._write)
        self.writable.fire()

    def _resume_reading(self) -> None:
        if self._engine is not None:
            self._engine.call(self._read_paused)

    # All further methods run in the engine's thread, which holds LOCK.

    def begin(self, engine: engines.Engine) -> None:
        self._engine = engine
        for stream in (0, 1):
            self._watch_output(stream)
        self._write()

    def _watch_output(self, stream: int) -> None:
        output = self._outputs[stream]
        if output is not None and self._engine is not None:
            self._engine.watch(output, selectors.EVENT_READ, self._reader_of(stream))

    def _reader_of(self, stream: int) -> Callable[[], None]:
        return lambda: self._read(stream)

    def _awaits_program(self) -> bool:
        return self._process is not None and not self._process.ended and not self._given_up

    def _read(self, stream: int) -> None:
        """Reads some output, as far as the consumer of events accepts it."""
        for _ in range(_IN_A_ROW):
            if self.events is not None and not self.events.wants_more():
                output = self._outputs[stream]
                if output is not None and self._engine is not None:
                    # A file that is not read must not be watched either.
                    self._engine.unwatch(output)
                    self._paused_outputs.add(stream)
                return
            if not self._read_once(stream):
                return

    def _read_paused(self) -> None:
        """Reads again after the consumer of events has taken some."""
        paused, self._paused_outputs = self._paused_outputs, set()
        for stream in paused:
            self._watch_output(stream)

    def _read_once(self, stream: int) -> int:
        """Reads once, and records the bytes. Returns their number; 0: none for now, or the end."""
        output = self._outputs[stream]
        data = None if output is None else output.read(_READ_SIZE)
        if data is None:
            return 0
        if not data:
            self._close_output(stream)
            # Most programs end soon after they have closed their output.
            self._poll_pause = _POLL_PAUSES[0]
            self._next_poll = time.monotonic()
            return 0
        position = self.record.append(stream, data)
        if self.events is not None:
            self.events.push(stream, position, data)
        self.arrived.fire()
        limit = self.options.output_limit
        if limit is not None and self.record.seen > limit and self._phase is _Phase.RUNNING:
            self._end("output_limit", None)
        return len(data)

    def _read_left(self) -> None:
        """Reads the rest of the output, also if the consumer of events has not read earlier output.

        At most what a pipe holds is left. It would be lost when the pipe is closed.
        """
        for stream in (0, 1):
            left = 1 << 20
            while left > 0 and (length := self._read_once(stream)):
                left -= length

    def _close_output(self, stream: int) -> None:
        output, self._outputs[stream] = self._outputs[stream], None
        if output is not None:
            if self._engine is not None:
                self._engine.unwatch(output)
            output.close()
        if self._adopted and self._is_read():
            self._end_events()

    def _is_read(self) -> bool:
        return all(output is None for output in self._outputs)

    def _end_events(self) -> None:
        if self.events is not None:
            self.events.end()

    def _write(self) -> None:
        """Writes input, as much as the pipe takes now."""
        for _ in range(_IN_A_ROW):
            if self._input is None or not self._unwritten:
                break
            try:
                written = self._input.write(bytes(self._unwritten[:_READ_SIZE]))
            except OSError:
                # The program reads no more, which is not an error of the run.
                self._input_refused = True
                self._close_input_pipe()
                return
            if not written:
                break
            del self._unwritten[:written]
        if self._writer_waits and len(self._unwritten) <= _WRITABLE // 2:
            self._writer_waits = False
            self.writable.fire()
        if self._input_closed and not self._unwritten:
            self._close_input_pipe()
        self._watch_input()

    def _watch_input(self) -> None:
        wanted = self._input is not None and bool(self._unwritten)
        if wanted == self._input_watched or self._engine is None or self._input is None:
            return
        self._input_watched = wanted
        if wanted:
            self._engine.watch(self._input, selectors.EVENT_WRITE, self._write)
        else:
            self._engine.unwatch(self._input)

    def _close_input_pipe(self) -> None:
        pipe, self._input = self._input, None
        if pipe is not None:
            if self._engine is not None:
                self._engine.unwatch(pipe)
            self._input_watched = False
            pipe.close()
        self._unwritten.clear()
        self.writable.fire()

    def deadline(self) -> float | None:
        dues: list[float] = []
        if self._process is not None and not self._process.ended and self._may_reap():
            dues.append(self._next_poll)
        if self._phase in (_Phase.RUNNING, _Phase.ENDING, _Phase.KILLING, _Phase.DRAINING):
            if self._phase_end is not None:
                dues.append(self._phase_end)
            if self._phase is _Phase.RUNNING and (idle := self._idle_end()) is not None:
                dues.append(idle)
            if self._phase is _Phase.DRAINING and self._is_read():
                dues.append(self._next_check)
        elif self._adopted and self._next_check:
            dues.append(self._next_check)
        return min(dues, default=None)

    def _may_reap(self) -> bool:
        return not self.is_forked_copy()

    def _idle_end(self) -> float | None:
        idle = self.options.idle_timeout
        return None if idle is None else self.record.latest + idle

    def tick(self, now: float) -> None:
        """Does what is due: checks for the end of the program, and keeps the deadlines."""
        if self._process is not None and not self._process.ended and self._next_poll <= now:
            self._poll_pause = min(2 * self._poll_pause, _POLL_PAUSES[1])
            self._next_poll = now + self._poll_pause
            self._reap()
        end = self._phase_end
        is_due = end is not None and end <= now
        if self._phase is _Phase.RUNNING:
            idle = self._idle_end()
            if is_due:
                self._end("timeout", None)
            elif idle is not None and idle <= now:
                self._end("idle_timeout", None)
        elif self._phase is _Phase.KILLING and self._give_up_at <= now:
            self._give_up()
        elif self._phase in (_Phase.ENDING, _Phase.KILLING) and is_due:
            self._kill()
        elif self._phase is _Phase.DRAINING:
            self._drain(now, is_due)
        elif self._phase is _Phase.CUT and self._adopted and self._next_check <= now:
            left = self._process is not None and self._process.has_group()
            self._next_check = now + _ADOPTED_CHECK_INTERVAL if left else 0.0

    def _reap(self) -> bool:
        """Notes the end of the program. Returns whether it has ended."""
        process = self._process
        if process is None or not process.poll():
            return False
        if self._given_up or self._phase in (_Phase.DRAINING, _Phase.CUT):
            return True
        was_killed = process.status_lost or process.returncode == -platforms.KILL
        if self._phase is _Phase.KILLING and not (
            self._sigterm_sent or self._kill_refused or was_killed
        ):
            # The program exited by itself before SIGKILL took effect.
            self._stop = "exited"
        self._read_left()
        self._begin_draining(self.options.drain)
        return True

    def _begin_draining(self, drain: float | None) -> None:
        self._input_refused = self._input_refused or bool(self._unwritten)
        self._input_closed = True
        self._close_input_pipe()
        now = time.monotonic()
        self._phase = _Phase.DRAINING
        self._phase_end = None if drain is None else now + drain
        self._next_check = now

    def _drain(self, now: float, is_due: bool) -> None:
        if is_due:
            self._read_left()
            self._finish()
        elif self._is_read() and self._next_check <= now:
            # Processes that the run will kill may still end by themselves.
            process = self._process
            if self._leftovers == "kill" and process is not None and process.has_group():
                self._next_check = now + self._check_pause
                self._check_pause = min(2 * self._check_pause, _LEFTOVER_PAUSES[1])
            else:
                self._finish()

    def _end(self, stop: _End, grace: float | None) -> None:
        """Sends SIGTERM to the group, and SIGKILL after `grace` (None: the run's own)."""
        grace = self.options.grace if grace is None else grace
        if self._phase in (_Phase.DRAINING, _Phase.CUT) or self._reap():
            if self._phase is _Phase.DRAINING:
                # The caller does not wait for other processes any more.
                self._phase_end = time.monotonic()
            elif self._adopted:
                self._end_adopted()
            return
        if self._stop == "exited":
            self._stop = stop
        if grace == 0:
            self._kill()
            return
        killed = None if grace is None else time.monotonic() + grace
        if self._phase is _Phase.ENDING:
            # A second call can shorten the time until SIGKILL, but not extend it.
            ends = [end for end in (self._phase_end, killed) if end is not None]
            self._phase_end = min(ends, default=None)
        elif self._phase is _Phase.RUNNING and self._process is not None:
            self._phase, self._phase_end = _Phase.ENDING, killed
            self._sigterm_sent = True
            self._process.signal_group(platforms.TERM)
            self._poll_soon()

    def _poll_soon(self) -> None:
        self._poll_pause = _POLL_PAUSES[0]
        self._next_poll = time.monotonic() + self._poll_pause

    def _kill(self) -> None:
        if self._process is None:
            return
        self._kill_refused = not self._process.signal_group(platforms.KILL)
        now = time.monotonic()
        if self._phase is not _Phase.KILLING:
            self._phase, self._give_up_at = _Phase.KILLING, now + _KILL_TIMEOUT
            self._poll_soon()
        self._phase_end = min(self._give_up_at, now + _KILL_INTERVAL)

    def _give_up(self) -> None:
        """Ends the run without its program, which is reaped when it ends."""
        if not self._reap():
            self._given_up = True
            self._read_left()
            self._begin_draining(self.options.drain)

    def _end_adopted(self) -> None:
        if self._process is not None:
            self._process.signal_group(platforms.KILL)
        self._read_left()
        for stream in (0, 1):
            self._close_output(stream)
        self._end_events()
        self._adopted = False

    def is_over(self) -> bool:
        process = self._process
        if self._phase is not _Phase.CUT or process is None:
            return self._phase is _Phase.CUT
        waits_for_adopted = self._adopted and not (self._is_read() and not self._next_check)
        return process.ended and not waits_for_adopted

    def kill_at_exit(self) -> None:
        if self._process is not None and not self.detached:
            self._process.signal_group(platforms.KILL)

    def _take_leftovers(self, process: platforms.Process) -> tuple[list[Leftover], bool, str]:
        """Treats the processes that outlive the program.

        Returns them, whether the search for them failed, and how reading ended.
        """
        is_read = self._is_read()
        members = process.members()
        fates = {"kill": "killed", "adopt": "adopted", "detach": "detached"}
        fate = fates[self._leftovers]
        if self._leftovers == "kill" and not process.signal_group(platforms.KILL):
            fate = "not_permitted"
        found = members or []
        left = [Leftover(member.pid, member.name, fate) for member in found]  # type: ignore[arg-type]
        pids = " ".join(str(member.pid) for member in found)
        return left, members is None, "eof" if is_read else f"cut: {pids or '?'}"

    def _finish(self) -> None:
        """Makes the result."""
        process = self._process
        if process is None:
            return
        leftovers, is_unknown, drain = self._take_leftovers(process)
        if self._given_up:
            fate: Literal["not_permitted", "uninterruptible"]
            fate = "not_permitted" if self._kill_refused else "uninterruptible"
            name = os.path.basename(self.command.name)
            leftovers.insert(0, Leftover(process.pid, name, fate))
        status_lost = process.ended and process.status_lost
        stop = "lost" if status_lost and self._stop == "exited" else self._stop
        self._phase, self._phase_end = _Phase.CUT, None
        self._adopted = self._leftovers == "adopt"
        if self._adopted:
            self._next_check = time.monotonic() + _ADOPTED_CHECK_INTERVAL
        else:
            for stream in (0, 1):
                self._close_output(stream)
        if self.events is not None:
            self.events.mark_result()
        if self._is_read():
            self._end_events()
        kept = self.record.close()
        self._release_permit()
        bounds: dict[str, float | int | None] = {
            "timeout": self.options.timeout,
            "idle_timeout": self.options.idle_timeout,
            "output_limit": self.options.output_limit,
        }
        self._outcome = Result._of(
            Outcome(
                args=self.command.args,
                returncode=process.returncode,
                status_lost=status_lost,
                unkilled=self._given_up,
                stop=stop,
                bound=bounds.get(stop),
                kept=kept.data,
                cuts=kept.cuts,
                order=kept.order,
                stderr_merged=self.options.stderr == "merge",
                seen_bytes=self.record.seen,
                input_refused=self._input_refused,
                drain=drain,
                leftovers=tuple(leftovers),
                leftovers_unknown=is_unknown,
                wall=time.monotonic() - self._begun,
                cpu=process.cpu,
                max_rss=process.max_rss,
            )
        )
        self.done.fire()
        self.arrived.fire()
