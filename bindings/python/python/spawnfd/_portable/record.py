# SPDX-License-Identifier: MIT OR Apache-2.0
"""The output of one run: head and tail of each stream, their order, and the latest output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from spawnfd._portable.text import LONGEST_CONTINUATION, continuation_len, incomplete_len

STREAMS = ("stdout", "stderr")


class Cut(NamedTuple):
    """The place in the kept part of a stream where bytes are omitted.

    Attributes:
        head: The length of the head.
        marker: The length of the marker line after the head.
        omitted: The number of omitted bytes. 0: the stream is whole.
    """

    head: int
    marker: int
    omitted: int

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Splits the kept part of a stream into head, marker line and tail."""
        if not self.omitted:
            return data, b"", b""
        tail = self.head + self.marker
        return data[: self.head], data[self.head : tail], data[tail:]

    def texts(self, data: bytes) -> tuple[str, str, str]:
        """Returns the texts of head, marker line and tail, without a character that is split."""
        head, marker, tail = self.split(data)
        if self.omitted:
            head = head[: len(head) - incomplete_len(head)]
            tail = tail[continuation_len(tail, LONGEST_CONTINUATION) :]
        return (
            head.decode(errors="replace"),
            marker.decode(errors="replace"),
            tail.decode(errors="replace"),
        )


WHOLE = Cut(0, 0, 0)


