# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commands in one bash that pexpect's REPLWrapper drives through a pseudoterminal."""

import time
from collections.abc import Mapping
from typing import Any

from common.errors import BenchError
from common.methods import Argvs, Made, Runner

PROMPT_CHANGE = "PS1='{0}' PS2='{1}' PROMPT_COMMAND=''"
TIMEOUT_S = 60


class Repl(Runner):
    """Runs calls of the form `bash -c TEXT` as commands of one shell.

    REPLWrapper has one stream for stdout and stderr, and no status. The status of the last command
    of a run stands for all of them.
    """

    def __init__(self, cwd: str, env: Mapping[str, str]) -> None:
        super().__init__()
        self._cwd, self._env = cwd, env
        self._wrapper: Any = None

    def _open(self, shell: str) -> Any:
        from pexpect import replwrap, spawn  # type: ignore[import-untyped]

        child = spawn(
            shell,
            ["--noprofile", "--norc", "--noediting"],
            cwd=self._cwd,
            env=dict(self._env),
            echo=False,
            encoding="utf-8",
            timeout=TIMEOUT_S,
        )
        # By default pexpect sleeps 50 ms before each write.
        child.delaybeforesend = None
        return replwrap.REPLWrapper(child, r"[$#] ", PROMPT_CHANGE)

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        """Runs the commands; answers come in their order."""
        first_begin = time.monotonic_ns()
        self._wrapper = self._wrapper or self._open(calls[0][0])
        outputs: list[str] = []
        ns: list[int] = []
        for _, _, text in calls:
            begin = time.monotonic_ns()
            outputs.append(self._wrapper.run_command(text))
            ns.append(time.monotonic_ns() - begin)
        status = self._wrapper.run_command("echo $?").strip()
        end = time.monotonic_ns()
        if not status.isdigit():
            raise BenchError(f"pexpect: the shell printed {status!r} instead of a status")
        # The terminal writes "\r\n" for each newline.
        streams = [output.replace("\r\n", "\n").encode() for output in outputs]
        answers = [(int(status), stream, b"") for stream in streams]
        return Made(answers, ns, first_begin, end)

    def close(self) -> None:
        """Ends the shell."""
        if self._wrapper:
            self._wrapper.child.close(force=True)
