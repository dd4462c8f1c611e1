# SPDX-License-Identifier: MIT OR Apache-2.0
"""UTF-8 text and lines from bytes that arrive in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# The maximum number of bytes of a UTF-8 character after its first byte.
LONGEST_CONTINUATION = 3


def incomplete_len(data: bytes | bytearray) -> int:
    """Returns how many bytes at the end begin a character that later bytes may complete: 0 to 3."""
    for length in range(1, min(3, len(data)) + 1):
        end = bytes(data[-length:])
        if 0x80 <= end[0] <= 0xBF:
            continue
        return length if 0xC2 <= end[0] <= 0xF4 and _is_beginning(end) else 0
    return 0


def _is_beginning(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def continuation_len(data: bytes, most: int) -> int:
    """Returns how many bytes at the beginning, at most `most`, continue a character."""
    first = data[:most]
    return next((at for at, byte in enumerate(first) if not 0x80 <= byte <= 0xBF), len(first))


class Decoder:
    """Decodes one stream chunk by chunk. Invalid bytes become U+FFFD."""

    __slots__ = ("_incomplete",)

    def __init__(self) -> None:
        # An incomplete character, at most 3 bytes.
        self._incomplete = b""

    def take(self, data: bytes) -> tuple[bytes, int]:
        """Takes the next bytes. Returns kept earlier bytes, and a length.

        The earlier bytes and `data` up to that length are complete characters. The decoder keeps
        the rest of `data` for the next call.
        """
        before, self._incomplete = self._incomplete, b""
        rest = incomplete_len(before + data if len(data) <= 2 else data)
        if rest > len(data):
            # The bytes continue the incomplete character, and do not complete it.
            self._incomplete = before + data
            return b"", 0
        length = len(data) - rest
        self._incomplete = data[length:]
        return before, length

    def decode(self, data: bytes) -> str:
        """Returns the text of `data`, without an incomplete character at its end."""
        before, length = self.take(data)
        return (before + data[:length]).decode(errors="replace")

    def take_incomplete(self) -> bytes:
        """Returns the bytes of an incomplete last character, and forgets them."""
        incomplete, self._incomplete = self._incomplete, b""
        return incomplete


class Line(NamedTuple):
    """A line with its line ending, or a piece of one if `is_split`."""

    data: bytes
    is_split: bool


class Lines:
    """Splits one stream into lines, in the same way however its bytes are split into chunks."""

    __slots__ = ("_incomplete", "most")

    def __init__(self, most: int) -> None:
        # The longest character has 4 bytes.
        self.most = max(most, 4)
        # The bytes after the last line ending.
        self._incomplete = bytearray()

    def take(self, data: bytes) -> Iterator[Line]:
        """Takes the next bytes. Yields each line that ends in them."""
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._incomplete += part
            line, self._incomplete = bytes(self._incomplete), bytearray()
            ending = b"\r\n" if line.endswith(b"\r") else b"\n"
            yield from self._pieces(line.removesuffix(b"\r"), ending)
        self._incomplete += rest
        # A "\r" at the end may be part of a line ending whose "\n" has not arrived yet.
        while len(self._incomplete) - self._incomplete.endswith(b"\r") > self.most:
            yield self._take_piece()

    def _take_piece(self) -> Line:
        length = self.most - incomplete_len(self._incomplete[: self.most])
        piece = bytes(self._incomplete[:length])
        del self._incomplete[:length]
        return Line(piece, True)

    def _pieces(self, line: bytes, ending: bytes) -> Iterator[Line]:
        while len(line) > self.most:
            length = self.most - incomplete_len(line[: self.most])
            yield Line(line[:length], True)
            line = line[length:]
        yield Line(line + ending, False)

    def open_len(self) -> int:
        """Returns the number of bytes that flush() yields."""
        certain = self._incomplete.removesuffix(b"\r")
        return len(certain) - incomplete_len(certain)

    def flush(self) -> Iterator[Line]:
        """Yields the incomplete last line, except bytes that may belong to later ones."""
        if length := self.open_len():
            piece = bytes(self._incomplete[:length])
            del self._incomplete[:length]
            yield from (Line(line.data, True) for line in self._pieces(piece, b""))

    def finish(self) -> Iterator[Line]:
        """Yields the incomplete last line, if there is one."""
        line, self._incomplete = bytes(self._incomplete), bytearray()
        if line:
            yield from self._pieces(line, b"")
