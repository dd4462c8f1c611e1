# SPDX-License-Identifier: MIT OR Apache-2.0
"""A LangChain tool that runs a program.

    pip install spawnfd langchain-core
    python langchain_tool.py

Give it to a model with `model.bind_tools([run_program])`, or to an agent. `invoke` blocks its
thread, and `ainvoke` is for asyncio. The example calls the tool as an agent does, without a model.
"""

from __future__ import annotations

import asyncio

import spawnfd as sf
from langchain_core.messages import ToolCall
from langchain_core.tools import StructuredTool


def options(timeout: float) -> sf.RunOptions:
    return sf.RunOptions(
        env=sf.Env.inherit(deny=["*_TOKEN", "*_KEY"]).noninteractive(),
        timeout=timeout,
        stderr="merge",
        keep=(4_000, 4_000),
    )


def describe(result: sf.Result) -> str:
    return f"{result.text}[code: {result.code}, stop: {result.stop}]"


def run(argv: list[str], timeout: float = 60) -> str:
    """Runs a program, without a shell, and returns its output, exit code and stop reason."""
    try:
        return describe(sf.run(argv, **options(timeout)))
    except sf.SpawnError as error:
        return f"[not started: {error.message}]"


async def run_async(argv: list[str], timeout: float = 60) -> str:
    """The same for asyncio. A cancelled task ends the program's process tree."""
    try:
        return describe(await sf.run_async(argv, **options(timeout)))
    except sf.SpawnError as error:
        return f"[not started: {error.message}]"


run_program = StructuredTool.from_function(run, run_async, name="run_program")


async def main() -> None:
    args = {"argv": ["echo", "hello"], "timeout": 10}
    call = ToolCall(type="tool_call", name="run_program", args=args, id="call-1")
    print((await run_program.ainvoke(call)).content)
    print(run_program.invoke({"argv": ["sleep", "600"], "timeout": 0.5}))


if __name__ == "__main__":
    asyncio.run(main())
