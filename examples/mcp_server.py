# SPDX-License-Identifier: MIT OR Apache-2.0
"""An MCP server with two tools: `exec` runs a program, and `shell` a command in a lasting bash.

    pip install spawnfd mcp
    python mcp_server.py [DIRECTORY]    # speaks MCP on its standard input and output

Every call has a timeout, and its output is bounded. If the client cancels a call, closes the
connection or is killed, the server ends the processes of the calls. If the server itself is killed,
spawnfd's guard ends them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated

import anyio
import spawnfd as sf
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

ENV = sf.Env.inherit(deny=["*_TOKEN", "*_KEY", "*SECRET*", "*PASSWORD*"]).noninteractive()
KEEP = (16_000, 16_000)
Timeout = Annotated[float, Field(ge=0, le=3600, description="Seconds.")]


class Answer(BaseModel):
    """What a tool returns. A program that fails or times out is an answer, not an error."""

    code: int | None = Field(description="The exit code. Null if a signal ended the program.")
    stop: str = Field(description='"exited", or why the program was ended, such as "timeout".')
    shell_code: int | None = Field(description="The exit code of a shell that the command ended.")
    stdout: str
    stderr: str


def answer(result: sf.Result) -> Answer:
    return Answer(
        code=result.code,
        stop=result.stop,
        shell_code=result.shell_code,
        stdout=result.text,
        stderr=result.stderr_text,
    )


@contextmanager
def errors_for_the_model() -> Generator[None]:
    """Reports a program that cannot be started to the client, in one sentence."""
    try:
        yield
    except sf.SpawnError as error:
        raise ToolError(error.message) from error


@dataclass
class Tools:
    """What the server has while a client is connected."""

    session: sf.Session
    # A shell runs one command at a time.
    lock: anyio.Lock
    # The number of programs that `exec` runs at once. Further calls wait.
    limiter: sf.Limiter


@asynccontextmanager
async def lifespan(_server: MCPServer[Tools]) -> AsyncGenerator[Tools]:
    """Opens the shell, and closes it when the client has gone."""
    # With `restart`, a command after "exit" gets a new shell in the same directory.
    async with sf.Session("bash", env=ENV, restart=True) as session:
        yield Tools(session, anyio.Lock(), sf.Limiter(2 * (os.cpu_count() or 1)))


server = MCPServer("spawnfd", lifespan=lifespan)


@server.tool(name="exec")
async def execute(
    context: Context[Tools],
    argv: list[str],
    cwd: str | None = None,
    input: str | None = None,
    timeout: Timeout = 60,
) -> Answer:
    """Runs a program with arguments, without a shell."""
    with errors_for_the_model():
        result = await sf.run_async(
            argv,
            cwd=cwd,
            env=ENV,
            input=input,
            timeout=timeout,
            keep=KEEP,
            limiter=context.request_context.lifespan_context.limiter,
        )
    return answer(result)


@server.tool()
async def shell(context: Context[Tools], command: str, timeout: Timeout = 60) -> Answer:
    """Runs a command in a bash that keeps its directory and variables between calls."""
    tools = context.request_context.lifespan_context
    with errors_for_the_model():
        async with tools.lock:
            result = await tools.session.run(command, timeout=timeout, keep=KEEP)
    return answer(result)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
    server.run("stdio")
