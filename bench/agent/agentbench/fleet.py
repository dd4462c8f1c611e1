# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side: worker processes of a backend (or the C floor), kept over all rounds."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .backends import FLOOR
from .calls import share
from .errors import BenchError
from .reference import Reference

REPLY_DEADLINE_S = 600.0
PACKAGE_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Setting:
    """What all backends of a benchmark share."""

    references: Mapping[str, Reference]
    env: Mapping[str, str]
    cwd: Path
    scratch: Path
    floor_program: Path | None


@dataclass
class Timing:
    """One slice on one backend."""

    calls: int
    seconds: float
    cpu_seconds: float
    started: Counter[str] = field(default_factory=Counter)


class Worker:
    """One child process that speaks the line protocol of worker.py."""

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


class Fleet:
    """The worker processes of one backend in one harness and split."""

    def __init__(
        self, setting: Setting, harness: str, backend: str, workers: int, in_flight: int
    ) -> None:
        self.backend = backend
        self._workers: list[Worker] = []
        what = f"{backend} under {harness}, {workers}x{in_flight}"
        try:
            for number in range(workers):
                if backend == FLOOR:
                    command, env = self._floor_command(setting, in_flight)
                else:
                    command, env = self._python_command(setting, harness, backend, in_flight)
                self._workers.append(Worker(f"{what}, worker {number}", command, env))
        except BaseException:
            self.abandon()
            raise

    @staticmethod
    def _python_command(
        setting: Setting, harness: str, backend: str, in_flight: int
    ) -> tuple[list[str], dict[str, str]]:
        job = setting.scratch / f"job-{harness}-{backend}-{in_flight}.json"
        if not job.exists():
            job.write_text(
                json.dumps(
                    {
                        "harness": harness,
                        "backend": backend,
                        "in_flight": in_flight,
                        "cwd": str(setting.cwd),
                        "env": dict(setting.env),
                        "references": [_plain(ref) for ref in setting.references.values()],
                    }
                ),
                encoding="utf-8",
            )
        paths = [str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        return [sys.executable, "-m", "agentbench.worker", str(job)], env

    @staticmethod
    def _floor_command(setting: Setting, in_flight: int) -> tuple[list[str], dict[str, str]]:
        if setting.floor_program is None:
            raise BenchError("the C floor was not built")
        calls = setting.scratch / "floor.calls"
        if not calls.exists():
            calls.write_bytes(floor_calls(setting))
        return [str(setting.floor_program), str(calls), str(in_flight)], dict(os.environ)

    def wait_ready(self) -> None:
        """Returns once every worker has its harness and backend."""
        for worker in self._workers:
            worker.hear("hello")

    def run(self, part: Sequence[str]) -> Timing:
        """Runs one slice on all workers at once; the time is from "go" to the last worker's end."""
        count = len(self._workers)
        for number, worker in enumerate(self._workers):
            worker.tell(do="prepare", calls=share(part, number, count))
        for worker in self._workers:
            worker.hear("ready")
        begin_ns = time.monotonic_ns()
        for worker in self._workers:
            worker.tell(do="go")
        replies = [worker.hear("end_ns") for worker in self._workers]
        timing = Timing(
            calls=sum(reply["calls"] for reply in replies),
            seconds=(max(reply["end_ns"] for reply in replies) - begin_ns) / 1e9,
            cpu_seconds=sum(reply["cpu_s"] for reply in replies),
        )
        for reply in replies:
            timing.started.update(reply["started"])
        if timing.calls != len(part):
            raise BenchError(f"{self.backend}: {len(part)} calls asked, {timing.calls} made")
        return timing

    def finish(self) -> None:
        """Ends the workers in good order."""
        for worker in self._workers:
            worker.finish()

    def abandon(self) -> None:
        """Ends them in any order."""
        for worker in self._workers:
            worker.abandon()


def _plain(reference: Reference) -> dict[str, Any]:
    return {
        "name": reference.name,
        "argv": list(reference.argv),
        "code": reference.code,
        "stdout": reference.stdout.decode("latin-1"),
        "stderr": reference.stderr.decode("latin-1"),
    }


def floor_calls(setting: Setting) -> bytes:
    """The call list for floor.c: counted strings, one a line, so that any byte may occur."""
    lines: list[bytes] = [b"spawnfd-floor 1"]

    def string(data: bytes) -> None:
        lines.append(b"%d %s" % (len(data), data))

    string(os.fsencode(setting.cwd))
    lines.append(b"%d" % len(setting.env))
    for name, value in setting.env.items():
        string(os.fsencode(f"{name}={value}"))
    lines.append(b"%d" % len(setting.references))
    for reference in setting.references.values():
        string(reference.name.encode())
        lines.append(b"%d" % reference.code)
        string(reference.stdout)
        string(reference.stderr)
        lines.append(b"%d" % len(reference.argv))
        for word in reference.argv:
            string(os.fsencode(word))
    return b"\n".join(lines) + b"\n"
