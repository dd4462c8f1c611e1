# SPDX-License-Identifier: MIT OR Apache-2.0
"""The queue of a job's output from the engine to events()."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from spawnfd._portable.record import STREAMS
from spawnfd._portable.text import Decoder, Line, Lines
from spawnfd._portable.wakeups import Wakeup

# The queue merges adjacent chunks of one stream up to this size.
_COALESCED = 64 << 10
# The overhead of a chunk counts towards the capacity as this many bytes.
_OVERHEAD = 64

# The classes below have an attribute `bytes`.
_Bytes: TypeAlias = bytes


class Event:
    """A piece of a job's output, in order of arrival."""

    __slots__ = ("_before", "_decoded", "bytes", "lost", "partial", "stream")
    __module__ = "spawnfd"
    stream: str | None
    bytes: _Bytes
    lost: int
    partial: bool
    # The text begins with these bytes: a character of the previous chunk that ends here.
    _before: _Bytes
    # The number of bytes that belong to the text. The others begin a character.
    _decoded: int

    def __init__(
        self,
        stream: int | None,
        data: _Bytes = b"",
        before: _Bytes = b"",
        decoded: int | None = None,
        lost: int = 0,
        partial: bool = False,
    ) -> None:
        for name, value in (
            ("stream", None if stream is None else STREAMS[stream]),
            ("bytes", data),
            ("_before", before),
            ("_decoded", len(data) if decoded is None else min(decoded, len(data))),
            ("lost", lost),
            ("partial", partial),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute {name!r} of 'spawnfd.Event' objects is not writable")

    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8; invalid bytes become U+FFFD."""
        return (self._before + self.bytes[: self._decoded]).decode(errors="replace")

    def __reduce__(self) -> tuple[Any, ...]:
        stream = None if self.stream is None else STREAMS.index(self.stream)
        state = stream, self.bytes, self._before, self._decoded, self.lost, self.partial
        return restore_event, state

    def __repr__(self) -> str:
        if self.stream is None:
            return f"<Event lost={self.lost}>"
        return f"<Event {self.stream} {self.text!r}{' partial' if self.partial else ''}>"


def restore_event(*state: Any) -> Event:
    """Recreates an Event from its pickled state."""
    return Event(*state)


class Chunk:
    """The output of both streams from a position on, in order of arrival."""

    __slots__ = ("bytes", "lost", "next")
    __module__ = "spawnfd"
    bytes: _Bytes
    next: int
    lost: int

    def __init__(self, data: _Bytes, next: int, lost: int) -> None:
        for name, value in (("bytes", data), ("next", next), ("lost", lost)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute {name!r} of 'spawnfd.Chunk' objects is not writable")

    @property
    def text(self) -> str:
        """The bytes decoded as UTF-8; invalid bytes become U+FFFD."""
        return self.bytes.decode(errors="replace")

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_chunk, (self.bytes, self.next, self.lost)

    def __repr__(self) -> str:
        return f"<Chunk {self.text!r} next={self.next} lost={self.lost}>"


def restore_chunk(data: _Bytes, next: int, lost: int) -> Chunk:
    """Recreates a Chunk from its pickled state."""
    return Chunk(data, next, lost)


class _Queued:
    """Adjacent bytes of one stream."""

    __slots__ = ("data", "end", "stream")

    def __init__(self, stream: int, position: int, data: bytes) -> None:
        self.stream, self.data = stream, bytearray(data)
        self.end = position + len(data)


class EventQueue:
    """The pending output of one job. The caller of each method holds LOCK.

    Attributes:
        readable: Fires when there are events.
    """

    def __init__(self, max_bytes: int, hold: bool, resume: Callable[[], object]) -> None:
        self.readable = Wakeup()
        self._max_bytes, self._resume = max_bytes, resume
        self._chunks: deque[_Queued] = deque()
        self._size = self._lost = 0
        # How many chunks the queue had when the run got its result.
        self._before_result: int | None = None
        self._until_result = self._ended = self._paused = False
        # Readers of events(). While there is one, the program blocks when the queue is full. The
        # task that has started the job counts as one while `_hold` is set.
        self._watchers, self._hold = int(hold), hold
        self._decoders = (Decoder(), Decoder())
        self._lines: tuple[Lines, Lines] | None = None
        self._ready: deque[Event] = deque()
        self._at_end = False

    # The side of the engine.

    def push(self, stream: int, position: int, data: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if (
            last is not None
            and self._before_result != len(self._chunks)
            and (last.stream, last.end) == (stream, position)
            and len(last.data) + len(data) <= min(self._max_bytes, _COALESCED)
        ):
            last.data += data
            last.end += len(data)
            self._size += len(data)
        else:
            self._chunks.append(_Queued(stream, position, data))
            self._size += len(data) + _OVERHEAD
        if self._watchers:
            self._paused = self._paused or self._size >= self._max_bytes
        else:
            while self._size > self._max_bytes and len(self._chunks) > 1:
                self._lost += len(self._pop().data)
        self.readable.fire()

    def wants_more(self) -> bool:
        """Whether the engine may read more output now."""
        return not self._paused

    def mark_result(self) -> None:
        """Marks the end of the output that the run's result has."""
        self._before_result = len(self._chunks)
        self.readable.fire()

    def end(self) -> None:
        """No more output follows."""
        self._ended = True
        self.readable.fire()

    def _pop(self) -> _Queued:
        oldest = self._chunks.popleft()
        self._size -= len(oldest.data) + _OVERHEAD
        if self._before_result:
            self._before_result -= 1
        return oldest

    # The side of the consumer.

    def next(self) -> Event | Literal[False] | None:
        """Returns the next event; None if there is none yet, False after the last one."""
        while not self._ready:
            if self._at_end:
                return False
            if not self._advance():
                return None
        return self._ready.popleft()

    def has_next(self) -> bool:
        return bool(self._ready or self._chunks or self._lost or self._at_end or self._is_past())

    def _is_past(self) -> bool:
        """Whether the events have ended, once the queue is empty."""
        return self._ended or (self._until_result and self._before_result == 0)

    def _advance(self) -> bool:
        """Makes events of the oldest output. Returns False if there is none."""
        if self._until_result and self._before_result == 0 and not self._lost:
            self._finish()
        elif self._lost:
            lost, self._lost = self._lost, 0
            self._finish_lines()
            self._finish_text()
            self._ready.append(Event(None, lost=lost))
        elif self._chunks:
            chunk = self._pop()
            if self._paused and self._size <= self._max_bytes // 2:
                self._paused = False
                self._resume()
            self._emit(chunk.stream, bytes(chunk.data))
        elif self._ended:
            self._finish()
        else:
            return False
        return True

    def _finish(self) -> None:
        self._finish_lines()
        self._finish_text()
        self._at_end = True

    def _emit(self, stream: int, data: bytes) -> None:
        if self._lines is not None:
            self._emit_lines(stream, self._lines[stream].take(data))
            return
        before, decoded = self._decoders[stream].take(data)
        self._ready.append(Event(stream, data, before, decoded))

    def _emit_lines(self, stream: int, lines: Any) -> None:
        line: Line
        for line in lines:
            self._ready.append(Event(stream, line.data, partial=line.is_split))

    def _finish_lines(self) -> None:
        for stream, lines in enumerate(self._lines or ()):
            self._emit_lines(stream, lines.finish())

    def _finish_text(self) -> None:
        for stream, decoder in enumerate(self._decoders):
            if before := decoder.take_incomplete():
                self._ready.append(Event(stream, before=before))

    def has_open_line(self) -> bool:
        return any(lines.open_len() for lines in self._lines or ())

    def flush_lines(self) -> None:
        for stream, lines in enumerate(self._lines or ()):
            self._emit_lines(stream, lines.flush())

    def watch(self, max_line: int | None, until: Literal["result", "closed"]) -> None:
        """Adds a reader of events(), and sets the form and the end of later events."""
        self._until_result, self._at_end = until == "result", False
        if max_line is not None:
            self._finish_text()
        if (self._lines and self._lines[0].most) != (max_line and max(max_line, 4)):
            self._finish_lines()
            self._lines = None if max_line is None else (Lines(max_line), Lines(max_line))
        self._watchers += 1
        self.release_hold()

    def unwatch(self) -> None:
        """Removes a reader of events(). Without one, the queue drops its oldest output."""
        self._watchers = max(0, self._watchers - 1)
        if not self._watchers and self._paused:
            self._paused = False
            self._resume()

    def release_hold(self) -> None:
        """The task that has started the job does not count as a reader any more."""
        if self._hold:
            self._hold = False
            self.unwatch()
