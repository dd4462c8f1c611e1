# SPDX-License-Identifier: MIT OR Apache-2.0
"""Result: the outcome of a run."""

from __future__ import annotations

import os
import re
import signal as signals
from typing import Any, Literal, NamedTuple

from spawnfd._errors import ExitError
from spawnfd._portable.record import STREAMS, WHOLE, ArrivalOrder, Cut
from spawnfd._portable.text import LONGEST_CONTINUATION, Decoder, continuation_len
from spawnfd._types import Leftover, Omitted, OutputPiece, Spilled, Stop

# The maximum length of the command in the repr, and in the message of ExitError.
_SHOWN_COMMAND, _SHOWN_IN_ERROR = 80, 504
# How many lines and bytes of the output the message of ExitError has.
_SHOWN_LINES, _SHOWN_BYTES = 10, 2048


class Outcome(NamedTuple):
    """The values of a Result. They can be pickled.

    Attributes:
        returncode: The exit code, or -N for signal N. None: lost, or the program still runs.
        bound: The value of the option that ended the run.
        unkilled: Whether SIGKILL did not end the program, which is the first of the leftovers.
    """

    args: list[str]
    returncode: int | None = None
    status_lost: bool = False
    unkilled: bool = False
    stop: Stop = "exited"
    bound: float | int | None = None
    kept: tuple[bytes, bytes] = (b"", b"")
    cuts: tuple[Cut, Cut] = (WHOLE, WHOLE)
    order: list[int] | None = None
    stderr_merged: bool = False
    seen_bytes: int = 0
    input_refused: bool = False
    drain: str = "eof"
    leftovers: tuple[Leftover, ...] = ()
    leftovers_unknown: bool = False
    wall: float = 0.0
    cpu: float = 0.0
    max_rss: int = 0


