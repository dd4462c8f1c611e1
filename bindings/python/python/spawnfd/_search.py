# SPDX-License-Identifier: MIT OR Apache-2.0
"""The search for patterns in a job's output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from spawnfd import _spawnfd

Pattern: TypeAlias = str | bytes | re.Pattern[str] | re.Pattern[bytes]

# The search keeps this many bytes of earlier output, for matches that begin there.
_KEPT = 65_536


class OutputMatch(NamedTuple):
    """A match that Job.wait_for() has found.

    Attributes:
        text: The matched text; invalid UTF-8 is replaced by U+FFFD.
        match: The match of a regular expression; None for a str or bytes. In a match of a str
            pattern, invalid UTF-8 is decoded to surrogates.
        next: The position after the match, for read() and wait_for().
        which: The index of the pattern that matched, in the list of patterns; 0 for one pattern.
    """

    text: str
    match: re.Match[Any] | None
    next: int
    which: int = 0


class Search:
    """Searches a job's output as it arrives."""

    def __init__(
        self, core: _spawnfd.Job, patterns: Pattern | Sequence[Pattern], since: int
    ) -> None:
        self._core = core
        is_list = isinstance(patterns, Sequence) and not isinstance(patterns, (str, bytes))
        given: list[Any] = [*patterns] if is_list else [patterns]  # type: ignore[misc]
        if not given:
            raise ValueError("pattern: expected at least one pattern")
        self._patterns = [_checked(pattern) for pattern in given]
        kept = (len(p) - 1 if isinstance(p, bytes) else _KEPT for p in self._patterns)
        self._kept = max(kept)
        # The output that may contain a match, and the position after it.
        self._output = bytearray()
        self._next = since

    def attempt(self) -> OutputMatch | Literal[False] | None:
        """Searches the output so far. None: not found yet. False: the output has ended."""
        # Call read() second. If the output has ended before, read() returns all of it.
        ended = self._core.output_has_ended() or self._core.result() is not None
        chunk = self._core.read(self._next)
        if chunk.lost:
            self._output.clear()
        self._output += chunk.bytes
        self._next = chunk.next
        if found := self._find():
            return found
        return False if ended else None

    def _find(self) -> OutputMatch | None:
        """Returns the first match; of several at one place, the one of the first pattern."""
        output = bytes(self._output)
        first: tuple[int, int, int, re.Match[Any] | None] | None = None
        for index, pattern in enumerate(self._patterns):
            found = _find(pattern, output)
            if found is not None and (first is None or found[0] < first[0]):
                first = found[0], found[1], index, found[2]
        if first is None:
            del self._output[: max(0, len(output) - self._kept)]
            return None
        begin, end, index, match = first
        text = output[begin:end].decode(errors="replace")
        return OutputMatch(text, match, self._next - len(output) + end, index)


def _checked(pattern: Pattern) -> bytes | re.Pattern[Any]:
    match pattern:
        case str():
            pattern = pattern.encode(errors="surrogateescape")
        case bytes() | re.Pattern():
            pass
        case _:
            found = type(pattern).__qualname__
            raise TypeError(f"pattern: expected str, bytes or re.Pattern, not {found}")
    if pattern == b"":
        raise ValueError("pattern must not be empty")
    return pattern


def _find(
    pattern: bytes | re.Pattern[Any], output: bytes
) -> tuple[int, int, re.Match[Any] | None] | None:
    """Returns begin and end of the first match in the output."""
    if isinstance(pattern, bytes):
        begin = output.find(pattern)
        return None if begin < 0 else (begin, begin + len(pattern), None)
    is_text = isinstance(pattern.pattern, str)
    match = pattern.search(output.decode(errors="surrogateescape") if is_text else output)
    if match is None:
        return None

    def position(index: int) -> int:
        """Returns the index in `output` of an index in the searched text."""
        return len(match.string[:index].encode(errors="surrogateescape")) if is_text else index

    return position(match.start()), position(match.end()), match