class _KeptOutput:
    """The kept part of one stream."""

    def __init__(self, head: int, tail: int) -> None:
        self._max_head, self._max_tail = head, tail
        self._head = bytearray()
        # The tail and the byte before it, which shows whether the tail begins a line.
        self._tail = bytearray()
        self._seen = 0

    def append(self, data: bytes) -> None:
        self._seen += len(data)
        space = self._max_head - len(self._head)
        self._head += data[:space]
        self._tail += data[max(space, 0) :]
        if (surplus := len(self._tail) - self._max_tail - 1) > 0:
            del self._tail[:surplus]

    def would_keep_all(self, more: int) -> bool:
        return self._seen + more <= self._max_head + self._max_tail

    def omitted(self) -> range:
        """Returns the positions of the bytes between head and tail."""
        return range(len(self._head), self._seen - min(len(self._tail), self._max_tail))

    def all(self) -> bytes:
        """Returns all bytes of the stream, if none is omitted."""
        return bytes(self._head + self._tail)

    def finish(self, marker: str | None) -> tuple[bytes, Cut]:
        """Returns the head, a marker line if bytes are omitted, and the tail.

        Moves each cut to a line ending within a fifth of the size of the head or tail.
        """
        head, tail = bytes(self._head), bytes(self._tail)
        if len(tail) <= self._max_tail:
            return head + tail, WHOLE
        head = head[: _head_end(head, self._max_head // 5)]
        tail = tail[_tail_start(tail, self._max_tail // 5) :]
        omitted = self._seen - len(head) - len(tail)
        line = _marker_line(marker, head, omitted)
        return head + line + tail, Cut(len(head), len(line), omitted)


def _head_end(head: bytes, search: int) -> int:
    line_feed = head.rfind(b"\n", len(head) - min(search, len(head)))
    if line_feed >= 0:
        return line_feed + 1
    # The first omitted byte may be the line feed of a "\r\n".
    return len(head) - head.endswith(b"\r")


def _tail_start(tail: bytes, search: int) -> int:
    line_feed = tail.find(b"\n", 0, 1 + max(search, 1))
    return 1 if line_feed < 0 else line_feed + 1


def _marker_line(marker: str | None, head: bytes, omitted: int) -> bytes:
    if not marker:
        return b""
    amount = f"{omitted:,} byte{'' if omitted == 1 else 's'}"
    separator = "" if not head or head.endswith(b"\n") else "\n"
    return f"{separator}{marker.replace('{omitted}', amount)}\n".encode()


# Before the next pruning, at least this many runs of bytes may be added.
_LEAST_RUNS = 64


class ArrivalOrder:
    """The order in which the bytes of both streams arrived.

    Attributes:
        lengths: The lengths of runs of bytes. The runs alternate between the streams and begin with
            standard output.
    """

    def __init__(self, lengths: list[int] | None = None) -> None:
        self.lengths = lengths or []
        self._pruned = 0

    def append(self, stream: int, length: int) -> None:
        if not length:
            return
        if len(self.lengths) % 2 == stream:
            self.lengths.append(length)
        elif self.lengths:
            self.lengths[-1] += length
        else:
            self.lengths += [0, length]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yields stream and length of each run, in order of arrival."""
        return ((at % 2, length) for at, length in enumerate(self.lengths) if length)

    def is_long(self) -> bool:
        return len(self.lengths) > _LEAST_RUNS + 2 * self._pruned

    def prune(self, omitted: tuple[range, range]) -> None:
        """Moves all omitted bytes of a stream to the place where the first of them arrived."""
        pruned = ArrivalOrder()
        positions = [0, 0]
        for stream, length in self.runs():
            gone, start = omitted[stream], positions[stream]
            end = positions[stream] = start + length
            before = min(max(gone.start, start), end) - start
            after = end - min(max(gone.stop, start), end)
            moved = len(gone) if start <= gone.start < end else 0
            pruned.append(stream, before + moved + after)
        self.lengths, self._pruned = pruned.lengths, len(pruned.lengths)


class Kept(NamedTuple):
    """The kept output of a run that is over.

    Attributes:
        data: The kept bytes of each stream, with the marker lines.
        cuts: The place of the omission in each stream.
        order: The lengths of runs of bytes (see ArrivalOrder), if the run was combined.
    """

    data: tuple[bytes, bytes]
    cuts: tuple[Cut, Cut]
    order: list[int] | None


class Record:
    """The output of one run so far. A byte's position is the number of bytes that came before it.

    Attributes:
        seen: The number of bytes so far.
        latest: The time.monotonic() of the latest output, or of the start.
        closed: Whether the run has ended.
    """

    def __init__(
        self, keep: tuple[int, int], marker: str | None, combined: bool, window: int
    ) -> None:
        self.seen, self.latest, self.closed = 0, time.monotonic(), False
        self.streams = (_KeptOutput(*keep), _KeptOutput(*keep))
        self._marker, self._max_window = marker, window
        self._window = bytearray()
        self.order = ArrivalOrder() if combined else None

    def append(self, stream: int, data: bytes) -> int:
        """Adds output, and returns its position."""
        position = self.seen
        self.seen += len(data)
        self.latest = time.monotonic()
        self.streams[stream].append(data)
        if self.order is not None:
            self.order.append(stream, len(data))
            if self.order.is_long():
                self.order.prune((self.streams[0].omitted(), self.streams[1].omitted()))
        if self._max_window:
            self._window += data
            if (surplus := len(self._window) - self._max_window) > 0:
                del self._window[:surplus]
        return position

    def read(self, since: int) -> tuple[bytes, int, int]:
        """Returns the bytes from a position on, the next position, and how many bytes are lost."""
        since = min(since, self.seen)
        first = self.seen - len(self._window)
        start = max(since, first)
        data = bytes(self._window[start - first :])
        if not self.closed:
            data = data[: len(data) - incomplete_len(data)]
        return data, start + len(data), start - since

    def close(self) -> Kept:
        """Ends the record, and returns the kept output; read() still works."""
        self.closed = True
        (stdout, cut_out), (stderr, cut_err) = (each.finish(self._marker) for each in self.streams)
        cuts = cut_out, cut_err
        if self.order is not None:
            gone = [range(cut.head, cut.head + cut.omitted) for cut in cuts]
            self.order.prune((gone[0], gone[1]))
        order = None if self.order is None else self.order.lengths
        return Kept((stdout, stderr), cuts, order)


def keep_all() -> tuple[int, int]:
    """Returns the sizes of head and tail that omit nothing."""
    return sys.maxsize, 0
