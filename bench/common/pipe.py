# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side of a worker process, which reads one order per line."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from .errors import BenchError

BENCH = Path(__file__).resolve().parents[1]
REPLY_DEADLINE_S = 600.0
END_S = 60


def environment(suite: str) -> dict[str, str]:
    """Returns this process's environment, with a PYTHONPATH for a suite's Python worker."""
    paths = [str(BENCH), str(BENCH / suite), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


class Worker:
    """A child process that answers each line of JSON with a line of JSON.

    As a context manager, finishes the worker at the end, and reaps it in any case.
    """

    def __init__(self, what: str, command: list[str], env: Mapping[str, str]) -> None:
        self.what = what
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env)
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self._pending = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.abandon()

    @property
    def pid(self) -> int:
        """The worker's pid."""
        return self._process.pid

    def send(self, **fields: Any) -> None:
        """Sends one order."""
        try:
            self._stdin.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            self.receive("anything")  # raises the error in the worker's last line, if there is one
            raise

    def receive_line(self) -> Any:
        """Reads the next line, and returns its JSON."""
        deadline = time.monotonic() + REPLY_DEADLINE_S
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._stdout], [], [], left)[0]:
                raise BenchError(f"{self.what}: no answer for {REPLY_DEADLINE_S:.0f} s")
            chunk = os.read(self._stdout.fileno(), 1 << 16)
            if not chunk:
                raise BenchError(f"{self.what}: ended early, exit code {self._process.wait()}")
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        try:
            return json.loads(line)
        except ValueError:
            raise BenchError(f"{self.what}: no JSON: {line[:200]!r}") from None

    def receive(self, key: str) -> dict[str, Any]:
        """Reads the next line, which must have `key`. If the line reports an error, raises it."""
        reply: dict[str, Any] = self.receive_line()
        if "error" in reply:
            raise BenchError(f"{self.what}: {reply['error']}")
        if key not in reply:
            raise BenchError(f"{self.what}: expected {key}, got {reply}")
        return reply

    def finish(self) -> None:
        """Orders the worker to end, and reaps it."""
        self.send(do="finish")
        self.receive("finished")
        self._stdin.close()
        code = self._process.wait(timeout=END_S)
        if code != 0:
            raise BenchError(f"{self.what}: exit code {code}")

    def abandon(self) -> None:
        """Kills the worker if it still runs, and reaps it. Does nothing after finish()."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class EofWorker(Worker):
    """A worker that exits at the end of its stdin."""

    def finish(self) -> None:
        """Closes the worker's stdin, and reaps the worker."""
        self._stdin.close()
        if code := self._process.wait(timeout=END_S):
            raise BenchError(f"{self.what}: exit code {code}")
