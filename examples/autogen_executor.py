# SPDX-License-Identifier: MIT OR Apache-2.0
"""A CodeExecutor for AutoGen that runs code blocks of Python and of a shell.

    pip install spawnfd autogen-core
    python autogen_executor.py

Pass it to CodeExecutorAgent or PythonCodeExecutionTool, in place of LocalCommandLineCodeExecutor.
This executor also ends the processes that the code has started, and bounds the output. It is no
sandbox: to add one, see the `sandbox` argument of spawnfd.run().
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import spawnfd as sf
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

INTERPRETERS = {
    "python": ([sys.executable], ".py"),
    "py": ([sys.executable], ".py"),
    "bash": (["bash"], ".sh"),
    "sh": (["sh"], ".sh"),
}


class SpawnfdCodeExecutor(CodeExecutor):
    """Runs each code block as a program, in a temporary directory of its own."""

    def __init__(self, timeout: float = 60) -> None:
        self._timeout = timeout
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Creates the directory, which all code blocks share."""
        self._directory = tempfile.TemporaryDirectory()

    async def stop(self) -> None:
        """Removes the directory."""
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    async def restart(self) -> None:
        """Gives the next code blocks an empty directory."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Runs the blocks one after the other, up to the first that fails.

        As in AutoGen's own executors, the exit code is 124 after a timeout.
        """
        output = ""
        for number, block in enumerate(code_blocks):
            # The token cancels this task, and the task ends the program's process tree.
            task = asyncio.ensure_future(self._execute(number, block))
            cancellation_token.link_future(task)
            result = await task
            output += result.text
            if result.stop == "timeout":
                return CodeResult(exit_code=124, output=output + "\nTimeout")
            if not result.ok:
                code = result.code if result.code is not None else 128 + (result.signal or 0)
                return CodeResult(exit_code=code, output=output)
        return CodeResult(exit_code=0, output=output)

    async def _execute(self, number: int, block: CodeBlock) -> sf.Result:
        if self._directory is None:
            raise RuntimeError("the executor is not started")
        if (language := block.language.lower()) not in INTERPRETERS:
            raise ValueError(f"unknown language: {block.language}")
        command, suffix = INTERPRETERS[language]
        script = Path(self._directory.name, f"block{number}{suffix}")
        script.write_text(block.code)
        return await sf.run_async(
            [*command, str(script)],
            cwd=self._directory.name,
            env=sf.Env.inherit(deny=["*_TOKEN", "*_KEY"]).noninteractive(),
            timeout=self._timeout,
            stderr="merge",
            keep=(16_000, 16_000),
        )


async def main() -> None:
    async with SpawnfdCodeExecutor(timeout=10) as executor:
        blocks = [
            CodeBlock(code="print(6 * 7, file=open('answer', 'w'))", language="python"),
            CodeBlock(code="cat answer; exit 3", language="bash"),
        ]
        print(await executor.execute_code_blocks(blocks, CancellationToken()))


if __name__ == "__main__":
    asyncio.run(main())
