# SPDX-License-Identifier: MIT OR Apache-2.0
"""The search for a pattern in a job's output."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from spawnfd import _spawnfd

# The search keeps this many bytes of earlier output, for matches that begin there.
_KEPT = 65_536


class OutputMatch(NamedTuple):
    """A match that Job.wait_for() has found.

    Attributes:
        text: The matched text; invalid UTF-8 is replaced by U+FFFD.
        match: The match of a regular expression; None for a str or bytes. In a match of a str
            pattern, invalid UTF-8 is decoded to surrogates.
        next: The position after the match, for read() and wait_for().
    """

    text: str
    match: re.Match[Any] | None
    next: int


class Search:
    """Searches a job's output as it arrives."""

    def __init__(
        self,
        core: _spawnfd.Job,
        pattern: str | bytes | re.Pattern[str] | re.Pattern[bytes],
        since: int,
    ) -> None:
        self._core = core
        self._literal: bytes | None = None
        self._regex: re.Pattern[Any] | None = None
        match pattern:
            case str():
                self._literal = pattern.encode(errors="surrogateescape")
            case bytes():
                self._literal = pattern
            case re.Pattern():
                self._regex = pattern
            case _:
                found = type(pattern).__qualname__
                raise TypeError(f"pattern: expected str, bytes or re.Pattern, not {found}")
        if self._literal == b"":
            raise ValueError("pattern must not be empty")
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
        found = self._find_literal() if self._regex is None else self._find_regex(self._regex)
        if found is not None:
            return found
        return False if ended else None

    def _find_literal(self) -> OutputMatch | None:
        assert self._literal is not None
        begin = self._output.find(self._literal)
        if begin < 0:
            del self._output[: max(0, len(self._output) - len(self._literal) + 1)]
            return None
        text = self._literal.decode(errors="replace")
        return OutputMatch(text, None, self._position(begin + len(self._literal)))

    def _find_regex(self, regex: re.Pattern[Any]) -> OutputMatch | None:
        output = bytes(self._output)
        is_text = isinstance(regex.pattern, str)
        match = regex.search(output.decode(errors="surrogateescape") if is_text else output)
        if match is None:
            del self._output[: max(0, len(self._output) - _KEPT)]
            return None

        def position(index: int) -> int:
            """Returns the index in `output` of an index in the searched text."""
            return len(match.string[:index].encode(errors="surrogateescape")) if is_text else index

        begin, end = position(match.start()), position(match.end())
        text = output[begin:end].decode(errors="replace")
        return OutputMatch(text, match, self._position(end))

    def _position(self, index: int) -> int:
        """Returns the position in the job's output of an index in `_output`."""
        return self._next - len(self._output) + index