class Result:
    """The outcome of a run: exit status, captured output and resource usage."""

    __slots__ = ("__weakref__", "_outcome")
    __module__ = "spawnfd"
    _outcome: Outcome

    def __init__(self, *_args: object, **_options: object) -> None:
        raise TypeError("cannot create 'spawnfd.Result' instances")

    @staticmethod
    def _of(outcome: Outcome) -> Result:
        result = object.__new__(Result)
        object.__setattr__(result, "_outcome", outcome)
        return result

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute {name!r} of 'spawnfd.Result' objects is not writable")

    @property
    def ok(self) -> bool:
        return self.stop == "exited" and self.returncode == 0

    @property
    def code(self) -> int | None:
        code = self._outcome.returncode
        return None if code is None or code < 0 else code

    @property
    def returncode(self) -> int | None:
        return self._outcome.returncode

    @property
    def signal(self) -> int | None:
        code = self._outcome.returncode
        return None if code is None or code >= 0 else -code

    @property
    def status_lost(self) -> bool:
        return self._outcome.status_lost

    @property
    def stop(self) -> Stop:
        return self._outcome.stop

    @property
    def limit(self) -> None:
        return None

    @property
    def limits(self) -> dict[str, str]:
        return {}

    @property
    def stdout(self) -> bytes:
        return self._outcome.kept[0]

    @property
    def stderr(self) -> bytes:
        return self._outcome.kept[1]

    def _part(self, stream: int, part: int) -> bytes:
        return self._outcome.cuts[stream].split(self._outcome.kept[stream])[part]

    def _text(self, stream: int) -> str:
        return "".join(self._outcome.cuts[stream].texts(self._outcome.kept[stream]))

    @property
    def text(self) -> str:
        return self._text(0)

    @property
    def stderr_text(self) -> str:
        return self._text(1)

    @property
    def stdout_head(self) -> bytes:
        return self._part(0, 0)

    @property
    def stdout_tail(self) -> bytes:
        return self._part(0, 2)

    @property
    def stderr_head(self) -> bytes:
        return self._part(1, 0)

    @property
    def stderr_tail(self) -> bytes:
        return self._part(1, 2)

    @property
    def omitted(self) -> dict[str, Omitted]:
        return {
            name: Omitted(self._outcome.cuts[stream].omitted, len(self._part(stream, 0)))
            for stream, name in enumerate(STREAMS)
        }

    @property
    def output(self) -> list[OutputPiece] | None:
        if self._outcome.order is None:
            return None
        return _pieces(self._outcome.order, self._outcome.cuts, self._outcome.kept)

    @property
    def omitted_bytes(self) -> int:
        return sum(cut.omitted for cut in self._outcome.cuts)

    @property
    def seen_bytes(self) -> int:
        return self._outcome.seen_bytes

    @property
    def spill_path(self) -> str | None:
        return None

    @property
    def spilled(self) -> Spilled | None:
        return None

    @property
    def input_refused(self) -> bool:
        return self._outcome.input_refused

    @property
    def drain(self) -> str:
        return self._outcome.drain

    @property
    def tree(self) -> Literal["group"]:
        return "group"

    @property
    def tree_complete(self) -> Literal[False]:
        return False

    @property
    def leftovers(self) -> list[Leftover]:
        return list(self._outcome.leftovers)

    @property
    def leftovers_unknown(self) -> bool:
        return self._outcome.leftovers_unknown

    @property
    def wall(self) -> float:
        return self._outcome.wall

    @property
    def cpu(self) -> float:
        return self._outcome.cpu

    @property
    def max_rss(self) -> int:
        return self._outcome.max_rss

    @property
    def started(self) -> Literal["portable"]:
        return "portable"

    @property
    def args(self) -> list[str]:
        return list(self._outcome.args)

    @property
    def cwd(self) -> None:
        return None

    @property
    def shell_exited(self) -> Literal[False]:
        return False

    @property
    def shell_code(self) -> None:
        return None

    @property
    def running(self) -> Literal[False]:
        return False

    def _reason(self) -> str | None:
        """Why the library ended the run, as a phrase that continues the program's name."""
        bound = self._outcome.bound
        shown = f"{bound:g}" if isinstance(bound, float) else str(bound)
        return {
            "timeout": f"timed out after {shown} s",
            "idle_timeout": f"wrote no output for {shown} s",
            "cancelled": "was cancelled",
            "output_limit": f"exceeded its output limit of {shown} bytes",
        }.get(self.stop)

    def _end(self) -> str:
        """How an unsuccessful run ended, as a phrase that continues the program's name."""
        reason = self._reason()
        if self.returncode is not None:
            status = _end_of(self.returncode)
            return f"{reason} and {status}" if reason else status
        if self._outcome.unkilled:
            left = self.leftovers[0]
            refused = left.fate == "not_permitted"
            why = "not permitted" if refused else "SIGKILL had no effect"
            still = f"could not be killed ({why}) and still runs as process {left.pid}"
            return f"{reason}, {still}" if reason else still
        taken = "other code reaped the program, or SIGCHLD is ignored"
        return reason or f"ended, and the status is lost: {taken}"

    def _exit_message(self) -> str:
        stream, name = (0, "output") if self._outcome.stderr_merged else (1, "stderr")
        lines, is_cut = self._last_lines(stream)
        of = f"{'last lines of ' if is_cut else ''}{name}:"
        message = f"{_shortened(repr(self.args), _SHOWN_IN_ERROR)} {self._end()}"
        if len(lines) > 1:
            return f"{message}; {of}\n" + "\n".join(lines)
        return f"{message}; {of} {lines[0]}" if lines else message

    def _last_lines(self, stream: int) -> tuple[list[str], bool]:
        """Returns the last lines of a stream, and whether there are more."""
        cut = self._outcome.cuts[stream]
        head, marker, tail = cut.texts(self._outcome.kept[stream])
        after, is_cut = _last_lines(tail, _SHOWN_LINES, _SHOWN_BYTES)
        if is_cut:
            return after, True
        left = max(0, _SHOWN_BYTES - len(tail.rstrip().encode()))
        lines, is_cut = _last_lines(head, _SHOWN_LINES - len(after), left)
        if lines:
            lines += filter(None, marker.splitlines())
        return lines + after, is_cut or cut.omitted > 0

    def check(self) -> Result:
        """Returns this result if it is ok, else raises ExitError."""
        if self.ok:
            return self
        raise ExitError(self)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as values that json.dumps() accepts."""
        shown = [os.fsencode(arg).decode(errors="replace") for arg in self.args]
        pieces: dict[str, Any] = {}
        if self.output is not None:
            pieces["output"] = [
                {"stream": piece.stream, "text": piece.text}
                | ({"omitted": piece.omitted} if piece.omitted else {})
                for piece in self.output
            ]
        return {
            "program": shown[0] if shown else None,
            "args": shown,
            "ok": self.ok,
            "code": self.code,
            "signal": self.signal,
            "stop": self.stop,
            "started": self.started,
            "wall_seconds": self.wall,
            "cpu_seconds": self.cpu,
            "max_rss_bytes": self.max_rss,
            "stdout": self.text,
            "stderr": self.stderr_text,
            **pieces,
            "omitted_bytes": self.omitted_bytes,
            "omitted": {name: omitted._asdict() for name, omitted in self.omitted.items()},
            "seen_bytes": self.seen_bytes,
            "spill_path": self.spill_path,
            "input_refused": self.input_refused,
            "tree": self.tree,
            "tree_complete": self.tree_complete,
            "limits": self.limits,
            "leftovers": [left._asdict() for left in self.leftovers],
            "leftovers_unknown": self.leftovers_unknown,
            "drain": self.drain,
            "status_lost": self.status_lost,
        }

    def __copy__(self) -> Result:
        return self

    def __deepcopy__(self, memo: object) -> Result:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self._outcome._asdict(),)

    def __repr__(self) -> str:
        parts = ["<Result", _shortened(repr(self.args), _SHOWN_COMMAND)]
        if self.code is not None:
            parts.append(f"code={self.code}")
        elif self.signal is not None:
            parts.append(f"signal={self.signal}")
        elif self.status_lost:
            parts.append("status_lost")
        else:
            parts += [left.fate for left in self.leftovers[:1]]
        parts.append(f"stop={self.stop} tree={self.tree} wall={self.wall:.4f} s")
        if self.drain != "eof":
            parts.append(f'drain="{self.drain}"')
        if self.omitted_bytes:
            parts.append(f"omitted_bytes={self.omitted_bytes}")
        for name, kept in zip(STREAMS, self._outcome.kept, strict=True):
            if kept:
                parts.append(f"{name}={len(kept)} byte{'' if len(kept) == 1 else 's'}")
        return " ".join(parts) + ">"


def restore(state: dict[str, Any]) -> Result:
    """Recreates a Result from its pickled state."""
    try:
        return Result._of(Outcome(**state))
    except TypeError as error:
        message = f"Result: another version of spawnfd has pickled it ({error})"
        raise ValueError(message) from None


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]}...]"


def _end_of(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signals.Signals(-returncode).name
    except ValueError:
        return f"was killed by signal {-returncode}"
    return f"was killed by {name}"


def _last_lines(text: str, most_lines: int, most_bytes: int) -> tuple[list[str], bool]:
    """Returns the last lines of a text, and whether there are more."""
    data = text.rstrip().encode()
    start = max(0, len(data) - most_bytes)
    while start < len(data) and 0x80 <= data[start] <= 0xBF:
        start += 1
    before, shown = data[:start], data[start:].decode()
    if before and not before.endswith(b"\n"):
        # The first line is incomplete: drop it, unless it is the only one.
        _, newline, rest = shown.partition("\n")
        shown = rest if newline else f"...{shown}" if shown else ""
    if not shown:
        return [], bool(before)
    # A progress bar overwrites its line by carriage returns: keep the last text of such a line.
    lines = [re.split("\r", line.rstrip("\r"))[-1] for line in shown.split("\n")]
    surplus = max(0, len(lines) - most_lines)
    return lines[surplus:], surplus > 0 or bool(before)


class _Unread:
    """The part of a stream that is not yet in an OutputPiece."""

    def __init__(self, stream: int, cut: Cut, kept: bytes) -> None:
        self.stream = stream
        self._head, self._marker, self._tail = cut.split(kept)
        self._omitted = self._skip = cut.omitted
        self._decoder = Decoder()
        # How many bytes of the tail may continue a character that the omission splits.
        self._continuation = 0

    def take(self, length: int, add: Any) -> None:
        """Adds the pieces for the next `length` bytes of the stream."""
        head, self._head = self._head[:length], self._head[length:]
        length -= len(head)
        if head:
            add(self.stream, head, self._decoder.decode(head), 0)
        if not length:
            return
        if self._omitted:
            self._decoder, self._continuation = Decoder(), LONGEST_CONTINUATION
            add(self.stream, self._marker, self._marker.decode(errors="replace"), self._omitted)
            self._omitted = 0
        skipped = min(self._skip, length)
        self._skip -= skipped
        length -= skipped
        tail, self._tail = self._tail[:length], self._tail[length:]
        if tail:
            continued = continuation_len(tail, self._continuation)
            left = self._continuation - continued
            self._continuation = left if continued == len(tail) else 0
            add(self.stream, tail, self._decoder.decode(tail[continued:]), 0)

    def rest(self) -> str:
        return "\ufffd" if self._decoder.take_incomplete() else ""


def _pieces(
    order: list[int], cuts: tuple[Cut, Cut], kept: tuple[bytes, bytes]
) -> list[OutputPiece]:
    pieces: list[OutputPiece] = []
    streams = [_Unread(stream, cuts[stream], kept[stream]) for stream in (0, 1)]

    def add(stream: int, data: bytes, text: str, omitted: int) -> None:
        pieces.append(OutputPiece(STREAMS[stream], data, text, omitted))  # type: ignore[arg-type]

    for stream, length in ArrivalOrder(order).runs():
        streams[stream].take(length, add)
    for unread in streams:
        if rest := unread.rest():
            # An incomplete character at the end belongs to the stream's last piece.
            at = max(i for i, each in enumerate(pieces) if each.stream == STREAMS[unread.stream])
            pieces[at] = pieces[at]._replace(text=pieces[at].text + rest)
    return pieces
