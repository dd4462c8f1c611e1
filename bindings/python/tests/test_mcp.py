# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MCP SDK's client and server talk over jobs, and over the subprocesses of install()."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
from anyio.streams.text import TextReceiveStream

pytest.importorskip("mcp", reason="the MCP SDK is not installed")

from mcp import Client, types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("test")

@server.tool()
def repeat(text: str, times: int) -> str:
    return text * times

server.run("stdio")
"""

# Longer than the default limit of a line.
LONG = 200_000


@pytest.fixture
def server(tmp_path: Path) -> Path:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return script


async def use(transport: Any) -> None:
    """Calls the server's tool, also with a long answer."""
    async with Client(transport) as client:
        for times in [1, 3, LONG]:
            result = await client.call_tool("repeat", {"text": "a", "times": times})
            content: Any = result.content[0]
            assert content.text == "a" * times


@asynccontextmanager
async def over_job(job: sf.Job) -> AsyncGenerator[Any]:
    """Connects a client to a job. This is what the SDK's stdio_client() does with its process."""
    stream = job.anyio_stream()
    to_client, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        rest = ""
        async with to_client:
            async for text in TextReceiveStream(stream):
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await to_client.send(SessionMessage(message))

    async def send() -> None:
        async with from_client:
            async for sent in from_client:
                json = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stream.send(f"{json}\n".encode())

    async with anyio.create_task_group() as tasks, read_stream, write_stream:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        yield read_stream, write_stream
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.full)])
def test_client_talks_to_a_server_over_a_job(server: Path, backend: str) -> None:
    async def main() -> None:
        command = [sys.executable, str(server)]
        async with sf.start(command, stdin="stream", stderr="inherit") as job:
            await use(over_job(job))

    anyio.run(main, backend=backend)


def test_stdio_client_of_the_sdk_runs_under_install(server: Path) -> None:
    async def main() -> None:
        await use(stdio_client(StdioServerParameters(command=sys.executable, args=[str(server)])))

    made = sf.stats().made
    sf.install()
    try:
        anyio.run(main)
        assert sf.stats().made == made + 1
    finally:
        sf.uninstall()
