# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's end of a worker process, which is told what to do line by line."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import BenchError

BENCH = Path(__file__).resolve().parents[1]
REPLY_DEADLINE_S = 600.0


def environment(suite: str) -> dict[str, str]:
    """This process's environment, and where a suite's Python worker finds its modules."""
    paths = [str(BENCH), str(BENCH / suite), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


class Worker:
    """One child process that answers lines of JSON with lines of JSON.

    As a context it is finished at the end, and reaped on any way out.
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

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.abandon()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def tell(self, **fields: Any) -> None:
        """Sends one order."""
        try:
            self._stdin.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            self.hear("anything")  # its last line says why it ended
            raise

    def hear(self, key: str) -> dict[str, Any]:
        """The next line, which must have `key`; an error line is raised."""
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
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            raise BenchError(f"{self.what}: said {line[:200]!r}") from None
        if "error" in reply:
            raise BenchError(f"{self.what}: {reply['error']}")
        if key not in reply:
            raise BenchError(f"{self.what}: said {reply}, not {key}")
        return reply

    def finish(self) -> None:
        """Asks it to end, and reaps it."""
        self.tell(do="finish")
        self.hear("finished")
        self._stdin.close()
        code = self._process.wait(timeout=60)
        if code != 0:
            raise BenchError(f"{self.what}: exit code {code}")

    def abandon(self) -> None:
        """Ends it whatever it does, and reaps it; harmless after finish()."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
