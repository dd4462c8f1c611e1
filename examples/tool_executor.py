# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the tool calls of an agent, with time limits, bounded output and cancellation.

    pip install spawnfd
    python tool_executor.py

A model asks for programs. Each call gets an answer of bounded size and in bounded time. A program
that fails, hangs, writes without end or does not exist is an answer for the model, not an error of
the agent. If the agent cancels a call or ends in any way, the call's processes end, too.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import spawnfd as sf


class ToolExecutor:
    """Runs programs in one directory, at most `parallel` of them at once."""

    def __init__(self, workspace: Path, parallel: int = 8) -> None:
        self._workspace = workspace
        self._limiter = sf.Limiter(parallel)
        # The programs do not see the agent's credentials, and do not prompt, page or colour.
        secrets = ["*_TOKEN", "*_KEY", "*SECRET*", "*PASSWORD*"]
        self._env = sf.Env.inherit(deny=secrets).noninteractive()
        # "best-effort": where no cgroup is available, rlimits and the library enforce the limits.
        self._limits = sf.Limits(pids=256, cpu_time=300, enforce="best-effort")

    async def call(self, argv: list[str], *, timeout: float = 60) -> str:
        """Runs one program, and returns the text for the model.

        If the task is cancelled, this ends the program and its process tree before it raises.
        """
        try:
            result = await sf.run_async(
                argv,
                cwd=self._workspace,
                env=self._env,
                timeout=timeout,  # then SIGTERM to the process tree,
                grace=2,  # and SIGKILL 2 s later
                stderr="merge",
                keep=(2_000, 2_000),  # bytes of the output's beginning and end
                output_limit=64 << 20,  # ends a program that writes without end
                limits=self._limits,
                limiter=self._limiter,
            )
        except sf.SpawnError as error:
            return f"[not started: {error.message}]"
        return describe(result)


def describe(result: sf.Result) -> str:
    """Returns the output, and a last line that says how the program ended unless its code is 0."""
    if result.stop != "exited":
        end = f"[stopped: {result.stop}]\n"
    elif result.signal is not None:
        end = f"[ended by signal {result.signal}]\n"
    elif result.code != 0:
        end = f"[exit code {result.code}]\n"
    else:
        end = ""
    text = result.text
    return text + ("\n" if text and not text.endswith("\n") else "") + end


async def main() -> None:
    with tempfile.TemporaryDirectory() as workspace:
        tools = ToolExecutor(Path(workspace))
        calls = {
            "answers": tools.call(["echo", "hello"]),
            "fails": tools.call(["sh", "-c", "echo oops >&2; exit 3"]),
            "is missing": tools.call(["no-such-tool"]),
            "hangs": tools.call(["sh", "-c", "echo working; sleep 600"], timeout=1),
            "floods": tools.call(["yes"]),
            "writes much": tools.call(["seq", "100000"]),
        }
        for name, answer in zip(calls, await asyncio.gather(*calls.values()), strict=True):
            lines = answer.splitlines()
            if len(lines) > 3:
                lines = [lines[0], "...", lines[-1]]
            print(f"{name}: {' | '.join(lines)}")

        # The user presses "stop": the task ends once the program's processes have ended.
        task = asyncio.create_task(tools.call(["sleep", "600"]))
        await asyncio.sleep(0.1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled")


if __name__ == "__main__":
    asyncio.run(main())
