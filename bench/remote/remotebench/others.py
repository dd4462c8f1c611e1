# SPDX-License-Identifier: MIT OR Apache-2.0
"""Calls by other libraries: execnet's worker behind a pipe, and SWE-ReX's server over HTTP."""

import asyncio
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from common.errors import BenchError
from common.methods import Answer

START_TIMEOUT_S = 60.0


# The program of the worker process.
EXECNET_WORKER = """
import subprocess

for argv, cwd, env in channel:
    done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    channel.send((done.returncode, done.stdout, done.stderr))
"""


class Execnet:
    """One worker process of execnet, which runs programs by subprocess.run."""

    def __init__(self, cwd: str, env: Mapping[str, str]) -> None:
        self._group = import_module("execnet").Group()
        self._channel = self._group.makegateway("popen").remote_exec(EXECNET_WORKER)
        self._cwd, self._env = cwd, dict(env)

    def run(self, argv: list[str]) -> Answer:
        """Makes a call."""
        self._channel.send((argv, self._cwd, self._env))
        code, stdout, stderr = self._channel.receive(timeout=START_TIMEOUT_S)
        return code, stdout, stderr

    def close(self) -> None:
        """Ends the worker."""
        self._channel.close()
        self._group.terminate(timeout=START_TIMEOUT_S)


class SweRex:
    """The server of SWE-ReX on the loopback interface, and its client."""

    def __init__(self, cwd: str, env: Mapping[str, str]) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        token = secrets.token_hex()
        argv = [sys.executable, "-m", "swerex.server", "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--auth-token", token]
        null = subprocess.DEVNULL
        self._server = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
        self._cwd, self._env, self._port, self._token = cwd, dict(env), port, token
        self._runtime: Any = None

    async def _open(self) -> Any:
        remote = import_module("swerex.runtime.remote")
        config = remote.RemoteRuntimeConfig(
            auth_token=self._token, host="http://127.0.0.1", port=self._port, timeout=10
        )
        runtime = remote.RemoteRuntime.from_config(config)
        until = time.monotonic() + START_TIMEOUT_S
        while not (await runtime.is_alive(timeout=1)).is_alive:
            if self._server.poll() is not None or time.monotonic() > until:
                raise BenchError("the server of SWE-ReX does not start")
            await asyncio.sleep(0.1)
        return runtime

    async def run(self, argv: list[str]) -> Answer:
        """Makes a call."""
        command = import_module("swerex.runtime.abstract").Command
        if self._runtime is None:
            self._runtime = await self._open()
        done = await self._runtime.execute(command(command=argv, cwd=self._cwd, env=self._env))
        return done.exit_code, done.stdout.encode(), done.stderr.encode()

    def close(self) -> None:
        """Ends the server."""
        self._server.kill()
        self._server.wait()
