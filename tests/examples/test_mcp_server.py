# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MCP server example serves the official SDK's client, and ends with it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

SERVER = str(Path(__file__).resolve().parents[2] / "examples/mcp_server.py")
TIMEOUT_S = 60

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


def connected(test: Callable[[Client], Awaitable[None]], directory: Path) -> None:
    """Runs a test with a client of a new server."""

    async def main() -> None:
        server = StdioServerParameters(command=sys.executable, args=[SERVER, str(directory)])
        with anyio.fail_after(TIMEOUT_S):
            async with Client(stdio_client(server)) as client:
                await test(client)

    anyio.run(main)


async def call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def is_alive(pid: int) -> bool:
    """Returns whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def ended(*pids: int) -> None:
    """Waits until these processes have ended. The test's timeout bounds the wait."""
    while any(map(is_alive, pids)):
        await anyio.sleep(0.01)


async def pid_in(file: Path) -> int:
    """Waits for the pid that a program writes to a file, with a newline."""
    while not (file.exists() and file.read_text().endswith("\n")):
        await anyio.sleep(0.01)
    return int(file.read_text())


def test_both_tools_answer(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"exec", "shell"}
        answer = await call(client, "exec", argv=["cat"], input="hello")
        assert (answer["code"], answer["stop"], answer["shell_code"]) == (
            0,
            "exited",
            None,
        )
        assert (answer["stdout"], answer["stderr"]) == ("hello", "")
        await call(client, "shell", command="mkdir src && cd src && export X=kept")
        answer = await call(client, "shell", command="echo $X; pwd >&2; exit 3")
        assert answer == {
            "code": None,
            "stop": "lost",
            "shell_code": 3,
            "stdout": "kept\n",
            "stderr": f"{tmp_path}/src\n",
        }
        # A new shell replaces the one that has exited, in the same directory.
        assert (await call(client, "shell", command="pwd"))["stdout"] == f"{tmp_path}/src\n"

    connected(test, tmp_path)


def test_failures_are_answers_or_errors_in_one_sentence(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        answer = await call(client, "exec", argv=["sleep", "600"], timeout=0.1)
        assert (answer["code"], answer["stop"]) == (None, "timeout")
        answer = await call(client, "shell", command="echo begun; sleep 600", timeout=1)
        assert (answer["stop"], answer["stdout"]) == ("timeout", "begun\n")
        errors: list[tuple[dict[str, Any], str]] = [
            ({"argv": ["no-such-tool"]}, "no-such-tool: not found in PATH"),
            ({"argv": ["true"], "timeout": -1}, "greater than or equal to 0"),
            (
                {"argv": ["true"], "cwd": "/no/such"},
                "no such working directory: /no/such",
            ),
        ]
        for arguments, message in errors:
            result = await client.call_tool("exec", arguments)
            content: Any = result.content[0]
            assert result.is_error
            assert message in content.text

    connected(test, tmp_path)


def test_cancelled_call_ends_its_program(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        command = "echo $$ >pid; exec sleep 600"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "exec", {"argv": ["sh", "-c", command]})
            pid = await pid_in(tmp_path / "pid")
            tasks.cancel_scope.cancel()
        await ended(pid)
        assert (await call(client, "exec", argv=["echo", "alive"]))["stdout"] == "alive\n"

    connected(test, tmp_path)


def test_200_parallel_calls(tmp_path: Path) -> None:
    answers: dict[str, list[str]] = {"exec": [], "shell": []}

    async def test(client: Client) -> None:
        async def one(tool: str, arguments: dict[str, Any]) -> None:
            answers[tool].append((await call(client, tool, **arguments))["stdout"])

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, "exec", {"argv": ["echo", str(number)]})
                tasks.start_soon(one, "shell", {"command": "echo $((count++))"})

    connected(test, tmp_path)
    numbers = [f"{number}\n" for number in range(100)]
    assert sorted(answers["exec"]) == sorted(answers["shell"]) == sorted(numbers)


@asynccontextmanager
async def raw_server(directory: Path) -> AsyncGenerator[sf.Job]:
    """Starts the server without the SDK's client, and performs the handshake."""
    async with sf.start([sys.executable, SERVER, str(directory)], stdin="stream") as server:
        parameters = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        await send(server, method="initialize", params=parameters, id=0)
        assert await server.wait_for('"protocolVersion"', timeout=TIMEOUT_S)
        await send(server, method="notifications/initialized")
        yield server


async def send(server: sf.Job, **message: object) -> None:
    await server.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


async def send_exec(server: sf.Job, command: str) -> None:
    arguments = {"argv": ["sh", "-c", command]}
    await send(
        server,
        method="tools/call",
        params={"name": "exec", "arguments": arguments},
        id=1,
    )


def test_garbage_on_stdin_does_not_end_the_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(tmp_path) as server:
            for garbage in [
                b"",
                b"no json",
                b"\xff\xfe\x00",
                b'{"jsonrpc": "2.0"}',
                b"[" * 9999,
            ]:
                await server.write(garbage + b"\n")
            await send_exec(server, "echo answer")
            assert await server.wait_for('"stdout":"answer', timeout=TIMEOUT_S)
            server.close_stdin()
            assert (await server.result()).code == 0

    anyio.run(main)


# A client of the SDK that waits for a call until it is killed.
CLIENT = """
import sys
import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

async def main():
    server = StdioServerParameters(command=sys.executable, args=sys.argv[1:])
    async with Client(stdio_client(server)) as client:
        async with anyio.create_task_group() as tasks:
            run = "echo $$ >exec; echo $PPID >server; exec sleep 600"
            tasks.start_soon(client.call_tool, "exec", {"argv": ["sh", "-c", run]})
            run = "sleep 600 & echo $! >background; echo $$ >shell; sleep 600"
            tasks.start_soon(client.call_tool, "shell", {"command": run})

anyio.run(main)
"""


def test_server_and_its_programs_end_with_a_killed_client(tmp_path: Path) -> None:
    async def main() -> None:
        client = await sf.start([sys.executable, "-c", CLIENT, SERVER, str(tmp_path)], tree="group")
        names = ["server", "exec", "shell", "background"]
        pids = [await pid_in(tmp_path / name) for name in names]
        client.signal(signal.SIGKILL)
        await ended(*pids)
        await client.stop()

    anyio.run(main)


def test_programs_end_with_a_killed_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with raw_server(tmp_path) as server:
            await send_exec(server, "echo $$ >pid; exec sleep 600")
            pid = await pid_in(tmp_path / "pid")
            os.kill(server.pid, signal.SIGKILL)
            await ended(pid)

    anyio.run(main)
